"""Triton kernels: split-KV decode and the merge of its states. Each module needs torch and Triton when imported.

With TRITON_INTERPRET=1 in the environment before that, the same kernels run in Triton's interpreter on the CPU.
"""
