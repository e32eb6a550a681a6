"""Verdicts that one fact could decide alone: a part of what they stand on replaced, and they turn."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from fdmath.algebra.state import LSEState, MLOState
from fdmath.attention import printed
from fdmath.attention.decode import split_kv_attention
from fdmath.claims import (
    advice,
    algorithms,
    cases,
    causal,
    deferred,
    gradients,
    loops,
    lse_code,
    pair,
    setting,
    statistics,
    triple,
    triple_code,
)
from fdmath.claims.claim import CHECKS, verdict
from fdmath.claims.rows import checks


def without_maximum(o1, lse1, o2, lse2):
    """A ⊕ that neither overflows nor asks for a maximum by that name; the output is not looked at."""
    return o1, np.logaddexp(lse1, lse2)


def first_alone(o, lse):
    """A merge that keeps the first part."""
    return o[0], lse[0]


def by_distance(o1, lse1, o2, lse2):
    """A sum that overflows where two S are 100 apart."""
    return o1, np.where(abs(lse1 - lse2) >= 100, np.inf, lse1)


def whole(q, k, v, **options):
    """Document A's attention in one piece."""
    return printed.attention_as_printed_A_3_1_2(q, k, v, d_model=1, num_heads=1)


def plain_log(l):  # noqa: E741
    """log l, which is −∞ for 0."""
    with np.errstate(divide="ignore"):
        return np.log(l)


def guarded(q, k, v, **options):
    """FlashDecoding without the 1e-12."""
    return split_kv_attention(q, k, v, tile=4).o


def doubled_pair(scores, v, kind=LSEState):
    """`partial_state`, with twice the output of a pair."""
    state = triple.partial_state(scores, v, kind)
    return state if kind is MLOState else LSEState(2 * state.o, state.lse)


def divided(scores, v, kind):
    """A state whose payload is o, whatever the spelling."""
    return SimpleNamespace(payload=triple.partial_state(scores, v, MLOState).payload)


def using_o(q, k, v, o, do, lse, *options, **more):
    """Algorithm 2 with dQ off by O."""
    dq, dk, dv = ALGORITHM_2(q, k, v, o, do, lse, *options, **more)
    return dq + o[:, :1], dk, dv


def one_form(size):
    """`deferred.steps`: each form takes 16384 divisions and 4096 exponentials more than FlashAttention-2."""
    return {form: Counter(divisions=16384, exponentials=2**14) for form in deferred.FORMS} | {"deferred": Counter()}


def modulo(q, k, v, **options):
    """FlashAttention-2 with query head h on KV head h mod H_kv."""
    whose = np.arange(len(q)) % len(k) if q.ndim > 2 and len(k) < len(q) else slice(None)
    return FLASH(q, k[whose], v[whose], **options)


def all_keys(queries, keys):
    """The mask aligned to the last query and the last key."""
    return np.arange(keys) <= np.arange(queries)[:, None] + keys - queries


ALGORITHM_2, FLASH = printed.algorithm_2_as_printed_B, gradients.flash_attention
MEASURE, LARGEST = pair.measure, lambda merge, parts: merge(*[max(parts, key=lambda part: part.m.item())] * 2)
BROKEN = [
    ("A03", [(setting, "pairs", whole), (cases, "worst", lambda *_, **__: 1.0)], "holds"),
    ("A26", [(MLOState, "to", lambda state, kind: SimpleNamespace(lse=state.m))], "holds"),
    ("A27", [(pair, "partial_state", doubled_pair)], "refuted"),
    ("A35", [(pair, "PRINTED", (without_maximum, without_maximum))], "holds"),
    ("A36", [(pair, "measure", lambda scores, kind, stats: MEASURE(scores, "m and l", stats))], "holds"),
    ("A51", [(triple_code, "partial_state", divided),
             (triple_code, "multi_stream_as_printed_A_3_1_3", lambda *_, **__: np.array([4e4], np.float32))], "holds"),
    ("A53", [(triple_code, "tree", LARGEST)], "holds"),
    ("A53", [(triple_code, "merged_triples", lambda a, b: a)], "refuted"),
    ("A55", [(lse_code, "merge_as_printed_A_3_2_1", lambda o1, lse1, o2, lse2: (o1, lse1))], "refuted"),
    ("A55", [(lse_code, "_log1p_error", lambda: np.nan)], "refuted"),
    ("A57", [(lse_code, "merge_as_printed_A_2_3_5", by_distance)], "holds"),
    ("A58", [(lse_code, "exponential_as_printed_A_3_2_1", lambda a, b: np.ones(np.broadcast(a, b).shape))], "holds"),
    ("A59", [(lse_code, "flat_as_printed_A_2_3_4", first_alone)], "refuted"),
    ("A60", [(lse_code, "log_as_printed_A_3_2_2", plain_log), (lse_code, "pairs", guarded)], "holds"),
    ("A66", [(lse_code, "flat_as_printed_A_2_3_4", first_alone)], "refuted"),
    ("A68", [(advice, "_worst", lambda *_: 1.0), (advice, "merge_as_printed_A_3_2_1", without_maximum)], "holds"),
    ("A70", [(advice, "SECTIONS", (*advice.SECTIONS, "2.4"))], "holds"),
    ("A79", [(triple, "merge_all", lambda states, order: states[-1])], "holds"),
    ("B09", [(deferred, "documents_net", lambda: 16384), (deferred, "steps", one_form)], "holds"),
    ("B12", [(deferred, "steps", one_form)], "holds"),
    ("B16", [(statistics, "flash1_traffic", statistics.forward_traffic)], "refuted"),
    ("B17", [(statistics, "merge_all", lambda parts, order: SimpleNamespace(l=np.ones(1)))], "holds"),
    ("B20", [(causal, "documents_mask", all_keys)], "holds"),
    ("B26", [(loops, "flash_attention_1", loops.flash_attention)], "refuted"),
    ("B27", [(loops, "flash_attention", loops.flash_attention_1)], "refuted"),
    ("B29", [(loops, "forward_thread_blocks", lambda grid, **_: 108)], "holds"),
    ("B30", [(loops, "flash_attention", loops.flash_attention_1)], "refuted"),
    ("B42", [(gradients, "flash_attention", modulo)], "refuted"),
    ("B63", [(printed, "algorithm_2_as_printed_B", using_o)], "refuted"),
    ("B63", [(printed, "algorithm_2_as_printed_B", using_o), (algorithms, "are_gradients", lambda *_: [True])],
     "holds"),
]
"""(claim, what is replaced by what, the verdict that this must give)."""


@pytest.mark.parametrize("claim, parts, expected", BROKEN, ids=[f"{i}-{row[0]}" for i, row in enumerate(BROKEN)])
def test_no_single_fact_decides(claim, parts, expected, monkeypatch):
    checks()
    for part in parts:
        monkeypatch.setattr(*part)
    assert verdict(CHECKS[claim]()) == expected
