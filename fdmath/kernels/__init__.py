"""Triton kernels: split-KV decode, the merge of its states, FlashAttention-2. Each module needs torch and Triton.

With TRITON_INTERPRET=1 in the environment before that, the same kernels run in Triton's interpreter on the CPU.
"""
