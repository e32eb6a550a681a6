"""A headless Chromium that opens pages from disk, and what it saw there."""

import os
import shutil
import subprocess
import sys

import pytest


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium (selenium's driver); the tests are skipped, and say so, where a part of it is missing."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is missing: the [test] extra has it")
    chromium = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
    driver = shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("no chromium with chromedriver here (on Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-gpu"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    os.environ["SE_OFFLINE"] = "true"  # selenium looks for no driver elsewhere
    with webdriver.Chrome(options, webdriver.ChromeService(driver)) as chrome:
        chrome.set_script_timeout(60)
        yield chrome


@pytest.fixture(scope="session")
def book(root, tmp_path_factory):
    """The folder of the book, built for these tests without a warning; skipped where the [docs] extra is missing."""
    building = pytest.importorskip("fdmath.workshop.book", reason="the [docs] extra is not installed")
    try:
        building.mathjax()
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not installed: the [docs] extra brings it")
    out = tmp_path_factory.mktemp("book") / "book"
    command = [sys.executable, "-m", "fdmath", "book", "--out", str(out)]
    done = subprocess.run(command, cwd=root, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    return out
