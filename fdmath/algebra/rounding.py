"""Floating-point formats, rounding to them, and proven bounds on the rounding of ⊕ and of its folds.

Model: fl(x∘y) = (x∘y)(1 + δ), |δ| ≤ u; exp and log off by a factor e^±κu, κ = 4; underflow adds at most half the
smallest subnormal an operation; exp(0) = 1, and no exponential of x ≤ 0 exceeds 1. A weight is an
exponential, so an error η of its exponent is a relative error expm1(η) of the weight; these are carried,
not linearised. Bounds are evaluated in float64 on the values themselves. T5, T6 and the bounds of `flat`
hold as they stand, underflow counted apart (proofs: notebook 05); the others drop products of two bounds
that are below u times what is kept.
Names T1 … T6 are the theorems of the notebooks (claims.md section 3; T5 and T6: notebook 05).
"""

from dataclasses import dataclass

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra.merge import flat, merge
from fdmath.algebra.state import LSEState, canonical, is_empty

KAPPA = 4.0
"""The error of exp and log in units of u that the bounds allow (measured: torch 1.1, NumPy 3.6)."""

_BITS = {"float16": (11, -24), "bfloat16": (8, -133), "float32": (24, -149), "float64": (53, -1074)}


def unit_roundoff(dtype):
    """u, half the spacing at 1, of a float format given by array, dtype or name: 2⁻¹¹, 2⁻⁸, 2⁻²⁴, 2⁻⁵³."""
    return 2.0 ** -_BITS[_name(dtype)][0]


def smallest_subnormal(dtype):
    """The smallest positive number of a float format given by array, dtype or name."""
    return 2.0 ** _BITS[_name(dtype)][1]


def round_to(x, dtype):
    """x rounded to the format `dtype` (a dtype or a name) and brought back to x's own format."""
    return backends.cast(backends.cast(x, _name(dtype)), backends.float_name(x))


def _name(dtype):
    return dtype if isinstance(dtype, str) and dtype in _BITS else backends.float_name(dtype)


@dataclass(frozen=True)
class Format:
    """What a bound needs to know of the working format: u, what an underflow may lose, and κ of exp and log.

    tiny is half the smallest subnormal (the whole one in float64, in which half of it is not a number).
    """

    u: float
    tiny: float
    kappa: float = KAPPA

    @property
    def step(self):
        """−log(1 − u): one rounding is a factor e^t with |t| at most this."""
        return -np.log1p(-self.u)

    @property
    def few(self):
        """u/(1 − 5u): up to five roundings in a row change a number by at most this for each, relatively."""
        return self.u / (1 - 5 * self.u)


def format_of(dtype, kappa=KAPPA):
    """The Format of an array, dtype or name."""
    return Format(unit_roundoff(dtype), max(smallest_subnormal(dtype) / 2, smallest_subnormal("float64")), kappa)


@dataclass(frozen=True, eq=False)
class Budget:
    """A bound on |ô − o|, shape (…, dv), and one on the error of the exponent, lse or m + log l, shape (…)."""

    o: np.ndarray
    lse: np.ndarray

    def __iter__(self):
        return iter((self.o, self.lse))


def in_float64(state):
    """The state with its arrays as NumPy float64 and its empty rows as the identity."""
    with backends.quiet():
        return canonical(state.map(exact))


def exact(x):
    """A NumPy float64 array with the exact values of x."""
    x = x.detach().cpu().to(dtype=backends.dtype_of(x, "float64")).numpy() if backends.library(x) == "torch" else x
    return np.asarray(x).astype(np.float64)


def no_error(state):
    """The Budget of a state that is taken as exact: zeros."""
    return Budget(np.zeros(state.payload.shape), np.zeros(state.payload.shape[:-1]))


def merge_budget(a, b, fmt, of_a=None, of_b=None):
    """The Budget of merge(a, b) for states that carry the errors of_a and of_b already (T5, one step of T6).

    a, b: states of one kind, float64, empty rows the identity (`in_float64`). For AccState the bound on o
    is for acc/l. An empty side changes nothing and costs nothing.
    """
    of_a, of_b = of_a or no_error(a), of_b or no_error(b)
    with backends.quiet():
        both = _pair_budget if isinstance(a, LSEState) else _triple_budget
        o, lse = both(a, b, fmt, of_a, of_b)
    o, lse = _or_none(o), _or_none(lse)
    gone_a, gone_b = is_empty(a), is_empty(b)
    o = np.where(gone_a[..., None], of_b.o, np.where(gone_b[..., None], of_a.o, o))
    return Budget(o, np.where(gone_a, of_b.lse, np.where(gone_b, of_a.lse, lse)))


