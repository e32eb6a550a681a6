"""What the newest records say of ring and tree over several ranks; read without torch, and nothing is started."""

from fdmath.bench import records
from fdmath.cost.distributed import Cluster

ONE_MACHINE, TWO_GPUS = "distributed-cpu", "distributed-h200x2"


def one_machine():
    """(head, rows, Cluster): the newest record of `fdmath bench distributed` on processes of one machine."""
    head, rows = records.newest(ONE_MACHINE)
    return head, rows, Cluster(**head["cluster"])


def column(rows, what, field):
    """{ranks: the field} of the rows of one thing that was done."""
    return {row["ranks"]: row[field] for row in rows if row["what"] == what}


def two_gpus():
    """The newest record of two GPUs as text, one line a row; without one, a sentence that says so."""
    try:
        head, rows = records.newest(TWO_GPUS)
    except FileNotFoundError:
        return "Two GPUs: not measured yet. This package holds no record of ring and tree between GPUs."
    lines = [", ".join(f"{name} {_said(value)}" for name, value in row.items() if value is not None) for row in rows]
    return "\n".join([f"Two GPUs: {head['device']}, {head['date']}, commit {head['commit']}", *lines])


def _said(value):
    """A value of a row as text, numbers with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
