"""What holds bit for bit, what is overwritten, and what is lost: order, splits, batch mates, operands, results."""

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra.rounding import exact
from fdmath.verify.probing.caller import ROOM, D, distance
from fdmath.verify.probing.contract import Trait
from fdmath.verify.subject import CALLED, SPELT

ROWS = 256


def _drawn(parts, rows=ROWS):
    """(scores, values) of rows of parts near enough for every weight to count, the same in every run."""
    rng = np.random.default_rng(7)
    return rng.normal(0, 2, (rows, parts)), rng.normal(0, 1, (rows, parts))


def _differing(one, other):
    """How many rows differ in a bit of any array: NaN equal to NaN, −0 to 0."""
    apart = [~((x == y) | (np.isnan(x) & np.isnan(y))).reshape(len(x), -1).all(axis=1)
             for x, y in zip(one, other, strict=True)]
    return int(np.logical_or.reduce(apart).sum())


def commutativity(caller):
    """Whether the parts in another order give the same bits."""
    scores, values = _drawn(2 if caller.subject.role == "merge" else 5)
    lost = _differing(caller.merged(scores, values), caller.merged(scores[:, ::-1], values[:, ::-1]))
    return [Trait("commutativity", lost == 0, f"{lost} of {ROWS} rows change in a bit with the parts in reverse order")]


def associativity(caller):
    """Whether (a ⊕ b) ⊕ c and a ⊕ (b ⊕ c) have the same bits."""
    scores, values = _drawn(3)
    a, b, c = (caller.part(s, v) for s, v in zip(scores.T, values.T, strict=True))
    left = caller.of_parts([_again(caller, caller.of_parts([a, b])), c])
    right = caller.of_parts([a, _again(caller, caller.of_parts([b, c]))])
    lost = _differing(left, right)
    return [Trait("associativity", lost == 0, f"(a + b) + c and a + (b + c) differ in a bit in {lost} of {ROWS} rows")]


def _again(caller, state):
    """A state as it was returned, as the operand that it would be next: (o, lse), or (m, l, payload)."""
    payload, *rest = map(caller.array, state)
    return [payload, *rest] if caller.pairs else [*rest, payload]


def _decode_inputs(sequences, keys):
    rng = np.random.default_rng(11)
    return [rng.normal(size=(sequences, 2, n, D)) for n in (1, keys, keys)]


COUNTS = (1, 3, 8)
"""Numbers of splits that are compared: 3 does not divide the 1024 keys."""


def splits(caller):
    """Whether num_splits changes a bit, and so takes effect; whether the result is the same for every one, or right."""
    q, k, v = _decode_inputs(3, 1024)
    results = [[x for x in caller.attend(q, k, v, splits=n) if x is not None] for n in COUNTS]
    lost = [_differing(results[0], r) for r in results[1:]]
    text = f"{lost[0]} and {lost[1]} of 3 sequences of 1024 keys change in a bit with 3 and 8 splits in place of 1"
    return [Trait("splits", any(lost), text + ("" if any(lost) else ": num_splits has no effect that could be seen")),
            Trait("split_invariance", not any(lost), text), _each_key_once(caller)]


