"""Gluon kernels with a loading warp, run on NumPy: no time and no layouts, but every order of events may happen.

Triton's interpreter does not know Gluon. Here the very functions of a kernel run as Python, with their vocabulary
replaced. Each group of warps is a thread, one runs at a time, and a seeded choice says which goes on, or which copy on
its way lands, at every barrier, copy and product. A product reads shared memory no sooner than it is waited for, and
shared memory begins as NaN: what is read too early, or overwritten too soon, shows in the result. Where nobody can go
on, that is an error. The steps of the warps inside a group are not taken apart.
"""

import importlib.util
import math
import random
import threading
from functools import partial
from pathlib import Path
from types import FunctionType, SimpleNamespace

import ml_dtypes
import numpy as np
import triton

FORMATS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


class Block(np.ndarray):
    """A tensor in registers."""

    type = SimpleNamespace(layout=None)

    def to(self, name):
        """The numbers rounded to a format."""
        return block(np.asarray(self).astype(FORMATS[name]).astype(np.float32))


def block(x):
    """An array as a Block."""
    return np.asarray(x).view(Block)


class Shared:
    """A place in shared memory, or a view of one: an array."""

    def __init__(self, array, dtype):
        self.array, self.dtype, self.shape = array, dtype, array.shape

    def index(self, i):
        """The i-th part."""
        return Shared(self.array[i], self.dtype)

    def reshape(self, shape):
        """The same numbers in another shape."""
        return Shared(self.array.reshape(shape), self.dtype)

    def permute(self, order):
        """The same numbers with the axes in another order."""
        return Shared(self.array.transpose(order), self.dtype)

    def slice(self, start, length, dim=0):
        """A part along one axis."""
        return Shared(self.array[(slice(None),) * dim + (slice(start, start + length),)], self.dtype)

    def _reinterpret(self, dtype, shape, layout):
        """The same numbers in another shape."""
        return self.reshape(shape)

    def load(self, layout):
        """The numbers."""
        return block(self.array.copy())

    def store(self, values):
        """Nothing; the values are there."""
        self.array[:] = values


class Descriptor:
    """Tiles of an array (B, H, N) or (B, H, N, d), of `lengths` (rows,) or (rows, dim): zeros beyond the end."""

    def __init__(self, array, lengths, dtype):
        self.array, self.lengths, self.dtype, self.shape, self.layout = array, lengths, dtype, array.shape, None
        self.block_type = SimpleNamespace(nbytes=math.prod(lengths) * (4 if dtype == "float32" else 2))

    def held(self, corner):
        """The part of a tile that lies inside the array."""
        batch, head, *starts = corner
        assert min(starts) >= 0
        return self.array[(batch, head, *(slice(x, x + n) for x, n in zip(starts, self.lengths, strict=True)))]

    def load(self, corner, place):
        """Nothing; the tile is at the place."""
        held = self.held(corner)
        place.array[:] = 0
        place.array[(0, 0, *map(slice, held.shape))] = held

    def store(self, corner, place, add=False):
        """Nothing; what of the tile lies inside the array is written, or added to what is there."""
        held = self.held(corner)
        part = place.array[(0, 0, *map(slice, held.shape))]
        held[:] = held + part if add else part


class Pointer:
    """The address of numbers in a flat array."""

    def __init__(self, array, offset=0):
        self.array, self.offset = array, offset

    def __add__(self, step):
        return Pointer(self.array, self.offset + step)


class Barrier:
    """An mbarrier: a phase completes when `count` have arrived and the bytes that were announced have come."""

    def __init__(self):
        self.count = self.missing = self.phases = 0
        self.bytes = 0

    def index(self, i):
        """Itself: of an allocation with one barrier."""
        return self

    def change(self, arrivals, size):
        """Nothing; some have arrived, and so many more bytes are awaited."""
        self.missing, self.bytes = self.missing - arrivals, self.bytes + size
        assert self.missing >= 0
        if self.missing == 0 and self.bytes == 0:
            self.missing, self.phases = self.count, self.phases + 1

    def done(self, parity):
        """Whether the phase of a parity has completed: the last one that did, or none of the other has yet."""
        return self.phases % 2 != parity