def _or_none(bound):
    """The bound, ∞ where it overflowed in itself to NaN, as where an exponent may be off by hundreds: there is none."""
    return np.where(np.isnan(bound), np.inf, bound)


def _pair_budget(a, b, fmt, of_a, of_b):
    """T5 plus the carried errors: with index 1 the larger lse, w the weight of 2, Δ = |S₁ − S₂|, η = η₁ + η₂,

    λ = w(1−w)·expm1(η + u(Δ+η+κ))     what the errors of the exponents may add to a weight,
    σ = |o₂−o₁| + ε₁ + ε₂              how far apart the two stored o may be,
    ρ = (1−w)ε₁ + wε₂ + λσ             the error of o before anything of this ⊕ is rounded but its weight,
    ε = ρ + u[4wσ + |o|] + …           with w + λ ≤ ½ for the computed weight, and |o| + ρ for |o|;
    η = log((1−w)e^η₁ + we^η₂) + u[|S| + w(Δ+κ) + κ·log1p(e^−Δ)] + …   with the same, and Δ + η for Δ.
    """
    gap = np.abs(a.lse - b.lse)
    small = np.exp(-gap)
    w = small / (1 + small)
    first = a.lse >= b.lse
    weight_a, weight_b = np.where(first, 1 - w, w), np.where(first, w, 1 - w)
    o, lse = merge(a, b)
    exponents = of_a.lse + of_b.lse
    gap = gap + exponents  # the gap that the machine sees is at most this
    moved = w * (1 - w) * np.expm1(exponents + fmt.u * (gap + fmt.kappa))
    far = np.minimum(w + moved, 0.5)
    spread = np.abs(a.o - b.o) + of_a.o + of_b.o
    reach = weight_a[..., None] * of_a.o + weight_b[..., None] * of_b.o + _times(moved, spread)
    lost = 2 * fmt.kappa * fmt.tiny * spread  # w is an exponential: it may underflow beside a large o
    rounding = fmt.few * (4 * far[..., None] * spread + np.abs(o) + reach) + 4 * fmt.tiny + lost
    carried = np.log1p(weight_a * np.expm1(of_a.lse) + weight_b * np.expm1(of_b.lse))
    log_sum = fmt.u * (far * (gap + fmt.kappa) - fmt.kappa * np.log1p(-far))
    lse_bound = carried + (1 + fmt.u) * log_sum + fmt.u * (np.abs(lse) + carried)
    return reach + rounding, lse_bound + 4 * fmt.tiny


def _times(weight, values):
    """weight (…) times values (…, dv), 0 where the values are 0 even if the weight is infinite."""
    return np.where(values == 0, 0.0, weight[..., None] * values)


def _triple_budget(a, b, fmt, of_a, of_b):
    """T6 for triples: η the error of m + log l, D = |m₁ − m₂|, index r the side with the smaller m, u′ = −log(1−u),

    λ = w₁w₂·expm1(η₁ + η₂ + u(D+κ) + u′),  σ = |o₂−o₁| + ε₁ + ε₂,  ρ = w₁ε₁ + w₂ε₂ + λσ,
    ε = ρ + u[w₁|o₁| + w₂|o₂| + 3|o| + 4ρ]/(1−5u),
    η = log(w₁e^η₁ + w₂e^η₂) + u′, with u(D+κ) + u′ added to η_r.
    """
    pa, pb = a.to(LSEState), b.to(LSEState)
    both = merge(pa, pb)
    weight_a, weight_b = np.exp(pa.lse - both.lse), np.exp(pb.lse - both.lse)
    rescaled = fmt.u * (np.abs(a.m - b.m) + fmt.kappa) + fmt.step  # the error of the smaller side's exponent
    spread = np.abs(pa.o - pb.o) + of_a.o + of_b.o
    moved = weight_a * weight_b * np.expm1(of_a.lse + of_b.lse + rescaled)
    reach = weight_a[..., None] * of_a.o + weight_b[..., None] * of_b.o + _times(moved, spread)
    sizes = weight_a[..., None] * np.abs(pa.o) + weight_b[..., None] * np.abs(pb.o) + 3 * np.abs(both.o)
    total = np.exp(both.lse - np.maximum(a.m, b.m))  # l of the merged state
    floor = 4 * fmt.tiny / np.minimum(1.0, total)
    lost = 2 * fmt.kappa * fmt.tiny * (1 + np.maximum(a.l, b.l)) / total  # α or β may underflow, or its product with l
    o_bound = reach + fmt.few * (sizes + 4 * reach) + floor[..., None] + _times(lost, spread)
    of_1, of_2 = (np.where(low, e.lse + rescaled, e.lse) for low, e in ((a.m < b.m, of_a), (a.m >= b.m, of_b)))
    lse_bound = np.log1p(weight_a * np.expm1(of_1) + weight_b * np.expm1(of_2)) + fmt.step
    return o_bound, lse_bound + floor + lost


