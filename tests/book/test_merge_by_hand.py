"""The page "Merge by hand" in a headless Chromium: every preset, format and step against fdmath, and its manners."""

import json
import math
import re

import mpmath
import numpy as np
import pytest

from fdmath import AccState, LSEState, MLOState, sequential, trace_keys, tree
from fdmath.algebra.rounding import fold_budget, format_of
from fdmath.attention.levels import state_at_levels
from tests.book import pages
from tests.book.by_hand import BITS, RULES, SPELLINGS, Hand, absorb, exact_answer, is_empty

PRESETS = ("example", "level", "climb", "empty", "stale", "overflow", "floor", "forgotten")
FORMATS = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "stored": "bfloat16"}
ORDERS = {"tree": tree, "chain": sequential}
DRIVE = """
const hand = window.mergeByHand, [preset, format, keys] = arguments, states = [];
if (preset) hand.preset(preset);
if (keys) hand.load(keys.map(tile => tile.map(([s, v]) => [s === '-Infinity' ? -Infinity : s, v])));
if (format) hand.format(format);
hand.reset();
for (let left = hand.state().steps; left > 0; left--) {
  hand.step();
  const {step, base, u} = hand.state();
  states.push(hand.json(left > 1 ? {step, base, u} : hand.state()));
}
return states;
"""
NEWEST = -1


@pytest.fixture(scope="module")
def path(root):
    """The page."""
    return root / "docs" / "merge-by-hand" / "index.html"


@pytest.fixture
def page(browser, path):
    """The browser with the page open, in English, as on a desk; afterwards it has complained of nothing."""
    pages.emulate(browser)
    browser.get("about:blank")
    pages.open_page(browser, path.with_name(path.name))
    browser.execute_script("document.querySelector('[data-language=en]').click()")
    yield browser
    assert pages.console_faults(browser) == []
    assert pages.requests_elsewhere(browser) == []


def numbers(x):
    """Data from the page with "Infinity", "-Infinity" and "NaN" as floats again."""
    if isinstance(x, dict):
        return {name: numbers(y) for name, y in x.items()}
    if isinstance(x, list):
        return [numbers(y) for y in x]
    return float(x) if x in ("Infinity", "-Infinity", "NaN") else x


def driven(browser, preset=None, form=None, keys=None):
    """The page's step, base and u after 1, 2 … steps of a preset or of your own keys; at last its whole state."""
    return [numbers(json.loads(text)) for text in browser.execute_script(DRIVE, preset, form, keys)]


def same(page_state, ours):
    """Whether every number of a state has the bits of ours (NaN is NaN, −0 is 0)."""
    return all(np.array_equal(np.float64(page_state[name]), x.value, equal_nan=True) for name, x in ours.items())


def refolded(hand, state):
    """(spelling, name of the step, our state after it) for every step of a finished page, folded anew by `hand`."""
    for spelling in SPELLINGS:
        nodes = []
        for tile in state["tiles"]:
            running = hand.empty(spelling)
            for key in tile["keys"]:
                running = absorb(hand, spelling, state["rule"], running, key["score"], key["value"])
                yield spelling, f"key {key['id']}", hand.read(spelling, running)
            gone = spelling != "printed" and is_empty(spelling, running)
            nodes.append(hand.empty(spelling) if gone else running)
        merges = []

        def merge(a, b, nodes=nodes, merges=merges, spelling=spelling):
            nodes.append(hand.merge(spelling, nodes[a], nodes[b]))
            merges.append((a, b))
            return len(nodes) - 1

        ORDERS[state["order"]](merge, list(range(len(nodes))))
        for number, (a, b) in enumerate(merges):
            yield spelling, f"merge {a} {b}", hand.read(spelling, nodes[len(state["tiles"]) + number])


