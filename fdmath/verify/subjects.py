"""fdmath's own subjects: ⊕ in three spellings, the flat merge, blocks, attention and split-KV, on both libraries."""

import importlib.util

from fdmath import _backends as backends
from fdmath.algebra.merge import flat, merge, merge_all
from fdmath.algebra.order import streams, tree
from fdmath.algebra.state import AccState, LSEState, MLOState
from fdmath.attention.decode import split_kv_attention
from fdmath.attention.flash import flash_attention, flash_attention_backward
from fdmath.attention.reference import attention
from fdmath.attention.softmax import partial_state
from fdmath.verify.subject import Subject

EXACT = ("commutativity", "left identity", "right identity", "empty", "v is 1")
SPELLINGS = {"m/l/o": MLOState, "m/l/acc": AccState, "o/lse": LSEState}
ALL_DTYPES = ("float32", "float64", "float16", "bfloat16")


def pairwise(kind):
    """The plain function (a₁, a₂, …, b₁, b₂, …) → arrays of merge(a, b) for states of a kind."""
    def fn(*arrays):
        half = len(arrays) // 2
        return tuple(merge(kind(*arrays[:half]), kind(*arrays[half:])))

    return fn


def at_once(kind):
    """The plain function of stacked states that merges them with `flat`."""
    return lambda *columns: tuple(merge_all(kind(*columns), flat))


def block(kind):
    """The plain function (scores, v) → arrays of partial_state."""
    return lambda scores, v: tuple(partial_state(scores, v, kind))


def defined(q, k, v, causal=False):
    """attention as a subject of the roles partial and attention."""
    return tuple(attention(q, k, v, causal=causal))


def decode(**options):
    """split_kv_attention as a subject of the role decode: lengths become a mask."""
    def fn(q, k, v, seq_lens, num_splits):
        return tuple(split_kv_attention(q, k, v, num_splits=num_splits, mask=_in_use(k, seq_lens), **options))

    return fn


def split_by_tiles(q, k, v, causal):
    """split_kv_attention in tiles of 2 keys as a subject of the role attention."""
    return tuple(split_kv_attention(q, k, v, tile=2, causal=causal))


def flash(by):
    """(fn, backward) of flash_attention as a subject of the role attention: tiles wider than high, or higher than wide.

    by: the workers of the backward pass, "columns" for the wide tiles (2 × a third of the keys, but 3 at least), "rows"
    for the high ones (3 × a ninth of the keys, but 2 at least).
    """
    def tiles(k):
        block_m, block_n = (2, max(3, k.shape[-2] // 3)) if by == "columns" else (3, max(2, k.shape[-2] // 9))
        return {"block_m": block_m, "block_n": block_n}

    def fn(q, k, v, causal):
        return tuple(flash_attention(q, k, v, causal=causal, **tiles(k)))

    def backward(do, dlse, q, k, v, o, lse, causal):
        return flash_attention_backward(do, dlse, q, k, v, o, lse, causal=causal, by=by, **tiles(k))

    return fn, backward


def flash_by_lengths(q, k, v, seq_lens, num_splits):
    """flash_attention as a subject of the role decode: lengths become a mask."""
    return tuple(flash_attention(q, k, v, block_n=_block(k), mask=_in_use(k, seq_lens)))


def flash_backward_by_lengths(do, dlse, q, k, v, o, lse, seq_lens, num_splits):
    """The gradients of `flash_by_lengths`."""
    return flash_attention_backward(do, dlse, q, k, v, o, lse, block_n=_block(k), mask=_in_use(k, seq_lens))


def _block(k):
    return max(2, k.shape[-2] // 3)


def _in_use(k, seq_lens):
    """The mask (B, 1, 1, N) of the slots before each length."""
    slots = backends.array_namespace(k=k).arange(k.shape[-2])
    return slots[None, None, None, :] < seq_lens[:, None, None, None]


def own_subjects(libraries=None):
    """fdmath's subjects on the libraries named, or on those installed."""
    if libraries is None:
        libraries = ["numpy", *(["torch"] if importlib.util.find_spec("torch") else [])]
    return [subject for library in libraries for subject in _subjects(library)]


def all_subjects():
    """fdmath's subjects, and its Triton kernels where they run: on a CUDA device, or with TRITON_INTERPRET=1."""
    kernels = backends.load("fdmath.verify.kernels:kernel_subjects")() if kernels_run() else []
    return [*own_subjects(), *kernels]


def kernels_run():
    """Whether torch and Triton are here, and a CUDA device or the wish for Triton's interpreter."""
    try:
        interpreted, cuda = backends.load("triton:knobs").runtime.interpret, backends.load("torch:cuda")
    except (ImportError, AttributeError):  # Triton is not here, or older than the kernels need
        return False
    return interpreted or cuda.is_available()


def _subjects(library):
    def make(name, role, fn, **declared):
        return Subject(f"{name}, {library}", role, fn, library=library, **declared)

    poisoned = {"dtypes": ALL_DTYPES, "claims": ("empty", "poison", "causality", "T3")}
    subjects = []
    for title, kind in SPELLINGS.items():
        hull = ("convexity",) if kind is LSEState else ()
        subjects.append(make(f"merge {title}", "merge", pairwise(kind), kind=kind,
                             claims=(*EXACT, *hull, "T5", "T6"), false=("bitwise associativity",)))
        # l·o/l rounds, so the flat form of normalised triples keeps a lone part to one rounding only.
        kept = ("empty", "v is 1") if kind is MLOState else EXACT[1:]
        subjects.append(make(f"flat merge {title}", "merge_many", at_once(kind), kind=kind,
                             claims=(*kept, "T1", "T3")))
        subjects.append(make(f"partial_state {title}", "block", block(kind), kind=kind, **poisoned))
    subjects.append(make("attention", "attention", defined, **poisoned))
    subjects.append(make("attention by tiles", "attention", split_by_tiles, **poisoned))
    subjects.append(make("split-KV o/lse, flat", "decode", decode(), **poisoned))
    wide = {**poisoned, "claims": poisoned["claims"][:-1]}  # no flat form: judged with T4
    subjects.append(make("split-KV m/l/acc, streams", "decode", decode(kind=AccState, order=streams(5, then=tree)),
                         **wide))
    flashing = {**wide, "claims": (*wide["claims"], "gradient causality", "gradient of nothing", "gradient poison")}
    for by in ("columns", "rows") if library == "numpy" else ("columns",):  # the same code, and twice the time
        fn, backward = flash(by)
        subjects.append(make(f"flash_attention by {by}", "attention", fn, backward=backward, **flashing))
    subjects.append(make("flash_attention by lengths", "decode", flash_by_lengths,
                         backward=flash_backward_by_lengths, **flashing))
    return subjects


__all__ = ["ALL_DTYPES", "EXACT", "SPELLINGS", "all_subjects", "at_once", "block", "decode", "defined",
           "flash", "flash_backward_by_lengths", "flash_by_lengths", "own_subjects", "pairwise", "split_by_tiles"]
