"""`fdmath verify`: the matrix of fdmath's own subjects, the judgement of a function of yours, or of what is installed.

A function of yours is judged in a process of its own; what was not declared is found out, and said.
"""

import argparse
import functools
import importlib
import importlib.util
import itertools
import math
import multiprocessing
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from hypothesis.configuration import set_hypothesis_home_dir

from fdmath.algebra.state import AccState, LSEState, MLOState
from fdmath.verify import reference
from fdmath.verify.apart import verify_apart, verify_by
from fdmath.verify.judge import CASES, ask, laws_named, verify
from fdmath.verify.laws import LAWS
from fdmath.verify.progress import Bar
from fdmath.verify.report import Report
from fdmath.verify.subject import ROLES, Subject
from fdmath.verify.subjects import all_subjects
from fdmath.verify.worker import PATIENCE, SECONDS, Here, Trouble, Worker

INSTALLED = "fdmath.verify.installed"
THOROUGH = 1000
"""The cases a law with --thorough."""
KINDS = {"lse": LSEState, "mlo": MLOState, "acc": AccState}


def parser():
    """The argument parser of `fdmath verify`."""
    p = argparse.ArgumentParser(
        prog="fdmath verify", formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        description="Judge a merge or attention function by the laws of attention states.\n"
                    "Without a target: the matrix law x subject of fdmath's own functions.",
        epilog="Conventions that are not declared are found from what the function returns, and said;\n"
               "a declaration that its results contradict is a failure.\n"
               "exit code: 0 all laws hold, 1 a law is broken, 2 it (or some of what is installed) could not run")
    p.add_argument("target", nargs="?", help="package.module:function, importable from here")
    add_declarations(p)
    add_limits(p)
    p.add_argument("--device", help="where torch has its tensors: cpu (the default) or cuda")
    p.add_argument("--only", "--laws", dest="laws", metavar="LAWS",
                   help="only these laws, by name, with commas (any other name lists them)")
    p.add_argument("--cases", type=more_than_0(int), help=f"inputs a law (default: {CASES})")
    p.add_argument("--thorough", action="store_true", help=f"{THOROUGH} inputs a law")
    p.add_argument("--seed", type=int, default=0, help="other inputs (default: 0, the same in every run)")
    p.add_argument("--limit", type=more_than_0(float), metavar="SECONDS",
                   help=f"the time for a law of a target (default: {SECONDS:g}, more with more cases)")
    p.add_argument("--in-process", action="store_true", help="judge a target in this process, for a debugger; no limit")
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes for fdmath's own matrix")
    p.add_argument("--json", metavar="FILE", help="write the report as JSON too")
    p.add_argument("--installed", action="store_true",
                   help="judge what is installed of other packages: all, or the one that the target names (a wrong "
                        "name lists all)")
    return p


def more_than_0(kind):
    """A type for argparse: a number of a kind that is more than 0."""
    def positive(text):
        if not kind(text) > 0:
            raise argparse.ArgumentTypeError(f"must be more than 0; got {text}")
        return kind(text)

    positive.__name__ = f"{kind.__name__} more than 0"  # argparse names it where the text is no number
    return positive


def joined(words):
    """The words of a command line with `--empty -inf` as `--empty=-inf`: argparse takes -inf for an option."""
    words = list(words)
    at = [i for i, pair in enumerate(itertools.pairwise(words)) if pair == ("--empty", "-inf")]
    return [f"{word}=-inf" if i in at else word for i, word in enumerate(words) if i - 1 not in at]


