"""⊕: the state of the union of two disjoint sets of keys, and of many at once, in each spelling.

Over the reals ⊕ is addition of the pairs (Z, Y), so it is associative and commutative, and the state
of no keys is neutral. In floating point it commutes bit for bit, and the empty state changes nothing,
bit for bit; how far associativity fails is bounded in `fdmath.algebra.rounding`.
"""

from fdmath import _backends as backends
from fdmath.algebra.state import KINDS, AccState, LSEState, MLOState, canonical, is_empty


def merge(a, b):
    """a ⊕ b: the state of all keys of a and b together.

    a, b: two states of one kind and one shape; float formats may differ. The result has that kind, each
    of its arrays the wider format of the two; work is in float32 at least. A row that is empty on one
    side is the other side's row, selected bit for bit. Differentiable in torch.
    Raises TypeError for two kinds or libraries, ValueError for two shapes.
    Source: document A, 2.2.2 (triple), 2.3.5 (pair, here in convex form).
    """
    xp = check_alike([a, b])
    names = _result_formats([a, b])
    work = backends.working(*names)
    with backends.quiet():
        left, right = (canonical(s.map(lambda x: backends.cast(x, work))) for s in (a, b))
        chosen = join(xp, left, right, _COMBINE[type(a)])
    return type(a)(*(backends.cast(x, n) for x, n in zip(chosen, names, strict=True)))


def join(xp, a, b, combine):
    """combine(xp, a, b) for two canonical states in working format; where one is empty, the other's row."""
    return _select(xp, a, b, type(a)(*combine(xp, *_level_guarded(xp, a, b))))


def combine_lse(xp, a, b):
    """(o, lse) of the convex form: o = o₁ + w·(o₂ − o₁), w = σ(S₂ − S₁) ≤ ½, index 1 the larger lse.

    lse = S₁ + log(1 + e^(S₂−S₁)). At a tie o is the mean of the two, so that ⊕ commutes; the mean is
    written with the first-order term of w, whose value there is 0, so that the derivative is right too.
    """
    swap = (b.lse > a.lse)[..., None]
    near, far = xp.where(swap, b.o, a.o), xp.where(swap, a.o, b.o)
    level = xp.maximum(a.lse, b.lse)
    shrink = xp.exp(xp.minimum(a.lse, b.lse) - level)
    weight = (shrink / (1.0 + shrink))[..., None]
    mean = (a.o + b.o) * 0.5 + (a.lse - b.lse)[..., None] * (a.o - b.o) * 0.25
    o = xp.where((a.lse == b.lse)[..., None], mean, near + weight * (far - near))
    return o, level + xp.log1p(shrink)


def combine_acc(xp, a, b, exp=None):
    """(m, l, acc) with both sides rescaled to the larger reference level and added: AccState's ⊕.

    exp: the exponential of the levels' base (natural without it).
    """
    m, alpha, beta = _rescale(xp, a.m, b.m, exp)
    return m, alpha * a.l + beta * b.l, alpha[..., None] * a.acc + beta[..., None] * b.acc


def combine_mlo(xp, a, b, exp=None):
    """(m, l, o): levels unified, the l added, o the mean of the two o weighted by the rescaled l.

    Document A, 2.2.2 for B = 2; with one key on the right it is the recurrence (1c) of 3.1.1.
    exp: the exponential of the levels' base (natural without it).
    """
    m, alpha, beta = _rescale(xp, a.m, b.m, exp)
    left, right = alpha * a.l, beta * b.l
    l = left + right  # noqa: E741
    return m, l, (left[..., None] * a.o + right[..., None] * b.o) / l[..., None]


def _rescale(xp, m1, m2, exp=None):
    """(m, α, β): the larger of two levels, and the factors e^(m₁−m), e^(m₂−m) that move to it."""
    exp = exp or xp.exp
    m = xp.maximum(m1, m2)
    return m, exp(m1 - m), exp(m2 - m)


_COMBINE = {LSEState: combine_lse, AccState: combine_acc, MLOState: combine_mlo}


def _level_guarded(xp, a, b):
    """a and b with level 0 and l = 1 put in where either is empty, so that no −∞ − (−∞) is ever formed.

    What is computed there is not used: `_select` takes the other side's row.
    """
    either = is_empty(a) | is_empty(b)
    if isinstance(a, LSEState):
        return tuple(LSEState(s.o, xp.where(either, 0.0, s.lse)) for s in (a, b))
    return tuple(type(s)(xp.where(either, 0.0, s.m), xp.where(either, 1.0, s.l), s.payload) for s in (a, b))


def _select(xp, a, b, both):
    """Row by row: b where a is empty, a where b is empty, else `both`."""
    a_empty, b_empty = is_empty(a), is_empty(b)

    def pick(x, y, z):
        deep = (..., None) if z.ndim > a_empty.ndim else ...
        return xp.where(a_empty[deep], y, xp.where(b_empty[deep], x, z))

    return type(a)(*map(pick, a, b, both))


