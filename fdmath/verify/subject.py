"""A subject: a function to be judged, with what it declares about itself.

Roles and their calls (arrays with the house's shapes; lse natural unless log_base says otherwise):

    merge(o1, lse1, o2, lse2) → (o, lse)           o (R, dv), lse (R,), R ≥ 0
    merge_many(o, lse) → (o, lse)                  o (P, R, dv), lse (P, R)
    block(scores, v) → (o, lse)                    scores (Nq, N), −∞ = not visible; v (N, dv)
    partial(q, k, v) → (o, lse)                    q (B, Hq, Nq, d), k (B, Hkv, N, d), v (B, Hkv, N, dv)
    decode(q, k, v, seq_lens, num_splits) → …      Nq = 1; seq_lens (B,) counts the keys in use
    attention(q, k, v, causal) → …

With kind=MLOState or AccState a state is passed and returned as three arrays in the order written,
(m, l, o) or (m, l, acc), in merges and blocks. With lse=False fn returns o alone.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra.rounding import KAPPA, exact, format_of, unit_roundoff
from fdmath.algebra.state import AccState, LSEState, MLOState, check_kind
from fdmath.verify.tf32 import EXACT, TF32

ROLES = ("merge", "merge_many", "block", "partial", "decode", "attention")
CALLED = ("partial", "decode", "attention")
SPELT = {LSEState: "(o, lse)", MLOState: "(m, l, o)", AccState: "(m, l, acc)"}
WIDE = (576, 512)
"""d and dv of the widest heads that a law asks about: those of latent attention."""


class SubjectError(Exception):
    """What a subject's call raised, or a result that is no state: it broke its role's contract."""


@dataclass(frozen=True)
class Subject:
    """A function under judgement and its declarations; only a declaration ever widens a budget.

    name, role, fn: see the module; a plain function needs no more. library: "numpy" or "torch", what fn takes; device:
    where torch has its tensors ("cpu", "cuda", …). lse: whether fn returns one; without it what only lse can show is
    not asked. largest_dim: the most d and dv that fn takes; dims: the pairs (d, dv) that it takes, () for any;
    most_queries: the most query tokens a sequence; grouped: whether it takes more query heads than KV heads; splits:
    whether a decode takes num_splits. What it does not take is not asked. in_place: fn may write its operands (it is
    given private copies, and may return None: the result is then read from the first).
    log_base: math.e or 2, of every lse passed and returned. empty: what lse is for no keys, −∞ or +∞.
    lse_layout: "heads_first" (…, H, Nq) or "heads_last" (…, Nq, H). causal: "bottom_right" or "top_left".
    heads: "interleaved" (h // g) or "tiled" (h mod Hkv). scale: None for 1/√d. p_dtype: the format to which
    P is rounded before P·v, "inputs" for that of the inputs. input_precision: how float32 is multiplied, "ieee" or
    "tf32" (both factors cut to eleven bits). stats_dtype: the format of m, l and lse. exp_u: error of exp and log in
    units of u. flushed: numbers below it may be taken for 0 on the way (2⁻¹²⁶ on a GPU). claims: names of laws claimed
    bit for bit, and of the theorem that bounds it ("T3", …).
    backward: the gradient where autograd does not apply, of a merge of pairs or a call. For merges backward(do, dlse,
    o1, lse1, o2, lse2) → (do1, dlse1, do2, dlse2), for merge_many backward(do, dlse, o, lse) → (do, dlse) of the parts;
    for calls backward(do, dlse, q, k, v, o, lse, …) → (dq, dk, dv), where o and lse are what fn returned, do and dlse
    are laid out as they are, and … is what the role's call takes besides; P and dS are then taken to be rounded to
    p_dtype. kind: the spelling of states in merges and blocks.
    dtypes: formats to try. false: names of laws that it is known, and shown, to break.
    """

    name: str
    role: str
    fn: Callable
    backward: Callable | None = None
    library: str = "numpy"
    device: str = "cpu"
    in_place: bool = False
    lse: bool = True
    log_base: float = math.e
    empty: float = -math.inf
    lse_layout: str = "heads_first"
    causal: str = "bottom_right"
    heads: str = "interleaved"
    scale: float | None = None
    p_dtype: str | None = None
    input_precision: str | None = None
    stats_dtype: str | None = None
    exp_u: float = KAPPA
    flushed: float = 0.0
    claims: tuple = ()
    kind: type = LSEState
    dtypes: tuple = ("float32", "float64")
    largest_dim: int = max(WIDE)
    dims: tuple = ()
    most_queries: int = sys.maxsize
    grouped: bool = True
    splits: bool = True
    false: tuple = ()

    def __post_init__(self):
        if not callable(self.fn):
            raise TypeError(f"fn must be callable; got {type(self.fn).__name__}")
        _one_of("role", self.role, ROLES)
        check_kind(self.kind)
        for name in (*self.dtypes, self.stats_dtype or "float32"):
            _one_of("dtypes and stats_dtype", name, backends.FLOATS)
        _one_of("p_dtype", self.p_dtype, (None, "inputs", *backends.FLOATS))
        _one_of("input_precision", self.input_precision, (None, "ieee", "tf32"))
        if self.role in ("merge", "merge_many") and not {"float32", "float64"} & set(self.dtypes):
            raise ValueError(f"dtypes of a merge must hold float32 or float64; got {', '.join(self.dtypes)}")
        for name in ("exp_u", "flushed"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0; got {getattr(self, name)!r}")
        _one_of("library", self.library, ("numpy", "torch"))
        if self.library == "numpy" and self.device != "cpu":
            raise ValueError(f"device must be cpu for NumPy arrays; got {self.device!r}")
        if not self.lse and (self.role == "merge" or self.kind is not LSEState):
            raise ValueError("lse=False must go with a result that is not merged on: no merge of two, no m and l; "
                             f"got a {self.role} of {SPELT[self.kind]}")
        for name in ("largest_dim", "most_queries"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)!r}")
        if not all(d >= 2 and dv >= 1 for d, dv in self.dims):
            raise ValueError(f"dims must be pairs (d, dv) with d at least 2; got {self.dims!r}")
        _one_of("log_base", self.log_base, (math.e, 2))
        _one_of("empty", self.empty, (-math.inf, math.inf))
        _one_of("lse_layout", self.lse_layout, ("heads_first", "heads_last"))
        _one_of("causal", self.causal, ("bottom_right", "top_left"))
        _one_of("heads", self.heads, ("interleaved", "tiled"))

    def takes(self, law):
        """Whether the law of this name asks for no more than the subject takes."""
        left_out = {"wide heads": not self.dims, "grouped heads": self.grouped, "sum over a group": self.grouped,
                    "partition independence": self.splits or self.role != "decode"}
        return left_out.get(law, True)

    def format(self, dtype):
        """The Format that bounds the subject's work on inputs of a dtype: its statistics may be coarser."""
        work = backends.working(dtype)
        fmt = format_of(work, self.exp_u)
        coarse = 0.0 if self.stats_dtype is None else unit_roundoff(self.stats_dtype)
        return type(fmt)(max(fmt.u, coarse), max(fmt.tiny, self.flushed), fmt.kappa)

    def p_format(self, dtype):
        """The name of the format to which P is rounded for inputs of a dtype; None where it is not rounded."""
        if self.p_dtype != "inputs":
            return self.p_dtype
        return None if backends.working(dtype) == dtype else dtype

    def factors(self, dtype):
        """What the factors of its products lose, TF32 or EXACT, for inputs of a dtype."""
        return TF32 if self.input_precision == "tf32" and dtype == "float32" else EXACT

    # -- calls -----------------------------------------------------------------------------------

    def merge(self, a, b):
        """The state that the subject makes of a ⊕ b (NumPy, in the subject's kind)."""
        if self.role == "merge_many":
            return self.merge_many([a, b])
        sent = [self.send(x) for x in (*self.present(a), *self.present(b))]
        got = self.call(*sent)
        return self.adopt(sent[: len(sent) // 2] if got is None and self.in_place else got, like=a)

    def merge_many(self, states):
        """The state that the subject makes of a list of states."""
        if self.role == "merge":
            total = states[0]
            for part in states[1:]:
                total = self.merge(total, part)
            return total
        columns = zip(*(self.present(s) for s in states), strict=True)
        return self.adopt(self.call(*(self.send(np.stack(c)) for c in columns)), like=states[0])

    def echo(self, state):
        """The state as it comes back when it is only presented and adopted again."""
        sent = [self.send(x) for x in self.present(state)]
        return self.adopt(sent if self.lse else sent[0], like=state)

    def call(self, *args):
        """What fn returns for args already in its own library; SubjectError for anything that it raises."""
        return _called(self.fn, "", args)

    def call_backward(self, *args):
        """What backward returns for args already in its own library; SubjectError for anything that it raises."""
        return _called(self.backward, "backward ", args)

    def recorded(self, results):
        """The subject whose fn adds what it returns, as it stands and uncopied, to the list `results`."""
        def run(*args):
            results.append(self.fn(*args))
            return results[-1]

        return replace(self, fn=run)

    def watched(self, changes):
        """The subject given writable copies of what it is sent; what a call changes of them is told in `changes`."""
        watch = lambda name: _watched(getattr(self, name), name, changes)  # noqa: E731
        return replace(self, fn=watch("fn"), backward=None if self.backward is None else watch("backward"))

    def send(self, x):
        """The array x in the subject's library: a contiguous private copy, read-only unless in_place."""
        copy = np.array(x, copy=True, order="C")
        if self.library == "torch":
            return _to_torch(copy).to(self.device)
        copy.flags.writeable = self.in_place
        return copy

    def present(self, state):
        """The arrays of a state in the subject's conventions (base of lse, value for empty)."""
        if not isinstance(state, LSEState):
            return list(state)
        lse = state.lse
        if self.log_base == 2:  # a float32 that came back is natural in float64: it becomes itself again, exactly
            lse = (lse / math.log(2)).astype(backends.working(backends.float_name(state.o)))
        return [state.o, np.where(lse == -np.inf, np.asarray(self.empty, lse.dtype), lse)]

    def present_slope(self, dlse):
        """dlse (…), the gradient of natural lse, as that of lse in the subject's conventions (base, layout)."""
        if self.log_base == 2:  # lse = lse2·ln 2
            dlse = (dlse * math.log(2)).astype(dlse.dtype)
        laid_out = self.role in CALLED and self.lse_layout == "heads_last"
        return np.swapaxes(dlse, -1, -2) if laid_out else dlse

    def adopt(self, got, like=None):
        """The state that the subject's arrays `got` mean, as NumPy arrays with natural lse; SubjectError if none."""
        kind = self.kind if self.role in ("merge", "merge_many", "block") else LSEState
        arrays = self._returned(got, kind)
        try:
            arrays = [to_numpy(x) for x in arrays]
            if not self.lse:  # a stand-in, whose budget is infinite
                arrays.append(np.zeros(arrays[0].shape[:-1], arrays[0].dtype))
            elif kind is LSEState:
                arrays[1] = self._natural(arrays[1])
            state = kind(*arrays)
        except (TypeError, ValueError) as error:
            raise SubjectError(f"returned no state: {error}") from error
        if like is not None and state.payload.shape != like.payload.shape:
            raise SubjectError(f"must return the shape {like.payload.shape}; got {state.payload.shape}")
        return state

    def _returned(self, got, kind):
        """The list of arrays that fn returned as `got`; SubjectError for another number of them than declared."""
        several = isinstance(got, (tuple, list, kind))
        arrays = list(got) if several else [got]
        if not self.lse and len(arrays) != 1:
            raise SubjectError(f"must return o alone, for it is declared with lse=False; got {len(arrays)} arrays")
        if self.lse and (not several or len(arrays) != len(SPELT[kind].split(","))):
            came = f"{type(got).__name__} of {len(arrays)}" if several else type(got).__name__
            alone = " (declare lse=False if it returns o alone)" if kind is LSEState and self.role != "merge" else ""
            raise SubjectError(f"must return {SPELT[kind]}; got {came}{alone}")
        return arrays

    def _natural(self, lse):
        if self.empty == math.inf:
            nothing, none = np.asarray([-np.inf, np.nan], lse.dtype)  # −∞ is no value of its convention
            lse = np.where(lse == np.inf, nothing, np.where(lse == -np.inf, none, lse))
        if self.role in CALLED and self.lse_layout == "heads_last":
            lse = np.swapaxes(lse, -1, -2)
        return exact(lse) * math.log(2) if self.log_base == 2 else lse


def _called(fn, name, args):
    try:
        with backends.quiet():
            return fn(*args)
    except (KeyboardInterrupt, SubjectError):  # the first is the user's; a worker, which has none, makes it the second
        raise
    except BaseException as error:
        raise SubjectError(f"{name}raised {described(error)}") from error


def described(error):
    """An exception in words, its kind first; one that cannot say itself is said so."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}, whose text cannot be had"


def _watched(fn, name, changes):
    """fn on writable copies of its arguments; a line for each that a call leaves other than it was joins `changes`."""
    def run(*args):
        copies = [x.copy() if isinstance(x, np.ndarray) else x.clone() if hasattr(x, "clone") else x for x in args]
        got = fn(*copies)
        for i, (was, now) in enumerate(zip(args, copies, strict=True)):
            if hasattr(was, "shape") and (told := _change(exact(was), exact(now))):
                changes.append(f"{name} changed its argument {i + 1}, {told}")
        return got

    return run


def _change(was, now):
    """The first difference of two arrays as a text, NaN equal to NaN; an empty one where there is none."""
    if was.shape != now.shape:
        return f"whose shape was {was.shape} and is {now.shape}"
    apart = np.argwhere((was != now) & ~(np.isnan(was) & np.isnan(now)))
    if not len(apart):
        return ""
    at = tuple(apart[0])
    return f"which at {[int(i) for i in at]} was {float(was[at])!r} and is {float(now[at])!r}"


def _one_of(name, value, allowed):
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(str, allowed))}; got {value!r}")


def _to_torch(x):
    torch = backends.load("importlib:import_module")("torch")
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(x)


def to_numpy(x):
    """x as a NumPy array, which shares the memory of a NumPy array or of a tensor on the CPU; bfloat16 as float32."""
    if backends.library(x) == "torch":
        x = x.detach().cpu()
        return exact(x).astype(np.float32) if backends.float_name(x) == "bfloat16" else x.numpy()
    return np.asarray(x)
