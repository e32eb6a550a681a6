"""The gradient of a subject against certified derivatives, along one direction a case.

A random functional Σ go·o + Σ gl·lse is differentiated by the subject (autograd, or its `backward`), the
gradient is paired with a direction, and compared with the same functional of the certified (do, dlse).
"""

import itertools
import math
from dataclasses import replace

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra import rounding
from fdmath.algebra.state import AccState, LSEState
from fdmath.verify import reference
from fdmath.verify.backward import BackwardCase, adopted
from fdmath.verify.reference import Finding
from fdmath.verify.subject import SubjectError


def available(subject):
    """Whether the subject can be differentiated here, in float64 throughout, and the derivative certified."""
    by_hand = subject.backward is not None and subject.role != "block" and subject.kind is LSEState
    ways = subject.lse and (by_hand or (subject.library == "torch" and not subject.in_place))
    return ways and reference.oracle is not None and "float64" in subject.dtypes and not subject.p_format("float64")


def finding(subject, case):
    """The Finding of the directional derivative on a float64 copy of the case, and of what empty parts get."""
    if subject.role in ("merge", "merge_many"):
        return _of_states(subject, case)
    if subject.role == "block":
        return _of_block(subject, case)
    return _of_call(subject, case)


def _of_states(subject, case):
    lses = np.stack([rounding.in_float64(p).to(LSEState).lse for p in case.parts])
    os = np.stack([rounding.in_float64(p).to(LSEState).o for p in case.parts])
    go, gl, dos, dlses = _directions(os.shape[1:], lses.shape[1:], os.shape, lses.shape)
    grads = _merge_gradient(subject, os, lses, go, gl)
    empty = np.isneginf(lses)
    for name, g in zip(("o", "lse"), grads, strict=True):
        for part, row in np.argwhere(empty):
            if np.any(g[part, row] != 0):
                return Finding(np.inf, False, "fail", f"the gradient towards {name}[{row}] of part {part + 1}, an "
                               f"empty state, is {g[part, row].tolist()} and must be 0: of Σ go·o + Σ gl·lse with "
                               f"go = {go.tolist()}, gl = {gl.tolist()}")
    right = reference.oracle.certified_merge_jvp(os, lses, dos, np.where(empty, 0.0, dlses))
    seen = np.where(empty, 0.0, lses)
    got = np.sum(grads[0] * dos, axis=(0, 2)) + np.sum(grads[1] * dlses, axis=0)
    return _compare(got, right, go, gl, dlses, _spread(seen, 0), len(lses), subject)


def _merge_gradient(subject, os, lses, go, gl):
    """(do (P, R, dv), dlse (P, R)) of the functional, by autograd or the subject's backward."""
    if subject.backward is not None and subject.kind is LSEState:
        return _by_the_chain_rule(subject, [LSEState(*x) for x in zip(os, lses, strict=True)], go, gl)
    torch = backends.load("importlib:import_module")("torch")
    leaves = _leaves(subject, os, lses)

    def states():
        for o, lse in zip(*leaves, strict=True):
            kind, lse = subject.kind, lse / math.log(2) if subject.log_base == 2 else lse
            yield (o, lse) if kind is LSEState else (lse, torch.where(lse == -np.inf, 0.0, 1.0).double(), o)

    parts = list(states())
    if subject.role == "merge_many":
        result = subject.call(*(torch.stack(c) for c in zip(*parts, strict=True)))
    else:
        result = parts[0]
        for part in parts[1:]:
            result = subject.call(*result, *part)
    return _autograd(torch, subject, result, leaves, go, gl)


def _by_the_chain_rule(subject, parts, go, gl):
    """(do, dlse) of all parts by the subject's backward: the last ⊕ of their chain first; all at once for many."""
    if subject.role == "merge_many":
        return _backward(subject, go, gl, LSEState(*(np.stack(x) for x in zip(*parts, strict=True))))
    whole = list(itertools.accumulate(parts, subject.merge))
    found = []
    for before, part in zip(whole[-2::-1], parts[:0:-1], strict=True):
        go, gl, *own = _backward(subject, go, gl, before, part)
        found.append(own)
    return [np.stack(x) for x in zip((go, gl), *reversed(found), strict=True)]


