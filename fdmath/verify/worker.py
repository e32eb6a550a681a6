"""A process of its own in which a subject is made, probed and asked: what hangs, dies or prints there harms no one.

The process is spawned, never forked. It is begun anew after it died or overran; the law in progress then gets the
verdict "not run", with the call that it was in. What the subject prints, at whatever level, goes to a file.
"""

import functools
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from fdmath import _backends as backends
from fdmath.verify.cases import literal
from fdmath.verify.subject import SubjectError, described

SECONDS = 60.0
"""How long a law may take with the usual number of cases, shrinking included."""
PATIENCE = 0.5
"""The share of a law's time after which a counterexample is no longer made smaller."""
STARTING = 120.0
"""How long it may take to begin: libraries are imported, kernels compiled."""
MOST_PRINTED = 200
"""The most characters shown of what a subject prints."""


class Trouble(Exception):
    """Why there is no answer, as a sentence: the process hung or died, or the subject could not be made."""


class Here:
    """A stand-in for Worker that does all in this process, where a debugger sees it, and nothing is guarded."""

    def __init__(self, make, seconds=SECONDS):
        self.make, self.seconds, self.declared = make, seconds, {}

    def __enter__(self):
        self._subject, self._trouble = _made(self.make)
        return self

    def __exit__(self, *_):
        pass

    def run(self, task, *args):
        """What task(subject, *args) returns; raises Trouble."""
        fine, answer = (False, self._trouble) if self._trouble else _answer(self._subject, task, args, self.declared)
        if not fine:
            raise Trouble(answer)
        return answer

    def printed(self):
        """An empty text: what is printed is seen."""
        return ""


class Worker:
    """A process that keeps one subject; a context, at whose end the process is gone.

    make: a picklable callable without arguments that returns the Subject, called in the process. seconds: the time for
    a task. declared: a dict of declarations that the subject is given before every task.
    """

    def __init__(self, make, seconds=SECONDS):
        self.make, self.seconds, self.declared = make, seconds, {}
        self._process = self._connection = None

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # a killed process may hold it a while
        self._log, self._call = (Path(self._folder.name) / name for name in ("printed", "call"))
        self._seen = 0
        return self

    def __exit__(self, *_):
        self._stop()
        self._folder.cleanup()

    def run(self, task, *args):
        """What task(subject, *args) returns in the process, where `task` is "package.module:function"; raises Trouble.
        """
        if self._process is None:
            self._start()
        return self._ask((task, args, self.declared), self.seconds)

    def printed(self):
        """What has been printed since the last time this was asked, cut short; "" for nothing."""
        if not self._log.exists():
            return ""
        with self._log.open("rb") as log:
            log.seek(self._seen)
            begin = log.read(4 * MOST_PRINTED).decode("utf-8", "replace")
            size = log.seek(0, os.SEEK_END) - self._seen
            self._seen += size
        text = " | ".join(begin.split("\n")).strip(" |")
        return text if len(text) <= MOST_PRINTED else f"{text[:MOST_PRINTED]} … ({size} bytes)"

    def _start(self):
        fresh = multiprocessing.get_context("spawn")
        self._connection, theirs = fresh.Pipe()
        self._call.unlink(missing_ok=True)
        self._process = fresh.Process(target=_serve, args=(theirs, self.make, str(self._log), str(self._call)),
                                      daemon=True)
        self._process.start()
        theirs.close()
        self._ask(None, STARTING)

    def _ask(self, message, seconds):
        try:
            if message is not None:
                self._connection.send(message)
            if not self._connection.poll(seconds):
                self._stop()
                raise Trouble(f"hung: no answer within {seconds:g} s{self._in_progress()}")
            fine, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            self._process.join(1.0)
            code = self._process.exitcode
            self._stop()
            raise Trouble(f"its process died: {_ending(code)}{self._in_progress()}") from error
        if not fine:
            raise Trouble(answer)
        return answer

    def _stop(self):
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = self._connection = None

    def _in_progress(self):
        """The arguments of the call that was begun and not ended, as literals; "" for none."""
        try:
            name, args = pickle.loads(self._call.read_bytes())
        except (OSError, EOFError, pickle.UnpicklingError):
            return ""
        return "".join([f", in a call of {name}", *(f"\nargument {i + 1} = {literal(x)}" for i, x in enumerate(args))])


def _ending(code):
    """An exit code in words: the name of the signal where it is one."""
    if code is None:
        return "its pipe closed"
    try:
        return f"signal {-code}, {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    except ValueError:
        return f"exit code {code}"


def _serve(connection, make, log, call):
    """Nothing; tasks that arrive are done until the other end closes (the body of the process)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other side ends this process
    _print_into(log)
    subject, trouble = _made(make)
    connection.send((True, None))
    while True:
        try:
            task, args, declared = connection.recv()
        except EOFError:
            return
        answer = (False, trouble) if trouble else _answer(_noted(subject, call), task, args, declared)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        try:
            connection.send(answer)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            connection.send((False, f"the answer cannot leave its process: {error}"))


def _made(make):
    """(subject, "") or (None, why it could not be made)."""
    try:
        return make(), ""
    except (Exception, SystemExit) as error:  # importing a module of others may raise anything
        return None, described(error)


def _answer(subject, task, args, declared):
    """(True, what the task returns) or (False, why it returns nothing)."""
    try:
        return True, backends.load(task)(replace(subject, **declared), *args)
    except SubjectError as error:
        return False, str(error)
    except (Exception, SystemExit) as error:
        return False, described(error)


def _print_into(path):
    """Nothing; whatever this process prints from now on, from C too, goes to the file at `path`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(descriptor, stream.fileno())
        stream.reconfigure(encoding="utf-8", errors="replace", line_buffering=True)
    os.close(descriptor)


def _noted(subject, path):
    """The subject, which keeps the arguments of the call in progress in the file at `path`."""
    noted = lambda name: _noting(getattr(subject, name), name, Path(path))  # noqa: E731
    return replace(subject, fn=noted("fn"), backward=None if subject.backward is None else noted("backward"))


def _noting(fn, name, path):
    @functools.wraps(fn, updated=())
    def run(*args, **named):
        path.write_bytes(pickle.dumps((name, [_plain(x) for x in (*args, *named.values())])))
        try:
            return fn(*args, **named)
        except KeyboardInterrupt as error:  # it is fn's own: this process is sent none
            raise SubjectError(f"raised {described(error)}") from error
        finally:
            path.unlink()

    return run


def _plain(x):
    """x as something that another process can read: a tensor as a NumPy array."""
    if not hasattr(x, "detach"):
        return x
    x = x.detach().cpu()
    return (x.float() if str(x.dtype) == "torch.bfloat16" else x).numpy()
