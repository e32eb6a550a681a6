"""fdmath's own attention by definition and its split-KV decode, on torch tensors, for comparison."""

from fdmath.verify import subjects

attention = subjects.defined
decode = subjects.decode()
