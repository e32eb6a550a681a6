"""Large cases that break a law are cut to the smallest that do."""

from dataclasses import replace

import numpy as np
import pytest

from fdmath.algebra.state import LSEState
from fdmath.verify import Subject, verify
from fdmath.verify.cases import BlockCase, CallCase, StateCase
from fdmath.verify.cut import smallest
from fdmath.verify.mutants.ways import at_once


def never(*args):
    """A function that is not called."""
    raise AssertionError


DECODE = Subject("decode", "decode", never)


def call(sequences=3, heads=6, kv=2, queries=4, keys=300, d=8, dv=8, **more):
    """A CallCase of zeros, the last coordinate of q being 1, with numbered values."""
    q, k = np.zeros((sequences, heads, queries, d), np.float32), np.zeros((sequences, kv, keys, d), np.float32)
    q[..., -1] = 1
    v = np.arange(sequences * kv * keys * dv, dtype=np.float32).reshape(sequences, kv, keys, dv)
    return CallCase(q, k, v, **more)


def test_a_call_is_cut_along_every_axis_to_what_still_breaks():
    case = call(queries=1, seq_lens=np.array([300, 299, 0]), num_splits=40)
    cut = smallest(case, lambda c: np.any(c.seq_lens >= 129) and c.num_splits >= 3, DECODE)
    assert cut.q.shape == (1, 1, 1, 2) and cut.k.shape == (1, 1, 129, 2) and cut.v.shape == (1, 1, 129, 1)
    assert cut.seq_lens.tolist() == [129] and cut.num_splits == 3
    assert cut.q[..., -1] == 1


@pytest.mark.parametrize("heads", ["interleaved", "tiled"])
def test_query_heads_stay_with_their_kv_head(heads):
    subject = replace(DECODE, role="attention", heads=heads)
    case = call(sequences=1, heads=6, kv=3)
    case = replace(case, q=case.q + subject_head(case, subject))
    cut = smallest(case, lambda c: c.q.shape[1] >= 4, subject)
    of = cut.kv_heads(subject)
    first = np.unique(cut.q[0, :, 0, 0])
    assert cut.q.shape[1] == 4 and len(of) == 4
    assert [cut.q[0, h, 0, 0] for h in range(4)] == [first[g] for g in of]


def subject_head(case, subject):
    """The KV head that each query head reads, to be seen in q."""
    return case.kv_heads(subject)[None, :, None, None].astype(np.float32)


def test_a_sequence_with_keys_keeps_one_and_one_without_stays_without():
    case = call(queries=1, seq_lens=np.array([300, 1, 0]))
    cut = smallest(case, lambda c: len(c.q) == 3 and c.v[0, 0, 0, 0] >= 8 * 200, DECODE)
    assert (cut.seq_lens > 0).tolist() == [True, True, False]


def test_dimensions_are_kept_where_only_some_are_taken():
    subject = Subject("attention", "attention", never, dims=((8, 8),))
    cut = smallest(call(), lambda c: True, subject)
    assert cut.q.shape == (1, 1, 1, 8) and cut.v.shape == (1, 1, 1, 8)


def test_states_are_cut_to_parts_rows_and_columns():
    part = LSEState(np.zeros((33, 64), np.float32), np.zeros(33, np.float32))
    merge, many = (Subject("m", role, never) for role in ("merge", "merge_many"))
    for subject, parts in (merge, 3), (many, 2):
        cut = smallest(StateCase((part,) * 97), lambda c: True, subject)
        assert len(cut.parts) == parts and cut.parts[0].o.shape == (1, 1) and cut.parts[0].lse.shape == (1,)


def test_what_lies_in_the_middle_is_found():
    case = BlockCase(np.zeros((5, 1100), np.float32), np.zeros((1100, 3), np.float32))
    case.v[700, 1] = case.scores[3, 700] = 1
    cut = smallest(case, lambda c: np.any(c.v == 1) and np.any(c.scores == 1), Subject("b", "block", never))
    assert cut.scores.tolist() == [[1]] and cut.v.tolist() == [[1]]


def test_no_more_cuts_are_tried_than_allowed():
    seen = []
    smallest(call(), lambda c: bool(seen.append(c)), DECODE, most=7)
    assert len(seen) == 7


def test_a_part_lost_beyond_32_is_told_with_33_parts_of_one_number():
    """One lane a part, and 32 lanes: nothing smaller than 33 parts shows it, and no more need to be told."""
    subject = Subject("lanes", "merge_many", lambda o, lse: at_once(o[:32], lse[:32]))
    report = verify(subject, ["counting"])
    told = report.cells["counting", "lanes"]
    assert told.verdict == "fail"
    assert len(told.case.parts) == 33 and told.case.parts[0].o.shape == (1, 1)
    assert told.counterexample.count("part ") == 33
