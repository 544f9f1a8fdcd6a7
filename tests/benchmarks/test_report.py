"""Reports of benchmarks name losses and missed goals, and escape the names of cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import record, report
from benchmarks.record import Case


def cases() -> list[Case]:
    won = Case("engine", "10ms, whole", "s", {"reference": 2.0, "ours": 0.5}, ("ours",), "reference",
               {"reference": 512, "ours": 52}, {"reference": 1.0, "ours": 1.01}, latency=0.01)  # fmt: skip
    lost = Case("engine", "0ms, <b>odd</b>", "s", {"reference": 1.0, "ours": 2.0}, ("ours",), "reference", latency=0.0)
    missed = Case("manifests", "open", "s", {"fsspec": 3.0, "refshard": 1.0}, ("refshard",), "fsspec", goal="≥ 4×",
                  met=False)  # fmt: skip
    alone = Case("manifests", "bytes per reference", "B", {"refshard": 20.0}, ("refshard",), goal="≤ 32 B", met=True)
    grown = [Case("growth", f"{unit} {n}", unit, {"fsspec": 2.0 * n, "refshard": 1.0 * n}, ("refshard",), size=n)
             for unit in ("s", "B") for n in (10_000, 100_000)]  # fmt: skip
    return [won, lost, missed, alone, *grown]


def test_report_counts_and_names_losses_and_missed_goals(tmp_path: Path) -> None:
    report.write_report(cases(), tmp_path / "new" / "folder")
    page = (tmp_path / "new" / "folder" / "report.html").read_text()
    assert "1 lost" in page
    assert "(engine: 0ms, &lt;b&gt;odd&lt;/b&gt;)" in page
    assert "<b>odd" not in page
    assert "1 goals of ours missed <small>(manifests: open)</small>" in page
    assert "<td class='win'>4.0×</td>" in page
    assert "<td class='loss'>0.5×</td>" in page
    assert "52 requests, 1.01× bytes" in page
    data = json.loads((tmp_path / "new" / "folder" / "report.json").read_text())
    assert [c["case"] for c in data["cases"]] == [c.case for c in cases()]
    assert data["python"]


def test_report_has_three_plots_and_none_without_cases(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report.write_report(cases(), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 3
    report.write_report([], tmp_path)
    assert "<svg" not in (tmp_path / "report.html").read_text()


def test_cases_are_recorded_if_the_environment_names_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cases"
    monkeypatch.delenv(record.FILE, raising=False)
    record.record_case(cases()[0])
    assert record.read_cases(path) == []
    monkeypatch.setenv(record.FILE, str(path))
    for case in cases():
        record.record_case(case)
    assert record.read_cases(path) == cases()
