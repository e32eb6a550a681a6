"""Graphics cards as data: what their vendors print about them, so that a count can be set against a limit."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """A card's peak figures: streaming multiprocessors, bytes a second of HBM, FLOP a second, shared memory.

    tensor_flops: dense fp16 on the tensor cores; fp32_flops: outside them; shared: the bytes of shared memory that
    the thread blocks on one multiprocessor have together (CUDA's programming guide, compute capabilities). All
    integers, so that ratios of counts and figures are exact. source says where the figures stand.
    """

    name: str
    multiprocessors: int
    bandwidth: int
    tensor_flops: int
    fp32_flops: int
    shared: int
    source: str


_KIB, _GIGA, _TERA = 1024, 10**9, 10**12
_NOTE = "vendor figure, {}; not measured here"

A100 = Device("A100", 108, 2039 * _GIGA, 312 * _TERA, 19_500 * _GIGA, 164 * _KIB,
              _NOTE.format("NVIDIA A100 80 GB SXM data sheet"))
H100 = Device("H100", 132, 3350 * _GIGA, 989_400 * _GIGA, 66_900 * _GIGA, 228 * _KIB,
              _NOTE.format("NVIDIA H100 SXM data sheet, without sparsity"))
H200 = Device("H200", 132, 4800 * _GIGA, 989_400 * _GIGA, 66_900 * _GIGA, 228 * _KIB,
              _NOTE.format("NVIDIA H200 SXM data sheet, without sparsity"))

DEVICES = {device.name: device for device in (A100, H100, H200)}
