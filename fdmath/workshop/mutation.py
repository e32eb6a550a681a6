"""`fdmath mutation`: does a test notice when the code is changed a little? Every such change is a mutant.

All mutants of fdmath/algebra and a sample of those of fdmath/attention, each judged by the tests of its own folder,
those of its module first. Verdicts are kept in tests/mutation/results.tsv: a run that is stopped goes on where it
was, and after an edit only what the edit touches is judged again. Passes if enough mutants are killed, and if for
every survivor tests/mutation/equivalent.toml says why it is equivalent.
"""

import argparse
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from typing import NamedTuple

from tqdm import tqdm

from fdmath.workshop import mutation_results as results
from fdmath.workshop import repository
from fdmath.workshop.mutants import change, mutants, mutated, sample
from fdmath.workshop.mutation_results import ERROR, KILLED, SURVIVED, TIMEOUT, Verdict
from fdmath.workshop.phases import ENVIRONMENT

SEED = 6
SILENCE = 30  # seconds after which a test without an end is taken for a loop; the slowest takes 2 on an idle machine
MUTANTS_A_PROCESS = 100  # then a fresh one: what tests leave behind must not pile up
SAVE_EVERY = 20


class Package(NamedTuple):
    """A folder of modules, the least share of its mutants that must die, and how many are judged (None: all)."""

    folder: str
    least: float
    count: int | None


ELSEWHERE = {"fdmath/algebra/printed.py": ["tests/bench/test_atomics.py"]}
"""Tests of a module that are not in its folder, because what they need is not there either."""

PACKAGES = (Package("algebra", 0.95, None), Package("attention", 0.90, 400))


def plan(root, package):
    """({module: source}, the Mutants to judge) of a package."""
    paths = sorted((root / "fdmath" / package.folder).glob("*.py"))
    sources = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    found = [mutant for module, source in sources.items() for mutant in mutants(module, source)]
    return sources, found if package.count is None else sample(found, sources, package.count, SEED)


def tests_of(root, module):
    """The test files that judge a module (paths as text): those named after it, ELSEWHERE, the others of its folder."""
    _, folder, name = module.split("/")
    stem = name.removesuffix(".py")
    files = [path.relative_to(root).as_posix() for path in sorted((root / "tests" / folder).glob("test_*.py"))]
    files.sort(key=lambda file: (f"test_{stem}" not in file, stem not in file, file.count("_"), file))
    own = sum(f"test_{stem}" in file for file in files)
    return [*files[:own], *ELSEWHERE.get(module, ()), *files[own:]]


class Worker:
    """A mutation_worker process, started when it is first needed and again after it was stopped."""

    def __init__(self, root):
        self.root, self.process, self.reader, self.answers, self.judged = root, None, None, None, 0

    def ask(self, question, silence=SILENCE):
        """The answer (a dict) to a question (a dict); the process is stopped if it is silent for so many seconds."""
        if self.process is None or self.judged == MUTANTS_A_PROCESS:
            self.start()
        self.judged += 1
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        try:
            while (answer := self.answers.get(timeout=silence)) is None:
                pass
        except queue.Empty:
            answer = {"verdict": TIMEOUT, "by": ""}
        if answer["verdict"] in (TIMEOUT, ERROR):
            self.stop()
        return answer

    def start(self):
        self.stop()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fdmath.workshop.mutation_worker"],
            cwd=self.root,
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        self.answers, self.judged = queue.SimpleQueue(), 0
        self.reader = threading.Thread(target=pass_on, args=(self.process.stdout, self.answers), daemon=True)
        self.reader.start()

    def stop(self):
        """Nothing; the process, if there is one, is killed."""
        if self.process is not None:
            self.process.kill()
            self.reader.join()
            with contextlib.suppress(BrokenPipeError), self.process:
                self.process = None


def pass_on(lines, answers):
    """Nothing; each line of JSON is put into the queue of answers, and an error after the last."""
    for line in lines:
        answers.put(json.loads(line))
    answers.put({"verdict": ERROR, "by": "the process died"})


def question(root, module, source, tests):
    """What a Worker is asked: the tests' verdict on the source in the place of the module."""
    name = module.removesuffix(".py").replace("/", ".")
    return {"module": name, "path": str(root / module), "source": source, "tests": tests}


def judge(worker, mutant, source, tests):
    """The Verdict of a mutant of a source by the tests, from a Worker; what is killed needs no words."""
    other = mutated(source, mutant)
    answer = worker.ask(question(worker.root, mutant.module, other, tests))
    return Verdict(**answer, change="" if answer["verdict"] == KILLED else change(source, other))


class Run:
    """What a run has to do, what it has learnt, and the file in which it keeps that."""

    def __init__(self, root, again=False):
        self.root, self.path = root, root / results.RESULTS
        planned = {package: plan(root, package) for package in PACKAGES}
        self.sources = {module: text for sources, _ in planned.values() for module, text in sources.items()}
        self.mutants = {package.folder: chosen for package, (_, chosen) in planned.items()}
        self.tests = {module: tests_of(root, module) for module in self.sources}
        before, verdicts = results.read_results(self.path)
        files = {*self.sources, *(test for tests in self.tests.values() for test in tests)}
        self.digests = {file: results.digest(root / file) for file in files}
        changed = {file for file in {*files, *before} if self.digests.get(file) != before.get(file)}
        known = {} if again else verdicts
        self.verdicts = {
            mutant: known[mutant]
            for chosen in self.mutants.values()
            for mutant in chosen
            if mutant in known and results.still_true(mutant, known[mutant], self.tests[mutant.module], changed)
        }

    def pending(self, words=()):
        """The mutants without a verdict whose module holds one of the words (all without words)."""
        every = [mutant for chosen in self.mutants.values() for mutant in chosen]
        return [m for m in every if m not in self.verdicts and (not words or any(word in m.module for word in words))]

    def save(self):
        self.path.parent.mkdir(exist_ok=True)
        results.write_results(self.path, self.digests, self.verdicts)