def _each_key_once(caller):
    """Whether each of 1024 equal keys counts once for any number of splits: the values say in which sixteen it is."""
    q, k = np.zeros((1, 2, 1, D)), np.zeros((1, 2, 1024, D))
    v = np.broadcast_to(np.repeat(np.eye(D), 1024 // D, axis=0), k.shape)
    shares = np.array([caller.attend(q, k, v, splits=n)[0][0, 0, 0] for n in COUNTS])
    counted = 1024 * shares / shares.sum(axis=-1, keepdims=True)
    # a key too few or too many in sixteen is 1/16 of it
    once = distance(counted / 16, 1.0) <= ROOM
    said = ", ".join(f"{low:.5g} to {high:.5g} with {n}" for n, low, high in
                     zip(COUNTS, counted.min(axis=-1), counted.max(axis=-1), strict=True))
    return Trait("each key once", once, f"of 1024 equal keys each sixteen counts as {said} splits"
                                        + ("" if once else ": keys are lost, or counted twice, a fault"))


def batch_invariance(caller):
    """Whether a row, or a sequence, has the same bits alone as among others."""
    if caller.subject.role in CALLED:
        q, k, v = _decode_inputs(4, 192)
        alone = [caller.attend(*(x[i : i + 1] for x in (q, k, v))) for i in range(4)]
        mixed, what = caller.attend(q, k, v), "sequences of 192 keys"
    elif caller.merges:
        scores, values = _drawn(2, 19)
        alone = [caller.merged(scores[i : i + 1], values[i : i + 1]) for i in range(19)]
        mixed, what = caller.merged(scores, values), "rows"
    else:
        scores, values = _drawn(40, 19)
        alone = [caller.weigh_alone(scores[i : i + 1], values.T) for i in range(19)]
        mixed, what = caller.weigh_alone(scores, values.T), "rows"
    columns = [np.concatenate(x) for x in zip(*alone, strict=True) if x[0] is not None]
    lost = _differing(columns, [x for x in mixed if x is not None])
    return [Trait("batch_invariance", lost == 0, f"{lost} of {len(columns[0])} {what} change in a bit beside others")]


# -- hazards --------------------------------------------------------------------------------------------


def hazards(caller):
    """Whether operands are written, and whether a result shares the memory of an operand or of the next result."""
    changed, aliased = _written_and_shared(caller)
    names = _operand_names(caller)
    writes = f"it changes {', '.join(names[i] for i in changed)}" if changed else "no operand is changed by a call"
    traits = [Trait("in_place", bool(changed), writes)]
    if aliased == INTO:
        return [*traits, Trait("aliasing", "operand", "it returns nothing: its result is what it leaves in operands")]
    if aliased:
        return [*traits, Trait("aliasing", "operand", f"result {aliased[0] + 1} lies in {names[aliased[1]]}")]
    overwritten = _overwritten(caller)
    text = (f"{_listed('result', overwritten)} of a call changed when another call was made" if overwritten
            else "results share no memory with operands and survive the next call")
    return [*traits, Trait("aliasing", "workspace" if overwritten else "none", text)]


def _listed(word, indices):
    return f"{word}{'s' if len(indices) > 1 else ''} {', '.join(str(i + 1) for i in indices)}"


INTO = "into"
"""Stands for a result that is nothing but what a call leaves in its operands."""


def _operand_names(caller):
    """The names of the arrays that are operands, in their order."""
    role, state = caller.subject.role, SPELT[caller.subject.kind].strip("()").split(", ")
    if role in CALLED:
        return ["q", "k", "v", "seq_lens"]
    two = [f"{name}{side}" for side in "12" for name in state]
    return {"merge": two, "merge_many": state, "block": ["scores", "v"]}[role]


def _operands(caller, sign):
    """Operands of the plainest kind for the role; `sign` turns the scores and values round, so that results differ."""
    if caller.subject.role in CALLED:
        q, k, v = (caller.array(sign * x) for x in _decode_inputs(3, 64))
        rest = {"partial": (), "decode": (np.array([64, 40, 64]), 2), "attention": (False,)}[caller.subject.role]
        return [q, k, v, *rest]
    scores, values = _drawn(2, 8)
    if caller.subject.role == "block":
        return [caller.array(sign * scores), caller.array(sign * values[:2])]
    parts = [caller.part(sign * s, sign * v) for s, v in zip(scores.T, values.T, strict=True)]
    if caller.subject.role == "merge":
        return [*parts[0], *parts[1]]
    return [np.stack(column) for column in zip(*parts, strict=True)]


def _written_and_shared(caller):
    """(operands that a call changes, (result, operand) of the first result that lies in one, INTO or None)."""
    free = caller.writable()
    sent = [free.send(x) for x in _operands(caller, 1)]
    before = [exact(x).copy() if hasattr(x, "shape") else x for x in sent]
    got = free.call(*sent)
    changed = [i for i, (was, x) in enumerate(zip(before, sent, strict=True))
               if hasattr(x, "shape") and _differing([was[None]], [exact(x)[None]])]
    if got is None and changed:
        return changed, INTO
    results = [] if got is None else free.floats(got)
    shared = [(j, i) for j, y in enumerate(results) for i, x in enumerate(sent)
              if hasattr(x, "shape") and _overlap(x, y)]
    return changed, shared[0] if shared else None


def _overlap(x, y):
    """Whether two arrays of one library lie in the same memory."""
    if backends.library(x) != backends.library(y):
        return False
    if backends.library(x) == "numpy":
        return np.may_share_memory(x, y)
    return x.numel() > 0 and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def _overwritten(caller):
    """The results of a call that are other numbers after another call has been made."""
    free = caller.writable()
    first = free.call(*(free.send(x) for x in _operands(caller, 1)))
    if first is None:
        return []
    kept = free.floats(first)
    before = [exact(x).copy() for x in kept]
    free.call(*(free.send(x) for x in _operands(caller, -1)))
    return [i for i, (was, x) in enumerate(zip(before, kept, strict=True)) if _differing([was[None]], [exact(x)[None]])]
