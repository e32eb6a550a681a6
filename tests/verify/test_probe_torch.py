"""The probe on what torch brings: base, the value for no keys and alignment are found untold."""

import math
from functools import partial

import numpy as np
import pytest

from fdmath.verify import Subject
from fdmath.verify.probe import QUESTIONS, Contract, answer, begin, probe

torch = pytest.importorskip("torch")


def untold(fn, role, only=tuple(QUESTIONS)):
    """The Contract of a function of which nothing is declared, as far as some questions go."""
    subject = Subject("torch's", role, fn)

    def run(task, *args):
        return begin(subject, *args) if task == "begin" else answer(subject, *args) if args[-1] in only else []

    return probe(subject, "float32", told=(), run=run)


def cpu_flash():
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def flex(q, k, v, **options):
    """FlexAttention as it runs without being compiled: traced anew for each shape, which takes a while."""
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(q, k, v, return_lse=True, enable_gqa=True, **options)


def values(contract: Contract, *names):
    return [contract[name].value for name in names]


def test_torchs_cpu_flash_kernel_called_as_it_is():
    found = untold(cpu_flash(), "attention")
    assert values(found, "library", "call") == ["torch", "fn(q, k, v, is_causal=…)"]
    assert values(found, "log_base", "empty", "empty_o", "causal") == [math.e, 0.0, 0.0, "top_left"]
    assert values(found, "lse_layout", "heads", "scale") == ["heads_first", "interleaved", "1/sqrt(d)"]
    assert values(found, "p_dtype", "stats_dtype", "scores") == ["float32"] * 3
    assert found.contradictions() == () and "empty" not in found.declarations()


def test_its_lse_of_no_keys_contradicts_a_declaration():
    found = probe(Subject("torch's", "attention", cpu_flash()), told={"empty", "causal"})
    assert {t.name for t in found.contradictions()} == {"empty", "causal"}


def test_flex_attention_called_as_it_is():
    from torch.nn.attention.flex_attention import flex_attention

    found = untold(flex_attention, "attention", ("log_base", "lse_layout", "heads", "causal", "empty"))
    assert values(found, "call", "log_base") == ["fn(q, k, v, return_lse=True)", math.e]
    assert values(found, "empty", "empty_o") == [-np.inf, 0.0]
    assert values(found, "lse_layout", "heads", "causal") == ["heads_first", "interleaved", None]


@pytest.mark.parametrize("aligned", ["top_left", "bottom_right"])
def test_flex_attention_with_a_causal_mask(aligned):
    from torch.nn.attention.flex_attention import create_block_mask

    def fn(q, k, v, causal):
        behind = k.shape[-2] - q.shape[-2] if aligned == "bottom_right" else 0
        mask = create_block_mask(lambda b, h, i, j: j <= i + behind, None, None, q.shape[-2], k.shape[-2], device="cpu")
        return flex(q, k, v, block_mask=mask if causal else None)

    found = untold(fn, "attention", ("log_base", "causal", "empty"))
    assert values(found, "log_base", "causal") == [math.e, aligned]
    if aligned == "bottom_right":  # then a query sees nothing, and no mask is needed to learn what it is told
        assert values(found, "empty", "empty_o") == [-np.inf, 0.0]


def test_flex_attention_with_lengths():
    def fn(q, k, v, seq_lens, num_splits):
        return flex(q, k, v, score_mod=lambda s, b, h, i, j: torch.where(j < seq_lens[b], s, -math.inf))

    found = untold(fn, "decode", ("empty", "splits"))
    assert values(found, "empty", "empty_o", "splits") == [-np.inf, 0.0, False]


def test_sdpa_returns_no_lse():
    found = untold(partial(torch.nn.functional.scaled_dot_product_attention, enable_gqa=True), "attention")
    assert values(found, "lse", "causal", "empty_o", "heads") == [False, "top_left", 0.0, "interleaved"]
    assert "log_base" not in found and "empty" not in found


def test_torch_is_not_asked_for_no_keys_unless_one_says_so():
    def fn(q, k, v):
        assert k.shape[-2], "this would kill a process"
        s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return s.softmax(-1) @ v, s.logsumexp(-1)

    subject = Subject("mine", "partial", fn, library="torch")
    assert "kill" not in str(probe(subject)) and probe(subject)["empty"].value is None
    assert "this would kill a process" in probe(subject, risky=True)["empty"].evidence


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits_are_asked_in_torch_too(dtype):
    def fn(q, k, v):
        s = q.float() @ k.float().transpose(-1, -2) / math.sqrt(q.shape[-1])
        p = (s - s.amax(-1, keepdim=True)).exp()
        return ((p.to(q.dtype).float() @ v.float()) / p.sum(-1, keepdim=True)).to(q.dtype), s.logsumexp(-1)

    found = probe(Subject("mine", "partial", fn, library="torch"), dtype, told=())
    assert values(found, "log_base", "p_dtype", "stats_dtype", "scale") == [math.e, dtype, "float32", "1/sqrt(d)"]


def test_why_no_call_works_is_said_of_each_library():
    def fn(q, k, v):
        raise TypeError("tensors of another layout" if torch.is_tensor(q) else "no tensors")

    evidence = probe(Subject("mine", "partial", fn))["call"].evidence
    assert "given NumPy arrays it raised TypeError: no tensors; given torch tensors it raised" in evidence
    assert "tensors of another layout" in evidence
