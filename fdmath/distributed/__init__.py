"""Attention whose keys lie on several ranks of a torch.distributed group: the same ⊕, across processes.

`ring_attention` sends keys and values around, for long sequences; `tree_decode` sends states, for few queries.
"""

from fdmath.distributed.launch import Outcome, run_ranks
from fdmath.distributed.layout import contiguous, shard, unshard, zigzag
from fdmath.distributed.ring import ring_attention
from fdmath.distributed.tree import tree_decode
from fdmath.distributed.wire import Traffic

__all__ = ["Outcome", "Traffic", "contiguous", "ring_attention", "run_ranks", "shard", "tree_decode", "unshard",
           "zigzag"]
