"""Write the cases of one run as JSON and as a page of HTML, which begins with cases in which this package is slower."""

from __future__ import annotations

import html
import io
import platform
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.measure import format_figure
from benchmarks.record import Case

__all__ = ["list_versions", "write_report"]

PEERS: Final = (
    "fsspec",
    "zarr",
    "xarray",
    "dask",
    "virtualizarr",
    "icechunk",
    "tensorstore",
    "kerchunk",
    "s3fs",
    "bcolz-zipline",
    "h5netcdf",
    "rasterio",
    "cfgrib",
)
COLOURS: Final = {True: "#0b7a75", False: "#b4532a"}  # of this package and of others, also for colour-blind people
STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --good: #0b7a75; --bad: #b3261e; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 2rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
small { opacity: .7; } .ours { font-weight: 600; }
 .win { color: var(--good); } .loss { color: var(--bad); }
figure { margin: 1rem 0; background: #fff; padding: .5rem; border-radius: .5rem; }
figure svg { max-width: 100%; height: auto; }
"""


def write_report(cases: Sequence[Case], folder: Path) -> None:
    """Write ``report.json`` and ``report.html`` into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = {"python": platform.python_version(), "machine": platform.machine(), "packages": list_versions()}
    data = msgspec.json.encode({**machine, "cases": cases})
    folder.joinpath("report.json").write_bytes(msgspec.json.format(data, indent=1))
    folder.joinpath("report.html").write_text(_make_page(cases, machine), encoding="utf-8")


def list_versions() -> dict[str, str]:
    """Return the versions of this package and of the compared packages, by name, if they are installed."""
    found = {}
    for name in ("refshard_fs", *PEERS):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _make_page(cases: Sequence[Case], machine: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    lost = [c for c in cases if _compute_ratio(c) is not None and (_compute_ratio(c) or 1) < 1]
    missed = [c for c in cases if c.met is False]
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>refshard_fs: benchmarks</title>",
        f"<style>{STYLE}</style><h1>refshard_fs: benchmarks</h1>",
        f"<p>Python {machine['python']} on {machine['machine']}; {html.escape(packages)}. Medians; contenders take "
        "turns in one run. A ratio is the baseline's figure divided by ours: above 1 we win.</p>",
        f"<p>{len(cases)} cases: <b class='loss'>{len(lost)} lost</b> to the baseline"
        f"{_join_names(lost)}; {len(missed)} goals of ours missed{_join_names(missed)}.</p>",
        *(f"<figure>{plot}</figure>" for plot in _draw_plots(cases)),
    ]
    for name, group in groupby(cases, key=lambda case: case.benchmark):
        parts += [f"<h2>{html.escape(name)}</h2>", *_make_tables(list(group))]
    return "\n".join([*parts, "</html>\n"])


def _join_names(cases: Iterable[Case]) -> str:
    names = "; ".join(html.escape(f"{c.benchmark}: {c.case}") for c in cases)
    return f" <small>({names})</small>" if names else ""


def _make_tables(cases: list[Case]) -> list[str]:
    """Return the lines of HTML of a table for each run of cases with the same contenders."""
    out = []
    for contenders, group in groupby(cases, key=lambda case: tuple(case.values)):
        rows = list(group)
        head = "".join(f"<th>{html.escape(name)}</th>" for name in contenders)
        out.append(f"<table><tr><th></th>{head}<th>ratio</th><th>goal</th></tr>")
        out += ["<tr>" + _make_row(case) + "</tr>" for case in rows]
        out.append("</table>")
    return out


def _make_row(case: Case) -> str:
    cells = [f"<td>{html.escape(case.case)}</td>"]
    for name, value in case.values.items():
        more = []
        if name in case.requests:
            more.append(f"{case.requests[name]} requests")
        if name in case.bytes:
            more.append(f"{case.bytes[name]:.2f}× bytes")
        note = f"<br><small>{', '.join(more)}</small>" if more else ""
        kind = " class='ours'" if name in case.ours else ""
        cells.append(f"<td{kind}>{html.escape(format_figure(value, case.unit))}{note}</td>")
    ratio = _compute_ratio(case)
    cells.append("<td></td>" if ratio is None else f"<td class='{'win' if ratio >= 1 else 'loss'}'>{ratio:.1f}×</td>")
    verdict = {True: " met", False: " <b class='loss'>missed</b>", None: ""}[case.met]
    cells.append(f"<td>{html.escape(case.goal)}{verdict}</td>")
    return "".join(cells)


def _compute_ratio(case: Case) -> float | None:
    """Return the baseline's figure divided by that of our first contender; None without a baseline."""
    mine = next((name for name in case.ours if name in case.values), None)
    if mine is None or case.baseline not in case.values:
        return None
    return case.values[case.baseline] / max(case.values[mine], 1e-12)


SHAPES: Final = "osD^vP*Xhp"


def _draw_plots(cases: Sequence[Case]) -> list[str]:
    """Return the plots as SVG; an empty list if matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        return []
    mpl.use("svg")
    mpl.rcParams |= {
        "svg.hashsalt": "refshard",
        "font.family": "sans-serif",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    growth = [c for c in cases if c.size is not None]
    waiting = [c for c in cases if c.benchmark == "engine" and c.latency is not None and c.case.endswith(", whole")]
    plots: list[tuple[bool, Callable[[Any], None]]] = [
        (bool(waiting), lambda axes: _plot_requests(axes, waiting)),
        (
            any(c.unit == "B" for c in growth),
            lambda axes: _plot_growth(axes, growth, "B", "memory added by opening, MB", 1e6),
        ),
        (any(c.unit == "s" for c in growth), lambda axes: _plot_growth(axes, growth, "s", "opening, seconds", 1)),
    ]
    return [_render(draw) for wanted, draw in plots if wanted]


def _render(draw: Callable[[Any], None]) -> str:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    draw(figure.subplots())
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()[out.getvalue().index("<svg") :]


def _plot_requests(axes: Any, cases: Sequence[Case]) -> None:
    """Plot the seconds of each contender over the latency of a request; the legend has its number of requests."""
    free = sorted((case for case in cases if "/s" not in case.case), key=lambda case: case.latency or 0)
    names = dict.fromkeys(name for case in free for name in case.values if not name.startswith("cat "))
    for shape, name in zip(SHAPES, names, strict=False):
        points = [((case.latency or 0) * 1e3, case.values[name]) for case in free if name in case.values]
        requests = max((case.requests.get(name, 0) for case in free), default=0)
        mine = any(name in case.ours for case in free)
        axes.plot(*zip(*points, strict=True), marker=shape, color=COLOURS[mine], label=f"{name}: {requests} requests")
    axes.set(title="512 chunks of 100 kB, one after the other in a file", yscale="log")
    axes.set(xlabel="latency of a request, ms", ylabel="seconds")
    axes.legend(frameon=False, fontsize="small")


def _plot_growth(axes: Any, cases: Sequence[Case], unit: str, label: str, scale: float) -> None:
    """Plot the figure of each contender over the number of references."""
    of_unit = [case for case in cases if case.unit == unit]
    names = dict.fromkeys(name for case in of_unit for name in case.values)
    for shape, name in zip(SHAPES, names, strict=False):
        points = [(case.size, case.values[name] / scale) for case in of_unit if case.values.get(name)]
        mine = any(name in case.ours for case in of_unit)
        axes.loglog(*zip(*points, strict=True), marker=shape, color=COLOURS[mine], label=name, alpha=0.8)
    axes.set(xlabel="references", ylabel=label)
    axes.legend(frameon=False, fontsize="small")
