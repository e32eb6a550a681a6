"""What others have published, as data with its source: to stand beside what is measured here, on other hardware.

Everything in this module is quoted, nothing of it was measured by us.
"""

from typing import NamedTuple


class BlogRow(NamedTuple):
    """One row of the Flash-Decoding table: sequences, keys each, and microseconds of three ways of attention."""

    batch: int
    keys: int
    eager: float
    flash_attention: float
    flash_decoding: float


BLOG_SOURCE = ("Flash-Decoding for long-context inference, PyTorch blog, 13 October 2023 (repository "
               "pytorch/pytorch.github.io, _posts/2023-10-13-flash-decoding.md, commit c6a6088): run-time in µs on an "
               "A100 in float16, one query a sequence; FlashAttention is version 2.0.9")

BLOG_HEADS = {"q_heads": 16, "kv_heads": 2, "dim": 128}
"""The heads of every row. The text says "batch size 1"; the rows say otherwise (claims:B86)."""

BLOG = (
    BlogRow(256, 256, 3058.6, 390.5, 63.4),
    BlogRow(128, 512, 3151.4, 366.3, 67.7),
    BlogRow(64, 1024, 3160.4, 364.8, 77.7),
    BlogRow(32, 2048, 3158.3, 352, 58.5),
    BlogRow(16, 4096, 3157, 401.7, 57),
    BlogRow(8, 8192, 3173.1, 529.2, 56.4),
    BlogRow(4, 16384, 3223, 582.7, 58.2),
    BlogRow(2, 32768, 3224.1, 1156.1, 60.3),
    BlogRow(1, 65536, 1335.6, 2300.6, 64.4),
    BlogRow(1, 131072, 2664, 4592.2, 106.6),
)

BLOG_ATTENTION = 50
"""The blog's words: attention up to 50 times as fast."""
