"""fdmath's own subjects: ⊕ in three spellings, the flat merge, blocks, attention in all its ways, on both libraries."""

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
        xp = backends.array_namespace(q=q)
        slots = xp.arange(k.shape[-2], device=k.device)
        mask = slots[None, None, None, :] < xp.asarray(seq_lens, device=k.device)[:, None, None, None]
        return tuple(split_kv_attention(q, k, v, num_splits=num_splits, mask=mask, **options))

    return fn


def split_by_tiles(q, k, v, causal):
    """split_kv_attention in tiles of 2 keys as a subject of the role attention."""
    return tuple(split_kv_attention(q, k, v, tile=2, causal=causal))


def flash(by, top_left=False):
    """(fn, backward) of flash_attention as a subject of the role attention.

    by: the workers of the backward pass; "columns" have tiles wider than high (2 × a third of the keys, 3 at least),
    "rows" higher than wide (3 × a ninth of the keys, 2 at least). top_left: causal means a mask so aligned, under which
    keys beyond the last query are seen by none.
    """
    def options(q, k, causal):
        block_m, block_n = (2, max(3, k.shape[-2] // 3)) if by == "columns" else (3, max(2, k.shape[-2] // 9))
        hidden = {"mask": _top_left(q, k)} if causal and top_left else {"causal": causal}
        return {"block_m": block_m, "block_n": block_n, **hidden}

    def fn(q, k, v, causal):
        return tuple(flash_attention(q, k, v, **options(q, k, causal)))

    def backward(do, dlse, q, k, v, o, lse, causal):
        return flash_attention_backward(do, dlse, q, k, v, o, lse, by=by, **options(q, k, causal))

    return fn, backward


def _top_left(q, k):
    """The mask (Nq, N) in which query i sees the keys j ≤ i."""
    xp = backends.array_namespace(q=q)
    return xp.arange(q.shape[-2], device=q.device)[:, None] >= xp.arange(k.shape[-2], device=q.device)[None, :]


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
    def make(name, role, fn, backward=None, **declared):
        return Subject(f"{name}, {library}", role, fn, backward, library, **declared)

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
    flashing = {"dtypes": ALL_DTYPES, "claims": ("empty", "causality", "gradient causality", "gradient of nothing")}
    for by in ("columns", "rows") if library == "numpy" else ("columns",):  # the same code, and twice the time
        subjects.append(make(f"flash_attention by {by}", "attention", *flash(by), **flashing))
    flashing["claims"] += ("gradient poison",)
    subjects.append(make("flash_attention, top-left", "attention", *flash("columns", top_left=True), causal="top_left",
                         **flashing))
    return subjects


__all__ = ["ALL_DTYPES", "EXACT", "SPELLINGS", "all_subjects", "at_once", "block", "decode", "defined", "flash",
           "own_subjects", "pairwise", "split_by_tiles"]
