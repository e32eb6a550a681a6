"""Document B, deferred normalisation: the update of FlashAttention-1, that of FlashAttention-2, and what is saved."""

import math
from functools import reduce
from types import SimpleNamespace

import numpy as np

from fdmath.algebra.merge import combine_acc, combine_mlo
from fdmath.algebra.rounding import format_of
from fdmath.algebra.trace import trace_keys
from fdmath.attention.flash import flash_attention
from fdmath.attention.flash1 import flash_attention_1
from fdmath.attention.printed import update_as_printed_B, update_as_printed_FA2_line_10, update_as_printed_FA2_recap
from fdmath.bench import blocks, grid, journal
from fdmath.claims import exact
from fdmath.claims.claim import Observed, check
from fdmath.cost.counts import Counts
from fdmath.cost.flash import Grid, elementwise_price, forward_divisions, forward_matmul_flop
from fdmath.cost.hardware import A100, DEVICES

FORMS = ("parts", "sum", "factors")
"""Three ways to write FlashAttention-1's step (`flash_attention_1`); "parts" is the one that document B counts."""

SIZES = ((64, 64, 128), (64, 128, 64), (128, 64, 128))
"""(B_r, B_c, d); the first is the document's example."""


def step(algorithm, block_m, block_n, dim, **options):
    """A Counter of what one more block of keys asks of a row of blocks: two blocks of keys less one."""
    one, two = (Counts(), Counts())
    for keys, counts in ((block_n, one), (2 * block_n, two)):
        algorithm(np.ones((block_m, dim)), *np.ones((2, keys, dim)), block_m=block_m, block_n=block_n, counts=counts,
                  **options)
    return journal.flattened(two) - journal.flattened(one)


def steps(size):
    """The `step` of each of FORMS, by name, and that of FlashAttention-2 under "deferred"."""
    return {form: step(flash_attention_1, *size, divide=form) for form in FORMS} | {
        "deferred": step(flash_attention, *size)}


ORDERS = ((0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2))
"""Ranks of four scores: the maximum grows at every key, never, and now and then."""


def chain(combine, payload, ranks):
    """(scores, v, m, l, payload) of symbolic keys, one after the other by a `combine_…` of `fdmath.algebra.merge`."""
    scores, v = exact.keys(ranks)
    one = np.array([exact.Number.of(1)], dtype=object)
    parts = [SimpleNamespace(m=scores[i:i + 1], l=one, **{payload: v[i:i + 1, None]}) for i in range(len(v))]
    names = ("m", "l", payload)
    whole = reduce(lambda a, b: SimpleNamespace(**dict(zip(names, combine(np, a, b), strict=True))), parts)
    return scores, v, *(np.ravel(getattr(whole, name))[0] for name in names)


@check("B01")
def rescaling_of_the_old_output():
    """One more key by the document's words, on symbols, with the maximum at rest and moved; then in numbers.

    Beside it the same by `combine_mlo`, which has the factor e^(m₁−m₂) (M1), and by the paper's recapitulation.
    """
    inside, right = [], []
    one = np.array([exact.Number.of(1)], dtype=object)
    for ranks in ((1, 0), (0, 1)):
        scores, v, _, _, o = chain(combine_mlo, "o", ranks)
        wanted = exact.definition(scores, v)[1]
        said = update_as_printed_B(scores[:1], one, v[:1, None], scores[1:, None], v[1:, None])[2][0, 0]
        inside.append(said == wanted)
        right.append(o == wanted)
    first = np.zeros(1), np.ones(1), np.ones((1, 1))
    came = [update(*first, np.array([[math.log(3)]]), np.zeros((1, 1)))[2].item()
            for update in (update_as_printed_B, update_as_printed_FA2_recap)]
    return Observed(
        inside=inside,
        figure=f"with e^(m1-m2) right in {sum(right)} of 2 orders of the keys, without it in {sum(inside)}, while the "
               f"maximum stays; on the counterexample the paper's inverse gives {came[1]:.3g}",
        counterexample=f"scores (0, log 3), V = (1, 0), a key a block: {came[0]:.3g}, right 0.25",
    )


@check("B02")
def divisions_of_a_step():
    """The divisions of one step, counted: with both parts divided number by number, and in the two other forms."""
    counted = {size: steps(size) for size in SIZES}

    def said(form):
        return [did[form]["divisions"] == 2 * size[0] * size[2] for size, did in counted.items()]

    example = {form: counted[SIZES[0]][form]["divisions"] for form in FORMS}
    return Observed(inside=said("parts"), outside=said("sum") + said("factors"),
                    figure=f"divisions a step, B_r = B_c = 64, d = 128: {_listed(example)}",
                    counterexample=f"the printed algorithm divides the sum once: {example['sum']}, not "
                                   f"{2 * 64 * 128}")


