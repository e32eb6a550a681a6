"""FlashInfer's merge_state, merge_states and decode of one sequence. Needs flashinfer and a GPU.

Its states are (tokens, heads, d) and (tokens, heads), its head dim a multiple of 8 for 16 bits, its decode's one of 64,
128 and 256. Written from its documentation (0.6.4); where it is installed the laws say how far that is right.
"""

import torch

from fdmath import _backends as backends
from fdmath.verify.installed.frames import padded

flashinfer = backends.load("importlib:import_module")("flashinfer")


def merge(o1, lse1, o2, lse2):
    """(o, lse) of merge_state in the role merge: a row of ours is a token of one head."""
    a, b, dv = _wide(o1), _wide(o2), o1.shape[-1]
    lse1, lse2 = (x.float()[:, None] for x in (lse1, lse2))  # it takes float32 alone
    o, lse = flashinfer.merge_state(a[:, None], lse1, b[:, None], lse2)
    return o[:, 0, :dv], lse[:, 0]


def merge_many(o, lse):
    """(o, lse) of merge_states in the role merge_many."""
    stacked = _wide(o).transpose(0, 1)[:, :, None].contiguous()  # (R, P, 1, dv)
    merged, level = flashinfer.merge_states(stacked, lse.T[:, :, None].contiguous())
    return merged[:, 0, : o.shape[-1]], level[:, 0]


def decode(q, k, v, seq_lens, num_splits):
    """(o, lse) of single_decode_with_kv_cache in the role decode, sequence by sequence; it chooses its splits."""
    q, k, v, scale, dv = padded(q, k, v, 1 << (max(q.shape[-1], v.shape[-1], 64) - 1).bit_length())
    parts = [_one(q[b], k[b, :, :n], v[b, :, :n], scale) for b, n in enumerate(seq_lens.tolist())]
    o, lse = (torch.stack(x) for x in zip(*parts, strict=True))
    return o[:, :, None, :dv], lse[:, :, None]


def _one(q, k, v, scale):
    return flashinfer.single_decode_with_kv_cache(q[:, 0].contiguous(), k.contiguous(), v.contiguous(),
                                                  kv_layout="HND", sm_scale=scale, return_lse=True)


def _wide(o):
    """o with its last axis filled up with zeros to a multiple of 64."""
    return torch.nn.functional.pad(o, (0, -o.shape[-1] % 64))
