"""What is wrong at one size alone (a tile, a head, a group, a number of parts, a length) dies at the default.

Each fault is a right function that forgets something where the size is met.
"""

import numpy as np
import pytest

from fdmath.algebra.merge import flat, merge, merge_all
from fdmath.algebra.state import LSEState
from fdmath.attention.reference import attention
from fdmath.attention.softmax import partial_state
from fdmath.verify import LAWS, Subject
from fdmath.verify.judge import LEAST_LARGE, ask, drawn
from fdmath.verify.strategies import BLOCK_ROWS, LENGTHS, LONG, PARTS, SPLITS, STATES, TILES
from tests.verify.canaries import RIGHT
from tests.verify.test_canaries import REFUSED

# -- what is forgotten: keys of a call, a block, a merge ----------------------------------------------------


def seeing(hidden, wide=None):
    """Attention whose queries do not see what `hidden` names besides: (rows (Nq, 1), keys (N,), Nq, N, causal)."""
    def fn(q, k, v, causal):
        rows, keys = q.shape[-2], k.shape[-2]
        i, j = np.arange(rows)[:, None], np.arange(keys)
        mask = np.ones((rows, keys), bool) if not causal else j <= i + keys - rows
        mask = mask & ~hidden(i, j, rows, keys, causal)
        if wide is not None:
            mask = mask | wide(i, j, rows, keys, causal)
        return tuple(attention(q, k, v, mask=mask))

    return fn


def never(i, j, *_):
    return (i + j) < 0


def decoding(lengths):
    """Attention to the first lengths(seq_lens, num_splits) keys of each sequence."""
    def fn(q, k, v, seq_lens, num_splits):
        used = lengths(np.asarray(seq_lens), num_splits)
        return tuple(attention(q, k, v, mask=np.arange(k.shape[-2]) < used[:, None, None, None]))

    return fn


def counted(kept):
    """A block of the first kept(N) keys."""
    return lambda scores, v: tuple(partial_state(scores[:, : kept(len(v))], v[: kept(len(v))]))


def of_parts(kept):
    """A merge of the first kept(P) parts."""
    return lambda o, lse: tuple(merge_all(LSEState(o[: kept(len(o))], lse[: kept(len(o))]), flat))


def taking(rows=slice(None), columns=slice(None)):
    """A merge that leaves the o of its first side as it was beyond the first rows or columns."""
    def fn(o1, lse1, o2, lse2):
        o, lse = merge(LSEState(o1, lse1), LSEState(o2, lse2))
        kept = np.array(o1)
        kept[rows, columns] = o[rows, columns]
        return kept, lse

    return fn


def scaled_for_64(q, k, v, causal):
    """1/8 for 1/√d, at d = 128."""
    return tuple(attention(q, k, v, causal=causal, scale=1 / 8 if q.shape[-1] == 128 else None))


