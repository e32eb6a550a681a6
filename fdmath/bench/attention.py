"""Attention of whole sequences on a CUDA device, forward and backward: what is measured, and how a row is written.

A record, `fdmath/bench/results/attention-{device}-{date}.json`, is the head of `records.provenance` with `driver` and
`ceilings`, and rows. ceilings: {"matmul_tflops": {dtype: {"short": …, "sustained": …}}}, 10¹² operations a second of
an 8192³ product, timed as the rows are. A row is a dict of FIELDS:

    study            one of STUDIES, see there
    pass             "forward", which gives lse too (SDPA's keep it inside), or "backward", which gives dq, dk and dv
    batch, q_heads, kv_heads, dim, queries, keys, causal, dtype      the call
    implementation   OURS, whose backward is deterministic, ATOMICS, HOPPER, or a peer's name
    us, us_least, us_most      microseconds a call, median, least and most of all that were timed; null if not timed
    tflops, share_of_matrix    10¹² operations a second by the count of `Shape.flop`; that over the ceiling of its study
    err_o, err_lse, err_dq, err_dk, err_dv   ‖x − exact‖ / ‖exact‖, Frobenius, exact in float64, of the first heads of
                     the first sequence; null in the rows of the other pass, and where nothing is returned
    peak_bytes       what forward and backward together took at most, beside q, k, v, do and o, dq, dk, dv themselves
    status, note     "ok", "wrong" (see note), "failed" (it raised), "not run"; why, in words

This module needs no torch: it reads records anywhere. `select`, `best_peer` and `verdict` of `fdmath.bench.decode` are
for these rows too.
"""

from typing import NamedTuple

from fdmath.algebra import rounding
from fdmath.bench import records
from fdmath.bench.decode import verdict
from fdmath.cost.flash import Grid, backward_matmul_flop, forward_matmul_flop

FIELDS = (
    "study", "pass", "batch", "q_heads", "kv_heads", "dim", "queries", "keys", "causal", "dtype", "implementation",
    "us", "us_least", "us_most", "tflops", "share_of_matrix", "err_o", "err_lse", "err_dq", "err_dk", "err_dv",
    "peak_bytes", "status", "note",
)  # fmt: skip
STUDIES = {
    "errors": "what each errs at 2048 tokens, and whether it gives the same bits again",
    "memory": "peak memory against the number of tokens",
    "sustained": "without pauses, as training sees the chip: what it draws then lowers its clock",
    "speed": "short bursts after a pause, as a call among others sees the chip",
}
"""What there is to measure, in the order in which it is."""

PASSES = ("forward", "backward")
ERRORS = {"forward": ("err_o", "err_lse"), "backward": ("err_dq", "err_dk", "err_dv")}
"""The fields that say what a pass errs."""

DTYPES = ("bfloat16", "float16")
OURS, ATOMICS, HOPPER = MINE = "fdmath", "fdmath, atomics", "fdmath, Hopper"
"""Our kernels, our backward whose dq is added up by atomic additions, and the kernel for Hopper cards alone."""

MASKS = {"full": False, "causal": True}
LENGTHS = tuple(512 << i for i in range(6))
TOKENS, HIDDEN = 16384, 2048
"""Of every point but those of "memory": tokens in all, batch · length, and numbers a token, heads · dim."""

GROWING = tuple(1024 << i for i in range(8))
"""The tokens of the study of memory, of one sequence of 16 heads of 128, causal."""


class Shape(NamedTuple):
    """A call: `batch` sequences of `queries` and `keys`, q_heads query heads over kv_heads KV heads of `dim`."""

    batch: int = 1
    q_heads: int = 16
    kv_heads: int = 16
    dim: int = 128
    queries: int = 4096
    keys: int = 4096
    causal: bool = False

    @property
    def group(self):
        """Query heads a KV head."""
        return self.q_heads // self.kv_heads

    @property
    def point(self):
        """Its place in a table, in words: "d 128 causal S 4096"."""
        return f"d {self.dim:<3} {'causal' if self.causal else 'full':<6} S {self.keys}"

    def flop(self, which):
        """The operations of a pass as they are usually counted: forward 4·B·H·Nq·Nkv·d, backward 2.5 times that.

        Causal: half of it, whatever the diagonal takes. A backward that does seven products in place of five is not
        credited with the other two.
        """
        count = {"forward": forward_matmul_flop, "backward": backward_matmul_flop}[which]
        every = self.batch * self.q_heads * count(Grid(self.queries, self.keys), self.dim, self.dim)
        return every // 2 if self.causal else every


