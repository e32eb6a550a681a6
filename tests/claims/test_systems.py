"""The table of systems: each entry says where it runs, names what exists, and is told of in the lesson it names."""

import json

import pytest

from fdmath.claims.systems import WHERE, is_defined, systems

ROWS = systems()
NAMED = ("PyTorch", "Triton", "A100", "FlashAttention-1", "FlashAttention-2", "FlashAttention-3", "FlashAttention-4",
         "FlashDecoding", "FlashInfer", "vLLM", "PagedAttention", "xFormers", "FlashMLA", "Ring Attention",
         "FasterTransformer", "CodeLlama-34B", "Llama 2 and 3", "GQA", "CUDA")
"""What the two documents name."""


def test_every_system_that_the_documents_name_is_there_once():
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    assert not [word for word in NAMED if not any(word in name for name in names)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name.replace(" ", "-"))
def test_a_row_is_complete(row):
    assert row.named and all(place.partition(" ")[0] in ("A", "B") and place.partition(" ")[2] for place in row.named)
    assert row.where and set(row.where) <= set(WHERE) and row.what
    assert row.lesson and set(row.lesson) <= set(range(16))
    assert row.runs or row.where == ("cited",)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name.replace(" ", "-"))
def test_what_it_names_exists(row):
    assert not [path for path in row.runs if not is_defined(path)]


@pytest.mark.parametrize("path, expected", [
    ("fdmath.cost.hardware:A100", True), ("fdmath.algebra.order:ring", True), ("fdmath.claims.systems:System", True),
    ("fdmath.algebra.order:reduce", False), ("fdmath.algebra.order:rings", False), ("fdmath.nowhere:ring", False),
    ("fdmath.nowhere.at_all:ring", False)])  # fmt: skip
def test_only_what_a_module_defines_itself_is_defined(path, expected):
    assert is_defined(path) is expected


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name.replace(" ", "-"))
def test_its_lessons_name_it_or_what_runs(row, root):
    words = {*row.name.replace("(", "").replace(")", "").split(" "), *(path.partition(":")[2] for path in row.runs)}
    words -= {"and", "by", "2", "3", "CUDA", "NVIDIA", "attention"}
    for lesson in row.lesson:
        for path in (root / "notebooks").glob(f"{lesson:02d}_*.ipynb"):  # 12 to 14 may still be written
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            text = "".join(line for cell in cells for line in cell["source"])
            assert any(word in text for word in words), f"{path.name} names nothing of {sorted(words)}"
