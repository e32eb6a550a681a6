"""The kernels as subjects of the verifier: functions of torch tensors on whatever device the kernels run on."""

from fdmath.kernels.merge import merge_states
from fdmath.kernels.split_kv import split_kv_decode
from fdmath.verify import Subject

ROUNDED = {"float32": None, "float16": "float16", "bfloat16": "bfloat16"}
"""The format to which the kernel rounds P before P·v, for each format of its inputs."""


def subjects(device):
    """The Subjects: split-KV in the roles decode and partial, a subject a format, and the merge."""
    def on(fn):
        return lambda *args: tuple(x.cpu() for x in fn(*(a.to(device) if hasattr(a, "to") else a for a in args)))

    def decode(q, k, v, seq_lens, num_splits):
        return split_kv_decode(q, k, v, seq_lens=seq_lens, num_splits=num_splits)

    def partial(q, k, v):
        return split_kv_decode(q, k, v, tile=3)

    def attention(q, k, v, causal):
        return split_kv_decode(q, k, v, num_splits=2, causal=causal)

    exact = ("empty", "poison")
    found = [
        Subject(f"{name}, {dtype}", role, on(fn), library="torch", dtypes=(dtype,), p_dtype=p_dtype, claims=claims)
        for dtype, p_dtype in ROUNDED.items()
        for name, role, fn, claims in (
            ("split-KV kernel", "decode", decode, exact),
            ("split-KV kernel by tiles", "partial", partial, exact[:1]),
            ("split-KV kernel, causal", "attention", attention, (*exact[:1], "causality")),
        )
    ]
    return [*found, Subject("merge kernel", "merge_many", on(lambda o, lse: merge_states(o, lse)), library="torch",
                            dtypes=("float32",), claims=("left identity", "right identity", "empty", "T3"))]
