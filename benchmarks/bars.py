"""Draw the picture in the README: for each job, the time with today's usual tool divided by the time with refshard.

python -m benchmarks jobs --links 20 --picture docs/pages/benchmark.svg
python -m benchmarks.bars DIR docs/pages/benchmark.svg

The first command measures and draws; the second command draws the report in DIR again. The picture shows times at
20 ms a request, or, for a job that is measured at one latency only, at that latency.
"""

from __future__ import annotations

import argparse
import datetime
import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.record import Case

__all__ = ["draw"]

WIDTH, MARGIN, TOP, ROW, BAR = 800, 14, 66, 20, 12  # units of the picture, which is as wide as a README
PEER, LEFT, RIGHT = 370, 510, 748  # x of the names of other tools, and of the left and right end of the scale
FASTER, SLOWER = "#0b7a75", "#b4532a"  # colours that colour-blind people can distinguish
TICKS = tuple(step * 10**power for power in range(-3, 4) for step in (1, 2, 5))
LINKS = ("20 ms", "30 ms")  # latencies of the cases that are drawn
STYLE = (
    "text{font:12.5px system-ui,sans-serif;fill:#1f2328}.t{font-size:15px;font-weight:600}.n{font-size:11.5px;"
    "fill:#59636e}.p{fill:#fff;stroke:#d8dee4}.g{stroke:#d8dee4}.one{stroke:#59636e;stroke-width:1.5}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.n{fill:#9aa5b1}.p{fill:#14181d;stroke:#2c333b}"
    ".g{stroke:#2c333b}.one{stroke:#9aa5b1}}"
)


class Bar(msgspec.Struct, frozen=True):
    """The bar of one job: ``ratio`` is the time with the tool ``peer`` divided by the time with refshard."""

    title: str
    peer: str
    ratio: float


def draw(cases: Sequence[Case], packages: Mapping[str, str]) -> str:
    """Return an SVG of the jobs in ``cases``, the largest ratio first; ``packages`` has versions by name."""
    bars = make_bars(cases)
    ratios = [bar.ratio for bar in bars]
    low, high = min([0.5, *ratios]) * 0.9, max([2.0, *ratios]) * 1.1

    def find_x(ratio: float) -> float:
        return LEFT + (RIGHT - LEFT) * math.log(ratio / low) / math.log(high / low)

    bottom = TOP + ROW * len(bars)
    slower = sum(ratio < 1 for ratio in ratios)
    headline = f"Times as fast as what people use today: {len(bars)} jobs, {slower} of them slower"
    parts = [
        make_text(MARGIN, 26, headline, "t"),
        make_text(MARGIN, TOP - 10, "job", "n"),
        make_text(PEER, TOP - 10, "against", "n"),
    ]
    shown = [tick for tick in TICKS if low <= tick <= high]
    every = [tick for tick in shown if len(shown) <= 8 or math.isclose(math.log10(tick) % 1, 0)]
    for tick in every:
        x, kind = find_x(tick), "one" if tick == 1 else "g"
        parts.append(f'<line class="{kind}" x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{bottom}"/>')
        parts.append(make_text(x, TOP - 10, f"{tick:g}×", "n", "middle"))
    for number, bar in enumerate(bars):
        y = TOP + ROW * number
        start, end = sorted((find_x(1.0), find_x(bar.ratio)))
        parts.append(make_text(MARGIN, y + 14, bar.title))
        parts.append(make_text(PEER, y + 14, bar.peer, "n"))
        colour, width = FASTER if bar.ratio >= 1 else SLOWER, max(end - start, 1.5)
        parts.append(f'<rect x="{start:.1f}" y="{y + 4}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>')
        label = (
            f"{bar.ratio:.0f}×" if bar.ratio >= 10 else f"{bar.ratio:.1f}×" if bar.ratio >= 1 else f"{bar.ratio:.2f}×"
        )
        beside = (end + 4, "start") if bar.ratio >= 1 else (find_x(1.0) + 4, "start")
        parts.append(make_text(beside[0], y + 14, label, anchor=beside[1]))
    names = ("xarray", "h5netcdf", "dask", "zarr", "fsspec", "rasterio", "cfgrib", "kerchunk")
    versions = ", ".join(f"{name} {packages[name]}" for name in names if name in packages)
    where = (
        f"Medians on two cores, loopback server, 20 ms a request (ERA5 on S3: 30 ms), {datetime.date.today():%Y-%m-%d}"
    )
    parts += [make_text(MARGIN, bottom + 22, where, "n"), make_text(MARGIN, bottom + 39, versions, "n")]
    height = bottom + 52
    paper = f'<rect class="p" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
        f"<title>{html.escape(headline)}</title><style>{STYLE}</style>{paper}{''.join(parts)}</svg>\n"
    )


def make_bars(cases: Sequence[Case]) -> list[Bar]:
    """Return a bar for each job in ``cases``, the largest ratio first."""
    found = []
    for case in cases:
        title, _, link = case.case.rpartition(", ")
        if case.benchmark == "jobs" and link in LINKS and case.baseline is not None:
            found.append(Bar(title, case.baseline, case.values[case.baseline] / case.values[case.ours[0]]))
    return sorted(found, key=lambda bar: -bar.ratio)


def make_text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Return an SVG element of one line of text; ``kind`` is its CSS class."""
    kinds = f' class="{kind}"' if kind else ""
    anchors = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text{kinds} x="{x:.1f}" y="{y:.1f}"{anchors}>{html.escape(words)}</text>'


def main() -> None:
    """Draw the report in a directory, as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bars", description="Draw the README's picture.")
    parser.add_argument("report", type=Path, help="directory of report.json")
    parser.add_argument("output", type=Path, help="SVG file")
    options = parser.parse_args()
    report = msgspec.json.decode((options.report / "report.json").read_bytes())
    cases = msgspec.convert(report["cases"], list[Case])
    options.output.write_text(draw(cases, report["packages"]), encoding="utf-8")


if __name__ == "__main__":
    main()
