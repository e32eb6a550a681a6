"""Document B, the causal mask: where it lies, what it lets one skip, and what that gains."""

from fractions import Fraction

import numpy as np

from fdmath.attention.flash import flash_attention
from fdmath.attention.printed import algorithm_1_as_printed_B
from fdmath.bench import records
from fdmath.claims.claim import Observed, check
from fdmath.claims.judged import attends
from fdmath.cost.counts import Counts
from fdmath.cost.flash import Grid, causal_speedup, forward_traffic, skipped_share

CLAIMED_SPEEDUP = Fraction(17, 10)
"""The lower of the two figures that the document quotes, 1.7 and 1.8."""

CALLS = ((7, 7, 2, 3), (12, 12, 4, 4), (5, 9, 3, 2), (9, 5, 1, 4))
"""(queries, keys, B_r, B_c), most of them not square."""


def random_call(seed, queries, keys, dim=3):
    """q, k and v of one head, standard normal, float64."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, dim)) for n in (queries, keys, keys)]


def documents_mask(queries, keys):
    """The mask of the document's words, (queries, keys): key j is hidden from query i where j > i."""
    return np.arange(keys) <= np.arange(queries)[:, None]


@check("B20")
def where_the_mask_lies():
    """The document's mask against the causal flag, which puts the last query on the last key, bit for bit."""
    cases = {True: [], False: []}
    for queries, keys in ((4, 4), (1, 1), (7, 7), (4, 2), (2, 5), (1, 5)):
        call = random_call(20, queries, keys)
        flag, said = (flash_attention(*call, block_m=2, block_n=2, **options)
                      for options in ({"causal": True}, {"mask": documents_mask(queries, keys)}))
        cases[queries == keys].append(np.array_equal(flag.o, said.o) and np.array_equal(flag.lse, said.lse))
    empty = int(np.sum(flash_attention(*random_call(20, 4, 2), causal=True).lse == -np.inf))
    seen = int(np.sum(documents_mask(1, 5)))
    return Observed(inside=cases[True], outside=cases[False],
                    figure=f"4 queries, 2 keys, the flag: {empty} rows see no key and give 0",
                    counterexample=f"decoding, 1 query and 5 keys: the words leave it {seen} key of 5")


@check("B21")
def half_of_the_blocks():
    """The share of T × T blocks that can be skipped, to the nearest tenth, for long sequences and for short ones."""
    agree = []
    for count in (1, 4, 8):
        did = Counts()
        flash_attention(*np.ones((3, 2 * count, 1)), block_m=2, block_n=2, causal=True, counts=did)
        agree.append(did.blocks["skipped"] == skipped_share(count) * count**2)
    shares = {count: skipped_share(count) for count in (1, 4, 8, 16, 64, 512)}
    half = {count: round(share, 1) == round(skipped_share(10**9), 1) for count, share in shares.items()}
    return Observed(inside=[half[16], half[64], half[512]] + agree, outside=[half[1], half[4], half[8]],
                    figure="(T-1)/(2T): " + ", ".join(f"T = {n} {float(x):.1%}" for n, x in shares.items()),
                    counterexample=f"T = 4: {float(shares[4]):.1%}; a decode step: none")


@check("B22")
def skipping_is_exact():
    """With blocks skipped and with the same mask applied to every block, bit for bit; and certified on small calls."""
    inside, skipped = [], 0
    for seed, (queries, keys, block_m, block_n) in enumerate(CALLS):
        call, did = random_call(seed, queries, keys), Counts()
        visible = np.arange(keys) <= np.arange(queries)[:, None] + keys - queries
        ours = flash_attention(*call, block_m=block_m, block_n=block_n, causal=True, counts=did)
        every = flash_attention(*call, block_m=block_m, block_n=block_n, mask=visible)
        inside += [np.array_equal(ours.o, every.o) and np.array_equal(ours.lse, every.lse),
                   attends(ours, *call, block_n=block_n, visible=visible)]
        skipped += did.blocks["skipped"]
    return Observed(inside=inside, figure=f"{skipped} blocks skipped in {len(inside) // 2} calls, not a bit changed")