def fold_budget(states, order, fmt, errors=None):
    """The Budget of merge_all(states, order): a fold of budgets in the same order (T6); `flat`: T1 or T3.

    states: a list in any float format; errors: the Budget that each part carries already (none without it).
    """
    parts = [in_float64(s) for s in states]
    errors = [no_error(s) for s in parts] if errors is None else list(errors)
    return order(_Fold(fmt), [_Carried(s, e) for s, e in zip(parts, errors, strict=True)]).budget


@dataclass(frozen=True, eq=False)
class _Carried:
    """A state beside the Budget of the error that it carries."""

    state: object
    budget: Budget


@dataclass(frozen=True)
class _Fold:
    """⊕ of states that carry their budgets, and `flat` of many, as `order(merge, states)` asks for them."""

    fmt: Format

    def __call__(self, x, y):
        return _Carried(merge(x.state, y.state), merge_budget(x.state, y.state, self.fmt, x.budget, y.budget))

    def flat(self, carried):
        states, budgets = [c.state for c in carried], [c.budget for c in carried]
        return _Carried(flat(merge, states), flat_budget(states, self.fmt, budgets))


def flat_budget(parts, fmt, errors):
    """The Budget of `flat` (T1 for triples, T3 for pairs), with the errors of the parts carried.

    The same computed weights p_b·e^±x_b enter both sums, x_b = u(Δ_b + η_b + max η + κ) + u′ + η_b, where
    Δ_b is the distance to the top level and u′ = −log(1−u). So with ε_b, η_b the errors of part b
    and b̂ = expm1(Bu′) for the B roundings of each sum and quotient,
    ρ = Σ p_b(e^x_b·ε_b + expm1(x_b)|o_b−o|) / Σ p_b·e^−x_b   before the sums are rounded,
    ε = ρ + b̂[(1+b̂)·Σ p_b·e^x_b(|o_b|+ε_b) / Σ p_b·e^−x_b + |o| + ρ].
    """
    pairs = [s.to(LSEState) for s in parts]
    count = len(parts)
    whole = flat(merge, pairs)
    level = np.stack([s.lse if isinstance(s, LSEState) else s.m for s in parts])
    top = np.max(level, axis=0)
    with backends.quiet():  # a row without keys is NaN until the last line
        share = np.stack([np.exp(s.lse - whole.lse) for s in pairs])
        distance = np.where(share > 0, top - level, 0.0)
        of_exponents = np.stack([e.lse for e in errors])
        most = np.max(of_exponents, axis=0)
        distance = distance + (of_exponents + most if isinstance(parts[0], LSEState) else 0.0)
        drift = fmt.u * (distance + fmt.kappa) + fmt.step + of_exponents
        exponent, least = np.expm1(drift), np.sum(share * np.exp(-drift), axis=0)[..., None]
        values, carried = np.stack([s.o for s in pairs]), np.stack([e.o for e in errors])
        moved = np.exp(drift)[..., None] * carried + exponent[..., None] * np.abs(values - whole.o)
        moved = np.sum(share[..., None] * moved, axis=0) / least
        size = np.sum((share * np.exp(drift))[..., None] * (np.abs(values) + carried), axis=0) / least
        sums = np.exp(whole.lse - top)
        floor = (count + 3) * fmt.tiny / np.minimum(1.0, sums)
        lost = 2 * fmt.kappa * floor[..., None] * np.sum(np.abs(values), axis=0)
        added = np.expm1(count * fmt.step)
        o = moved + added * ((1 + added) * size + np.abs(whole.o) + moved) + floor[..., None] + lost
        lse = np.log1p(np.sum(share * exponent, axis=0)) + count * fmt.step + floor
        if isinstance(parts[0], LSEState):
            log = fmt.u * fmt.kappa * (np.abs(np.log(sums)) + lse + most)
            lse = lse + (1 + fmt.u) * log + fmt.u * (np.abs(whole.lse) + lse)
    empty = np.isinf(whole.lse)
    return Budget(np.where(empty[..., None], 0.0, _or_none(o)), np.where(empty, 0.0, _or_none(lse)))


