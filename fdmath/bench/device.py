"""What the benches of a CUDA device share on the command line: a device, a lawful subject, a record that grows."""

import itertools
import shlex
import sys
import time

from tqdm.auto import tqdm

from fdmath import _backends as backends
from fdmath.bench import records
from fdmath.bench.command import positive
from fdmath.bench.decode import failed
from fdmath.verify.command import add_declarations, declared_subject
from fdmath.verify.judge import verify

EXIT_CODES = ("exit code: 0 measured, and all of it right, 1 an output is wrong, fdmath or the subject failed, or the "
              "subject breaks a law (not timed then), 2 could not run, or nothing was measured within --seconds")
UNTIL = "begin nothing more after so many seconds; the exit code is that of what was measured until then"
PACKAGES = ("torch", "triton", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
"""What stands with its version in every record."""


def add_options(parser, peers, roles, dtypes, default, subject):
    """Nothing; the parser of a bench learns the options that all of them share.

    peers: the words that ask for them. roles: those that a subject may have; dtypes, default: those that may be
    measured, and are. subject: (title, description) of the options about the user's function.
    """
    parser.add_argument("--peers", nargs="*", default=list(peers), choices=peers, metavar="PEER",
                        help=f"beside fdmath, any of {', '.join(peers)} (default: all); nothing: none")
    parser.add_argument("--seconds", type=positive, help=UNTIL)
    parser.add_argument("--json", metavar="FILE", help="write rows and provenance as JSON too")
    parser.add_argument("--commit", metavar="TEXT", help="the commit that is measured, where git is not there to ask")
    theirs = parser.add_argument_group(*subject)
    theirs.add_argument("--subject", dest="target", metavar="PACKAGE.MODULE:FUNCTION")
    add_declarations(theirs, roles=roles)
    parser.add_argument("--dtypes", "--dtype", nargs="+", default=default, metavar="DTYPE",
                        help=f"of {', '.join(dtypes)} (default: {' '.join(default)})")
    parser.set_defaults(library="torch")


def listed_dtypes(args, allowed):
    """The dtypes of args, apart or with commas, as a list; ValueError for one that is not allowed, and no torch."""
    dtypes = ",".join(args.dtypes).split(",")
    if set(dtypes) - set(allowed):
        raise ValueError(f"--dtypes must be among {', '.join(allowed)}; got {', '.join(dtypes)}")
    if args.library != "torch":
        raise ValueError("--library must be torch: what is timed takes CUDA tensors")
    return dtypes


def no_device():
    """Why no CUDA device can be measured here, as a text; an empty one where it can."""
    try:
        torch, _ = (backends.load("importlib:import_module")(name) for name in ("torch", "triton"))
    except ImportError as error:
        return f"it needs torch and Triton ({error})"
    return "" if torch.cuda.is_available() else "there is no CUDA device"


def cannot_run(args, missing):
    """Whether nothing can be measured, for the reason `missing` (see `no_device`), which is then printed.

    Where the file of --json cannot be written, that is raised now, before all the work; what it holds stays there.
    """
    if missing:
        print(f"could not run: {missing}; fdmath bench cpu measures decoding without one", file=sys.stderr)
    elif args.json:
        records.check_writable(args.json)
    return bool(missing)


def lawful_subject(args):
    """The user's Subject, once it has passed the laws on the device; None, and what it breaks is printed."""
    args.dtypes, listed = ",".join(args.dtypes), args.dtypes
    subject, args.dtypes = declared_subject(args), listed
    report = verify(backends.load("fdmath.bench.peers:on_device")(subject))
    if report.exit_code == 0:
        return subject
    print(report.failures())
    print(f"{subject.name} is not timed: first it must pass the laws")
    return None


class Run:
    """One run of `fdmath bench name words`: its rows so far, and the record, with its head, that they are written to.

    args: with json, seconds and commit. packages, measured: see `records.provenance`. mine: the implementations that
    are no peers.
    """

    def __init__(self, name, args, words, packages, measured, mine):
        self.args, self.mine, self.rows, self.begun = args, mine, [], time.monotonic()
        self.broken = False
        shown = ["FILE" if before == "--json" else word for before, word in itertools.pairwise(["", *words])]
        device = backends.load("torch.cuda:get_device_name")()
        self.head = records.provenance(f"fdmath bench {name} {shlex.join(shown)}".strip(), packages, measured, device)
        self.head |= {"driver": backends.load("fdmath.bench.measure:driver")(), "ceilings": None, "notes": [],
                      "seconds": {}}
        self.head["commit"] = args.commit or self.head["commit"]

    @property
    def until(self):
        """The time of `time.monotonic` from which nothing more is begun, or None."""
        return None if self.args.seconds is None else self.begun + self.args.seconds

    @property
    def over(self):
        """Whether the time is up."""
        return self.until is not None and time.monotonic() > self.until

    def bar(self, steps, what, clock=None):
        """The steps, with a progress bar, until the time of a clock (an object with `over`; this run) is up."""
        for step in tqdm(steps, desc=what, unit="shape", disable=None):
            if (clock or self).over:
                self.head["notes"].append(f"{what}: stopped after {self.args.seconds} s")
                return
            yield step
        self.took(what)

    def took(self, what):
        """Nothing; what has been done by now, and not before, has taken the rest of the seconds."""
        taken = self.head["seconds"]
        taken[what] = round(time.monotonic() - self.begun - sum(taken.values()), 1)

    def keep(self, rows):
        """Nothing; the rows are kept and, if a file is named, all so far written to it."""
        self.rows += rows
        if self.args.json:
            records.save(self.args.json, records.text_of(self.head, self.rows))

    def trouble(self, what, error):
        """Nothing; a part that raised is noted, so that the rest can go on, and the exit code will say so."""
        self.broken = True
        self.head["notes"].append(f"{what}: {type(error).__name__}: {error}")

    def finish(self):
        """The exit code; the notes are printed and, where there are rows, the record is written.

        1 where something is broken, else 2 where the time was up before there was a row, else 0.
        """
        print(*self.head["notes"], f"seconds: {self.head['seconds']}", sep="\n")
        if self.rows:
            self.keep([])
        if self.broken or any(failed(row, self.mine) for row in self.rows):
            return 1
        return 0 if self.rows else 2


def without_repeats(lines):
    """The lines, of those that differ in the last brackets alone the first, with how many more there are."""
    groups = {}
    for line in lines:
        groups.setdefault(line.rpartition(" (")[0], []).append(line)
    return [group[0] + (f" and {len(group) - 1} more" if len(group) > 1 else "") for group in groups.values()]
