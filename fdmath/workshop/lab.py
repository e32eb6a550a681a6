"""`fdmath lab`: JupyterLab on the first notebook, for this machine only and with its token."""

import argparse
import os
import subprocess
import sys

from fdmath.workshop import installed, repository

FIRST = "notebooks/00_start_here.ipynb"


def command(root, extra):
    """The words that start JupyterLab: loopback only; Jupyter makes a token of its own.

    Jupyter refuses to run as root (the usual user of a container) unless told to.
    """
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    return [
        *(sys.executable, "-m", "jupyterlab", str(root / FIRST)),
        *("--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={root}"),
        *(["--allow-root"] if is_root else []),
        *extra,
    ]


def main(argv=None):
    """The exit code of JupyterLab; the words of argv that are not ours are handed on to it."""
    parser = argparse.ArgumentParser(prog="fdmath lab", description=__doc__, epilog="Other options go to JupyterLab.")
    _, extra = parser.parse_known_args(argv)
    if not installed("jupyterlab"):
        raise ModuleNotFoundError("No module named 'jupyterlab'", name="jupyterlab")
    try:
        return subprocess.run(command(repository(), extra)).returncode
    except KeyboardInterrupt:
        return 0
