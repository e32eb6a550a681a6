"""The book in a browser, opened from disk: nothing from elsewhere, nothing raw, nothing wide, nothing pale."""

import re

import pytest

from tests.book.pages import DESKTOP, PHONE, Seen, emulate, look, open_page

ELSEWHERE = re.compile(r'<(?:script|link|img|iframe|source|video|audio)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"')
IMPORTED = re.compile(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//")


@pytest.fixture(scope="module")
def lessons(root):
    """The names of the lessons, in order."""
    return [path.stem for path in sorted((root / "notebooks").glob("*.ipynb"))]


@pytest.fixture(scope="module")
def pages(book):
    """The path of every page, by its name in the book."""
    return {path.relative_to(book).as_posix(): path for path in sorted(book.rglob("*.html"))}


@pytest.fixture(scope="module")
def seen(browser, pages):
    """What was wrong with each page of Sphinx's; the page that comes with a test of its own is left out."""
    return {name: look(browser, path) for name, path in pages.items() if not name.startswith("merge-by-hand/")}


def test_every_notebook_and_document_has_its_page(pages, lessons, root):
    documents = {path.stem for path in (root / "docs").glob("*.md")}
    assert set(pages) >= {f"lessons/{stem}.html" for stem in lessons} | {f"{stem}.html" for stem in documents}
    assert len(lessons) > 12


@pytest.mark.parametrize("kind", Seen._fields)
def test_no_page_has(seen, kind):
    assert {name: getattr(what, kind) for name, what in seen.items() if getattr(what, kind)} == {}


def test_no_page_names_an_address_to_load(book):
    texts = {path: path.read_text(encoding="utf-8") for path in book.rglob("*") if path.suffix in (".html", ".css")}
    assert {str(path): ELSEWHERE.findall(text) for path, text in texts.items() if ELSEWHERE.search(text)} == {}
    assert [str(path) for path, text in texts.items() if IMPORTED.search(text)] == []


def test_every_link_inside_the_book_leads_somewhere(pages):
    broken = []
    for name, path in pages.items():
        for href in re.findall(r'<a [^>]*href="([^"#:]+)[#"]', path.read_text(encoding="utf-8")):
            broken += [] if (path.parent / href.partition("?")[0]).is_file() else [(name, href)]
    assert broken == []


def test_formulas_are_typeset_and_figures_shown(browser, pages):
    open_page(browser, pages["lessons/04_the_lse_pair.html"])
    count = "return document.querySelectorAll(arguments[0]).length"
    assert browser.execute_script(count, ".math mjx-container svg") > 100
    assert browser.execute_script(count, ".cell_output img[alt]") > 4
    assert browser.execute_script(count, ".cell_output img[alt] ~ .sentence") == \
        browser.execute_script(count, ".cell_output img[alt]")


def test_a_document_that_a_lesson_names_by_its_path_is_a_link(pages):
    text = pages["lessons/00_start_here.html"].read_text(encoding="utf-8")
    assert 'href="../glossary.html"><code' in text and 'href="../cheatsheet.html"><code' in text


@pytest.mark.parametrize("width", [1080, 1320, 1440, 1560])
def test_nothing_lies_beyond_the_edge_of_a_desktop(browser, pages, width):
    emulate(browser, DESKTOP | {"width": width})
    open_page(browser, pages["lessons/00_start_here.html"])
    assert browser.execute_script("return document.scrollingElement.scrollWidth") <= width


def test_next_and_previous_lead_through_the_lessons_in_order(browser, pages, lessons):
    emulate(browser)
    open_page(browser, pages[f"lessons/{lessons[0]}.html"])
    way = "const a = document.querySelector(arguments[0]); return a && a.href"
    for before, after in zip(lessons, lessons[1:], strict=False):
        browser.get(browser.execute_script(way, "a.next-page"))
        assert browser.current_url.endswith(f"/lessons/{after}.html")
        assert browser.execute_script(way, "a.prev-page").endswith(f"/lessons/{before}.html")


def found_by_search(browser, book, words):
    """The addresses that a search from disk finds, the best first."""
    browser.get((book / "search.html").as_uri() + f"?q={words}")
    done = """
      const end = arguments[0], start = Date.now();
      const ask = () => { const s = document.querySelector('#search-results .search-summary, #search-results p');
        const links = [...document.querySelectorAll('#search-results li a')].map(a => a.getAttribute('href'));
        if (/found|match/i.test(s ? s.textContent : '') || Date.now() - start > 9000) return end(links);
        setTimeout(ask, 100); };
      ask();"""
    return browser.execute_async_script(done)


def test_search_works_from_disk(browser, book):
    assert any("05_associativity" in address for address in found_by_search(browser, book, "bracketings"))
    assert found_by_search(browser, book, "qqqqzzzz") == []


def test_folded_answers_open(browser, pages):
    emulate(browser, PHONE)
    open_page(browser, pages["lessons/03_the_attention_state.html"])
    height = "return arguments[0].getBoundingClientRect().height"
    folded = browser.find_elements("css selector", "article details:not([open])")
    assert len(folded) > 5
    for details in folded:
        before = browser.execute_script(height, details)
        details.find_element("css selector", "summary").send_keys("\n")
        assert browser.execute_script(height, details) > before + 10


def test_what_is_wide_can_be_scrolled_to_its_end(browser, pages):
    emulate(browser, PHONE)
    clipped = """
      const end = window.innerWidth;
      const scrolls = e => { for (let box = e; box.tagName !== 'ARTICLE'; box = box.parentElement) {
        const how = getComputedStyle(box).overflowX;
        if (how !== 'visible' && box.getBoundingClientRect().right <= end) return /auto|scroll/.test(how); }
        return false; };
      return [...document.querySelectorAll('article pre, article table, article mjx-container, article svg')]
        .filter(e => !scrolls(e) && e.getBoundingClientRect().right > end).map(e => e.textContent.slice(0, 60));"""
    for name in ("lessons/04_the_lse_pair.html", "lessons/09_flashattention_2_forward.html", "glossary.html"):
        open_page(browser, pages[name])
        assert browser.execute_script(clipped) == []


def test_the_page_without_sphinx_is_there(browser, pages, root):
    if not (root / "docs" / "merge-by-hand").is_dir():
        pytest.skip("docs/merge-by-hand is not written")
    emulate(browser, DESKTOP)
    open_page(browser, pages["index.html"])
    href = browser.find_element("css selector", ".merge-by-hand a").get_attribute("href")
    assert href == pages["merge-by-hand/index.html"].as_uri()
