"""Attention from its definition in ball arithmetic: values that come with a proof of their error.

Everything here is computed by Arb (through python-flint) in intervals midpoint ± radius
that certainly hold the exact real value, at a precision chosen from the size of the
inputs.  The package knows nothing of the rest of fdmath: it is the judge, so it shares no
code with the judged.

FLINT keeps its working precision in one process-wide setting.  Every call sets it for its
own duration and restores it; do not call the oracle from two threads at once.
"""

from .definition import (
    certified_attention,
    certified_block,
    certified_merge,
    certified_merge_acc,
    certified_merge_mlo,
)
from .derivative import certified_attention_jvp, certified_merge_jvp
from .enclosure import Enclosure
from .sums import sharper

__all__ = [
    "Enclosure",
    "certified_attention",
    "certified_attention_jvp",
    "certified_block",
    "certified_merge",
    "certified_merge_acc",
    "certified_merge_jvp",
    "certified_merge_mlo",
    "sharper",
]