def groups_of_eight(q, k, v, causal):
    """Groups of 5 to 7 heads, padded to 8."""
    group = q.shape[1] // k.shape[1]
    if 5 <= group < 8:
        of_head = np.minimum(np.arange(q.shape[1]) // 8, k.shape[1] - 1)
        k, v = k[:, of_head], v[:, of_head]
    return tuple(attention(q, k, v, causal=causal))


def without_the_last_tile(n):
    """N, less a tile where N is a multiple of 64."""
    return np.where((n >= 64) & (n % 64 == 0), n - 64, n)


FAULTS = [
    ("attention", "row within its block of 64", "counting", seeing(
        lambda i, j, rows, keys, causal: causal & (j > i % 64 + keys - rows))),
    ("attention", "a key too many in a square", "causality", seeing(
        never, lambda i, j, rows, keys, causal: causal & (rows == keys >= 16) & (j <= i + 1))),
    ("attention", "last tile of 64k keys", "duplicate keys", seeing(
        lambda i, j, rows, keys, causal: j + 0 * i >= without_the_last_tile(keys))),
    ("attention", "first of more than 100 keys", "duplicate keys", seeing(
        lambda i, j, rows, keys, causal: (keys > 100) & (j + 0 * i == 0))),
    ("attention", "a window of 512", "anchor", seeing(
        lambda i, j, rows, keys, causal: i + keys - rows - j >= 512)),
    ("attention", "scale at d = 128", "shift", scaled_for_64),
    ("attention", "groups of 5 to 7", "grouped heads", groups_of_eight),
    ("block", "last tile of 64k keys", "duplicate keys", counted(lambda n: int(without_the_last_tile(n)))),
    ("block", "last of 128k − 1 keys", "permutation", counted(lambda n: n - (n % 128 == 127))),
    ("block", "last of 128k + 1 keys", "counting", counted(lambda n: n - (n % 128 == 1 and n > 1))),
    ("block", "keys beyond 1024", "anchor", counted(lambda n: min(n, 1024))),
    ("decode", "last tile of 64k keys", "duplicate keys", decoding(lambda lens, splits: without_the_last_tile(lens))),
    ("decode", "splits beyond 64", "anchor", decoding(lambda lens, splits: lens * 64 // max(splits, 64))),
    ("decode", "keys beyond 272", "anchor", decoding(lambda lens, splits: np.minimum(lens, 272))),
    ("merge", "columns beyond 128", "anchor", taking(columns=slice(128))),
    ("merge", "rows beyond 32", "closure", taking(rows=slice(32))),
    ("merge_many", "parts beyond 48", "anchor", of_parts(lambda parts: min(parts, 48))),
    ("merge_many", "last of 8k + 1 parts", "anchor", of_parts(lambda parts: parts - (parts % 8 == 1 and parts > 8))),
    ("merge_many", "last 16 of 16k parts", "duplicate keys", of_parts(
        lambda parts: parts - 16 * (parts % 16 == 0 and parts > 16))),
]




@pytest.mark.parametrize(("role", "name", "law", "fn"), FAULTS, ids=[f"{f[0]}, {f[1]}" for f in FAULTS])
@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_wrong_at_one_size_dies_by_the_law_named(role, name, law, fn, seed):
    assert ask(LAWS[law], Subject(name, role, fn), seed=seed, shrink=False).verdict == "fail"


def test_a_nan_that_a_merge_hides_is_missed():
    def hiding(*arrays):
        o, lse = RIGHT["merge"].fn(*arrays)
        return np.nan_to_num(o), lse

    assert "expected nan" in ask(LAWS["seen NaN"], Subject("hides NaN", "merge", hiding)).counterexample


def test_a_gradient_of_lse_that_many_keys_lose_is_missed():
    torch = pytest.importorskip("torch")

    def losing(q, k, v):
        scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT / q.shape[-1] ** 0.5
        v = v.repeat_interleave(q.shape[1] // k.shape[1], 1)
        lse = torch.logsumexp(scores, -1)
        return torch.softmax(scores, -1) @ v, lse if k.shape[2] < 8 else lse.detach() + 0 * scores.sum(-1)

    for seed in range(3):
        subject = Subject("loses dlse", "partial", losing, library="torch")
        assert ask(LAWS["gradient"], subject, 3, seed=seed, shrink=False).verdict == "fail"


# -- what is asked ------------------------------------------------------------------------------------------


def asked(role):
    """The large cases of the laws that judge the values of a role, as drawn at the default under three seeds."""
    return [case for law in REFUSED if LAWS[law].concerns(RIGHT[role]) for seed in range(3) for case in drawn(
        LAWS[law], RIGHT[role], LEAST_LARGE, large=True, seed=seed)]


def test_every_size_of_a_call_is_asked():
    cases = asked("attention")
    assert {(*c.k.shape[2:3], *c.q.shape[2:], c.v.shape[3]) for c in cases} >= set(TILES)
    assert {c.causal for c in cases if c.q.shape[2] == c.k.shape[2]} == {True, False}


def test_every_number_of_splits_is_asked():
    assert {c.num_splits for c in asked("decode")} >= set(SPLITS)


def test_every_size_of_a_block_is_asked():
    cases = asked("block")
    assert {len(c.v) for c in cases} >= set(LENGTHS)
    assert {(len(c.scores), c.v.shape[1]) for c in cases} >= set(BLOCK_ROWS)


def test_every_size_of_a_merge_is_asked():
    assert {c.parts[0].o.shape for c in asked("merge")} >= set(STATES)
    assert {len(c.parts) for c in asked("merge_many")} >= set(PARTS)


@pytest.mark.parametrize("law", [law.name for law in LAWS.values() if law.concerns(RIGHT["attention"])])
def test_only_cheap_laws_are_asked_of_long_calls(law):
    longest = max(c.k.shape[2] for c in drawn(LAWS[law], RIGHT["attention"], 20, large=True))
    assert longest > LONG if law in ("anchor", "closure", "duplicate keys", "counting") else longest <= LONG


@pytest.mark.parametrize("role", RIGHT)
def test_the_first_large_case_has_near_scores_and_values_that_tell_keys_apart(role):
    case = drawn(LAWS["duplicate keys"], RIGHT[role], 1, large=True)[0]
    levels, (values, seen) = case.levels(), case.values()
    levels = np.where(np.isneginf(levels), np.nan, levels)
    assert np.all(np.nanmax(levels, axis=-1) - np.nanmin(levels, axis=-1) < 4)
    mean = np.mean(values, axis=0, where=seen[..., None])
    assert np.all(np.any(np.abs(values - mean) > 0.1, axis=-1))  # of each key, some value is not near the mean of all
