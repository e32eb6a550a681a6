"""Merges that hang, die, print, write what they may only read, or return no state, on some inputs: a judge's bad input.

They are right otherwise. This module is imported in the process that judges them.
"""

import ctypes
import os
import time

import numpy as np

from fdmath.algebra.merge import merge
from fdmath.algebra.state import LSEState
from fdmath.verify.subject import Subject


def right(o1, lse1, o2, lse2):
    """⊕ of two states."""
    return tuple(merge(LSEState(o1, lse1), LSEState(o2, lse2)))


def unlucky(o1, lse1, o2, lse2):
    """Hangs on two empty sides, dies of a signal on one, leaves with code 3 at a far level; prints all the while."""
    print("merging")
    os.write(2, b"as C would\n")
    if lse1.size and np.all(np.isneginf(lse1)):
        if np.all(np.isneginf(lse2)):
            time.sleep(600)
        ctypes.string_at(0)
    if np.any(np.abs(lse1) == 65536):
        os._exit(3)
    return right(o1, lse1, o2, lse2)


class Unsayable(RuntimeError):
    """An exception whose text cannot be had."""

    def __str__(self):
        raise RuntimeError("no text")


class Leaving(BaseException):
    """An exception that is no Exception."""


def raises_what_is_met_seldom(o1, lse1, o2, lse2):
    """Raises an exception that is no Exception on two empty sides, another on one, one without a text far away."""
    if lse1.size and np.all(np.isneginf(lse1)):
        raise KeyboardInterrupt if np.all(np.isneginf(lse2)) else Leaving("bye")
    if np.any(np.abs(lse1) == 65536):
        raise Unsayable
    return right(o1, lse1, o2, lse2)


def overwrites(o1, lse1, o2, lse2):
    """Writes into its first lse when it is done."""
    got = right(o1, lse1, o2, lse2)
    lse1[...] = 7
    return got


def into_the_first(o1, lse1, o2, lse2):
    """Works in place and returns nothing."""
    o1[...], lse1[...] = right(o1, lse1, o2, lse2)


def drops_a_column(o1, lse1, o2, lse2):
    """Returns o without its last column where there are three."""
    o, lse = right(o1, lse1, o2, lse2)
    return (o[:, :2] if o.shape[1] == 3 else o), lse


def whole_numbers(o1, lse1, o2, lse2):
    """Returns o as integers where there are two rows."""
    o, lse = right(o1, lse1, o2, lse2)
    return (np.zeros(o.shape, int) if len(o) == 2 else o), lse


def made(name):
    """The Subject of one of these functions."""
    return Subject(name, "merge", globals()[name])


def not_made():
    """Nothing; as a module that cannot be imported."""
    raise ImportError("no module named mykernel")
