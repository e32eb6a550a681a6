"""The adapters, in the order in which they are asked. Nothing is imported for them until one is wanted."""

from fdmath.verify.installed.adapter import FLUSHED, SIXTEEN, Adapter

ALL = ("float32", "float64", *SIXTEEN)
ROUNDED = {"dtypes": SIXTEEN, "p_dtype": "inputs", "largest_dim": 256}
"""Of kernels of a GPU's tensor cores: P is rounded to the inputs' format, and heads are at most so wide."""
MERGES = {"dtypes": ("float32",)}


def _both(name, path, roles=("attention", "decode"), **options):
    """Adapters of a call in the role attention and of its `_decode` beside it."""
    module, _, function = path.partition(":")
    names = {"attention": function, "decode": "decode" if function == "attention" else f"{function}_decode"}
    return [Adapter(f"{name}, {role}", role, f"{module}:{names[role]}", **options) for role in roles]


ADAPTERS = {adapter.name: adapter for adapter in (
    *_both("torch flash, CPU", "torch_ops:cpu_flash", devices=("cpu",), declared={"dtypes": ALL, "p_dtype": "inputs"}),
    *_both("torch math", "torch_ops:sdpa_math", declared={"dtypes": ALL, "lse": False}),
    *_both("FlexAttention", "flex_ops:attention", declared={"dtypes": ALL}),
    *_both("transformers eager", "transformers_ops:eager", package="transformers",
           declared={"dtypes": ("float32",), "lse": False}),
    *_both("transformers sdpa", "transformers_ops:sdpa", package="transformers",
           declared={"dtypes": ("float32", "float64"), "lse": False}),
    *_both("JAX", "jax_ops:attention", package="jax", library="numpy",
           declared={"dtypes": ("float32",), "flushed": FLUSHED}, on_cuda={"input_precision": "tf32"}),
    Adapter("torch flash, CUDA", "attention", "torch_ops:cuda_flash", devices=("cuda",), declared=ROUNDED),
    *_both("torch efficient, CUDA", "torch_ops:cuda_efficient", devices=("cuda",), declared=ROUNDED),
    Adapter("torch cuDNN, CUDA", "attention", "torch_ops:cuda_cudnn", devices=("cuda",),
            declared={**ROUNDED, "largest_dim": 128}),
    Adapter("xFormers merge_attentions", "merge_many", "xformers_ops:merge_many", "xformers", ("cuda",),
            declared=MERGES),
    Adapter("xFormers partial", "attention", "xformers_ops:attention", "xformers", ("cuda",), declared=ROUNDED),
    Adapter("FlashInfer merge_state", "merge", "flashinfer_ops:merge", "flashinfer", ("cuda",), declared=MERGES),
    Adapter("FlashInfer merge_states", "merge_many", "flashinfer_ops:merge_many", "flashinfer", ("cuda",),
            declared=MERGES),
    Adapter("FlashInfer decode", "decode", "flashinfer_ops:decode", "flashinfer", ("cuda",), declared=ROUNDED),
    Adapter("FlashAttention-2", "attention", "flash_attn_ops:attention2", "flash_attn", ("cuda",), declared=ROUNDED),
    Adapter("FlashAttention-3", "attention", "flash_attn_ops:attention3", "fa3_fwd", ("cuda",),
            declared={**ROUNDED, "dtypes": ("bfloat16",)}),
    Adapter("vLLM merge_attn_states", "merge", "vllm_ops:merge", "vllm", ("cuda",), declared=MERGES),
    *_both("fdmath", "ours:attention", package="fdmath", declared={"dtypes": ALL}),
)}
"""The Adapters by name."""