def disagreements(states, monkeypatch):
    """What differs between the page and fdmath, step by step: none if they agree bit for bit."""
    hand = Hand(states[NEWEST]["format"], states[NEWEST]["base"], monkeypatch)
    steps, found = [state["step"] for state in states], []
    names = [f"key {s['key']['id']}" if s["kind"] == "key" else f"merge {s['left']} {s['right']}" for s in steps]
    seen = {spelling: [] for spelling in SPELLINGS}
    for spelling, name, ours in refolded(hand, states[NEWEST]):
        step = steps[len(seen[spelling])]["states"][spelling]
        seen[spelling].append(name)
        if not same(step, ours):
            found.append((spelling, name, step, {n: x.value for n, x in ours.items()}))
    return found + [(spelling, "steps", got, names) for spelling, got in seen.items() if got != names]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_step_is_fdmath_bit_for_bit(page, monkeypatch, preset, form):
    assert page.execute_script("return window.mergeByHand.presets") == list(PRESETS)
    assert page.execute_script("return window.mergeByHand.formats") == list(FORMATS)
    states = driven(page, preset, form)
    assert states and disagreements(states, monkeypatch) == []


def drawn_keys(seed):
    """Keys of no preset: three tiles of scores around a level that the seed picks, one key hidden, one tile empty."""
    rng = np.random.default_rng(seed)
    level = (0.0, 30.0, -500.0, 1e4)[seed]
    tiles = [[[float(level + s), float(v)] for s, v in rng.normal(size=(n, 2)) * (3, 1)] for n in (3, 0, 4)]
    tiles[2][1][0] = "-Infinity"
    return tiles


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("rule", RULES)
def test_other_keys_bases_orders_and_rules_are_fdmath_bit_for_bit(page, monkeypatch, rule, form):
    for seed in range(4):
        choose = "const hand = window.mergeByHand, [rule, base, order] = arguments;"
        choose += "hand.levels(rule); hand.order(order); hand.base(base === 2 ? 2 : Math.E);"
        page.execute_script(choose, rule, (2, None)[seed % 2], list(ORDERS)[seed // 2])
        assert disagreements(driven(page, form=form, keys=drawn_keys(seed)), monkeypatch) == []


FAULTS = {
    "factor forgotten": ("r.add(r.mul(alpha, a.l), r.mul(beta, b.l)), acc", "r.add(a.l, r.mul(beta, b.l)), acc"),
    "unrounded product": ("mul: (a, b) => op(a * b)", "mul: (a, b) => a * b"),
    "truncated": ("bits + 0x7fff + ((bits >>> 16) & 1)", "bits"),
    "ties away from even": ("0x7fff + ((bits >>> 16) & 1)", "0x8000"),
    "weight of the wrong side": ("r.sub(far.o, near.o)", "r.sub(near.o, far.o)"),
    "no guard of the empty state": ('if (spelling !== "printed") {', "if (false) {"),
    "log in place of log1p": ("r.log1p(r.exp(r.sub(low, high)))", "r.log(r.add(1, r.exp(r.sub(low, high))))"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_page_is_found_out(page, path, tmp_path, monkeypatch, fault):
    good, bad = FAULTS[fault]
    text = path.read_text(encoding="utf-8")
    assert text.count(good) == 1
    copy = tmp_path / "broken.html"
    copy.write_text(text.replace(good, bad), encoding="utf-8")
    pages.open_page(page, copy)
    cases = [driven(page, preset, "bf16") for preset in PRESETS]
    cases += [driven(page, form="bf16", keys=drawn_keys(seed)) for seed in (0, 1)]
    assert any(disagreements(states, monkeypatch) for states in cases)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_running_example_is_trace_keys(page, dtype):
    keys = [[[s, v] for s, v in zip((0, 0, 1, 2), (2, 6, 0, 3), strict=True)]]
    page.execute_script("window.mergeByHand.preset('example')")
    states = driven(page, form={"float64": "fp64", "float32": "fp32"}[dtype], keys=keys)
    scores, values = np.array(keys[0], dtype).T
    for row, state in zip(trace_keys(scores, values, base=2), states, strict=True):
        acc = state["step"]["states"]["acc"]
        assert [acc[name] for name in ("m", "l", "acc", "o", "lse")] == [
            float(np.squeeze(x)) for x in (row.m, row.l, row.acc, row.o, row.lse)]
        assert state["step"]["alpha"] == float(row.alpha)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("preset", ["stale", "overflow", "floor"])
def test_stale_levels_are_state_at_levels(page, preset, dtype):
    final = driven(page, preset, {"float64": "fp64", "float32": "fp32"}[dtype])[NEWEST]
    for tile in final["tiles"]:
        parts, levels = [], [-math.inf]
        for key in tile["keys"]:
            score, one, value = (np.array([x], dtype) for x in (key["score"], 1, key["value"]))
            parts.append(AccState(score, one, value[None]))
            levels.append(RULES[final["rule"]](levels[-1], key["score"]))
        ours = state_at_levels(parts, np.array([levels[1:]], dtype), base=2)
        assert np.array_equal([tile["states"]["acc"][n] for n in ("m", "l", "acc")],
                              [float(np.squeeze(x)) for x in ours], equal_nan=True)


def test_the_exact_answer_and_the_errors(page):
    for preset in PRESETS:
        for form in FORMATS:
            for state in driven(page, preset, form):
                check_exact(state["step"], state["base"], state["u"])


def check_exact(step, base, u):
    """Nothing; asserts that exact answer and errors of a step are those of the definition in 400 bits."""
    o, lse, size = exact_answer([(key["score"], key["value"]) for key in step["keys"]], base)
    exact = step["states"]["exact"]
    with mpmath.workprec(BITS):
        # double-double: 2**-106 an operation, some 2**8 of them in an exponential that is squared eight times
        slack = mpmath.mpf(2)**-92
        assert abs(mpmath.fsum(exact["o"]) - o) <= slack * size
        assert exact["lse"][0] == -math.inf == lse or abs(mpmath.fsum(exact["lse"]) - lse) <= slack * max(1, abs(lse))
        if lse == -math.inf:
            return
        natural = mpmath.log(2) if base == 2 else 1
        for spelling in SPELLINGS:
            state = step["states"][spelling]
            if math.isfinite(state["o"]) and size > 0:
                true = abs(mpmath.mpf(state["o"]) - o) / (mpmath.mpf(u) * size)
                # the slack in units of u >= 2**-53 is below 2**-38, and the page's own division rounds
                assert abs(state["error"]["o"] - true) <= mpmath.mpf(2)**-38 * (1 + true)
            stored = state["lse"] if "l" not in state else log_weight(state, base)
            if math.isfinite(stored):
                true = abs(mpmath.expm1((stored - lse) * natural)) / mpmath.mpf(u)
                assert abs(state["error"]["z"] - true) <= mpmath.mpf(2)**-38 * (1 + abs(lse)) * (1 + true)


def log_weight(triple, base):
    """m + log l of a triple to the precision at work; −∞ where l is 0."""
    return triple["m"] + mpmath.log(triple["l"]) / (mpmath.log(2) if base == 2 else 1) if triple["l"] > 0 else -math.inf


KINDS = {"acc": AccState, "mlo": MLOState, "pair": LSEState}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("preset", ["level", "climb"])
def test_errors_lie_within_the_proven_bounds(page, preset, form):
    final = driven(page, preset, form)[NEWEST]
    tiles = [[(key["score"], key["value"]) for key in tile["keys"]] for tile in final["tiles"]]
    o, lse, _ = exact_answer(sum(tiles, []), final["base"])
    ends = np.cumsum([len(tile) for tile in tiles])
    for spelling, kind in KINDS.items():
        def order(merge, states):
            return ORDERS[final["order"]](merge, [sequential(merge, states[end - len(t):end])
                                                  for t, end in zip(tiles, ends, strict=True)])

        keys = [LSEState(np.array([[v]], float), np.array([s], float)).to(kind) for s, v in sum(tiles, [])]
        budget = fold_budget(keys, order, format_of(FORMATS[form]))
        state = final["step"]["states"][spelling]
        assert abs(state["o"] - o) <= budget.o.item()
        if spelling == "pair":
            assert abs(state["lse"] - lse) <= budget.lse.item()


def test_high_level_in_bf16_gives_two_instead_of_one(page):
    states = driven(page, "level", "bf16")[NEWEST]["step"]["states"]
    assert [states[spelling]["o"] for spelling in SPELLINGS] == [1, 1, 1, 2]  # claims:A03
    assert states["pair"]["error"]["z"] == 128  # half of Z, in units of 2⁻⁸


def test_the_words_say_when_the_maximum_moves_and_by_which_factor(page):
    page.execute_script("window.mergeByHand.preset('example'); window.mergeByHand.goTo(4)")
    words = page.find_element("id", "words")
    assert words.get_attribute("aria-live") == "polite"
    assert "the maximum moves from 1 to 2" in words.text and "= 0.5" in words.text
    page.find_element("id", "back").click()
    assert "sets the maximum" in words.text
    page.execute_script("window.mergeByHand.preset('forgotten'); window.mergeByHand.goTo(4)")
    assert "a fault" in words.text


def key_tiles(page):
    """The numbers of the keys of each tile, in order."""
    tiles = page.execute_script("return window.mergeByHand.state().tiles")
    return [[key["id"] for key in tile["keys"]] for tile in tiles]


def key_values(page):
    """Format, step and the scores and values of each tile, in order."""
    state = numbers(json.loads(page.execute_script("return window.mergeByHand.json()")))
    tiles = [[(key["score"], key["value"]) for key in tile["keys"]] for tile in state["tiles"]]
    return state["format"], state["base"], state["order"], state["rule"], state["at"], tiles


def handle(page, key):
    """The part of a key that is dragged and that arrows move."""
    return page.find_element("css selector", f"[data-focus=key-{key}]")


def test_arrows_move_keys_and_keep_the_focus(page):
    from selenium.webdriver.common.keys import Keys

    page.execute_script("window.mergeByHand.preset('example')")
    handle(page, 2).send_keys(Keys.ARROW_RIGHT)
    assert key_tiles(page) == [[1], [3, 4, 2]]
    assert page.switch_to.active_element == handle(page, 2)
    assert page.find_element("id", "announce").get_attribute("textContent") == "Key 2 is now in tile 2."
    for arrow in (Keys.ARROW_UP, Keys.ARROW_UP):
        page.switch_to.active_element.send_keys(arrow)
    assert key_tiles(page) == [[1], [2, 3, 4]]
    page.switch_to.active_element.send_keys(Keys.DELETE)
    assert key_tiles(page) == [[1], [3, 4]]
    assert page.switch_to.active_element == handle(page, 3)


def test_everything_is_reached_by_tab_and_the_focus_stays_on_a_button_that_has_done_its_work(page):
    from selenium.webdriver.common.keys import Keys

    page.execute_script("window.mergeByHand.preset('example'); document.querySelector('[data-language=en]').focus()")
    ids, seen = "return document.activeElement.dataset.focus || document.activeElement.id", []
    while not seen or seen[NEWEST] != "add-tile":
        page.switch_to.active_element.send_keys(Keys.TAB)
        seen.append(page.execute_script(ids))
        assert len(seen) < 100
    assert [name for name in seen if name in ("format", "step", "key-1", "key-4", "add-tile")] == [
        "format", "step", "key-1", "key-4", "add-tile"]
    page.find_element("id", "step").send_keys(Keys.ENTER * 9)
    assert page.execute_script("const s = window.mergeByHand.state(); return s.at === s.steps")
    assert page.execute_script(ids) == "step"


def test_keys_are_dragged_into_tiles(page):
    from selenium.webdriver import ActionChains

    page.execute_script("window.mergeByHand.preset('example')")
    target = page.find_elements("css selector", ".tile h3")[1]
    ActionChains(page).drag_and_drop(handle(page, 1), target).perform()
    assert key_tiles(page) == [[2], [1, 3, 4]]


def test_scores_and_values_are_edited_and_nonsense_is_refused(page):
    from selenium.webdriver.common.keys import Keys

    page.execute_script("window.mergeByHand.preset('example'); window.mergeByHand.end()")

    def type_into(name, written):
        field = page.find_element("css selector", f"[data-focus={name}]")
        field.clear()
        field.send_keys(written, Keys.ENTER)

    type_into("value-4", "7")
    assert page.execute_script("return window.mergeByHand.state().step.states.acc.o") == (8 + 4 * 7) / 8
    type_into("score-4", "-inf")
    assert page.execute_script("return window.mergeByHand.state().step.states.acc.o") == 2
    type_into("score-4", "abc")
    assert "at most 1e30" in page.find_element("id", "trouble").text
    assert page.execute_script("return window.mergeByHand.state().step.states.acc.o") == 2


def test_the_address_alone_remembers(page):
    from selenium.webdriver.support.wait import WebDriverWait

    page.execute_script("const hand = window.mergeByHand; hand.preset('example'); hand.move(1, 1); hand.format('bf16');"
                        "document.querySelector('[data-language=zh]').click()")
    WebDriverWait(page, 10).until(lambda page: "lang=zh&keys=0:6;1:0,2:3,0:2&format=bf16" in page.current_url)
    before, address = key_values(page), page.current_url
    page.get("about:blank")
    page.get(address)
    assert key_values(page) == before
    assert page.execute_script("return document.documentElement.lang") == "zh-CN"
    assert page.execute_script("return localStorage.length + sessionStorage.length + document.cookie.length") == 0


CHINESE = re.compile(r"[一-鿿]")
TEXTS = """
const [language, preset, done] = arguments, hand = window.mergeByHand, found = [];
document.querySelector(`[data-language=${language}]`).click();
hand.preset(preset);
(async () => {
  for (let i = 0; i <= hand.state().steps; i++) {
    await null;
    const shown = document.querySelectorAll(
      '[data-text], #presets button, #about, option, #words, #results-title, .tile h3, #count');
    found.push(...[...shown].map(e => e.textContent.trim()));
    hand.step();
  }
  done(found);
})();
"""
SAME_IN_BOTH = {"fp64", "fp32", "2"}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_text_of_every_step_is_in_both_languages(page, preset):
    english, chinese = (page.execute_async_script(TEXTS, language, preset) for language in ("en", "zh"))
    assert len(english) == len(chinese) > 0
    assert [text for text in english if CHINESE.search(text) or not text or "undefined" in text] == []
    assert {text for text in chinese if not CHINESE.search(text) or "undefined" in text} <= SAME_IN_BOTH


@pytest.mark.parametrize("language", ["en", "zh"])
def test_legible_on_a_phone_and_in_the_dark(page, language):
    page.execute_script("document.querySelector(`[data-language=${arguments[0]}]`).click()", language)
    for preset in PRESETS:
        page.execute_script("window.mergeByHand.preset(arguments[0]); window.mergeByHand.end()", preset)
        pages.emulate(page, pages.PHONE)
        assert page.execute_script(pages.WIDE, pages.PHONE["width"]) == []
        for scheme in ("light", "dark"):
            pages.emulate(page, pages.DESKTOP, scheme)
            assert page.execute_script(pages.PALE, pages.LEAST_CONTRAST) == []


def test_the_page_is_one_small_file_without_addresses(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < 150_000
    loading = r"""(?:src|href)\s*=\s*["'](?!data:)|url\(|@import|import\(|fetch\(|XMLHttpRequest|WebSocket"""
    assert re.findall(loading, text) == []