def _backward(subject, go, gl, *states):
    """The gradients (do, dlse) of each state that the subject's backward returns, of natural lse, in float64."""
    shown = [x for state in states for x in subject.present(state)]
    got = subject.call_backward(*map(subject.send, (go, subject.present_slope(gl), *shown)))
    shapes = [x.shape for x in shown]
    gradients = adopted(got, shapes, " and ".join(["do, dlse"] * len(states)))
    base = math.log(2) if subject.log_base == 2 else 1.0  # lse2 = lse/ln 2
    return [x / base if i % 2 else x for i, x in enumerate(gradients)]


def _of_block(subject, case):
    scores, v = rounding.exact(case.scores), rounding.exact(case.v)
    if not scores.shape[-1]:
        return reference.HOLDS
    go, gl, dv, ds = _directions((len(scores), v.shape[-1]), (len(scores),), v.shape, scores.shape)
    unseen = np.isneginf(scores)
    ds = np.where(unseen, 0.0, ds)
    torch = backends.load("importlib:import_module")("torch")
    leaves = _leaves(subject, scores, v)
    grads = _autograd(torch, subject, subject.call(*leaves), leaves, go, gl)
    if np.any(grads[0][unseen] != 0):
        return Finding(np.inf, False, "fail", "the gradient towards a key that is not visible is not 0")
    rows = np.broadcast_to(v[:, None], (len(v), len(scores), v.shape[-1]))
    right = reference.oracle.certified_merge_jvp(rows, scores.T, np.broadcast_to(dv[:, None], rows.shape), ds.T)
    got = np.sum(grads[0] * ds) + np.sum(grads[1] * dv)
    return _compare(got, right, go, gl, ds.T, _spread(np.where(unseen, 0.0, scores), 1), len(v), subject, total=True)


def _of_call(subject, case):
    """The Finding of a functional of (o, lse) along one direction, and of one of lse alone along two.

    In a sum with that of o, whose budget is wide, a gradient of lse that is lost can go unseen.
    """
    q, k, v = (rounding.exact(x) for x in (case.q, case.k, case.v))
    go, gl, *one = _directions((*q.shape[:-1], v.shape[-1]), q.shape[:-1], q.shape, k.shape, v.shape)
    other = [-one[0], *one[1:]]
    case = replace(case, q=q, k=k, v=v)
    both = _call_gradient(subject, case, go, gl)
    alone = _call_gradient(subject, case, 0 * go, gl)
    found = _along(subject, case, both, go, gl, one) & _along(subject, case, alone, 0 * go, gl, one)
    return found & _along(subject, case, alone, 0 * go, gl, other)


def _along(subject, case, grads, go, gl, directions):
    """The Finding of the gradients (dq, dk, dv) of Σ go·o + Σ gl·lse, paired with directions of q, k and v."""
    q, k, v, directions = case.q, case.k, case.v, list(directions)
    got = sum(np.sum(g * d) for g, d in zip(grads, directions, strict=True))
    order = case.heads_in_order(subject)
    q, go, gl, mask, directions[0] = (x[:, order] for x in (q, go, gl, case.visible(subject), directions[0]))
    right = reference.oracle.certified_attention_jvp(q, k, v, *directions, scale=subject.scale, mask=mask)
    scores = np.abs(q).sum(-1).max() * np.abs(k).max(initial=0.0)
    slopes = np.full(q.shape[:-1], (np.abs(q).sum(-1).max() + np.abs(k).max(initial=0.0)) * q.shape[-1])[None]
    ops = k.shape[-2] + q.shape[-1] * (2 + scores)
    return _compare(got, right, go, gl, slopes, scores, ops, subject, total=True)