@check("B23")
def gain_of_skipping():
    """Whether the count of blocks allows a gain of 1.7, by number T of blocks; then what an H200 was recorded to gain.

    The gain is against no mask at all, as in the paper; an implementation that masks every block takes no less.
    """
    limit = {count: causal_speedup(count) for count in (1, 2, 4, 5, 6, 9, 64)}
    enough = {count: x >= CLAIMED_SPEEDUP for count, x in limit.items()}
    words = ", ".join(f"T = {n} {float(x):.2f}" for n, x in limit.items())
    return Observed(inside=[enough[6], enough[9], enough[64]], outside=[enough[1], enough[2], enough[4], enough[5]],
                    figure=f"2T/(T+1): {words}; {recorded_gain()}",
                    counterexample=f"T = 4: at most {float(limit[4]):.2f}")


def recorded_gain(dim=128):
    """The times of full calls over those of causal ones in the newest record of an H200, forward, ours and others'."""
    try:
        head, rows = records.newest("attention-h200")
    except FileNotFoundError:
        return "no record of a GPU"
    wanted = {"study": "speed", "pass": "forward", "dtype": "bfloat16", "status": "ok", "dim": dim}
    times = {(r["implementation"], r["queries"], r["causal"]): r["us"] for r in rows
             if wanted.items() <= r.items() and r["us"] is not None}
    gains = {}
    for name, queries, causal in times:
        if causal and (name, queries, False) in times:
            gains.setdefault(queries, []).append(times[name, queries, False] / times[name, queries, True])
    if not gains:
        return "no such calls in the record of a GPU"
    words = ", ".join(f"{n} tokens {min(x):.2f} to {max(x):.2f}" for n, x in sorted(gains.items()))
    return f"{head['device']}, {head['date']}, d = {dim}, {len(max(gains.values(), key=len))} implementations: {words}"


@check("B24")
def traffic_with_the_mask():
    """The numbers read and written with the mask over those without it, to the nearest tenth, by tensor."""
    masked, full = (forward_traffic(Grid(4096, 4096, 64, 64, causal=causal), 128, 128) for causal in (True, False))
    ratio = {name: masked[side][name] / full[side][name] for side in (0, 1) for name in full[side]}
    few = [Grid(6, 6, 1, 1, causal=causal).visits for causal in (True, False)]
    did = Counts()
    flash_attention(*np.ones((3, 6, 2)), block_m=1, block_n=1, causal=True, counts=did)
    half = {name: round(x, 1) == 1 / 2 for name, x in ratio.items()}
    return Observed(inside=[half["k"], half["v"], did.read["k"] == 2 * few[0]],
                    outside=[half["q"], half["o"], half["lse"], round(few[0] / few[1], 1) == 1 / 2],
                    figure="T = 64: " + ", ".join(f"{name} {x:.3g}" for name, x in ratio.items()),
                    counterexample=f"Q and O are moved as before; and of K and V at T = 6 {few[0]} blocks of {few[1]}")


@check("B25")
def order_of_the_blocks():
    """Algorithm 1 as printed under a causal mask: key blocks from the first to the last, and from the last on."""
    inside, outside = [], []
    for seed, (count, block) in enumerate(((6, 2), (8, 4), (5, 2))):
        call, visible = random_call(seed, count, count), documents_mask(count, count)
        for cases, descending in ((inside, False), (outside, True)):
            state = algorithm_1_as_printed_B(*call, block, block, visible=visible, descending=descending)
            cases.append(attends(state, *call, block_n=block, visible=visible, scale=1.0))
    call, visible = [np.zeros((2, 1)), np.zeros((2, 1)), np.array([[1.0], [3.0]])], documents_mask(2, 2)
    o = algorithm_1_as_printed_B(*call, 1, 1, visible=visible, descending=True)[0]
    ours = flash_attention(*call, block_m=1, block_n=1, order=[1, 0], causal=True).o
    return Observed(inside=inside, outside=outside,
                    figure=f"with −∞ guarded, descending too: {ours[:, 0].tolist()}",
                    counterexample=f"two equal scores, V = (1, 3), blocks of one, descending: {o[:, 0].tolist()}")


__all__ = ["documents_mask", "random_call", "recorded_gain"]
