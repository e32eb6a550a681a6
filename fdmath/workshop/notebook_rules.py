"""The rules that keep notebooks comparable: what nbval cannot check, a notebook must not hold."""

import json

from fdmath.workshop.needs import unknown

LARGEST = 400_000  # bytes on disk


def text(output):
    """The plain text of a stored output."""
    parts = [output.get("text", ""), output.get("data", {}).get("text/plain", "")]
    return "".join("".join(part) for part in parts)


def cell_faults(cell):
    """What is wrong with one code cell, in words."""
    outputs = cell["outputs"]
    if "".join(cell["source"]).rstrip().endswith(";"):
        yield "ends in ';', which nbval cannot compare"
    if cell["execution_count"] is None:
        yield "was not executed, so nothing would be compared"
    if any(output["output_type"] == "error" for output in outputs):
        yield "stores an error"
    if any(output.get("name") == "stderr" for output in outputs):
        yield "stores a warning or other text on stderr"
    if any("<Figure size" in text(output) for output in outputs):
        yield "stores a figure without its sentence (use show)"
    for tag in unknown(cell["metadata"].get("tags", [])):
        yield f"has the unknown tag {tag!r}"


def faults(path):
    """What is wrong with one notebook, in words."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    if path.stat().st_size > LARGEST:
        yield f"is larger than {LARGEST} bytes"
    if (name := notebook["metadata"].get("kernelspec", {}).get("name")) != "python3":
        yield f"asks for the kernel {name!r}, not 'python3'"
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code):
        yield from (f"code cell {number} {fault}" for fault in cell_faults(cell))


def complaints(root):
    """A complaint for each broken rule in the notebooks, and one if there are no notebooks."""
    paths = sorted((root / "notebooks").glob("*.ipynb"))
    if not paths:
        yield "notebooks: there are none"
    for path in paths:
        yield from (f"{path.relative_to(root)}: {fault}" for fault in faults(path))