def add_declarations(p, roles=ROLES):
    """Nothing; the parser p takes the options in which a user declares what a function is."""
    p.add_argument("--role", choices=roles, default=roles[0], help=f"what the function is (default: {roles[0]})")
    p.add_argument("--library", choices=("numpy", "torch"), default="numpy", help="the arrays that it takes")
    p.add_argument("--kind", choices=KINDS, default="lse", help="the spelling of its states (merges and blocks)")
    p.add_argument("--log-base", choices=("e", "2"), default="e", help="the base of every lse")
    p.add_argument("--empty", choices=("-inf", "+inf"), default="-inf", help="lse of no keys")
    p.add_argument("--lse-layout", choices=("heads_first", "heads_last"), default="heads_first")
    p.add_argument("--causal", choices=("bottom_right", "top_left"), default="bottom_right")
    p.add_argument("--heads", choices=("interleaved", "tiled"), default="interleaved")
    p.add_argument("--scale", type=float, help="the factor on the scores (default: 1/sqrt(d))")
    p.add_argument("--dtypes", "--dtype", default="float32,float64", help="formats to try, with commas")
    p.add_argument("--p-dtype", help="the format to which P is rounded before P.v")
    p.add_argument("--stats-dtype", help="the format of m, l and lse")
    p.add_argument("--input-precision", choices=("ieee", "tf32"),
                   help="how float32 is multiplied: tf32 leaves room for factors of eleven bits")
    p.add_argument("--claims", default="",
                   help="laws claimed bit for bit, and theorems (docs/cheatsheet.md) claimed as bound, with commas")
    p.add_argument("--in-place", action="store_true", help="the function may write its operands")


def add_limits(p):
    """Nothing; the parser p takes the options in which a user declares what a function does not take or return.

    They arrive as taken_…: `fdmath bench attention`, which shares `declared_subject`, has --dims of its own.
    """
    p.add_argument("--no-lse", action="store_false", dest="taken_lse", help="the function returns o alone")
    p.add_argument("--no-groups", action="store_false", dest="taken_grouped",
                   help="it takes as many KV heads as query heads")
    p.add_argument("--dims", type=pairs_of_dims, default=(), dest="taken_dims", metavar="D:DV",
                   help="the only head dimensions of q and of v that it takes, as 64:64,128:128")
    p.add_argument("--largest-dim", type=more_than_0(int), default=Subject.largest_dim, dest="taken_largest_dim",
                   metavar="D", help="the most of either")
    p.add_argument("--most-queries", type=more_than_0(int), default=Subject.most_queries, dest="taken_most_queries",
                   metavar="N", help="the most queries of a sequence that it takes (a decode has one)")
    p.add_argument("--exp-u", type=more_than_0(float), default=Subject.exp_u, dest="taken_exp_u", metavar="X",
                   help="the error of its exp and log in units of u (default: %(default)g)")
    p.add_argument("--flushed", type=float, default=Subject.flushed, dest="taken_flushed", metavar="X",
                   help="below it numbers may be taken for 0 (default: none are)")


def pairs_of_dims(text):
    """The pairs (d, dv) of "64:64,192:128"; a number alone stands for both."""
    pairs = [[int(number) for number in pair.split(":")] for pair in text.split(",")]
    if not all(len(pair) <= 2 for pair in pairs):
        raise ValueError(text)
    return tuple((pair[0], pair[-1]) for pair in pairs)


def declared_in(words):
    """The names of the declarations of a Subject in the words of a command line."""
    given = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in words if word.startswith("--")}
    return {{"no_lse": "lse", "no_groups": "grouped", "dtype": "dtypes"}.get(name, name) for name in given}