def chain_budget(states, fmt, errors=None):
    """T4, the widest right form: B·(3Λ + 3κ + 6)·u·Ω on o for any chain of printed ⊕, Ω = max|o_b|.

    On lse: B·u·(Λ + 2κ + 2). Λ = max|S_b| + log B bounds every |S| on the way. For subjects that declare
    nothing. Where B·u is not small these lack products of roundings, and the exact forms are taken if larger:
    λ = u(Λ + 1.2κ + 1)/(1 − Bu) for one rounding of S, (B−1)λ on lse, and on o, with u′ = −log(1−u),
    Ω·expm1(log G + u·log B + (B−1)(κu + 2u′)), G = min(B, 1 + (B−1)λ/(1−λ)). Errors of the parts are added,
    with η·2Ω for the exponents. Proof: notebook 04.
    """
    pairs = [in_float64(s).to(LSEState) for s in states]
    errors = [no_error(s) for s in pairs] if errors is None else errors
    levels = np.stack([np.where(np.isinf(s.lse), 0.0, np.abs(s.lse)) for s in pairs])
    values = np.stack([np.abs(s.o) for s in pairs])
    count, size = len(pairs), np.max(values, axis=0)
    level = np.max(levels, axis=0) + np.log(count)
    slip, factor = _chain_products(count, level, fmt)
    from_parts = np.max(np.stack([e.lse for e in errors]), axis=0)
    o = np.maximum(count * fmt.u * (3 * level + 3 * fmt.kappa + 6), factor)[..., None] * size
    o = o + count * 8 * fmt.tiny * (1 + size)
    o = o + np.max(np.stack([e.o for e in errors]), axis=0) + 2 * _times(np.expm1(from_parts), size)
    lse = np.maximum(count * fmt.u * (level + 2 * fmt.kappa + 2), slip)
    return Budget(o, lse + 4 * count * fmt.tiny + from_parts)


def _chain_products(count, level, fmt):
    """(η, f): bounds on the error of lse and on |ô − o|/Ω of a chain of printed ⊕, no product of roundings dropped.

    level: Λ, a bound on every |S| on the way. η is infinite from B·u = 1 on; G ≤ B holds at any level, since a
    rounded S is never below its larger operand, so that no weight exceeds 1.
    """
    room = 1 - count * fmt.u
    one = fmt.u * (level + 1.2 * fmt.kappa + 1) / room if room > 0 else np.full_like(level, np.inf)
    fits = one < 1
    shrunk = np.where(fits, 1 + (count - 1) * one / (1 - np.where(fits, one, 0.0)), np.inf)
    rest = fmt.u * np.log(count) + (count - 1) * (fmt.kappa * fmt.u + 2 * fmt.step)
    return (count - 1) * one if count > 1 else 0.0 * level, np.expm1(np.log(np.minimum(shrunk, count)) + rest)


def score_error(q, k, scale, fmt):
    """A bound on the rounding of scale·q·kᵀ: γ_(d+2)·scale·Σ|q||k| plus underflow, shape (…, Nq, N), float64.

    q: (…, Nq, d), k: (…, N, d). Scaling is one rounding, the products and sums in any order d more
    (Higham 2002, section 3.1); one more covers a scale rounded to the working format, which may be subnormal there.
    """
    q, k, scale = np.abs(exact(q)), np.abs(exact(k)), abs(float(scale))
    ops = q.shape[-1] + 2
    gamma = ops * fmt.u / (1 - ops * fmt.u)
    products = q @ np.swapaxes(k, -1, -2)
    underflow = ops * fmt.tiny * (1 + np.max(k, initial=0.0) + scale) + 2 * fmt.tiny * products
    return gamma * scale * products + underflow