def _call_gradient(subject, case, go, gl):
    """(dq, dk, dv) of the functional: by autograd where torch follows the call, else by the subject's backward."""
    if subject.library != "torch":
        return BackwardCase(case, subject, go, gl).run()
    torch = backends.load("importlib:import_module")("torch")
    leaves = _leaves(subject, case.q, case.k, case.v)
    _, _, _, *rest = case.arguments(subject)
    result = subject.call(*leaves, *rest)
    if subject.backward is not None and not any(getattr(x, "requires_grad", False) for x in result):
        return BackwardCase(case, subject, go, gl).run()
    return _autograd(torch, subject, result, leaves, go, gl)


def _leaves(subject, *arrays):
    """The arrays as tensors of the subject's that torch follows."""
    return [subject.send(x).requires_grad_() for x in arrays]


def _autograd(torch, subject, result, leaves, go, gl):
    """NumPy gradients of the functional of the returned state with respect to the leaves; zeros where unused."""
    arrays = list(result)
    try:
        if subject.kind is not LSEState and subject.role in ("merge", "merge_many", "block"):
            m, l, payload = arrays
            divisor = torch.where(l == 0, 1.0, l)
            o = payload / divisor[..., None] if subject.kind is AccState else payload
            lse = torch.where(l == 0, -np.inf, m + torch.log(divisor))
            arrays = [o, lse]
        o, lse = arrays
        lse = lse.mT if subject.lse_layout == "heads_last" and lse.ndim > 2 else lse
        lse = lse * math.log(2) if subject.log_base == 2 else lse
        seen = torch.where(torch.isinf(lse), 0.0, lse)
        total = (subject.send(go) * o).sum() + (subject.send(gl) * seen).sum()
        grads = torch.autograd.grad(total, leaves, allow_unused=True)
    except (RuntimeError, ValueError, TypeError) as error:
        raise SubjectError(f"could not be differentiated: {error}") from error
    return [np.zeros(tuple(x.shape)) if g is None else rounding.exact(g) for g, x in zip(grads, leaves, strict=True)]


def _compare(got, right, go, gl, slopes, spread, count, subject, total=False):
    """The Finding of a directional derivative, row by row or (total) of the sum over all rows.

    A step's derivative is g·w(1 − w)(o₂ − o₁): two weights, each off by its exponent's Δ + κ, and at most
    eight roundings more, so 2(Δ + κ) + 8 units of u a step; `count` steps add, and the pairing is one more.
    """
    fmt = rounding.format_of("float64", subject.exp_u)
    want = np.sum(go * right.o_mid, axis=-1) + gl * right.lse_mid
    slope = np.max(np.abs(slopes), axis=0, initial=0.0)
    size = np.sum(np.abs(go) * right.scale_o, axis=-1) + np.abs(gl) * slope
    factor = np.expm1(fmt.u * (count + 1) * (2 * spread + 2 * fmt.kappa + 8))
    budget = size * factor
    if total:
        want, budget = np.sum(want), np.sum(budget)
    error = np.abs(got - want)
    ratio = float(np.max(np.where(error == 0, 0.0, np.where(np.isnan(error), np.inf, error / budget)), initial=0.0))
    detail = f"directional derivative: got {np.asarray(got).tolist()}, right {np.asarray(want).tolist()}"
    return Finding(ratio, ratio == 0, "pass" if ratio <= 1 else "fail", detail)


def _spread(levels, axis):
    """The largest |S| along the axis, to which weights are exponentials of differences."""
    return 2 * np.max(np.abs(levels), axis=axis, initial=0.0) if axis == 0 else 2 * np.max(np.abs(levels), initial=0.0)


def _directions(*shapes):
    """Fixed arrays of ±1, ±2, ±½ for functionals and directions (their choice cannot hide a term)."""
    rng = np.random.default_rng(20231012)
    return [rng.choice([1.0, -1.0, 2.0, 0.5, -0.5], shape) for shape in shapes]
