"""What a page turns out to be in a browser: its console, its requests, its formulas, pictures, widths, contrasts."""

import json
from typing import NamedTuple

PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
DESKTOP = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
LEAST_CONTRAST = 4.5  # WCAG 2.2, 1.4.3: text against what lies behind it

TYPESET = """
const done = arguments[0];
(window.MathJax && MathJax.startup ? MathJax.startup.promise : Promise.resolve()).then(() => done());
"""

FORMULAS = r"""
const found = [...document.querySelectorAll('.math')].filter(e => !e.querySelector('mjx-container'));
const wrong = [...document.querySelectorAll('[data-mml-node="merror"], mjx-merror')];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const raw = [];
while (walker.nextNode()) {
  const node = walker.currentNode;
  if (node.parentElement.closest('code, pre, script, style, mjx-container')) continue;
  if (/\$[^\s$]|\\\(|\\\[|\\frac|\\sum/.test(node.data)) raw.push(node.data.trim().slice(0, 80));
}
return [...found.map(e => e.textContent.slice(0, 80)), ...wrong.map(e => e.textContent.slice(0, 80)), ...raw];
"""

IMAGES = """
return [...document.images].filter(i => !i.alt.trim() || !i.complete || !i.naturalWidth).map(i => i.src);
"""

# A theme may hide what the page itself cannot scroll, so every box around the article is asked, not the page alone.
WIDE = """
const boxes = [document.scrollingElement];
for (let box = document.querySelector('article'); box; box = box.parentElement)
  if (getComputedStyle(box).overflowX !== 'visible' || box === document.body) boxes.push(box);
const wide = boxes.filter(box => box.scrollWidth > Math.min(box.clientWidth, arguments[0]));
return wide.map(box => box.tagName + '.' + box.className + ' ' + box.scrollWidth + ' px');
"""

# Luminance and contrast as WCAG 2.2 defines them.
PALE = """
const parse = c => (c.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
const linear = x => (x /= 255) <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
const luminance = c => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
const over = (c, b) => { const a = c.length > 3 ? c[3] : 1; return [0, 1, 2].map(i => a * c[i] + (1 - a) * b[i]); };
const behind = e => { const layers = [];
  for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); layers.push(c);
    if (c.length === 3 || c[3] === 1) break; }
  return layers.reverse().reduce((below, c) => over(c, below), [255, 255, 255]); };
const pale = new Map();
for (const e of document.querySelectorAll('article *, .sidebar-tree *, .related-pages *')) {
  const text = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || e.tagName === 'MJX-CONTAINER';
  if (!text || e.closest('mjx-assistive-mml') || !e.getClientRects().length || e.closest('.headerlink')) continue;
  const back = behind(e), fore = over(parse(getComputedStyle(e).color), back);
  const [a, b] = [luminance(fore), luminance(back)].sort((x, y) => y - x), ratio = (a + 0.05) / (b + 0.05);
  if (!(ratio >= arguments[0])) pale.set(e.tagName + '.' + e.className, ratio.toFixed(2));
}
return [...pale].map(([name, ratio]) => name + ' ' + ratio).slice(0, 20);
"""


class Seen(NamedTuple):
    """What is wrong with a page: a list of words for each thing that is asked of it, empty where nothing is wrong."""

    console: list
    requests: list
    formulas: list
    images: list
    wide: list
    pale: list
    pale_dark: list


def emulate(browser, screen=DESKTOP, scheme="light"):
    """Nothing; the browser now has this screen and prefers this colour scheme."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def open_page(browser, path):
    """Nothing; the page is open, its formulas typeset."""
    browser.get_log("browser"), browser.get_log("performance")
    browser.get(path.as_uri())
    browser.execute_async_script(TYPESET)


def console_faults(browser):
    """The console's messages of warning or error since the page was opened."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def requests_elsewhere(browser):
    """The addresses asked for since the page was opened that are neither on this disk nor inside the page."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    return [url for url in urls if not url.startswith(("file:", "data:", "blob:"))]


def look(browser, path):
    """The Seen of one page: opened as on a desk, then as on a phone, then in the dark."""
    emulate(browser)
    open_page(browser, path)
    formulas, images = browser.execute_script(FORMULAS), browser.execute_script(IMAGES)
    pale = browser.execute_script(PALE, LEAST_CONTRAST)
    emulate(browser, PHONE)
    wide = browser.execute_script(WIDE, PHONE["width"])
    emulate(browser, DESKTOP, "dark")
    dark = browser.execute_script(PALE, LEAST_CONTRAST)
    return Seen(console_faults(browser), requests_elsewhere(browser), formulas, images, wide, pale, dark)
