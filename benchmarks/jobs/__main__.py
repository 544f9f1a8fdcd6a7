"""What people do, beside what they do it with today: one process a job and side, everything imported before.

    python -m benchmarks jobs [--only PATTERN ...] [--quick | --large] [--links 0 20 50 20+60] [--repeats 3]

Files lie behind a loopback server, or an S3 store behind a proxy, that delays each request; requests and bytes are
counted there. Both sides take turns, their values are compared, and medians are shown. xarray reads files with h5netcdf
and its own default block cache. ``--picture FILE`` draws the ratios at 20 ms.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import bars, report
from benchmarks.jobs.job import JOBS, Job
from benchmarks.jobs.running import LINKS, Failed, Runner, Side, chosen, titled
from benchmarks.measure import shown
from benchmarks.record import Case, keep

USUAL = ["0", "20", "50", "20+60"]


def main() -> int:
    """Measure the jobs that are chosen, and print a line each; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks jobs", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="PATTERN", default=[], help=f"names: {', '.join(JOBS)}")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_const", dest="size", const="quick", help="less data, 20 ms, once")
    sizes.add_argument("--large", action="store_const", dest="size", const="large", help="thousands of files")
    parser.add_argument("--links", nargs="+", choices=LINKS, help="milliseconds a request waits, and MB/s")
    parser.add_argument("--repeats", type=int, help="how often each side is measured")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="SVG of the ratios at 20 ms")
    parser.set_defaults(size="usual")
    options = parser.parse_args()
    jobs = chosen(options.only)
    if not jobs:
        parser.error(f"no job matches {' '.join(options.only)}: expected a pattern of {', '.join(JOBS)}")
    links = options.links or (["20"] if options.size == "quick" else USUAL)
    repeats = options.repeats or (1 if options.size == "quick" else 3)
    found, failed = run(jobs, links, options.size, repeats)
    if options.picture is not None:
        options.picture.write_text(bars.draw(found, report.versions()), encoding="utf-8")
    return failed


def run(jobs: Sequence[Job], links: list[str], size: str, repeats: int) -> tuple[list[Case], int]:
    """Measure ``jobs``, and print a line each; return what was measured, and 1 if one failed."""
    print("job | today | refshard | ratio | goal | | requests | MB | CPU s")
    found: list[Case] = []
    failed = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        Runner.started(
            Path(folder), size, with_s3=any(job.store == "s3" and not job.missing() for job in jobs)
        ) as runner,
    ):
        for job, link in planned(jobs, links):
            title = f"{titled(job, size)}, {link} ms"
            try:
                theirs, ours = runner.measure(job, link, repeats)
            except Failed as e:
                failed = 1
                print(f"{title} | FAILED: {str(e).strip().splitlines()[-1]}", flush=True)
                print(e, file=sys.stderr, flush=True)
                continue
            case = runner.case(job, link, theirs, ours)
            keep(case)
            found.append(case)
            print(line(title, job, theirs, ours), flush=True)
    return found, failed


def planned(jobs: Sequence[Job], links: list[str]) -> Iterator[tuple[Job, str]]:
    """Return each job with each link that it is measured at; say which are left out."""
    for job in jobs:
        if missing := job.missing():
            print(f"{job.title} | left out: {', '.join(missing)} is not installed")
            continue
        for link in [job.link] if job.link else links:
            yield job, link


def line(title: str, job: Job, theirs: Side, ours: Side) -> str:
    """Return a line of the table."""
    ratio = theirs.seconds / ours.seconds
    columns = (
        title, f"{job.peer} {shown(theirs.seconds, 's')}", shown(ours.seconds, "s"), f"{ratio:.2f}×",
        f"≥ {job.goal:g}×", "win" if ratio >= 1 else "LOSS", f"{theirs.requests:.0f} / {ours.requests:.0f}",
        f"{theirs.bytes / 1e6:.1f} / {ours.bytes / 1e6:.1f}", f"{theirs.cpu:.2f} / {ours.cpu:.2f}",
    )  # fmt: skip
    return " | ".join(columns)


if __name__ == "__main__":
    sys.exit(main())
