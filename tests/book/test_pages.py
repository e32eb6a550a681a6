"""The instruments themselves: a page with a fault of each kind is seen to have it, a page without has none."""

import pytest

from tests.book.pages import look

HEAD = '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>t</title>' \
       '<meta name="viewport" content="width=device-width, initial-scale=1"></head><body><article>'
FAULTS = {
    "console": "<script>console.error('broken')</script>",
    "requests": '<img alt="a dot" src="http://127.0.0.1:9/dot.png">',
    "formulas": '<p><span class="math">\\(x\\)</span> and $y^2$</p>',
    "images": '<img src="data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw==">',
    "wide": '<div style="width: 800px">wide</div>',
    "wide ": '<style>html { overflow-x: hidden }</style><div style="width: 800px">wide, and hidden</div>',
    "pale": '<p style="color: #aaa; background: #fff">pale</p>',
    "pale_dark": "<style>@media (prefers-color-scheme: dark) { p { background: #000; color: #333 } }</style><p>pale",
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_of_each_kind_is_seen(browser, tmp_path, kind):
    path = tmp_path / "page.html"
    path.write_text(HEAD + FAULTS[kind], encoding="utf-8")
    assert getattr(look(browser, path), kind.strip()) != []


def test_a_plain_page_has_no_fault(browser, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(HEAD + "<p>plain, and $5 or `code`</p>".replace("$5", "5 $"), encoding="utf-8")
    assert look(browser, path) == ([],) * 7