class Stuck(Exception):
    """Nobody can go on."""


class Warps(threading.Thread):
    """A group of warps: it runs only when it is resumed, up to its next pause."""

    def __init__(self, machine, function, args):
        super().__init__(daemon=True)
        self.machine, self.function, self.args = machine, function, args
        self.go, self.ready, self.products, self.error = threading.Semaphore(0), lambda: True, [], None
        self.writes = 0

    def run(self):
        """Nothing; the function has run, or its error is kept."""
        self.go.acquire()
        try:
            if not self.machine.stopped:
                with np.errstate(all="ignore"):
                    self.function(*self.args)
        except BaseException as error:  # noqa: BLE001  (handed to the caller's thread)
            self.error = error
        self.ready = None
        self.machine.back.release()

    def pause(self, ready):
        """Nothing; whoever is chosen has gone on, and `ready` holds."""
        self.ready = ready
        self.machine.back.release()
        self.go.acquire()
        if self.machine.stopped:
            raise Stuck


class Machine:
    """One program after another on one multiprocessor; with every third seed copies take long."""

    def __init__(self, seed):
        self.random, self.back, self.stopped = random.Random(seed), threading.Semaphore(0), False
        self.copies, self.program, self.haste = [], 0, (0.5, 0.1, 0.01)[seed % 3]

    def specialize(self, functions, *_):
        """Nothing; the groups of warps have run side by side to their ends."""
        groups = [Warps(self, *each) for each in functions]
        for group in groups:
            group.start()
        try:
            while any(group.ready for group in groups):
                able = [group for group in groups if group.ready and group.ready()]
                if not able and not self.copies:
                    raise Stuck(f"after {sum(not group.ready for group in groups)} of {len(groups)} groups")
                self.step(able)
                for group in groups:
                    if group.error:
                        raise group.error
        finally:
            self.stopped = any(group.ready for group in groups)
            for group in groups:
                group.go.release()
        assert not self.copies

    def step(self, able):
        """Nothing; one of the groups that can has gone on, or one copy has landed."""
        if self.copies and (not able or self.random.random() < self.haste):
            self.copies.pop(self.random.randrange(len(self.copies)))()
        else:
            self.random.choice(able).go.release()
            self.back.acquire()

    def pause(self, ready=lambda: True):
        """Nothing; the machine has chosen this group to go on."""
        threading.current_thread().pause(ready)

    def expect(self, barrier, size, wanted=True):
        """Nothing; one has arrived, and so many bytes will come."""
        self.pause()
        if wanted:
            barrier.change(1, size)

    def arrive(self, barrier, *, count=1):
        """Nothing; one has arrived."""
        self.pause()
        barrier.change(count, 0)

    def wait(self, barrier, parity, wanted=True):
        """Nothing; the phase of this parity has completed."""
        if wanted:
            self.pause(lambda: barrier.done(parity))

    def load(self, descriptor, corner, barrier, place, wanted=True):
        """Nothing; a copy is on its way."""
        if wanted:
            def land():
                descriptor.load(corner, place)
                barrier.change(0, -descriptor.block_type.nbytes)

            self.copies.append(land)

    def write(self, descriptor, corner, place, *, add=False):
        """Nothing; a copy into memory is on its way, and will read its place when it goes."""
        self.pause()
        group = threading.current_thread()
        group.writes += 1

        def land():
            descriptor.store(corner, place, add)
            group.writes -= 1

        self.copies.append(land)

    def written(self, outstanding):
        """Nothing; this group's copies into memory have gone."""
        group = threading.current_thread()
        self.pause(lambda: group.writes <= outstanding)

    def multiply(self, a, b, acc, *, use_acc=True, is_async=False):
        """a·b + acc, or what `finish` makes into it."""
        self.pause()
        product = SimpleNamespace(a=a, b=b, acc=acc if use_acc else 0, value=None)
        products = threading.current_thread().products
        products.append(product)
        return product if is_async else self.finish(0, [product])

    def finish(self, outstanding=0, deps=()):
        """The values of deps, after all products but the `outstanding` youngest."""
        self.pause()
        products = threading.current_thread().products
        while len(products) > outstanding:
            product = products.pop(0)
            a, b = (x.array if isinstance(x, Shared) else np.asarray(x) for x in (product.a, product.b))
            product.value = block(a @ b + product.acc)
        values = [x.value if isinstance(x, SimpleNamespace) else x for x in deps]
        assert all(value is not None for value in values)
        return values[0] if len(values) == 1 else tuple(values)

    def vocabulary(self):
        """What the names of a kernel's module stand for."""
        def allocate(kind, shape, _):
            if kind != "int64":
                return Shared(np.full(shape, np.nan, np.float32), kind)
            if len(shape) == 1:
                return Barrier()
            places = [Barrier() for _ in range(shape[0])]
            return SimpleNamespace(index=places.__getitem__)

        def start(barrier, count):
            barrier.count = barrier.missing = count

        def store(pointer, values, inside):
            pointer.array[pointer.offset[inside]] = values[inside]

        def reduced(function):
            return lambda x, axis: block(function(x, axis))

        language = SimpleNamespace(
            allocate_shared_memory=allocate, warp_specialize=self.specialize, store=store, int64="int64",
            float32="float32", program_id=lambda axis: self.program, static_range=range, cdiv=triton.cdiv,
            cast=lambda x, _: x, arange=lambda first, last, layout: block(np.arange(first, last)),
            zeros=lambda shape, *_: block(np.zeros(shape, np.float32)),
            full=lambda shape, value, *_: block(np.full(shape, value, np.float32)),
            convert_layout=lambda x, _: x, max=reduced(np.max), sum=reduced(np.sum), div_rn=np.divide,
            where=lambda c, a, b: block(np.where(c, a, b)) if np.ndim(c) else (a if c else b),
            **{name: getattr(np, name) for name in ("maximum", "minimum", "exp2", "log2")},
            **dict.fromkeys(("SliceLayout", "DotOperandLayout", "NVMMADistributedLayout", "NVMMASharedLayout",
                             "SwizzledSharedLayout"), lambda *_: None),
        )  # fmt: skip
        barriers = SimpleNamespace(init=start, expect=self.expect, arrive=self.arrive, wait=self.wait,
                                   MBarrierLayout=lambda: None)
        copies = SimpleNamespace(async_copy_global_to_shared=self.load, store_wait=self.written,
                                 async_copy_shared_to_global=self.write)
        return {"gl": language, "tl": language, "mbarrier": barriers, "tma": copies, "warpgroup_mma": self.multiply,
                "warpgroup_mma_wait": self.finish, "fence_async_shared": lambda: None,
                "add_to_global": partial(self.write, add=True)}


def on_cpu(kernel, machine):
    """The Python function of a kernel with every name that it and its helpers use replaced by the machine's."""
    names = {}
    for name, value in kernel.fn.__globals__.items():
        if hasattr(value, "fn") and hasattr(value.fn, "__code__"):
            scope = names if value.fn.__globals__ is kernel.fn.__globals__ else machine.vocabulary()
            names[name] = FunctionType(value.fn.__code__, scope)
        else:
            names[name] = value.value if isinstance(value, triton.language.constexpr) else value
    names |= machine.vocabulary()
    return names[kernel.fn.__name__]


def changed(module, old, new, folder):
    """A module after a change to its text, which is written to the folder."""
    text = Path(module.__file__).read_text(encoding="utf-8")
    assert old in text
    path = folder / "changed.py"
    path.write_text(text.replace(old, new), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("changed", path)
    result = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(result)
    return result
