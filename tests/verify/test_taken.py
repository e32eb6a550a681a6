"""What a function takes is found by calling it, and said once: head dimensions, grouped heads, formats, num_splits."""

import numpy as np
import pytest

from fdmath import Subject
from fdmath.algebra.state import LSEState
from fdmath.attention.decode import split_kv_attention
from fdmath.attention.reference import attention
from fdmath.verify import LAWS
from fdmath.verify.apart import suited, verify_apart
from fdmath.verify.judge import drawn
from fdmath.verify.worker import Here
from tests.verify import right


def attended(q, k, v, causal):
    return tuple(attention(q, k, v, causal=causal))


def of_equal_dims(q, k, v, causal):
    if q.shape[-1] != v.shape[-1]:
        raise ValueError("head dims must be equal")
    return attended(q, k, v, causal)


def of_64_and_128(q, k, v, causal):
    if q.shape[-1] not in (64, 128):
        raise ValueError("head dim must be 64 or 128")
    return of_equal_dims(q, k, v, causal)


def of_as_many_heads(q, k, v, causal):
    if q.shape[1] != k.shape[1]:
        raise ValueError("heads must be as many")
    return attended(q, k, v, causal)


def of_float32(q, k, v, causal):
    if q.dtype != np.float32:
        raise TypeError("unsupported dtype")
    return attended(q, k, v, causal)


def of_float16(q, k, v, causal):
    if q.dtype != np.float16:
        raise TypeError("unsupported dtype")
    return attended(q, k, v, causal)


def of_four(q, k, v, seq_lens):
    seen = np.arange(k.shape[-2]) < np.asarray(seq_lens)[:, None, None, None]
    return tuple(split_kv_attention(q, k, v, tile=2, mask=seen))


def of_sixteen_queries(q, k, v, causal):
    if q.shape[-2] > 16:
        raise ValueError("at most 16 queries")
    return attended(q, k, v, causal)


def of_one_query_heads_last(q, k, v):
    if q.shape[-2] > 1:
        raise ValueError("one query")
    o, lse = attended(q, k, v, False)
    return o, np.swapaxes(lse, -1, -2)


def merge_of_float32(o1, lse1, o2, lse2):
    if o1.dtype != np.float32:
        raise TypeError("unsupported dtype")
    return right.by_logaddexp(o1, lse1, o2, lse2)


def of_as_many_heads_last(q, k, v, causal):
    o, lse = of_as_many_heads(q, k, v, causal)
    return o, np.swapaxes(lse, -1, -2)


TAKEN = [
    ("attention", of_as_many_heads_last, {"grouped": False},
     "takes no grouped heads: asked with one query head a KV head"),
    ("attention", of_equal_dims, {"dims": ((2, 2), (4, 4), (16, 16), (64, 64), (32, 32), (128, 128))},
     "taken as dv = d: asked with d = 2, 4, 16, 32, 64, 128 alone"),
    ("attention", of_64_and_128, {"dims": ((64, 64), (128, 128))}, "taken as dv = d: asked with d = 64, 128 alone"),
    ("attention", of_as_many_heads, {"grouped": False},
     "takes no grouped heads: asked with one query head a KV head"),
    ("attention", of_float32, {"dtypes": ("float32",)}, "dtypes taken: float32; no others are asked"),
    ("attention", of_float16, {"dtypes": ("float16",)}, "dtypes taken: float16; no others are asked"),
    ("attention", of_sixteen_queries, {"most_queries": 16}, "takes no more than 16 queries a sequence"),
    ("partial", of_one_query_heads_last, {"most_queries": 1}, "takes no more than 1 query a sequence"),
    ("decode", of_four, {"splits": False}, "taken without num_splits"),
    ("merge", merge_of_float32, {"dtypes": ("float32",)}, "dtypes taken: float32; no others are asked"),
]


@pytest.mark.parametrize(("role", "fn", "taken", "said"), TAKEN, ids=[fn.__name__ for _, fn, *_ in TAKEN])
def test_what_a_function_takes_is_found_said_and_asked(role, fn, taken, said):
    assert suited(Subject("s", role, fn), ()) == (taken, "")
    report = verify_apart(lambda: Subject("s", role, fn), ["anchor", "shift"], 5, told=(), guard=Here)
    assert report.exit_code == 0, report.failures()
    assert sum(line.startswith(said) for line in report.notes["s"]) == 1


def test_what_is_declared_is_asked():
    assert suited(Subject("s", "attention", attended), ()) == ({}, "")
    assert suited(Subject("s", "attention", of_float32), ("dtypes",)) == ({}, "")
    report = verify_apart(lambda: Subject("s", "attention", of_float32), ["anchor"], 20, told=("dtypes",), guard=Here)
    assert "unsupported dtype" in report.cells["anchor", "s"].counterexample


def test_what_is_not_taken_is_not_asked():
    every = Subject("s", "attention", attended)
    narrow = Subject("s", "attention", attended, grouped=False, dims=((4, 4), (64, 64)))
    assert {name for name, law in LAWS.items() if law.concerns(every) and not law.concerns(narrow)} == {
        "grouped heads", "wide heads"}
    cases = drawn(LAWS["anchor"], narrow, 10) + drawn(LAWS["anchor"], narrow, 2, large=True)
    assert {(c.q.shape[-1], c.v.shape[-1]) for c in cases} == {(4, 4), (64, 64)}
    assert all(c.q.shape[1] == c.k.shape[1] for c in cases)
    assert all(np.all(c.q[..., -1] == 1) and np.all(c.k[..., -1] == 0) for c in cases)
    with pytest.raises(ValueError, match="dims must be pairs"):
        Subject("s", "attention", attended, dims=((1, 1),))


def test_a_wrong_function_that_takes_little_is_still_found():
    def first_key_lost(q, k, v, causal):
        o, lse = of_as_many_heads(q, k, v, causal)
        return o, lse if k.shape[-2] < 2 else of_as_many_heads(q, k[..., 1:, :], v[..., 1:, :], causal)[1]

    report = verify_apart(lambda: Subject("s", "attention", first_key_lost), ["anchor"], 20, told=(), guard=Here)
    assert report.cells["anchor", "s"].verdict == "fail"


def test_why_it_cannot_run_is_said_once_a_reason_with_the_input_first():
    def of_lists(q, k, v, causal):
        if isinstance(q, np.ndarray):
            raise TypeError("no arrays")
        return LSEState

    _, reason = suited(Subject("s", "attention", of_lists), ())
    first, *others = reason.partition("\nv = ")[2].splitlines()[1:]
    assert reason.startswith("q = np.array(") and reason.count("q = np.array(") == 1
    assert first.startswith("with library='torch': ") and "must return (o, lse); got type" in first
    assert "as it is: raised TypeError: no arrays" in others
