"""Attention by definition, and the algorithms of the two documents, on NumPy or torch.

The package can be called: `fdmath.attention(q, k, v)` is `fdmath.attention.reference.attention`.
"""

from fdmath._callable import make_callable
from fdmath.attention.reference import attention

make_callable(__name__, attention)
