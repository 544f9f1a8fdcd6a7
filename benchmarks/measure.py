"""Measure time and memory of a process, run measurements in turns, and print tables of medians."""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.record import Case, record_case

__all__ = ["Goal", "Row", "Usage", "run_in_turns", "print_table", "format_figure", "measure_usage"]


class Usage(NamedTuple):
    """The usage of a block of code: seconds, bytes of memory added at its end, and bytes added at its peak."""

    seconds: float
    added: int
    peak: int


class Goal(NamedTuple):
    """A goal: ``ratio`` is the least value of the baseline divided by ours, ``most`` the largest value of ours."""

    ratio: float | None = None
    most: float | None = None


class Row(NamedTuple):
    """One line of a table; ``baseline`` is None if no other package was measured."""

    what: str
    unit: str
    baseline: float | None
    ours: float
    goal: Goal


def _read_status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


@contextmanager
def measure_usage(report: Callable[[Usage], object]) -> Iterator[None]:
    """Measure the body of a ``with`` statement, and call ``report`` with the result (memory: on Linux only)."""
    gc.collect()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    linux = Path("/proc/self/status").exists()
    before = _read_status("VmRSS:") if linux else 0
    start = time.perf_counter()
    yield
    seconds = time.perf_counter() - start
    after, peak = (_read_status("VmRSS:"), _read_status("VmHWM:")) if linux else (0, 0)
    report(Usage(seconds, after - before, max(peak, after) - before))


def run_in_turns(
    module: str, cases: Sequence[Sequence[str]], repeats: int, bytecode: str | None = None
) -> list[dict[str, float]]:
    """Run each case ``repeats`` times, in turns, as ``python -m MODULE --child CASE...``; return its medians.

    The child prints figures by name as JSON, in its last line. If ``bytecode`` is a folder, Python writes compiled
    modules there, and not into the clone.
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE" or bytecode is None}
    if bytecode is not None:
        env["PYTHONPYCACHEPREFIX"] = bytecode
    found: list[list[dict[str, float]]] = [[] for _ in cases]
    for _ in range(repeats):
        for case, results in zip(cases, found, strict=True):
            command = [sys.executable, "-m", module, "--child", *case]
            done = subprocess.run(command, capture_output=True, text=True, env=env)  # noqa: S603  # its own
            if done.returncode:
                sys.exit(f"{module}: {', '.join(case)} ended with {done.returncode}:\n{done.stderr}")
            results.append(json.loads(done.stdout.splitlines()[-1]))
    return [{name: statistics.median(r[name] for r in results) for name in results[0]} for results in found]


def format_figure(value: float, unit: str) -> str:
    """Return a figure as text, with a unit that suits its size."""
    match unit:
        case "s" if value < 1e-3:
            return f"{value * 1e6:.1f} µs"
        case "s" if value < 1:
            return f"{value * 1e3:.2f} ms" if value < 0.01 else f"{value * 1e3:.0f} ms"
        case "s":
            return f"{value:.2f} s"
        case "B":
            return f"{value / 1e6:.1f} MB" if value > 1e5 else f"{value:.0f} B"
    return f"{value:.3g} {unit}".rstrip()


def print_table(benchmark: str, rows: Sequence[Row], baseline: str, ours: str) -> None:
    """Print and record ``rows``, each with the ratio, whether ours is better, and whether it meets its goal."""
    table: list[tuple[Any, ...]] = [("", baseline, ours, "ratio", "goal", "verdict")]
    for row in rows:
        ratio = None if row.baseline is None else row.baseline / max(row.ours, 1e-9)
        wanted, met = [], True
        if row.goal.ratio is not None and ratio is not None:
            wanted.append(f"≥ {row.goal.ratio:g}×")
            met &= ratio >= row.goal.ratio
        if row.goal.most is not None:
            wanted.append(f"≤ {format_figure(row.goal.most, row.unit)}")
            met &= row.ours <= row.goal.most
        verdict = "" if ratio is None else "win" if ratio >= 1 else "LOSS"
        values = {ours: row.ours} if row.baseline is None else {baseline: row.baseline, ours: row.ours}
        goal, compared = ", ".join(wanted), baseline if row.baseline is not None else None
        record_case(
            Case(benchmark, row.what.strip(), row.unit, values, (ours,), compared, goal=goal, met=met if goal else None)
        )
        if wanted:
            verdict = f"{verdict}{', ' if verdict else ''}goal {'met' if met else 'MISSED'}"
        table.append(
            (
                row.what,
                "" if row.baseline is None else format_figure(row.baseline, row.unit),
                format_figure(row.ours, row.unit),
                "" if ratio is None else f"{ratio:.1f}×",
                goal,
                verdict,
            )
        )
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip(), flush=True)
