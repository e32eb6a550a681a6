"""`fdmath lab`: JupyterLab on the first notebook, for this machine only and with its token."""

import argparse
import os

from jupyterlab.labapp import LabApp

from fdmath.workshop import repository

FIRST = "notebooks/00_start_here.ipynb"


def options(root, extra):
    """JupyterLab's options: loopback only; it makes a token of its own.

    Jupyter refuses to run as root (the usual user of a container) unless told to.
    """
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    return [
        *("--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={root}", f"--LabApp.default_url=/lab/tree/{FIRST}"),
        *(["--allow-root"] if is_root else []),
        *extra,
    ]


def main(argv=None):
    """Exit code 0 once JupyterLab has ended; the words of argv that are not ours are its options."""
    parser = argparse.ArgumentParser(prog="fdmath lab", description=__doc__, epilog="Other options go to JupyterLab.")
    _, extra = parser.parse_known_args(argv)
    LabApp.launch_instance(options(repository(), extra))
    return 0
