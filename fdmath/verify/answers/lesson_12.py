"""Notebook 12: write one rank of a causal ring, whose keys and values travel."""

import contextvars
import threading
from collections import deque

import numpy as np

from fdmath.algebra.merge import merge
from fdmath.algebra.state import LSEState
from fdmath.attention.decode import key_ranges
from fdmath.attention.reference import attention
from fdmath.verify.subject import Subject

FIRST = "anchor"

RANKS = 3
"""Ranks of the judge's ring, rows in a zigzag: often one of them has no keys, or no queries."""

HINTS = (
    "Begin with what this rank holds, `k`, `v` and `k_at`. At each of `wire.size` hops: if another hop follows, "
    "`wire.send([k, v, k_at])`; then the block of these keys, and $\\oplus$ with what you have; then, if another hop "
    "follows, `k, v, k_at = wire.receive()`. The first state needs nothing to be merged with.",
    "Who sees whom: `visible = q_at[:, None] >= k_at`. The places must travel with the keys they belong to: on the "
    "second hop `k_at` of the first is another rank's, and so is its length. One send less than there are ranks: "
    "what has come round once must not be counted again.",
)


def my_ring(wire, q, k, v, q_at, k_at, block, merge):
    """The state of this rank's queries over the keys of all ranks of a ring, in wire.size hops.

    q (…, Nq, d), k (…, n, d), v (…, n, dv): this rank's rows; q_at (Nq,), k_at (n,): their places in the sequence. A
    query sees the keys up to its own place. block(q, k, v, visible): the state of one block, visible booleans (Nq, n);
    merge(a, b): ⊕. wire.send(arrays) to the next rank, before they are used; wire.receive() from the one before.
    """
    raise NotImplementedError


def answer(wire, q, k, v, q_at, k_at, block, merge):
    """The state of this rank's queries over the keys of all ranks of a ring, in wire.size hops.

    q (…, Nq, d), k (…, n, d), v (…, n, dv): this rank's rows; q_at (Nq,), k_at (n,): their places in the sequence. A
    query sees the keys up to its own place. block(q, k, v, visible): the state of one block, visible booleans (Nq, n);
    merge(a, b): ⊕. wire.send(arrays) to the next rank, before they are used; wire.receive() from the one before.
    """
    state = None
    for hop in range(wire.size):
        more = hop + 1 < wire.size
        if more:
            wire.send([k, v, k_at])
        own = block(q, k, v, q_at[:, None] >= k_at)
        state = own if state is None else merge(state, own)
        if more:
            k, v, k_at = wire.receive()
    return state


def subject(fn):
    """The Subject that a reader's function is: attention, whose rows are shared out among RANKS ranks."""
    return Subject(fn.__name__, "attention", lambda q, k, v, causal: around(fn, q, k, v, causal))


class Ended(RuntimeError):
    """A rank waits for what nobody will send."""


class Post:
    """The messages of a ring of threads, and who waits: where all ranks wait or have ended, none comes any more."""

    def __init__(self, size):
        self.change, self.boxes = threading.Condition(), [deque() for _ in range(size)]
        self.waiting, self.ended = set(), set()

    def put(self, rank, arrays):
        """Nothing; the arrays lie in the rank's box."""
        with self.change:
            self.boxes[rank].append(arrays)
            self.waiting.discard(rank)
            self.change.notify_all()

    def take(self, rank):
        """The oldest arrays in the rank's box, once there are some; Ended where there never will be."""
        with self.change:
            self.waiting.add(rank)
            self.change.notify_all()
            self.change.wait_for(lambda: self.boxes[rank] or len(self.waiting | self.ended) == len(self.boxes))
            if not self.boxes[rank]:
                raise Ended(f"rank {rank} waits for a message that the rank before never sends")
            self.waiting.discard(rank)
            return self.boxes[rank].popleft()

    def end(self, rank):
        """Nothing; the rank sends nothing any more."""
        with self.change:
            self.ended.add(rank)
            self.change.notify_all()


class Wire:
    """The place of one rank in a ring of threads: send to the next, receive from the one before.

    Refused, with ValueError: a send more than the hops need, and a block computed before it is sent on.
    """

    def __init__(self, rank=0, size=1, post=None):
        self.rank, self.size, self.post, self.sent, self.computed = rank, size, post, 0, 0

    def send(self, arrays):
        """Nothing; copies of the arrays are on their way to the next rank."""
        self.sent += 1
        if self.sent >= self.size:
            raise ValueError(f"it sends too much, {self.sent} times where {self.size - 1} will do: {self.size} ranks")
        if self.computed >= self.sent:
            raise ValueError(f"it computes block {self.computed} before it sends it on, so that nothing overlaps")
        self.post.put((self.rank + 1) % self.size, [np.array(x) for x in arrays])

    def receive(self):
        """The arrays that the rank before has sent next; Ended where none will come."""
        if self.post is None:
            raise Ended("a ring of one rank has no rank before")
        return self.post.take(self.rank)

    def block(self, q, k, v, visible):
        """The attention state of one block, counted."""
        self.computed += 1
        return attention(q, k, v, mask=visible)


def around(fn, q, k, v, causal):
    """(o, lse) of all rows by `fn` on RANKS ranks, a thread each; what a rank raised, if one did."""
    heads = np.arange(q.shape[1]) // (q.shape[1] // k.shape[1])
    k, v, keys, queries = k[:, heads], v[:, heads], k.shape[2], q.shape[2]
    q_at = np.arange(queries) + keys - queries if causal else np.full(queries, keys)
    post, found, of_q, of_k = Post(RANKS), [None] * RANKS, _zigzag(queries), _zigzag(keys)

    def run(rank):
        wire = Wire(rank, RANKS, post)
        rows, own = of_q[rank], of_k[rank]
        try:
            found[rank] = fn(wire, q[:, :, rows], k[:, :, own], v[:, :, own], q_at[rows], own, wire.block, merge)
        except Exception as error:
            found[rank] = error
        post.end(rank)

    _all_at_once(run)
    for error in sorted((x for x in found if isinstance(x, Exception)), key=lambda x: isinstance(x, Ended)):
        raise error
    return _in_order(found, of_q)


def _zigzag(length):
    """The places of each rank's rows: chunks r and 2n − 1 − r of 2n."""
    chunks = [np.arange(*run) for run in key_ranges(length, num_splits=2 * RANKS)]
    return [np.concatenate([chunks[r], chunks[-1 - r]]) for r in range(RANKS)]


def _all_at_once(run):
    """Nothing; run(rank) has ended for every rank, each in a thread, with the floating-point settings of this one."""
    threads = [threading.Thread(target=contextvars.copy_context().run, args=(run, r)) for r in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _in_order(found, layout):
    """(o, lse) of all rows, from the ranks' own; an answer that is no pair is returned as it is."""
    found = [tuple(x) if isinstance(x, LSEState) else x for x in found]
    if strange := [x for x in found if not isinstance(x, tuple) or len(x) != 2]:
        return strange[0]
    back = np.argsort(np.concatenate(layout), kind="stable")
    o, lse = (np.concatenate([x[i] for x in found], axis=2) for i in (0, 1))
    return o[:, :, back], lse[:, :, back]


def sample():
    """Arguments of a first call: a ring of one rank, two rows."""
    wire, x, places = Wire(), np.ones((1, 2, 1)), np.arange(2)
    return wire, x, x, x, places, places, wire.block, merge