@check("B03")
def division_at_the_end():
    """Four symbolic keys, a key a block: acc/l at the end, and o divided at every step, against the definition."""
    inside = []
    for ranks in ORDERS:
        scores, v, _, l, acc = chain(combine_acc, "acc", ranks)
        at_every_step = chain(combine_mlo, "o", ranks)[-1]
        inside += [acc / l == exact.definition(scores, v)[1], at_every_step == acc / l]
    return Observed(inside=inside, figure=f"one rational function of 4 weights and 4 values, in {len(ORDERS)} orders")


@check("B04")
def the_unscaled_update():
    """acc of four symbolic keys against Σ e^(s−m)·v; then FlashAttention-2 in float32 against the certified result."""
    inside = []
    for ranks in ORDERS:
        scores, v, m, _, acc = chain(combine_acc, "acc", ranks)
        total, o = exact.definition(scores, v)
        inside.append(acc == total * o / m.exp())
    rows = [row for b in (16, 64) for row in blocks.measure(grid.synthetic(256, "float32", (0, 30)), b)]
    ratios = [row.ratio for row in rows if row.algorithm == "FlashAttention-2"]
    return Observed(inside=inside + [ratio <= 1 for ratio in ratios],
                    figure=f"worst error/bound {max(ratios):.2g}; with the factor inverted, as the paper prints it, 96 "
                           f"keys: off by up to {_error_of_the_inverse():.2g}")


def _error_of_the_inverse():
    """The largest error of o when acc is rescaled by (e^(m₁−m₂))⁻¹: 64 rows of 96 random keys, one by one."""
    rng = np.random.default_rng(0)
    scores, v = 2 * rng.standard_normal((64, 96)), rng.standard_normal((96, 1))
    m, l, acc = scores[:, 0], np.ones(64), np.repeat(v[:1], 64, axis=0)
    for j in range(1, 96):
        m, l, acc = update_as_printed_FA2_line_10(m, l, acc, scores[:, j:j + 1], v[j:j + 1])
    weights = np.exp(scores - np.max(scores, axis=1, keepdims=True))
    return np.max(np.abs(acc / l[:, None] - weights @ v / np.sum(weights, axis=1, keepdims=True)))


@check("B05")
def rescaled_where_the_maximum_grows():
    """The factor of every step of random rows, key by key: exactly 1 if, and only if, the maximum stays."""
    rng, agree, moved = np.random.default_rng(5), [], 0
    for _ in range(20):
        rows = trace_keys(rng.integers(-40, 40, 64) / 8.0, np.ones(64))
        for before, after in zip(rows, rows[1:], strict=False):
            grew = bool(after.m > before.m)
            agree.append((float(after.alpha) != 1.0) == grew)
            moved += grew
    return Observed(inside=agree, figure=f"{len(agree)} steps, in {moved} of them the maximum grew; Algorithm 1 "
                                         "multiplies in the others too, by exactly 1")


@check("B06")
def two_exponentials_are_one():
    """e^(S−m̃)·e^(m̃−m₂) = e^(S−m₂) (M3) on symbols, and both sides in float32 within their bounds."""
    (s, tilde, m), _ = exact.keys((0, 1, 2))
    rng, fmt = np.random.default_rng(6), format_of("float32")
    m2 = 8 * np.abs(rng.standard_normal(4096)).astype(np.float32)
    own = m2 - 8 * rng.random(4096).astype(np.float32)
    scores = own - 8 * rng.random(4096).astype(np.float32)
    right = np.exp(np.float64(scores) - m2)
    apart = np.abs(np.float64(scores) - own) + np.abs(np.float64(own) - m2)
    errors = {"two factors": np.exp(scores - own) * np.exp(own - m2), "one": np.exp(scores - m2)}
    errors = {name: np.abs(got.astype(np.float64) - right) / right for name, got in errors.items()}
    slack = format_of("float64").u * (fmt.kappa + apart)  # of the float64 that stands for the exact number
    two, one = (slack + np.expm1(fmt.u * (apart + n * fmt.kappa) + (n - 1) * fmt.step) for n in (2, 1))
    rms = ", ".join(f"{name} {np.sqrt(np.mean(e**2)) / fmt.u:.2g} u" for name, e in errors.items())
    return Observed(inside=[(s - tilde).exp() * (tilde - m).exp() == (s - m).exp(),
                            np.all(errors["two factors"] <= two), np.all(errors["one"] <= one)],
                    figure=f"relative error in float32, root mean square: {rms}")