def flat(merge, states):
    """The state of all parts at once: one common level, one weighted sum, one division.

    For pairs c_b = e^(S_b − S_max), o = Σ c_b·o_b / Σ c_b, lse = S_max + log Σ c_b; for triples with
    S_b replaced by m_b and c_b multiplied by l_b. The sums run from the first part to the last, in the
    same order above and below the fraction bar, so v ≡ 1 stays 1 and an empty part changes nothing, bit
    for bit. An order like the others, except that `merge` is not used, unless it has a method `flat` of
    its own, which is then given the list (so budgets are folded in the order of the states). It also takes one
    state whose leading axis counts the parts.
    Source: document A, 2.2.2 and 2.3.4; error bounds T1 and T3.
    """
    if not isinstance(states, KINDS):
        states = list(states)
        if hasattr(merge, "flat"):
            return merge.flat(states)
        states = stack(states)
    names = [backends.float_name(x) for x in states]
    work = backends.working(*names)
    with backends.quiet():
        parts = canonical(states.map(lambda x: backends.cast(x, work)))
        merged = _flat_of_parts(backends.array_namespace(state=parts.payload), parts)
    return type(states)(*(backends.cast(x, n) for x, n in zip(merged, names, strict=True)))


def _flat_of_parts(xp, parts):
    """The merge over the leading axis of a canonical state whose empty rows are the identity."""
    level = parts.lse if isinstance(parts, LSEState) else parts.m
    top = xp.max(level, axis=0)
    reference = xp.where(top == float("-inf"), 0.0, top)
    weight = xp.exp(level - reference)
    if isinstance(parts, AccState):
        return AccState(top, _ordered_sum(weight * parts.l), _ordered_sum(weight[..., None] * parts.acc))
    if isinstance(parts, MLOState):
        weight = weight * parts.l
    total = _ordered_sum(weight)
    divisor = xp.where(total == 0, 1.0, total)
    o = _ordered_sum(weight[..., None] * parts.o) / divisor[..., None]
    return LSEState(o, top + xp.log(divisor)) if isinstance(parts, LSEState) else MLOState(top, total, o)


def _ordered_sum(x):
    """The sum over the leading axis, added from first to last in every element alike."""
    total = x[0, ...]
    for i in range(1, x.shape[0]):
        total = total + x[i, ...]
    return total


def merge_all(states, order=flat):
    """All states ⊕-ed together in an order.

    states: a list of states of one kind and shape, or one state whose leading axis counts the parts.
    order: any of `fdmath.algebra.order`, or your own callable order(merge, states) → state.
    Raises ValueError where there is nothing to merge (the shape of the identity would be unknown).
    """
    if isinstance(states, KINDS):
        check_parts(states)
        if order is flat:
            return flat(merge, states)
        states = unstack(states)
    check_alike(parts := list(states))
    result = check_order(order)(merge, parts)
    if type(result) is not type(parts[0]):
        raise TypeError(f"order must return a {type(parts[0]).__name__}; {order!r} returned {type(result).__name__}")
    return result


def check_order(order):
    """`order` itself if it can be called; TypeError otherwise."""
    if not callable(order):
        raise TypeError(f"order must be callable, order(merge, states) → state; got {order!r}")
    return order


def stack(states):
    """One state with a leading axis of parts, made of a list of states of one kind and shape, each array the widest."""
    xp = check_alike(states)
    columns = [[backends.cast(x, name) for x in column]
               for column, name in zip(zip(*states, strict=True), _result_formats(states), strict=True)]
    return type(states[0])(*map(xp.stack, columns))


def unstack(state):
    """The list of states along the leading axis of one state; ValueError if it has no such axis."""
    check_parts(state)
    return [state.map(lambda x, i=i: x[i, ...]) for i in range(state.payload.shape[0])]


def check_parts(state):
    """Nothing; raises ValueError for a state without a leading axis of parts, or without a part."""
    shape = tuple(state.payload.shape)
    if len(shape) < 2:
        raise ValueError(f"states must have a leading axis of parts; got {state.payload_name} of shape {shape}")
    if shape[0] == 0:
        raise ValueError("states must hold at least one state; got none")


def check_alike(states):
    """The namespace shared by states of one kind, shape and library; raises at the first that differs."""
    states = list(states)
    if not states:
        raise ValueError("states must hold at least one state; got none")
    first = states[0]
    for i, s in enumerate(states):
        if not isinstance(s, KINDS):
            raise TypeError(f"state {i} must be an MLOState, AccState or LSEState; got {type(s).__name__}")
        if type(s) is not type(first):
            raise TypeError(f"state {i} must be of the kind of state 0, {type(first).__name__}; got "
                            f"{type(s).__name__}")
        if tuple(s.payload.shape) != tuple(first.payload.shape):
            raise ValueError(f"state {i} must have the shape of state 0, {first.payload_name} "
                             f"{tuple(first.payload.shape)}; got {tuple(s.payload.shape)}")
    return backends.array_namespace(**{f"state {i}": s.payload for i, s in enumerate(states)})


def _result_formats(states):
    """The names of the formats of the merged state's arrays: for each array the widest that comes in."""
    return [backends.widest(*{backends.float_name(x) for x in column}) for column in zip(*states, strict=True)]
