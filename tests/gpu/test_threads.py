"""Calls of a thread that has called nothing of CUDA before, as autograd's may be: it has no CUDA context."""

import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from fdmath import flash_attention  # noqa: E402
from fdmath.kernels.flash import flash_forward  # noqa: E402
from fdmath.kernels.flash_backward import flash_backward  # noqa: E402
from fdmath.kernels.flash_hopper import flash_forward_hopper  # noqa: E402
from fdmath.kernels.flash_hopper_backward import flash_backward_hopper  # noqa: E402
from fdmath.kernels.merge import merge_states  # noqa: E402
from fdmath.kernels.split_kv import split_kv_decode  # noqa: E402
from tests.gpu.tensors import equal, normal  # noqa: E402

HOPPER = {"forward, Hopper": flash_forward_hopper, "backward, Hopper": flash_backward_hopper}
CALLS = {"forward": flash_forward, "backward": flash_backward, **HOPPER, "decode": split_kv_decode,
         "merge": merge_states}


def arguments(name):
    """The tensors that a call of CALLS takes."""
    q, do = (normal(1, 4, 1 if name == "decode" else 1024, 128) for _ in range(2))
    k, v = (normal(1, 2, 1024, 128) for _ in range(2))
    if name == "merge":
        return normal(3, 1, 4, 8, 64, dtype=torch.float32), normal(3, 1, 4, 8, dtype=torch.float32)
    return (do, None, q, k, v, *flash_forward(q, k, v)) if name.startswith("backward") else (q, k, v)


def in_a_thread(call):
    """What call returns, or the exception that it raises, in a thread of its own."""
    found = []

    def run():
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("name", CALLS)
def test_a_thread_without_a_context_may_call(name):
    if name in HOPPER and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("a card of compute capability 9 is needed")
    tensors = arguments(name)
    right = tuple(x.clone() for x in CALLS[name](*tensors))
    CALLS[name](*tensors)  # what these tensors held is at hand for the thread, which need not ask the driver for any
    torch.cuda.synchronize()
    found = in_a_thread(lambda: CALLS[name](*tensors))
    assert not isinstance(found, Exception), found
    if name == "backward, Hopper":  # dq is added up in an order of its own, and has its budget elsewhere
        found, right = found[1:], right[1:]
    assert equal(found, right)


def test_autograd_may_be_the_first_to_call_in_its_thread():
    leaves = [normal(1, heads, 257, 64).requires_grad_() for heads in (4, 2, 2)]
    do, dlse = normal(1, 4, 257, 64), normal(1, 4, 257, dtype=torch.float32)
    for _ in range(2):  # in this thread: the kernels are loaded, and memory is at hand
        state = flash_forward(*leaves, causal=True)
        right = flash_backward(do, dlse, *leaves, *state, causal=True)
    found = torch.autograd.grad(tuple(flash_attention(*leaves, causal=True)), leaves, (do, dlse))
    assert equal(found, right)