@check("B07")
def one_final_division():
    """The divisions of FlashAttention-2, counted for 1 to 64 blocks of keys, beside one pass of rescaling."""
    inside, shares = [], {}
    for count in (1, 2, 8, 64):
        one, did = Grid(4, 2 * count, 4, 2), Counts()
        flash_attention(np.ones((4, 3)), *np.ones((2, 2 * count, 3)), block_m=4, block_n=2, counts=did)
        inside += [did.divisions == forward_divisions(one, 3) == 4 * 3,
                   did.divisions * count == one.row_visits * 3]
        shares[count] = did.divisions / (one.row_visits * 3)
    return Observed(inside=inside, figure="divisions / rescalings in the loop: "
                    + ", ".join(f"{x:.3g} with T_c = {n}" for n, x in shares.items()))


@check("B08")
def what_a_step_costs():
    """The four counts of the document, but for numbers of a row, against what each way of writing the step asks for."""
    inside, outside = [], []
    for size in SIZES:
        (rows, keys, dim), did = size, steps(size)
        deferred = did["deferred"]
        inside += [deferred["multiplications"] - rows == rows * dim, deferred["exponentials"] - rows == rows * keys]
        for form, cases in zip(FORMS, (inside, outside, outside), strict=True):
            one = did[form]
            cases.append(one["divisions"] == 2 * rows * dim)
            cases.append(one["multiplications"] - rows * (dim + 2) == rows * keys)
        outside.append(did["parts"]["exponentials"] == 0)
    (rows, keys, dim), did = SIZES[0], steps(SIZES[0])
    first, second = (did[form]["exponentials"] for form in ("parts", "deferred"))
    return Observed(inside=inside, outside=outside,
                    figure=f"exponentials a step: FlashAttention-1 {first}, FlashAttention-2 {second}; the correction "
                           f"takes {rows * keys} products on P or {rows * dim} on P·V",
                    counterexample="B_r = B_c = 64, d = 128: the list gives FlashAttention-1 no exponential; it takes "
                                   f"{first}")


def documents_net(block_m=64, block_n=64, dim=128):
    """The document's own two lists, one less the other: 2·Br·d + Br·Bc − Br·d elementwise operations."""
    return 2 * block_m * dim + block_m * block_n - block_m * dim


@check("B09")
def extra_divisions():
    """What FlashAttention-1 does more in a step of the document's example: by its own lists, and counted."""
    did, claimed = steps(SIZES[0]), 2 * 64 * 128
    more = {form: did[form] - did["deferred"] for form in FORMS}
    net = {form: x["divisions"] + x["multiplications"] for form, x in more.items()}
    divisions = {form: x["divisions"] for form, x in more.items()}
    return Observed(inside=[documents_net() == claimed, *(x == claimed for x in net.values())],
                    figure=f"by the document's own lists {documents_net()}; counted {_listed(net)}; divisions alone "
                           f"{_listed(divisions)}",
                    counterexample=f"B_r = B_c = 64, d = 128: {documents_net()} operations more, not {claimed}; "
                                   f"divisions proper {divisions['factors']}")


@check("B10")
def worth_in_matrix_flop():
    """16384 operations at the price of an A100, in matrix FLOP, to the document's two digits."""
    price, matrix = elementwise_price(A100), forward_matmul_flop(Grid(64, 64, 64, 64), 128, 128)
    claimed, net = 2 * 64 * 128 * price, documents_net() * price
    return Observed(inside=[claimed == 262144, round(claimed, -4) == 260_000],
                    figure=f"{claimed} FLOP, {float(claimed / matrix):.1%} of the step's {matrix}; by the net of the "
                           f"document's lists {net}, {float(net / matrix):.1%}")


@check("B11")
def price_outside_matrices():
    """The ratio of peak rates, matrix FLOP to FP32 FLOP, of each card as its vendor prints them."""
    prices = {name: elementwise_price(device) for name, device in DEVICES.items()}
    return Observed(inside=[prices["A100"] == 16], outside=[x == 16 for name, x in prices.items() if name != "A100"],
                    figure=", ".join(f"{name} {float(x):.3g}" for name, x in prices.items()),
                    counterexample=f"H200: {float(prices['H200']):.3g}; a division or an exponential takes several")


@check("B12")
def what_is_removed():
    """The exponentials of a step before and after: whether those of the block, B_r·B_c, are among what is removed."""
    inside = []
    for size in SIZES:
        did = steps(size)
        saved = min(did[form]["exponentials"] for form in FORMS) - did["deferred"]["exponentials"]
        inside.append(saved >= size[0] * size[1])
    did = steps(SIZES[0])
    before, after = did["parts"]["exponentials"], did["deferred"]["exponentials"]
    return Observed(inside=inside, figure=f"exponentials a step, B_r = B_c = 64: {before} before, {after} after",
                    counterexample=f"of {before} exponentials {after} stay")


def _listed(numbers):
    """The numbers with their names, as text."""
    return ", ".join(f"{name} {x}" for name, x in numbers.items())


__all__ = ["FORMS", "SIZES", "documents_net", "step", "steps"]