def block_budget(scores, v, fmt, errors=0.0, pair=True, p_dtype=None):
    """The Budget of `partial_state` on exact scores (…, Nq, N) that were computed with the given errors.

    A weight errs by ε_j = expm1(σ_j + u(|s_j − m| + κ)), σ_j the error of its score; it moves o by
    p_j·ε_j·(v_j − o). The sums over n keys add n·u·Σp|v| and n·u·|o| in any order (Higham 2002, 3.1),
    the division one more. p_dtype: a lower format to which P is rounded before P·v (twice, as l may sum
    the unrounded P). pair: the bound on lse = m + log l as a number; else on the exponent of (m, l).
    """
    scores, v = exact(scores), exact(v)
    keys = scores.shape[-1]
    if keys == 0:
        shape = scores.shape[:-1]
        return Budget(np.zeros((*shape, v.shape[-1])), np.zeros(shape))
    seen = np.any(scores > -np.inf, axis=-2)
    v = np.where(seen[..., None], v, 0.0)
    with backends.quiet():  # a row without keys is NaN until the last line
        level = np.max(scores, axis=-1, keepdims=True)
        p = np.exp(scores - level)
        total = np.sum(p, axis=-1, keepdims=True)
        p = p / total
        drift = np.where(p > 0, np.broadcast_to(errors, p.shape) + fmt.u * (level - scores + fmt.kappa), 0.0)
        exponent, least = np.expm1(drift), np.sum(p * np.exp(-drift), axis=-1)
        o = p @ v
        columns = [np.abs(v[..., None, :, c] - o[..., c:c + 1]) for c in range(v.shape[-1])]
        moved = [np.sum(np.where(apart == 0, 0.0, p * exponent * apart), axis=-1) for apart in columns]
        moved = [row / np.where(least == 0, 1.0, least) for row in moved]  # the weights' own sum may shrink as well
    moved = np.stack(moved, axis=-1) if moved else np.zeros(o.shape)
    rounded = 0.0 if p_dtype is None else unit_roundoff(p_dtype)
    # Worst error of a weight below the format's range is the smallest subnormal itself, hence the floor.
    floor = (keys + 2) * fmt.tiny * (1 + 2 * fmt.kappa * np.max(np.abs(v), axis=-2, keepdims=True, initial=0.0))
    size = p @ np.abs(v)
    o_bound = moved + (keys * fmt.u + 2 * rounded) * size + (keys + 1) * fmt.u * np.abs(o) + floor
    lse_bound = np.sum(p * exponent, axis=-1) + (keys * fmt.u) + 2 * rounded
    lse_bound = lse_bound + (keys + 2) * fmt.tiny * 2 * fmt.kappa
    if pair:
        log_l = np.log(total[..., 0])
        lse_bound = lse_bound + fmt.u * (fmt.kappa * log_l + np.abs(level[..., 0] + log_l))
    empty = level[..., 0] == -np.inf
    return Budget(np.where(empty[..., None], 0.0, o_bound), np.where(empty, 0.0, lse_bound))


def finish_budget(state, budget, fmt, out_fmt, pair=True):
    """The Budget of a finished call: converting the state to a pair, then rounding o to the output format."""
    o, lse = in_float64(state).to(LSEState)
    empty = np.isinf(lse)
    with backends.quiet():  # a row without keys is NaN until the last line
        convert = 0.0 if pair else fmt.u * (fmt.kappa * np.abs(lse - in_float64(state).m) + np.abs(lse))
    o_bound = budget.o + (0.0 if pair else fmt.u * np.abs(o))
    rounded = out_fmt.u * (np.abs(o) + o_bound) + out_fmt.tiny if out_fmt != fmt else 0.0
    return Budget(np.where(empty[..., None], 0.0, o_bound + rounded), np.where(empty, 0.0, budget.lse + convert))
