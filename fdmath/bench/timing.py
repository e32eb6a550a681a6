"""Times that can be compared: several callables run in turn, in one process, a median for each."""

import statistics
import time
from dataclasses import dataclass

from tqdm.auto import tqdm

PAUSE = 0.02  # seconds, longer than an idle thread of OpenMP spins before it sleeps


@dataclass(frozen=True)
class Timing:
    """The seconds of one callable over the rounds of a measurement: the median, the least and the most."""

    median: float
    least: float
    most: float


def alternating(subjects, rounds=7, warm=1, least=0.002, progress=False):  # seconds of a turn, no tolerance
    """name → Timing of callables without arguments, run in turn: one round asks each once, then the next round.

    In turn, so that what slows the machine for a while slows all of them. Each turn begins with a pause and a call that
    does not count, so that nobody pays for what the one before left behind: caches, and threads that wait for more work
    by spinning (OpenMP's do for milliseconds). A callable that takes less than `least` seconds is repeated within its
    turn until it takes that long, and its time is the mean of the turn.
    warm: rounds before the first that counts. progress: a bar over the rounds.
    """
    repeats = {name: _repeats(call, warm, least) for name, call in subjects.items()}
    times = {name: [] for name in subjects}
    for _ in tqdm(range(rounds), unit="round", disable=None if progress else True, leave=False):
        for name, call in subjects.items():
            time.sleep(PAUSE)
            call()
            times[name].append(_turn(call, repeats[name]))
    return {name: Timing(statistics.median(t), min(t), max(t)) for name, t in times.items()}


def _turn(call, repeats):
    """The mean seconds of `repeats` calls in a row."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def _repeats(call, warm, least):
    """How many calls in a row take at least `least` seconds, judged by the last of 1 + `warm` calls."""
    seconds = [_turn(call, 1) for _ in range(1 + warm)][-1]
    return max(1, round(least / seconds)) if seconds > 0 else 1
