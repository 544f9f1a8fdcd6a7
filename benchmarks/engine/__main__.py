"""Read chunks over HTTP with fsspec's reference filesystem, this filesystem, an ideal client, and zarr in memory.

    python -m benchmarks.engine [--quick] [--links 10ms ...] [--patterns whole ...] [--only ours ...]

512 uncompressed chunks of 100 kB lie in one file on a loopback server in another process, which delays each request
and, for one link, limits the bandwidth of each connection. All contenders take turns. The table has medians of
milliseconds, the requests, and the bytes that the server sent, as multiples of the bytes of the chunks. Contenders are:

- *reference*: zarr over fsspec's reference filesystem;
- *ours*: zarr over this filesystem; *prefetch*: the same, with `prefetch` of each selection before its read;
- *xarray*: ``engine="refshard"``;
- *virtualizarr*, *icechunk*, if they are installed: zarr over the stores of these packages;
- names with ``/128``: with ``async.concurrency`` 128 in zarr's configuration;
- *ideal*: an aiohttp client that knows all ranges beforehand (blocks of 1 MB, with as many connections as this
  filesystem may have) and decodes nothing;
- *dict*: zarr reading the same chunks from memory.

*CPU* is that of the contender's process, in all threads. The goals of *ours* are at most 1.25 times *ideal*, and for
some patterns a ratio to *reference* (`GOALS`). *random5* reads 5 % of the chunks at random, *rows5* reads 5 % of the
rows of an array with four rows in a chunk.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time

from benchmarks.engine.contenders import CHUNK, CONTENDERS, LINKS, Pattern, Scene, make_patterns, serve_scene
from benchmarks.record import Case, record_case

REPEATS, QUICK = 5, 2
GOALS = {  # the time of "reference" divided by ours, at least
    "0ms": {"whole": 2.4, "random5": 1.5, "strided": 1.3},
    "10ms": {"whole": 8.5, "random5": 5.0, "strided": 5.5},
    "50ms": {"whole": 22.0, "random5": 7.0, "strided": 8.5},
    "20ms+60MB/s": {"whole": 11.5, "random5": 6.3, "strided": 7.5},
}
NEAR = 1.25  # our time divided by that of "ideal", at most
OURS = ("ours", "prefetch", "xarray", "ours/128", "cat ours")
# Contenders that are measured with one pattern only.
ONLY = {"cat reference": "whole", "cat ours": "whole", "reference/128": "random5", "ours/128": "random5"}


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description="Chunks over HTTP.")
    parser.add_argument("--quick", action="store_true", help="two rounds, four patterns, one link")
    parser.add_argument("--links", nargs="*", default=None, choices=list(LINKS))
    parser.add_argument("--patterns", nargs="*", default=None)
    parser.add_argument("--only", nargs="*", default=None, help="contenders")
    parser.add_argument("--repeats", type=int, default=None)
    options = parser.parse_args(arguments)
    repeats = options.repeats or (QUICK if options.quick else REPEATS)
    known = make_patterns()
    names = options.patterns or (["whole", "strided", "random5", "rows5"] if options.quick else list(known))
    with serve_scene() as on:
        print("median ms, requests, bytes / needed, per contender\n")
        for link in options.links or (["10ms"] if options.quick else LINKS):
            on.server.set_pace(LINKS[link])
            for name in names:
                _measure(on, link, name, known[name], repeats, options.only)


def _measure(on: Scene, link: str, name: str, pattern: Pattern, repeats: int, only: list[str] | None) -> None:
    chosen = [c for c in CONTENDERS if (only is None or c in only) and ONLY.get(c, name) == name]
    times: dict[str, list[float]] = {c: [] for c in chosen}
    cpus: dict[str, list[float]] = {c: [] for c in chosen}
    seen: dict[str, tuple[int, int]] = {}
    totals = set()
    for _ in range(repeats):
        for contender in chosen:
            gc.collect()  # close the connections of the last contender before the next one is timed
            time.sleep(0.05)
            on.server.get("/__clear__")
            began = time.process_time()
            took, total = CONTENDERS[contender](pattern, on)
            cpus[contender].append(time.process_time() - began)
            times[contender].append(took)
            seen[contender] = on.server.read_counts()
            totals.add(total)
    assert len(totals) == 1, f"contenders read different bytes: {totals}"
    needed = len(pattern.numbers) * CHUNK
    median = {c: statistics.median(t) * 1e3 for c, t in times.items()}
    cpu = {c: statistics.median(t) * 1e3 for c, t in cpus.items()}
    goal, met = _check_goals(median, GOALS.get(link, {}).get(name))
    record_case(
        Case(
            "engine",
            f"{link}, {name}",
            "s",
            {c: t / 1e3 for c, t in median.items()},
            OURS,
            "reference",
            {c: requests for c, (requests, _) in seen.items()},
            {c: sent / needed for c, (_, sent) in seen.items()},
            goal,
            met,
            latency=LINKS[link].latency,
        )
    )
    print(f"{link}, {name} ({len(pattern.numbers)} chunks)")
    for contender in chosen:
        requests, sent = seen[contender]
        line = f"  {contender:14}{median[contender]:9.1f} ms {cpu[contender]:7.1f} ms CPU"
        line += f" {requests:5} requests {sent / needed:6.2f} x bytes"
        base = "cat reference" if contender.startswith("cat") else "reference"
        if base in median and contender not in (base, "dict"):
            line += f"   {median[base] / median[contender]:6.1f} x faster"
        if contender in OURS and "ideal" in median:
            line += f"   {median[contender] / median['ideal']:6.2f} x ideal"
        if contender == "ours" and goal:
            line += f"   goal {goal}: {'met' if met else 'missed'}"
        print(line)
    print(flush=True)


def _check_goals(median: dict[str, float], faster: float | None) -> tuple[str, bool | None]:
    """Return the goals of "ours" as text, and whether it meets all; "" and None if no other contender was measured."""
    goals: dict[str, bool] = {}
    if faster is not None and {"ours", "reference"} <= median.keys():
        goals[f"≥ {faster:g}×"] = median["reference"] >= faster * median["ours"]
    if {"ours", "ideal"} <= median.keys():
        goals[f"≤ {NEAR:g} × ideal"] = median["ours"] <= NEAR * median["ideal"]
    return ", ".join(goals), all(goals.values()) if goals else None


if __name__ == "__main__":
    main()
