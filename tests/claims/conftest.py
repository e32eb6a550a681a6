"""What the tests of claims found is kept: notebook 14 reads it in the same `make test` and need not ask again."""

import pytest

from fdmath.claims.report import Report, store

RECORDS = pytest.StashKey()


def pytest_configure(config):
    config.stash[RECORDS] = []


@pytest.fixture
def keep(request):
    """A function of an Outcome, which is then among those stored when all tests are done."""
    return lambda outcome: request.config.stash[RECORDS].append(outcome.record())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """A worker of pytest-xdist has ended: what it kept is handed on."""
    node.config.stash[RECORDS].extend(getattr(node, "workeroutput", {}).get("claims", []))


def pytest_sessionfinish(session):
    """In a worker the records are put with what it returns; else they are stored, if no claim is missing."""
    rows = session.config.stash[RECORDS]
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["claims"] = rows
        return
    try:
        store(Report.of_records(rows))
    except KeyError:
        pass  # only some of the claims were asked
