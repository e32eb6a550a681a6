"""The code exercise of notebook 12: the stub is not tried, the answer is right, likely slips are refuted."""

import numpy as np
import pytest

from fdmath.lesson import edited
from fdmath.verify import verify
from fdmath.verify.answers import lesson_12
from fdmath.verify.exercises import exercise, not_tried

RECEIVE, VISIBLE = "k, v, k_at = wire.receive()", "q_at[:, None] >= k_at"
SLIPS = {
    "later ranks' keys are seen (faults:F7)": (VISIBLE, f"({VISIBLE}) | (hop > 0)"),
    "nobody sees its own place": (VISIBLE, "q_at[:, None] > k_at"),
    "all is seen": (VISIBLE, "q_at[:, None] >= 0 * k_at"),
    "the mean of the outputs": ("merge(state, own)",
                                "type(own)((state.o + own.o) / 2, np.logaddexp(state.lse, own.lse))"),
    "the last block alone": ("own if state is None else merge(state, own)", "own"),
    "the last hop is left out": ("own if state is None", "state if not more and state else own if state is None"),
}
REFUSED = {
    "a message too many": ("hop + 1 < wire.size", "hop < wire.size", "it sends too much, 3 times where 2 will do"),
    "computed before it is sent": (
        "        if more:\n            wire.send([k, v, k_at])\n        own = block(q, k, v, q_at[:, None] >= k_at)\n",
        "        own = block(q, k, v, q_at[:, None] >= k_at)\n        if more:\n            wire.send([k, v, k_at])\n",
        "it computes block 1 before it sends it on"),
    "nothing is sent": ("wire.send([k, v, k_at])", "pass", "waits for a message that the rank before never sends"),
    "the places stay": (RECEIVE, "k, v, _ = wire.receive()", "mask must broadcast"),
    "keys and values are mixed": (RECEIVE, "_, v, k_at = wire.receive()", "v must have the heads and keys of k"),
    "one of three gives up": ("state = None", "state = None if wire.rank else 1 / 0", "division by zero"),
}  # fmt: skip


def call(queries, keys, seed=0):
    """q, k and v with two query heads on one KV head."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((1, 2, queries, 4)), *rng.standard_normal((2, 1, 1, keys, 4))


def test_the_stub_is_not_tried():
    assert not_tried(lesson_12.my_ring, lesson_12.sample()) == "not tried yet"


def test_the_answer_is_right(capsys):
    exercise("12", lesson_12.answer, cases=20)
    assert capsys.readouterr().out.startswith("Exercise 12: right, all ")


@pytest.mark.parametrize("slip", SLIPS.values(), ids=SLIPS)
def test_a_slip_breaks_the_anchor(slip):
    report = verify(lesson_12.subject(edited(lesson_12.answer, *slip)), ["anchor"], cases=50)
    assert report.cells["anchor", "answer"].verdict == "fail"


@pytest.mark.parametrize("slip", REFUSED.values(), ids=REFUSED)
def test_what_a_ring_must_not_do_is_told(slip):
    *edit, words = slip
    with pytest.raises((ValueError, RuntimeError, ZeroDivisionError), match=words):
        lesson_12.around(edited(lesson_12.answer, *edit), *call(7, 7), True)


@pytest.mark.parametrize("returned", [None, (1, 2, 3)])
def test_an_answer_that_is_no_state_is_told(returned):
    subject = lesson_12.subject(lambda *arguments: returned)
    assert lesson_12.around(lambda *arguments: returned, *call(2, 2), True) == returned
    report = verify(subject, ["anchor"], cases=2)
    assert report.cells["anchor", "<lambda>"].verdict == "not run"


@pytest.mark.parametrize("queries, keys", [(7, 7), (1, 2), (5, 0), (0, 3)])
def test_every_rank_has_its_rows_and_they_come_back_in_order(queries, keys):
    seen = []

    def places(wire, q, k, v, q_at, k_at, block, merge):
        seen.append(k_at)
        return np.broadcast_to(q_at[:, None], q.shape), np.broadcast_to(q_at, q.shape[:-1])

    o, _ = lesson_12.around(places, *call(queries, keys), True)
    assert o.shape == (1, 2, queries, 4) and np.array_equal(o[0, 0, :, 0], np.arange(queries) + keys - queries)
    assert sorted(np.concatenate(seen)) == list(range(keys))
