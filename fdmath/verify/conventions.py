"""Conventions for "no keys", as found in released programs: each as data, with its merge written from description.

A Convention says what a program holds *inside* while it works, what it *returns* for a row that saw nothing,
and how it *merges*. `returned` runs the inside on one row, `to_ours` is the adapter to (0, −∞), `subject` lets
the laws judge the merge. Whatever guard a program lacks is lacking here. Names say project and place; sources
are project and file, issue or pull request. NumPy arrays: o (R, dv), lse (R,), worked on in the format given.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra.merge import merge
from fdmath.algebra.printed import merge_as_printed_A_3_2_1
from fdmath.algebra.state import LSEState, MLOState
from fdmath.verify.subject import Subject

NOTHING = -math.inf
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Convention:
    """How one program says "no keys".

    name, source: which program, and where that was read. level, total: m and l before the first key; hidden:
    what a score of 0 becomes where the mask hides the key (None: not known, or such keys are not read).
    finish(m, l, acc, log) → (o, lse): the end of its kernel; None for a program that only merges. empty: the lse
    of no keys that its merge is given. inside_base, log_base: of m inside, of the lse returned. merge: ⊕ as the
    program writes it, for two states of `kind`; None where it has none. marks(lse): which rows look like no keys;
    None where no test of lse can tell.
    """

    name: str
    source: str
    level: float = NOTHING
    total: float = 0.0
    hidden: float | None = NOTHING
    finish: Callable | None = None
    empty: float = NOTHING
    inside_base: float = math.e
    log_base: float = math.e
    merge: Callable | None = None
    marks: Callable | None = np.isneginf
    kind: type = LSEState

    @property
    def needs_mask(self):
        """Whether a row with keys can return the lse of no keys too: where that is a finite number."""
        return self.marks is None or math.isfinite(self.empty)


# -- inside: the start, the mask, the end ----------------------------------------------------------------


def returned(convention, scores, v):
    """The (o, lse) that a kernel of the convention returns for one row, in float32 and in its own words.

    scores, v: lists of N natural-log scores, −∞ = hidden, and of N values. The online recurrence from the
    convention's start, hidden keys at its hidden score, then its end; (None, None) where that is not known.
    """
    concealed = [s == NOTHING for s in scores]
    if convention.finish is None or (any(concealed) and convention.hidden is None):
        return None, None
    exp, log = backends.exp_log(np, convention.inside_base)
    unit = math.log(convention.inside_base)
    m, l, acc = np.float32([convention.level, convention.total, 0])
    with backends.quiet():
        for s, x, unseen in zip(scores, v, concealed, strict=True):
            s = np.float32(convention.hidden if unseen else s / unit)
            new = max(m, s)
            level = np.float32(0) if new == NOTHING else new
            alpha, p = exp(m - level), exp(s - level)
            m, l, acc = new, alpha * l + p, alpha * acc + p * np.float32(x)
        o, lse = convention.finish(m, l, acc, log)
    return float(o), None if lse is None else float(lse * np.float32(unit / math.log(convention.log_base)))


def marked(lse_of_nothing):
    """The end that looks whether l is 0: o = 0 and the given lse there."""
    def finish(m, l, acc, log):
        return (np.float32(0), np.float32(lse_of_nothing)) if l == 0 else (acc / l, m + log(l))

    return finish


def divided(m, l, acc, log):
    """The end that does not look: o = acc/l, lse = m + log l."""
    return acc / l, m + log(l)


def padded(eps, returns_lse=True):
    """The end that adds eps to the divisor: o = acc/(l + eps)."""
    def finish(m, l, acc, log):
        return acc / (l + np.float32(eps)), m + log(l) if returns_lse else None

    return finish


def reset(m, l, acc, log):
    """The end that puts m = 0 and l = 1 where m is −∞, against NaN, and returns both in lse."""
    m, l = (np.float32(0), np.float32(1)) if m == NOTHING else (m, l)
    return acc / l, m + log(l)


def padded_log(m, l, acc, log):
    """The end of document A's 3.2.2, log(l + 1e-12), where an empty row is first guarded by m = 0 and l = 1."""
    return acc / (l or np.float32(1)), (np.float32(0) if m == NOTHING else m) + log(l + np.float32(1e-12))


# -- merges, written from description --------------------------------------------------------------------


