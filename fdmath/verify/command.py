"""`fdmath verify`: the matrix of fdmath's own subjects, or the judgement of a function of yours."""

import argparse
import functools
import importlib
import math
import multiprocessing
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from hypothesis.configuration import set_hypothesis_home_dir
from tqdm import tqdm

from fdmath.algebra.state import AccState, LSEState, MLOState
from fdmath.verify.judge import CASES, ask, verify
from fdmath.verify.laws import LAWS
from fdmath.verify.report import Report
from fdmath.verify.subject import ROLES, Subject
from fdmath.verify.subjects import all_subjects

KINDS = {"lse": LSEState, "mlo": MLOState, "acc": AccState}


def parser():
    """The argument parser of `fdmath verify`."""
    p = argparse.ArgumentParser(
        prog="fdmath verify", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Judge a merge or attention function by the laws of attention states.\n"
                    "Without a target: the matrix law x subject of fdmath's own functions.",
        epilog="exit code: 0 all laws hold, 1 a law is broken, 2 it could not run")
    p.add_argument("target", nargs="?", help="package.module:function, importable from here")
    add_declarations(p)
    p.add_argument("--laws", help="only these laws, with commas")
    p.add_argument("--cases", type=int, default=CASES, help=f"inputs a law (default: {CASES})")
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes for the whole matrix")
    p.add_argument("--json", metavar="FILE", help="write the report as JSON too")
    return p


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
    p.add_argument("--dtypes", default="float32,float64", help="formats to try, with commas")
    p.add_argument("--p-dtype", help="the format to which P is rounded before P.v")
    p.add_argument("--stats-dtype", help="the format of m, l and lse")
    p.add_argument("--claims", default="", help="laws claimed bit for bit, and theorems claimed as bound, with commas")
    p.add_argument("--in-place", action="store_true", help="the function may write its operands")


def main(argv=None):
    """The exit code of `fdmath verify`: 0 lawful, 1 a law broken, 2 could not run."""
    args = parser().parse_args(argv)
    set_hypothesis_home_dir(Path(tempfile.gettempdir()) / "fdmath-hypothesis")  # no folder beside the user's code
    laws = args.laws.split(",") if args.laws else None
    try:
        if args.target:
            report = _with_progress([declared_subject(args)], laws, args.cases)
        else:
            report = own_matrix(laws, args.cases, args.jobs)
    except Exception as error:  # importing a target may raise anything
        print(f"could not run: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    if args.target:
        print(report.summary())
        print()
        asked = any(cell.verdict != "n/a" for cell in report.cells.values())
        print(report.failures() or ("no law is broken" if asked else "no law was asked: none is about this role"))
        print(_also_bitwise(report))
        print(_as_if(report))
    else:
        print(report)
    print(f"\nworst error / budget\n{report.ratios()}")
    if args.json:
        try:
            Path(args.json).write_text(report.to_json(), encoding="utf-8")
        except OSError as error:
            print(f"could not write the report: {error}", file=sys.stderr)
            return 2
    return report.exit_code


def declared_subject(args):
    """The Subject that args.target, package.module:function, and the declarations in args name."""
    module, _, name = args.target.partition(":")
    if not name:
        raise ValueError(f"target must be package.module:function; got {args.target!r}")
    sys.path.insert(0, str(Path.cwd()))
    fn = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    if not callable(fn):
        raise TypeError(f"{args.target} must be a function; got {type(fn).__name__}")
    return Subject(
        args.target, args.role, fn, library=args.library, in_place=args.in_place, kind=KINDS[args.kind],
        log_base=math.e if args.log_base == "e" else 2, empty=float(args.empty), lse_layout=args.lse_layout,
        causal=args.causal, heads=args.heads, scale=args.scale, dtypes=tuple(args.dtypes.split(",")),
        p_dtype=args.p_dtype, stats_dtype=args.stats_dtype,
        claims=tuple(c.strip() for c in args.claims.split(",") if c.strip()))


def _with_progress(subjects, laws, cases):
    asked = len(subjects) * (len(laws) if laws else len(LAWS))
    with tqdm(total=asked, disable=None, leave=False) as bar:
        def step(law, subject):
            bar.set_description(f"{law.name}")
            bar.update()

        return verify(subjects, laws, cases, progress=step)


def own_matrix(laws=None, cases=CASES, jobs=1):
    """The Report of all laws on fdmath's own subjects, asked in `jobs` processes."""
    subjects = all_subjects()
    if jobs <= 1:
        return _with_progress(subjects, laws, cases)
    report = verify([], laws)
    pairs = [(law.name, i) for law in report.laws for i in range(len(subjects))]
    cells = {}
    fresh = multiprocessing.get_context("spawn")  # a forked process could not use a CUDA device
    with (ProcessPoolExecutor(jobs, fresh, _one_thread) as pool,
          tqdm(total=len(pairs), disable=None, leave=False) as bar):
        for (name, i), cell in zip(pairs, pool.map(_cell, pairs, [cases] * len(pairs), chunksize=4), strict=True):
            cells[name, subjects[i].name] = cell
            bar.set_description(name)
            bar.update()
    return Report(report.laws, subjects, cells)


def _cell(pair, cases):
    name, index = pair
    return ask(LAWS[name], _subjects_here()[index], cases)


@functools.cache
def _subjects_here():
    return all_subjects()


def _one_thread():
    """Processes share the cores: one thread each."""
    if importlib.util.find_spec("torch"):
        importlib.import_module("torch").set_num_threads(1)


def _also_bitwise(report):
    also = [law for (law, _), c in report.cells.items() if c.verdict == "pass" and c.grade == "budget" and c.bitwise]
    return f"also bit for bit on every case: {', '.join(also)}" if also else ""


CONVENTIONS = [
    {"log_base": 2}, {"empty": math.inf}, {"lse_layout": "heads_last"}, {"causal": "top_left"}, {"heads": "tiled"},
    {"scale": 1.0}, {"stats_dtype": "bfloat16"}, {"stats_dtype": "float16"}, {"p_dtype": "bfloat16"},
]


def _as_if(report):
    """Which single declaration would make a broken anchor hold: a convention, not a fault, if it is the one meant."""
    subject, = report.subjects
    cell = report.cells.get(("anchor", subject.name))
    if cell is None or cell.verdict != "fail":
        return ""
    explain = [c for c in CONVENTIONS if ask(LAWS["anchor"], replace(subject, **c)).verdict == "pass"]
    texts = [f"{name}={value!r}" for c in explain for name, value in c.items()]
    return f"the anchor would hold with the declaration {' or '.join(texts)}" if texts else ""