def main(argv=None):
    """The exit code of `fdmath verify`: 0 lawful, 1 a law broken, 2 could not run."""
    words = joined(sys.argv[2:] if argv is None else argv)
    args = parser().parse_args(words)
    args.cases = args.cases or (THOROUGH if args.thorough else CASES)
    args.laws = [name.strip() for name in args.laws.split(",")] if args.laws else None
    args.limit = args.limit or SECONDS * max(1.0, args.cases / CASES)
    set_hypothesis_home_dir(Path(tempfile.gettempdir()) / "fdmath-hypothesis")  # no folder beside the user's code
    try:
        laws_named(args.laws)
        report = judged(args, words)
    except Trouble as error:
        print(f"could not run: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        print(f"could not run: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(told(report) if args.target and not args.installed else report)
    print(f"\nworst error / budget\n{report.ratios()}")
    if args.json:
        try:
            Path(args.json).write_text(report.to_json(), encoding="utf-8")
        except OSError as error:
            print(f"could not write the report: {error}", file=sys.stderr)
            return 2
    return report.exit_code


def judged(args, words):
    """The Report that the arguments ask for: of a target, of what is installed, or of fdmath's own subjects."""
    if args.installed:
        return installed(args, words)
    if not args.target:
        return own_matrix(args.laws, args.cases, args.jobs, args.seed)
    laws = [law for law in laws_named(args.laws) if args.role in law.roles]
    print(f"{args.target}: laws to ask: {len(laws)}, each on {args.cases} inputs, often within a minute",
          file=sys.stderr)
    with Bar(len(laws)) as bar:
        return verify_apart(partial(declared_subject, args), args.laws, args.cases, seed=args.seed,
                            told=declared_in(words), seconds=args.limit, progress=bar.step,
                            replay=partial(replay, words), guard=Here if args.in_process else Worker)


def told(report):
    """What is printed of one target: what was found, what is broken and why it may be, every law, the counts."""
    subject, = report.subjects
    asked = any(cell.verdict != "n/a" for cell in report.cells.values())
    counts = ", ".join(f"{n} {verdict}" for verdict, n in report.counts().items())
    parts = ["\n".join(report.notes.get(subject.name, ())),
             report.failures() or ("no law is broken" if asked else "no law was asked: none is about this role"),
             report.summary(), f"{len(report.cells)} laws: {counts} (n/a: not about such a function)\n"
             f"inputs in {', '.join(subject.dtypes)}", _also_bitwise(report), _undecided(report)]
    return "\n\n".join(part for part in parts if part)


def replay(words, law, subject):
    """The command line that asks the one law of the one subject again, otherwise as `words` did."""
    kept, skip = [subject.name], False
    for word in words:
        dropped = word.partition("=")[0] in ("--only", "--laws", "--json")
        if not (skip or dropped or word == subject.name):
            kept.append(word)
        skip = dropped and "=" not in word and not skip
    return " ".join(["fdmath verify", *(f'"{w}"' if " " in w else w for w in [*kept, "--only", law])])


def installed(args, words):
    """The Report of what is installed of other packages, each in a process of its own, tried there with one call.

    What cannot run, what is not for the device and what is not installed are said apart. A target is then the name of
    one of these subjects.
    """
    ours = importlib.import_module(INSTALLED)
    device = args.device or "cpu"
    expected, elsewhere, unable, reports = ours.expected(device), ours.elsewhere(device), {}, []
    names = ours.here(device, args.target)
    with Bar(len(names) * len(laws_named(args.laws))) as bar:
        for name in names:
            with Worker(partial(ours.installed_subject, name, device), args.limit) as worker:
                try:
                    if reason := worker.run(f"{INSTALLED}:tried"):
                        elsewhere[name] = reason
                        continue
                    report = verify_by(worker, args.laws, args.cases, seed=args.seed, told=(), progress=bar.step)
                except Trouble as error:
                    unable[name] = str(error).split("\n")[0]
                    continue
                report.contradictions += _unaccepted(worker, args, name, ours.to_ask_with_keys(report, expected))
                reports.append(report)
    report = Report(laws_named(args.laws), [s for r in reports for s in r.subjects],
                    {key: cell for r in reports for key, cell in r.cells.items()},
                    notes={name: lines for r in reports for name, lines in r.notes.items()}, unable=unable,
                    accepted={(law, name): reason for (name, law), reason in expected.items()},
                    replay=partial(replay, words))
    report.contradictions += [text for r in reports for text in r.contradictions]
    report.contradictions += ours.surprises(report, expected)
    for title, reasons in ((f"not for {device}", elsewhere), ("not installed", ours.missing(device))):
        report.notes[title] = [f"{len(reasons)} {title}", *(f"{n}: {why}" for n, why in reasons.items())]
    return report


def _unaccepted(worker, args, name, laws):
    """A sentence for each of the laws that breaks in rows with keys too, for which it is not accepted."""
    found = []
    for law in laws:
        try:
            cell = worker.run(f"{INSTALLED}:asked_with_keys", law, args.cases, args.seed, PATIENCE * args.limit)
            verdict, shown = cell.verdict, cell.counterexample
        except Trouble as error:
            verdict, shown = "not run", str(error)
        if verdict != "pass":
            found.append(f"{name}: {law}: {verdict} in rows with keys, accepted in rows without keys alone\n{shown}")
    return found


def declared_subject(args):
    """The Subject that args.target, package.module:function, and the declarations in args name."""
    module, _, name = args.target.partition(":")
    if not name or module.endswith(".py") or set(module) & set("/\\"):
        path = Path(module).with_suffix("") if module.endswith(".py") else Path(module)
        likely = ".".join(part for part in path.parts if part != ".") + f":{name or 'function'}"
        raise ValueError(f"target must be package.module:function, as {likely}; got {args.target!r}")
    sys.path.insert(0, str(Path.cwd()))
    if not _importable(module):
        raise ImportError(f"no module {module!r} here (in {Path.cwd().name}, the current folder) or among what is "
                          "installed")
    fn = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    if not callable(fn):
        raise TypeError(f"{args.target} must be a function; got {type(fn).__name__}")
    device = getattr(args, "device", None) or "cpu"
    library = args.library if device == "cpu" else "torch"
    return Subject(
        args.target, args.role, fn, library=library, device=device, in_place=args.in_place, kind=KINDS[args.kind],
        log_base=math.e if args.log_base == "e" else 2, empty=float(args.empty), lse_layout=args.lse_layout,
        causal=args.causal, heads=args.heads, scale=args.scale, dtypes=tuple(args.dtypes.split(",")),
        p_dtype=args.p_dtype, stats_dtype=args.stats_dtype, input_precision=args.input_precision,
        claims=tuple(c.strip() for c in args.claims.split(",") if c.strip()),
        **{name.removeprefix("taken_"): value for name, value in vars(args).items() if name.startswith("taken_")})


def _importable(module):
    """Whether a module of that name is found, without importing it; its packages are imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError as error:
        if module != error.name and not module.startswith(f"{error.name}."):
            raise  # a package of the target's needs what is not there
        return False
    except ValueError:  # a module without a spec, such as __main__
        return True


def own_matrix(laws=None, cases=CASES, jobs=1, seed=0):
    """The Report of all laws on fdmath's own subjects, asked in `jobs` processes."""
    subjects, chosen = all_subjects(), laws_named(laws)
    pairs = [(law, s) for s in subjects for law in chosen]
    with Bar(len(pairs)) as bar:
        if jobs <= 1:
            return verify(subjects, laws, cases, progress=bar.step, seed=seed)
        fresh = multiprocessing.get_context("spawn")  # a forked process could not use a CUDA device
        with ProcessPoolExecutor(jobs, fresh, _one_thread) as pool:
            asked = pool.map(partial(_cell, cases=cases, seed=seed), [(law.name, s.name) for law, s in pairs],
                             chunksize=4)
            cells = {}
            for (law, s), cell in zip(pairs, asked, strict=True):
                cells[law.name, s.name] = cell
                bar.step(law, s)
    return Report(chosen, subjects, cells)


def _cell(pair, cases, seed):
    law, name = pair
    return ask(LAWS[law], _subjects_here()[name], cases, seed=seed)


@functools.cache
def _subjects_here():
    return {s.name: s for s in all_subjects()}


def _one_thread():
    """Processes share the cores: one thread each."""
    if importlib.util.find_spec("torch"):
        importlib.import_module("torch").set_num_threads(1)


def _also_bitwise(report):
    also = [law for (law, _), c in report.cells.items() if c.verdict == "pass" and c.grade == "budget" and c.bitwise]
    return f"also bit for bit on every case: {', '.join(also)}" if also else ""


def _undecided(report):
    """How to decide what is undecided for want of the oracle; "" where nothing is, or it is there."""
    if reference.oracle is not None or not report.counts()["undecided"]:
        return ""
    return 'undecided: float64 is judged to its last bits with python-flint alone (pip install python-flint)'
