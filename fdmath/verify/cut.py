"""Smaller cases: what a large case that breaks a law is cut down to, by halves at first and by single slots at last.

Hypothesis shrinks what it draws, but a large case takes its sizes from a list. Here each axis of a case is cut in turn.
"""

import itertools
from dataclasses import replace

import numpy as np

from fdmath.verify.cases import BlockCase, CallCase, StateCase

MOST_TRIES = 300
"""The most cuts that are tried: two or three times what the longest cases need."""


def smallest(case, breaks, subject, most=MOST_TRIES):
    """A case that is cut as often as breaks(case) stays true; `breaks` is asked at most `most` times."""
    tries, shorter = iter(range(most)), True
    while shorter:
        shorter = False
        for axis in AXES[type(case)]:
            while cut := next((c for c, _ in zip(_cuts(case, axis, subject), tries, strict=False) if breaks(c)), None):
                case, shorter = cut, True
    return case


def _cuts(case, axis, subject):
    """The cases without half, a quarter, an eighth … of an axis, at its end or at its beginning."""
    length, least, take = axis(case, subject)
    for drop in itertools.takewhile(bool, (length >> k for k in itertools.count(1))):
        if length - drop >= least:
            yield take(np.arange(length - drop))
            yield take(np.arange(drop, length))


# -- axes: (case, subject) -> (length, the least that is left, a function of the places that are kept) ---------


def _parts(case, subject):
    """Laws of a merge of two are of up to three parts."""
    return len(case.parts), 3 if subject.role == "merge" else 2, lambda at: StateCase(tuple(case.parts[i] for i in at))


def _state_rows(case, subject):
    return len(case.parts[0].payload), 1, lambda at: StateCase(tuple(type(p)(*(x[at] for x in p)) for p in case.parts))


def _state_columns(case, subject):
    def take(at):
        return StateCase(tuple(replace(p, **{p.payload_name: p.payload[:, at]}) for p in case.parts))

    return case.parts[0].payload.shape[-1], 1, take


def _block_keys(case, subject):
    return len(case.v), 1, lambda at: BlockCase(case.scores[:, at], case.v[at])


def _block_rows(case, subject):
    return len(case.scores), 1, lambda at: replace(case, scores=case.scores[at])


def _columns(case, subject):
    """None is cut where the subject takes certain head dimensions only; so below."""
    return _dim(case.v.shape[-1], subject), 1, lambda at: replace(case, v=case.v[..., at])


def _dimensions(case, subject):
    """All but the last coordinate, which carries a number that is added to every score."""
    def take(at):
        at = [*at, -1]
        return replace(case, q=case.q[..., at], k=case.k[..., at])

    return _dim(case.q.shape[-1] - 1, subject), 1, take


def _dim(length, subject):
    return 0 if subject.dims else length


def _keys(case, subject):
    """A sequence that has keys keeps at least one."""
    def take(at):
        lens = case.seq_lens
        lens = None if lens is None else np.clip(lens - at[0], np.minimum(lens, 1), len(at))
        return replace(case, k=case.k[:, :, at], v=case.v[:, :, at], seq_lens=lens)

    return case.k.shape[-2], 1, take


def _queries(case, subject):
    return case.q.shape[-2], 1, lambda at: replace(case, q=case.q[:, :, at])


def _sequences(case, subject):
    def take(at):
        lens = case.seq_lens
        return replace(case, q=case.q[at], k=case.k[at], v=case.v[at], seq_lens=None if lens is None else lens[at])

    return len(case.q), 1, take


def _kv_heads(case, subject):
    """KV heads, each with its query heads."""
    of = case.kv_heads(subject)
    return case.k.shape[1], 1, lambda at: replace(case, q=case.q[:, np.isin(of, at)], k=case.k[:, at], v=case.v[:, at])


def _sharing(case, subject):
    """Query heads, of each KV head as many."""
    of = case.kv_heads(subject)
    place = np.array([np.sum(of[:h] == of[h]) for h in range(len(of))])
    return len(of) // case.k.shape[1], 1, lambda at: replace(case, q=case.q[:, np.isin(place, at)])


def _splits(case, subject):
    return case.num_splits, 1, lambda at: replace(case, num_splits=len(at))


AXES = {
    StateCase: (_parts, _state_rows, _state_columns),
    BlockCase: (_block_rows, _block_keys, _columns),
    CallCase: (_sequences, _kv_heads, _sharing, _queries, _keys, _splits, _columns, _dimensions),
}
"""What can be cut of each kind of case, in this order."""