def shifted_merge(o1, lse1, o2, lse2, base=math.e):
    """(o, lse) by the larger lse as level, nothing guarded: attention-gym's merge_attention; in base 2 FlashInfer's."""
    exp, log = backends.exp_log(np, base)
    top = np.maximum(lse1, lse2)
    a, b = exp(lse1 - top), exp(lse2 - top)
    return (a[:, None] * o1 + b[:, None] * o2) / (a + b)[:, None], top + log(a + b)


def flashinfer_merge(o1, lse1, o2, lse2):
    """shifted_merge of base-2 lse."""
    return shifted_merge(o1, lse1, o2, lse2, base=2)


def vllm_merge(o1, lse1, o2, lse2):
    """shifted_merge after both infinities were read as −∞; two empty sides stay unguarded."""
    lse1, lse2 = (np.where(np.isinf(x), np.asarray(NOTHING, x.dtype), x) for x in (lse1, lse2))
    return shifted_merge(o1, lse1, o2, lse2)


def clamped_merge(o1, lse1, o2, lse2):
    """shifted_merge after lse was clamped to at least −1e4, so that no −∞ − (−∞) arises."""
    return shifted_merge(o1, np.maximum(lse1, -1e4).astype(lse1.dtype), o2, np.maximum(lse2, -1e4).astype(lse2.dtype))


def sigmoid_merge(o1, lse1, o2, lse2):
    """(o, lse) with σ(S₂ − S₁) as weight and S₁ − log σ(S₁ − S₂): ring-flash-attention's update."""
    log_sigmoid = np.minimum(lse1 - lse2, 0) - np.log1p(np.exp(-np.abs(lse1 - lse2)))
    weight = np.exp(np.minimum(lse2 - lse1, 0)) / (1 + np.exp(-np.abs(lse2 - lse1)))
    return o1 - weight[:, None] * (o1 - o2), lse1 - log_sigmoid


def softplus_merge(o1, lse1, o2, lse2):
    """(o, lse) with lse = S₁ + log(1 + e^(S₂ − S₁)), whatever the sign of S₂ − S₁: GPU MODE's lecture 13."""
    return _weighed(o1, lse1, o2, lse2, lse1 + np.log(1 + np.exp(lse2 - lse1)))


def logaddexp_merge(o1, lse1, o2, lse2):
    """(o, lse) with the library's logaddexp, which knows two empty sides, and weights that do not."""
    return _weighed(o1, lse1, o2, lse2, np.logaddexp(lse1, lse2))


def _weighed(o1, lse1, o2, lse2, lse):
    """(o, lse) with the weights e^(S₁ − lse) and e^(S₂ − lse), which are not divided by their sum."""
    return np.exp(lse1 - lse)[:, None] * o1 + np.exp(lse2 - lse)[:, None] * o2, lse


def accumulating_merge(o1, lse1, o2, lse2, level=-5e4):
    """(o, lse), base 2, folded from m = −5e4, d = 1, o = 0: FlashInfer's Triton merge_states."""
    m, d, acc = np.full_like(lse1, level), np.ones_like(lse1), np.zeros_like(o1)
    for o, lse in (o1, lse1), (o2, lse2):
        new = np.maximum(m, lse)
        alpha, beta = backends.exp2(np, m - new), backends.exp2(np, lse - new)
        m, d, acc = new, alpha * d + beta, alpha[:, None] * acc + beta[:, None] * o
    return acc / d[:, None], m + np.log2(d)


def split_combine(os, lses, base=math.e, skips_zero=False):
    """(o, lse) of parts (P, R, dv), (P, R) whose empty ones have −∞: a row of empty parts gets +∞.

    lse is in the base given. skips_zero: a part of weight 0 is not read, so garbage in it does no harm. Where the
    sum of the weights is NaN the row is called empty too, while its o is NaN.
    """
    exp, log = backends.exp_log(np, base)
    top = lses.max(axis=0)
    top = np.where(top == NOTHING, 0, top).astype(lses.dtype)
    total = exp(lses - top).sum(axis=0)
    lse = np.where((total == 0) | np.isnan(total), np.asarray(np.inf, top.dtype), top + log(total))
    weights = exp(lses - lse)[..., None]
    return np.where(skips_zero & (weights == 0), 0, weights * os).sum(axis=0).astype(os.dtype), lse


def fa2_merge(o1, lse1, o2, lse2):
    """split_combine of two natural parts."""
    return split_combine(np.stack([o1, o2]), np.stack([lse1, lse2]))


