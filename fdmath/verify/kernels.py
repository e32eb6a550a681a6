"""The Triton kernels as subjects, on what they run on in this process: a CUDA device, or the interpreter on the CPU.

Needs torch and Triton when imported; `subjects.all_subjects` imports it where the kernels can run.
"""

from fdmath.kernels.checks import INTERPRETED, LARGEST_DIM, LARGEST_QUERIES
from fdmath.kernels.flash import flash_attention_by_kernel
from fdmath.kernels.flash_backward import flash_backward
from fdmath.kernels.merge import merge_states
from fdmath.kernels.split_kv import split_kv_decode
from fdmath.verify.subject import Subject

FORMATS = ("float32", "float16", "bfloat16")
"""What the kernels take; they round P to v's own format before P·v."""

FLUSHED = 2.0**-126
"""A GPU takes numbers below it for 0, and so does the interpreter in bfloat16."""

MOST_SPLITS = 10
"""The most splits in the interpreter, where a program takes milliseconds: more than the keys of a small case."""


def decode(q, k, v, seq_lens, num_splits):
    """split_kv_decode in even splits, as a subject of the role decode."""
    splits = min(num_splits, MOST_SPLITS) if INTERPRETED else num_splits
    return split_kv_decode(q, k, v, seq_lens=seq_lens, num_splits=splits)


def by_tiles(q, k, v):
    """split_kv_decode in tiles of a third of the keys, but of 3 at least, as a subject of the role partial."""
    return split_kv_decode(q, k, v, tile=max(3, k.shape[-2] // 3))


def causal_in_two(q, k, v, causal):
    """split_kv_decode in two splits as a subject of the role attention."""
    return split_kv_decode(q, k, v, num_splits=2, causal=causal)


def flash(q, k, v, causal):
    """The forward kernel of FlashAttention-2 as a subject of the role attention."""
    return flash_attention_by_kernel(q, k, v, causal, None)


def flash_gradients(do, dlse, q, k, v, o, lse, causal):
    """The gradients of `flash` by the backward kernels."""
    return flash_backward(do, dlse, q, k, v, o, lse, causal=causal)


def kernel_subjects():
    """The Subjects: split-KV decoding in three roles, the merge of many states, FlashAttention-2."""
    def decoding(name, role, fn, *claims):
        return Subject(name, role, on_device(fn), library="torch", dtypes=FORMATS, p_dtype="inputs", flushed=FLUSHED,
                       largest_dim=LARGEST_DIM, most_queries=LARGEST_QUERIES, claims=claims)

    return [
        decoding("split-KV kernel", "decode", decode, "empty", "poison"),
        decoding("split-KV kernel by tiles", "partial", by_tiles, "empty"),
        decoding("split-KV kernel, causal", "attention", causal_in_two, "empty", "causality"),
        Subject("merge kernel", "merge_many", on_device(merge_states), library="torch", dtypes=("float32",),
                flushed=FLUSHED, claims=("left identity", "right identity", "empty", "T3")),
        Subject("FlashAttention-2 kernels", "attention", on_device(flash), on_device(flash_gradients),
                library="torch", dtypes=FORMATS, p_dtype="inputs", flushed=FLUSHED, largest_dim=LARGEST_DIM,
                claims=("empty", "causality", "gradient causality", "gradient of nothing")),
    ]


def on_device(fn):
    """fn for tensors of the CPU: they are sent to where the kernels run; the results come back, and what fn changed."""
    device = "cpu" if INTERPRETED else "cuda"

    def sent(*args):
        there = [x.to(device) if hasattr(x, "to") else x for x in args]
        results = tuple(x.cpu() for x in fn(*there))
        for x, used in zip(args, there, strict=True):
            if used is not x:
                x.detach().copy_(used.detach())
        return results

    return sent
