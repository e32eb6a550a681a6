"""What one decode step of one attention layer costs: each law is a function, its docstring the law.

A decode step has one query a sequence (Nq = 1). Counts are integers and ratios are `Fraction`s, so that
they are exact. Arguments are counts: `keys` in the KV cache of one sequence, `dim` numbers a key and a
value, `group` query heads that share one KV head. All raise ValueError for a count below its least value.
"""

from fractions import Fraction

from fdmath.algebra.state import LSEState, MLOState, check_kind

FLOAT16, FLOAT32 = 2, 4
"""Bytes of one number."""


def kv_cache_bytes(keys, dim, kv_heads=1, batch=1, number=FLOAT16):
    """The bytes of K and V that a step reads, each once: 2·N·d numbers a KV head and a sequence.

    number: bytes of one of them. Source: document A, 2.1.2; claims:A10, B70.
    """
    check_counts(0, keys=keys)
    check_counts(1, dim=dim, kv_heads=kv_heads, batch=batch, number=number)
    return 2 * keys * dim * kv_heads * batch * number


def decode_flop(keys, dim, q_heads=1, batch=1):
    """The FLOP of a step: 4·N·d a query head, a multiplication and an addition for each number of K and V.

    The N exponentials of a head are left out (one in 4·d). Source: claims:A10.
    """
    check_counts(0, keys=keys)
    check_counts(1, dim=dim, q_heads=q_heads, batch=batch)
    return 4 * keys * dim * q_heads * batch


def arithmetic_intensity(group=1, number=FLOAT16):
    """FLOP for each byte of KV cache read: 2·g / bytes of a number, whatever N, d and batch are.

    At 16 bits that is 1 with a KV head to each query head and g with g query heads to one. Source: claims:A10.
    """
    check_counts(1, group=group, number=number)
    return Fraction(decode_flop(1, 1, q_heads=group), kv_cache_bytes(1, 1, number=number))


def ridge(device):
    """The FLOP for each byte at which a device computes as long as it reads; below it, reading is the limit."""
    return Fraction(device.tensor_flops, device.bandwidth)


def peak_share(intensity, device):
    """The largest share of a device's tensor FLOP that work of this intensity can use: intensity / ridge, at most 1.

    Source: claims:B68 (0.65 % for 16-bit decoding on an A100, however good the kernel).
    """
    return min(Fraction(1), Fraction(intensity) / ridge(device))


def read_floor_seconds(count, device):
    """The seconds in which a device reads `count` bytes at its printed bandwidth: no kernel is faster."""
    check_counts(0, count=count)
    return Fraction(count, device.bandwidth)


def thread_blocks(heads, batch=1, pieces=1):
    """The thread blocks of a step: batch · heads · pieces, pieces = 1 without a split along the keys.

    Nothing in it grows with the number of keys but `pieces`. Source: document B, decoding; claims:A01, B67.
    """
    check_counts(1, heads=heads, batch=batch, pieces=pieces)
    return heads * batch * pieces


def busy_share(blocks, device):
    """The share of a device's multiprocessors that have a thread block, one each: blocks / SMs, at most 1.

    Source: claims:A01, B68 (32 blocks on the 108 SMs of an A100: 29.6 %; one block: 0.93 %).
    """
    check_counts(0, blocks=blocks)
    return min(Fraction(1), Fraction(blocks, device.multiprocessors))


def pieces_to_fill(device, heads=1, batch=1):
    """The least number of pieces of the KV cache with which every multiprocessor has a thread block.

    ⌈SMs / (batch · heads)⌉. Source: claims:B76.
    """
    return -(-device.multiprocessors // thread_blocks(heads, batch))


def state_numbers(kind, dim):
    """The numbers in one row of a state: d + 1 for the pair (o, lse), d + 2 for a triple.

    Source: document A, 2.3.1; claims:A24.
    """
    return dim + _statistics(kind, dim)


def state_bytes(kind, dim, payload=FLOAT32, statistic=FLOAT32):
    """The bytes of one row of a state: d numbers of o or acc, and one statistic (the pair) or two (a triple).

    payload, statistic: bytes of one number of each. Source: claims:A24.
    """
    check_counts(1, payload=payload, statistic=statistic)
    return dim * payload + _statistics(kind, dim) * statistic


def pair_saving(dim, payload=FLOAT32, statistic=FLOAT32):
    """The share of a triple's bytes that the pair saves: 1/(d + 2) where all numbers are of one size.

    Document A (5.4) says 33 %, which is right for d = 1 alone. Source: claims:A24, A74.
    """
    return Fraction(statistic, state_bytes(MLOState, dim, payload, statistic))


def partial_traffic(kind, tile, dim, group=1, payload=FLOAT32, statistic=FLOAT32, number=FLOAT16, passes=2):
    """The traffic of the partial states as a share of the KV cache's own bytes.

    Each tile of `tile` keys leaves g states a KV head, one a query head; passes = 2 counts them written and
    read again, 1 read alone. With fp32 pairs over an fp16 cache that is 2·g·(d + 1)/(tile·d).
    Source: claims:A42, B81 (document B, "negligible": 0.8 % at g = 1 and 256 keys, 50 % at g = 8 and 32).
    """
    check_counts(1, tile=tile, group=group, passes=passes)
    states = passes * group * state_bytes(kind, dim, payload, statistic)
    return Fraction(states, kv_cache_bytes(tile, dim, number=number))


def merge_transcendentals(kind, printed=False):
    """The exponentials and logarithms of one ⊕ of two rows, as a dict of function name and count.

    A pair: one exp, one log1p (the documents' printed form: three exp, one log1p). A triple: two exp, one
    of them always e⁰. A tile's pair costs one log more than its triple. Source: claims:A69.
    """
    if check_kind(kind) is not LSEState:
        return {"exp": 2}
    return {"exp": 3, "log1p": 1} if printed else {"exp": 1, "log1p": 1}


def _statistics(kind, dim):
    """One for the pair, two for a triple; ValueError for a dim below 1."""
    check_counts(1, dim=dim)
    return 1 if check_kind(kind) is LSEState else 2


def check_counts(least, **counts):
    """Nothing; raises TypeError or ValueError for the first count that is no integer or is below `least`."""
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} must be an int; got {type(value).__name__}")
        if value < least:
            raise ValueError(f"{name} must be at least {least}; got {value}")
