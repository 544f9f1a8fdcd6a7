"""The summary of the fault matrix counts its cells, and shows them when asked."""

from __future__ import annotations

from tests.support.fault_matrix import Matrix, summarize

CELLS: Matrix = {
    ("HTTP", "reset", "cat_file"): "error",
    ("HTTP", "reset", "get"): "right",
    ("local", "replaced", "cat_file"): "TargetChanged",
}


def test_empty_fault_matrix_prints_nothing() -> None:
    assert summarize({}, whole=True) == []


def test_fault_matrix_counts_and_prints_results() -> None:
    (line,) = summarize(CELLS, whole=False)
    assert "3 cells" in line
    assert "HTTP, local" in line
    assert "1 right, 2 an error" in line
    said, head, first, second = summarize(CELLS, whole=True)
    assert said == line
    assert head.split() == ["cat_file", "get"]
    assert first.split() == ["HTTP", "reset", "error", "right"]
    assert second.split() == ["local", "replaced", "TargetChanged"]