def flashmla_merge(o1, lse1, o2, lse2, skips_zero=True):
    """split_combine in base 2 of two parts given by natural lse, its lse divided by log₂ e: natural again.

    FlashMLA's parts are in base 2; here they are converted, so that the two sides of ⊕ are of one kind.
    """
    log2e = np.asarray(math.log2(math.e), lse1.dtype)
    o, lse = split_combine(np.stack([o1, o2]), np.stack([lse1, lse2]) * log2e, 2, skips_zero)
    return o, lse / log2e


def vllm_v2_reduce(m1, l1, o1, m2, l2, o2, eps=1e-6):  # the program's own summand, not a tolerance
    """(m, l, o) of two partitions by vLLM's PagedAttention v2 reduce, level from −max, eps in the divisor.

    The program returns o alone; m and l are what it worked out on the way.
    """
    m = np.maximum(np.maximum(m1, m2), np.asarray(-LARGEST, m1.dtype))
    a, b = l1 * np.exp(m1 - m), l2 * np.exp(m2 - m)
    share = 1 / (a + b + np.asarray(eps, m.dtype))
    return m, a + b, o1 * (a * share)[:, None] + o2 * (b * share)[:, None]


# -- the conventions ------------------------------------------------------------------------------------


def _below(limit):
    """The test "lse is at most this limit", which a row with keys can pass too: the mask must decide."""
    return lambda lse: lse <= limit


PALLAS_MASK = float(np.float32(-0.7 * LARGEST))
"""What JAX's Pallas kernel adds to a hidden score, in its float32."""

MANY_KEYS = 32
"""log₂ of more keys than any row has: n hidden keys at the score s return the base-2 lse s + log₂ n."""


CONVENTIONS = {c.name: c for c in [
    Convention(
        "fdmath", "fdmath.algebra.merge",
        finish=marked(NOTHING), merge=lambda o1, lse1, o2, lse2: tuple(merge(LSEState(o1, lse1), LSEState(o2, lse2)))),
    Convention(
        "FlashAttention-2", "flash-attention, csrc/flash_attn/src, softmax.h and the split combine; its PR 978 (open), "
        "vLLM PR 15492",
        finish=marked(np.inf), empty=np.inf, merge=fa2_merge, marks=np.isposinf),
    Convention(
        "FlashMLA decode", "FlashMLA at 287061e, csrc/kernels/mla_combine.cu: base 2 inside, returned lse is "
        "global_lse / M_LOG2E, natural; its issue 77; m starts at -1e30, masks put -1e33",
        level=-1e30, hidden=-1e33, finish=marked(np.inf), inside_base=2, empty=np.inf, merge=flashmla_merge,
        marks=np.isposinf),
    Convention(
        "FlashMLA sparse prefill, 2025-09", "FlashMLA at e77c306, csrc/sm90/prefill/sparse/fwd.cu: returned lse is "
        "log2f(rL) + rM, base 2, and -inf; natural and +inf at 13d173a, phase1.cuh",
        level=-1e30, finish=marked(NOTHING), inside_base=2, log_base=2),
    Convention(
        "FlashInfer merge_state", "FlashInfer, include/flashinfer/attention/state.cuh; its issues 4051 and 2113",
        total=1.0, hidden=None, finish=divided, inside_base=2, log_base=2, merge=flashinfer_merge),
    Convention(
        "FlashInfer merge_states, Triton", "FlashInfer, flashinfer/triton/kernels/cascade.py before 2764b11, which "
        "keeps -inf and guards it",
        level=-5e4, total=1.0, hidden=None, finish=divided, empty=-5e4, inside_base=2, log_base=2,
        merge=accumulating_merge, marks=_below(-5e4)),
    Convention(
        "vLLM merge_attn_states", "vLLM at 0150b0b, csrc/attention/merge_attn_states.cu; its issue 27491, PR 28181",
        merge=vllm_merge, marks=np.isinf),
    Convention(
        "vLLM PagedAttention v2", "vLLM, csrc/attention/attention_kernels.cuh, the v2 reduce kernel",
        level=-LARGEST, hidden=None, finish=padded(1e-6, returns_lse=False), merge=vllm_v2_reduce, marks=None,
        kind=MLOState),
    Convention(
        "clamp to -1e4", "a workaround: vLLM issue 27491, ATOM issue 1152",
        empty=-1e4, merge=clamped_merge, marks=_below(-1e4)),
    Convention("attention-gym", "attention-gym, merge_attention", merge=shifted_merge),
    Convention("ring-flash-attention", "ring-flash-attention PR 34, update_out_and_lse", merge=sigmoid_merge),
    Convention(
        "GPU MODE lecture 13", "gpu-mode/lectures, lecture 13, ring attention: lse + log(1 + exp(block_lse - lse))",
        merge=softplus_merge),
    Convention(
        "logaddexp by hand", "the form that one writes with numpy.logaddexp or torch.logaddexp", merge=logaddexp_merge),
    Convention(
        "PyTorch CPU flash", "PyTorch, _scaled_dot_product_flash_attention_for_cpu, asked in 2.13.0; its PR 131863",
        finish=reset, empty=0.0, marks=None),
    Convention(
        "Triton tutorial 06", "Triton, python/tutorials/06-fused-attention.py: l starts at 1, the mask adds -1e6",
        total=1.0, hidden=-1e6, finish=divided, empty=-1e6, inside_base=2, log_base=2, marks=_below(-1e6 + MANY_KEYS)),
    Convention(
        "JAX Pallas decode", "JAX, pallas/ops/gpu/decode_attention.py at 103fac8: m starts at finfo.min, the mask adds "
        "0.7 finfo.min, eps joins the divisor; it returns l and m, here made lse = m + log l",
        level=-LARGEST, hidden=PALLAS_MASK, finish=padded(2.0**-23), empty=PALLAS_MASK, marks=_below(PALLAS_MASK)),
    Convention(
        "document A, 3.2.2, guarded", "document A, 3.2.2: log(l + 1e-12), an empty tile guarded as one would first",
        finish=padded_log, empty=math.log(1e-12), merge=merge_as_printed_A_3_2_1, marks=None),
]}