def work(run, todo, workers, minutes):
    """Nothing; the mutants are judged by so many processes at once, for so long at most, and the verdicts kept."""
    waiting, done = queue.SimpleQueue(), queue.SimpleQueue()
    for mutant in todo:
        waiting.put(mutant)
    until = time.monotonic() + 60 * minutes
    threads = [threading.Thread(target=serve, args=(run, waiting, done, until), daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    bar = tqdm(total=len(todo), unit="mutant", smoothing=0)
    try:
        while any(thread.is_alive() for thread in threads) or not done.empty():
            try:
                mutant, verdict = done.get(timeout=1)
            except queue.Empty:
                continue
            run.verdicts[mutant] = verdict
            bar.set_postfix_str(f"{mutant.module}:{mutant.line} {verdict.verdict}", refresh=False)
            bar.update()
            if bar.n % SAVE_EVERY == 0:
                run.save()
    except KeyboardInterrupt:
        print("stopped; the next run goes on from here", file=sys.stderr)
    finally:
        bar.close()
        run.save()


def serve(run, waiting, done, until):
    """Nothing; judges what waits with a Worker of its own until nothing waits or the time is over."""
    worker = Worker(run.root)
    try:
        while time.monotonic() < until:
            mutant = waiting.get_nowait()
            done.put((mutant, judge(worker, mutant, run.sources[mutant.module], run.tests[mutant.module])))
    except queue.Empty:
        pass
    finally:
        worker.stop()


def unmutated(run, modules):
    """What the tests of these modules say against the code as it is, asked twice in one process: nothing, if all is
    well."""
    worker = Worker(run.root)
    try:
        for module in {module.split("/")[1]: module for module in modules}.values():
            for _ in range(2):
                answer = worker.ask(question(run.root, module, run.sources[module], run.tests[module]))
                if answer["verdict"] != SURVIVED:
                    yield f"{module} as it is: {answer['verdict']} {answer['by']}"
    finally:
        worker.stop()


def complaints(run, reasons):
    """What keeps the run from passing: too few killed, mutants not judged, survivors without a reason, and reasons
    for mutants that do not survive."""
    for package in PACKAGES:
        chosen = run.mutants[package.folder]
        known = [run.verdicts[m] for m in chosen if m in run.verdicts]
        dead = sum(verdict.verdict in (KILLED, TIMEOUT) for verdict in known)
        if len(known) < len(chosen):
            yield f"{package.folder}: {len(chosen) - len(known)} of {len(chosen)} mutants are not judged yet"
        if not dead >= package.least * len(known):
            yield f"{package.folder}: {dead} of {len(known)} killed, which is less than {package.least:.0%}"
    alive = {(m.module, v.change): m for m, v in run.verdicts.items() if v.verdict not in (KILLED, TIMEOUT)}
    for (module, text), mutant in alive.items():
        if not reasons.get((module, text)):
            yield f"{module}:{mutant.line}: survives without a reason: {text}"
    if not run.pending():
        yield from (f"{module}: a reason for what does not survive: {text}" for module, text in reasons.keys() - alive)


def table(run):
    """The counts for each package: mutants, killed, of these by the clock, survived, the rate in percent (text)."""
    lines = [f"{'package':<10} {'mutants':>7} {'judged':>7} {'killed':>7} {'timeout':>7} {'survived':>8} {'rate':>7}"]
    for folder, chosen in run.mutants.items():
        known = [run.verdicts[m].verdict for m in chosen if m in run.verdicts]
        dead = known.count(KILLED) + known.count(TIMEOUT)
        rate = f"{dead / len(known):.1%}" if known else "-"
        lines.append(f"{folder:<10} {len(chosen):>7} {len(known):>7} {known.count(KILLED):>7} "
                     f"{known.count(TIMEOUT):>7} {len(known) - dead:>8} {rate:>7}")  # fmt: skip
    return "\n".join(lines)


def main(argv=None):
    """The exit code of `fdmath mutation`: 0 if it passes, 1 if not, 2 if the tests fail on the code as it is."""
    parser = argparse.ArgumentParser(prog="fdmath mutation", description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="WORD", help="judge only modules with this in their path")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes at once (default: cores)")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so long (default 60); a run goes on")
    parser.add_argument("--again", action="store_true", help="forget the verdicts of earlier runs")
    parser.add_argument("--report", action="store_true", help="judge nothing: what is known, and what is missing")
    options = parser.parse_args(argv)
    run = Run(repository(), options.again)
    todo = [] if options.report else run.pending(options.modules)
    if todo and (broken := list(unmutated(run, {mutant.module for mutant in todo}))):
        print("\n".join(broken))
        return 2
    if todo:
        work(run, todo, options.workers, options.minutes)
    found = list(complaints(run, results.read_reasons(run.root / results.REASONS)))
    print("\n".join([table(run), *found, f"mutation: {len(found) or 'no'} complaints"]))
    return 1 if found else 0
