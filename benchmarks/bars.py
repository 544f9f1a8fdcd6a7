"""The picture in the README: a few figures of a report as bars, with the date and the versions that were measured.

python -m benchmarks engine hdf5 --report DIR
python -m benchmarks.bars DIR docs/pages/benchmark.svg
"""

from __future__ import annotations

import argparse
import datetime
import html
import json
from pathlib import Path
from typing import Any, NamedTuple

WIDTH, LEFT, RIGHT, MARGIN = 540, 180, 85, 16  # in units of the picture, which is shown 360 to 560 pixels wide
BAR, GAP, TITLE = 20, 6, 34
OURS, THEIRS = "#0b7a75", "#8a8a8a"
STYLE = (
    "text{font:14px system-ui,sans-serif;fill:#1f2328}.t{font-weight:600}.n{font-size:12px;fill:#59636e}"
    ".p{fill:#fff;stroke:#d8dee4}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.n{fill:#9aa5b1}.p{fill:#14181d;stroke:#2c333b}}"
)


class Chart(NamedTuple):
    """What one group of bars shows: a case of a benchmark, and its contenders by the name that readers know."""

    title: str
    benchmark: str
    case: str
    contenders: dict[str, str]


SETS = {"reference": "fsspec reference", "virtualizarr": "VirtualiZarr, obstore", "ours": "refshard"}
FILES = {"h5netcdf": "h5netcdf", "h5netcdf, 1 MiB blocks": "h5netcdf, 1 MiB blocks", "refshard": "refshard"}
CHARTS = (
    Chart("512 chunks of 100 kB of a set, over HTTP, 10 ms a request", "engine", "10ms, whole", SETS),
    Chart("5 % of its rows at random, 50 ms a request", "engine", "50ms, rows5", SETS),
    Chart("A point through 3,000 steps of a NetCDF file, 20 ms a request", "hdf5", "a point through all steps", FILES),
)


def draw(report: dict[str, Any]) -> str:
    """Return an SVG of the charts whose cases ``report`` has."""
    values = {(case["benchmark"], case["case"]): case["values"] for case in report["cases"]}
    parts, y = [], 4
    for chart in CHARTS:
        found = values.get((chart.benchmark, chart.case))
        if found is None:
            continue
        y += TITLE
        parts.append(f'<text class="t" x="{MARGIN}" y="{y - 12}">{html.escape(chart.title)}</text>')
        shown = {label: found[name] for name, label in chart.contenders.items() if name in found}
        scale = (WIDTH - LEFT - RIGHT) / max(shown.values())
        for label, seconds in shown.items():
            width = max(seconds * scale, 1)
            colour = OURS if label == "refshard" else THEIRS
            middle = y + BAR - 5
            parts.append(f'<text x="{LEFT - 8}" y="{middle}" text-anchor="end">{html.escape(label)}</text>')
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>')
            parts.append(f'<text x="{LEFT + width + 6:.1f}" y="{middle}">{seconds * 1000:,.0f} ms</text>')
            y += BAR + GAP
    packages = report["packages"]
    versions = ", ".join(f"{name} {packages[name]}" for name in ("fsspec", "virtualizarr", "zarr") if name in packages)
    for note in (f"Medians, two cores, loopback with delay, {datetime.date.today():%Y-%m-%d}", versions):
        y += 18
        parts.append(f'<text class="n" x="{MARGIN}" y="{y}">{html.escape(note)}</text>')
    paper = f'<rect class="p" x="0.5" y="0.5" width="{WIDTH - 1}" height="{y + 15}" rx="8"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 16}" role="img">'
        f"<title>Times to read, as bars</title><style>{STYLE}</style>{paper}{''.join(parts)}</svg>\n"
    )


def main() -> None:
    """Draw the report that is named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bars", description="Draw the README's picture.")
    parser.add_argument("report", type=Path, help="directory of report.json")
    parser.add_argument("output", type=Path, help="SVG file")
    options = parser.parse_args()
    options.output.write_text(draw(json.loads((options.report / "report.json").read_text())), encoding="utf-8")


if __name__ == "__main__":
    main()
