"""The mark of the tests that need a model file, which ordinary runs skip and say so."""


def pytest_configure(config):
    config.addinivalue_line("markers", "model: fetches a model of 93 MB; ask for it with -m model")
