"""What a split of one thread block's work over its warps moves through shared memory: the laws, in closed form.

Counts of numbers for w = warps, Br queries, Bc keys a tile, `tiles` tiles, d = dim, and v as wide as k.
`fdmath.cost.shared` counts the same while the warps of `fdmath.attention.warps` run.
"""

from collections import Counter

from fdmath.cost.decode import check_counts
from fdmath.cost.shared import SharedCounts


def forward_split_q(queries, keys, dim, tiles, warps=4, group=1):
    """q once; every tile of k and v written once and read ⌈w/group⌉ times; no exchange: a barrier a tile, one for q.

    group: the warps that one reading of k and v serves: 1 for an `mma`, the product of one warp, 4 for Hopper's
    `wgmma`, the product of four (PTX ISA). Source: document B, split-Q; claims:B49.
    """
    _check(queries, keys, dim, tiles, warps)
    check_counts(1, group=group)
    again = -(-warps // group) - 1
    matrix = Counter(q=queries * dim, k=tiles * keys * dim, v=tiles * keys * dim)
    return SharedCounts(matrix, matrix + Counter(k=again * matrix["k"], v=again * matrix["v"]), tiles + 1)


def forward_split_k(queries, keys, dim, tiles, warps=4, exchange="tile"):
    """q read w times, every tile once. Each exchange: w·Br maxima, w·Br sums and w·Br·d products are written.

    exchange="tile": at every tile, the maxima read by each warp (w²·Br), the rest once: 2·w·Br statistics and w·Br·d
    products a tile (512 and 32768 for Br = 64, d = 128, w = 4: claims:B48), three barriers a tile and one for q.
    exchange="end": once, all read once, one barrier a tile, one for q and one at the end.
    """
    _check(queries, keys, dim, tiles, warps)
    matrix = Counter(q=queries * dim, k=tiles * keys * dim, v=tiles * keys * dim)
    read = matrix + Counter(q=(warps - 1) * matrix["q"])
    times = {"tile": tiles, "end": 1}[exchange]
    sums = Counter(max=times * warps * queries, sum=times * warps * queries, out=times * warps * queries * dim)
    agreed = Counter(max=(warps - 1) * sums["max"]) if exchange == "tile" else Counter()
    return SharedCounts(matrix + sums, read + sums + agreed, 3 * tiles + 1 if exchange == "tile" else tiles + 2)


def backward_split_q(queries, keys, dim, tiles, warps=4):
    """k and v read w times, once for all; of every tile q and do read w + 1 times, P and dS (Br·Bc each) once.

    Br queries a tile, Bc keys in the block. Two barriers a tile and one for k and v. Source: claims:B51, B52.
    """
    _check(queries, keys, dim, tiles, warps)
    matrix, tile = Counter(k=keys * dim, v=keys * dim), tiles * queries * dim
    weights = Counter(p=tiles * queries * keys, ds=tiles * queries * keys)
    read = Counter(k=warps * keys * dim, v=warps * keys * dim, q=(warps + 1) * tile, do=(warps + 1) * tile)
    return SharedCounts(matrix + Counter(q=tile, do=tile) + weights, read + weights, 2 * tiles + 1)


def backward_split_k(queries, keys, dim, tiles, warps=4):
    """k and v read once; of every tile q and do read w times, w·Br·d products dS·k written and read.

    Against split-Q: w·Br·d float32 sums in place of 2·Br·Bc 16-bit weights, which is more where w·d > Bc.
    Two barriers a tile and one for k and v. Source: claims:B51, B52.
    """
    _check(queries, keys, dim, tiles, warps)
    matrix, tile = Counter(k=keys * dim, v=keys * dim), tiles * queries * dim
    products = Counter(dq=warps * tile)
    read = matrix + Counter(q=warps * tile, do=warps * tile)
    return SharedCounts(matrix + Counter(q=tile, do=tile) + products, read + products, 2 * tiles + 1)


def _check(queries, keys, dim, tiles, warps):
    """Nothing; raises for counts below 1."""
    check_counts(1, queries=queries, keys=keys, dim=dim, tiles=tiles, warps=warps)