def points(dims, masks, lengths, tokens=TOKENS, hidden=HIDDEN):
    """The list of Shapes of all dims, masks (of MASKS) and lengths, with as many heads and sequences as fit.

    All of a length follow each other, so that what is wanted most can be asked for first.
    Raises ValueError, by the option's name, for a dim that does not divide `hidden` and a length beyond `tokens`.
    """
    for dim in dims:
        if hidden % dim:
            raise ValueError(f"--dims must divide --hidden, {hidden}; got {dim}")
    for length in lengths:
        if length > tokens:
            raise ValueError(f"--lengths must be at most --tokens, {tokens}; got {length}")
    return [Shape(tokens // length, hidden // dim, hidden // dim, dim, length, length, MASKS[mask])
            for length in lengths for dim in dims for mask in masks]


def row_of(study, which, shape, dtype, implementation, rate=None, **found):
    """A row of the pass `which`: a dict of FIELDS in their order. found: what was found; the rest is derived, or null.

    rate: the ceiling in 10¹² operations a second. Raises TypeError for a name that is no field.
    """
    unknown = sorted(found.keys() - set(FIELDS))
    if unknown:
        raise TypeError(f"a row has no field {', '.join(unknown)}")
    row = dict.fromkeys(FIELDS) | {"study": study, "pass": which, **shape._asdict(), "dtype": dtype,
                                   "implementation": implementation, "status": "ok"} | found
    if row["us"] is not None:
        row["tflops"] = shape.flop(which) / row["us"] / 1e6
        row["share_of_matrix"] = None if rate is None else row["tflops"] / rate
    return row


def most_errors(dtype, which):
    """The most that the errors of a pass may be, for normal numbers of the 16-bit dtype: {field: …}.

    Each number of the format that is made on the way moves the result by at most u in the Frobenius norm, where they
    are independent (see `decode.most_errors`): o those of P and o; dv those of P and dv; dq and dk those of dS and
    their own, and dS that of o, from which delta is made. Some sum l of the rounded P: lse, at least 1 in the root
    mean square from 8 keys on, is then off by u, and by 16 roundings in float32 in any case.
    """
    u, fine = rounding.unit_roundoff(dtype), rounding.unit_roundoff("float32")
    most = {"err_o": 2 * u, "err_lse": u + 16 * fine, "err_dq": 3 * u, "err_dk": 3 * u, "err_dv": 2 * u}
    return {name: most[name] for name in ERRORS[which]}


UNSPLIT = 2**20
"""The bytes by which a block of torch's caching allocator may be larger than what was asked for."""


def most_bytes(shape, implementation):
    """The most peak_bytes that OURS or ATOMICS may take; None for others.

    A row of a head needs lse, and lse and delta once more, padded to whole tiles of 128: 4 bytes each; ATOMICS a copy
    of dq in float32 too. Each of these, and of o, dq, dk and dv, may be UNSPLIT larger.
    """
    if implementation not in (OURS, ATOMICS):
        return None
    rows, padded = (shape.batch * shape.q_heads * n for n in (shape.queries, -(-shape.queries // 128) * 128))
    total = 4 * rows + 8 * padded + 6 * UNSPLIT
    return total + (4 * rows * shape.dim + UNSPLIT if implementation == ATOMICS else 0)


def judged_bytes(peak, most):
    """{status, note} of peak_bytes beside the most it may be (None: anything); NaN is wrong."""
    fits = most is None or peak <= most
    return {"status": "ok" if fits else "wrong", "note": None if fits else f"{peak} bytes are beyond {most}"}


def ratios(rows, field, over, to):
    """point → the field of the implementation `over` divided by that of `to`, among rows of one study and pass.

    point: the row's Shape. What has no such number is left out.
    """
    found = {}
    for row in rows:
        if row[field] is not None and row["implementation"] in (over, to):
            found.setdefault(shape_of(row), {})[row["implementation"]] = row[field]
    return {shape: both[over] / both[to] for shape, both in found.items() if len(both) == 2 and both[to] > 0}


def standings(rows, mine, other):
    """(dim, causal, queries) → how `mine` stands to the implementation `other`, among rows of one study and pass.

    In the words of `decode.verdict`: "level" where the spread of the times covers what is between them. What was not
    timed, in one or the other, is left out.
    """
    found = {}
    for row in rows:
        if row["us"] is not None and row["implementation"] in (mine, other):
            found.setdefault((row["dim"], row["causal"], row["queries"]), {})[row["implementation"]] = row
    return {point: verdict(both[mine], both[other]) for point, both in found.items() if len(both) == 2}


def shape_of(row):
    """The Shape of a row."""
    return Shape(*(row[name] for name in Shape._fields))


def recorded(device="h200"):
    """(head, rows) of the newest record of a device; FileNotFoundError for none."""
    return records.newest(f"attention-{device}")