# -- the adapter, and the laws --------------------------------------------------------------------------


def to_ours(convention, o, lse, sees=None):
    """The LSEState that (o, lse) in the convention's words mean: natural lse, (0, −∞) where no key was seen.

    sees: which rows see a key, by the mask, of the shape of lse. It decides where it is given: a row that sees a
    key and is marked empty all the same may have lost its lse, and becomes NaN. Without it the mark in lse decides,
    which must then be infinite: a finite one is the lse of some row with keys too.
    Raises ValueError where lse cannot tell and sees is not given, where sees is not boolean or of another shape, or
    the program returns no lse.
    """
    if lse is None:
        raise ValueError(f"{convention.name} returns no lse, so its o cannot be merged")
    if sees is not None and (np.asarray(sees).dtype != bool or np.shape(sees) != lse.shape):
        raise ValueError(f"sees must be boolean, of the shape of lse, {lse.shape}; got {np.asarray(sees).dtype} "
                         f"{np.shape(sees)}")
    if convention.needs_mask and sees is None:
        raise ValueError(f"{convention.name}: no value of lse tells an empty row; give sees, from the mask")
    nothing = np.zeros(lse.shape, bool) if convention.marks is None else convention.marks(lse)
    lost = np.zeros(lse.shape, bool) if sees is None else nothing & sees
    nothing = nothing if sees is None else ~np.asarray(sees)
    natural = (lse * math.log(convention.log_base)).astype(lse.dtype)
    return LSEState(_put(_put(o, lost[..., None], np.nan), nothing[..., None], 0),
                    _put(_put(natural, lost, np.nan), nothing, NOTHING))


def _put(x, where, value):
    """x with the value in the places `where`, in x's format: selected, never multiplied."""
    return np.where(where, np.asarray(value, x.dtype), x)


def in_its_words(convention):
    """The function (o1, lse1, o2, lse2) → (o, lse) of states (empty: lse −∞) merged by the convention.

    The empty rows are first given the lse that the convention returns for no keys, and afterwards rows that bear
    its mark become (0, −∞). A program without a merge of its own is merged by fdmath's ⊕, on natural lse.
    """
    own, unit = convention.merge, 1.0
    if own is None:
        own, unit = CONVENTIONS["fdmath"].merge, math.log(convention.log_base)
    marks = convention.marks or np.isneginf

    def fn(o1, lse1, o2, lse2):
        o, lse = own(o1, _put(lse1, np.isneginf(lse1), convention.empty * unit),
                     o2, _put(lse2, np.isneginf(lse2), convention.empty * unit))
        nothing = marks(lse / unit)
        return _put(o, nothing[..., None], 0), _put(lse, nothing, NOTHING)

    return fn


def subject(convention):
    """The Subject that the convention's merge is, with empty states as the convention returns them."""
    if convention.kind is MLOState:
        return Subject(convention.name, "merge", convention.merge, kind=MLOState)
    base = convention.log_base if convention.merge else math.e
    return Subject(convention.name, "merge", in_its_words(convention), log_base=base)
