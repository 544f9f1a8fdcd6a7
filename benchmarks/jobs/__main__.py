"""Run typical jobs with refshard and with today's usual tool, each in a new process that has imported everything.

    python -m benchmarks jobs [--only PATTERN ...] [--quick | --large] [--links 0 20 50 20+60] [--repeats 3]

Files lie on a loopback server, or in an S3 store behind a proxy. The server or proxy delays each request, and counts
requests and bytes. Both sides (refshard and the other tool) take turns, their values are compared, and the table has
medians. xarray reads files with h5netcdf and its default block cache. ``--picture FILE`` draws the ratios at 20 ms.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import bars, report
from benchmarks.jobs.job import JOBS, Job
from benchmarks.jobs.running import LINKS, Failed, Runner, Side, choose_jobs, make_title
from benchmarks.measure import format_figure
from benchmarks.record import Case, record_case

USUAL = ["0", "20", "50", "20+60"]


def main() -> int:
    """Measure the jobs of the command line, and print a line for each; return 1 if one failed, else 0."""
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
    jobs = choose_jobs(options.only)
    if not jobs:
        parser.error(f"no job matches {' '.join(options.only)}: expected a pattern of {', '.join(JOBS)}")
    links = options.links or (["20"] if options.size == "quick" else USUAL)
    repeats = options.repeats or (1 if options.size == "quick" else 3)
    found, failed = run(jobs, links, options.size, repeats)
    if options.picture is not None:
        options.picture.write_text(bars.draw(found, report.list_versions()), encoding="utf-8")
    return failed


def run(jobs: Sequence[Job], links: list[str], size: str, repeats: int) -> tuple[list[Case], int]:
    """Measure ``jobs``, and print a line for each; return the cases, and 1 if a job failed, else 0."""
    print("job | today | refshard | ratio | goal | | requests | MB | CPU s")
    found: list[Case] = []
    failed = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        Runner.start(
            Path(folder), size, with_s3=any(job.store == "s3" and not job.list_missing() for job in jobs)
        ) as runner,
    ):
        for job, link in list_runs(jobs, links, size):
            title = f"{make_title(job, size)}, {link} ms"
            try:
                theirs, ours = runner.measure(job, link, repeats)
            except Failed as e:
                failed = 1
                print(f"{title} | FAILED: {str(e).strip().splitlines()[-1]}", flush=True)
                print(e, file=sys.stderr, flush=True)
                continue
            case = runner.make_case(job, link, theirs, ours)
            record_case(case)
            found.append(case)
            print(format_line(title, job, theirs, ours), flush=True)
    return found, failed


def list_runs(jobs: Sequence[Job], links: list[str], size: str) -> Iterator[tuple[Job, str]]:
    """Yield each job with each link at which it is measured; print the jobs that are left out."""
    for job in jobs:
        if missing := job.list_missing():
            print(f"{make_title(job, size)} | left out: {', '.join(missing)} is not installed")
            continue
        for link in [job.link] if job.link else links:
            yield job, link


def format_line(title: str, job: Job, theirs: Side, ours: Side) -> str:
    """Return the line of the table for one job at one link."""
    ratio = theirs.seconds / ours.seconds
    columns = (
        title, f"{job.peer} {format_figure(theirs.seconds, 's')}", format_figure(ours.seconds, "s"), f"{ratio:.2f}×",
        f"≥ {job.goal:g}×", "win" if ratio >= 1 else "LOSS", f"{theirs.requests:.0f} / {ours.requests:.0f}",
        f"{theirs.bytes / 1e6:.1f} / {ours.bytes / 1e6:.1f}", f"{theirs.cpu:.2f} / {ours.cpu:.2f}",
    )  # fmt: skip
    return " | ".join(columns)


if __name__ == "__main__":
    sys.exit(main())
