"""Run benchmarks one after the other: ``python -m benchmarks [NAME ...] [--quick] [--report DIR]``.

The results are printed, and written to ``report.json`` and to a page with plots, ``report.html``, in
``benchmark-report`` or in DIR. A benchmark that misses a goal, or is slower than the other package, does not fail. A
benchmark whose other package is not installed is left out with a message. If one NAME is given, further arguments are
passed to that benchmark.
"""

from __future__ import annotations

import argparse
import os
import pkgutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import benchmarks
from benchmarks import measure, preloaded, record, report

# The package that a benchmark needs, beside those that the tests need.
PEERS = {
    "bcolz": "bcolz",
    "concat": "kerchunk",
    "parquet": "fastparquet",
    "repositories": "icechunk",
    "s3": "s3fs",
    "shards": "tensorstore",
}


def main() -> int:
    """Run the benchmarks on the command line, or all; return the number of failed ones."""
    own = {
        "__main__",
        "bars",
        "links",
        "server",
        *(module.__name__.rpartition(".")[2] for module in (measure, preloaded, record, report)),
    }
    found = {module.name for module in pkgutil.iter_modules(benchmarks.__path__)} - own
    modules = {name: f"benchmarks.{name}" for name in found} | {"simulation": "benchmarks.engine.simulation"}
    known = sorted(modules)
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure everything.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(known)}; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller measurements")
    parser.add_argument(
        "--report", type=Path, default=Path("benchmark-report"), metavar="DIR", help="where to write the report"
    )
    arguments, further = parser.parse_known_args()
    if further and len(arguments.names) != 1:
        parser.error(f"expected one NAME for the arguments {' '.join(further)}, found {len(arguments.names)}")
    unknown = set(arguments.names) - set(known)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}: expected one of {', '.join(known)}")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder, "cases")
        for name in arguments.names or known:
            print(f"\n== {name}", flush=True)
            peer = PEERS.get(name)
            if peer is not None and find_spec(peer) is None:
                print(f"left out: {peer} is not installed")
                continue
            command = [sys.executable, "-m", modules[name], *(["--quick"] if arguments.quick else []), *further]
            environment = {**os.environ, record.FILE: str(kept)}
            began = time.monotonic()
            failed += subprocess.run(command, check=False, env=environment).returncode != 0  # noqa: S603  # its own
            print(f"-- {name}: {time.monotonic() - began:.0f} s", flush=True)
        report.write_report(record.read_cases(kept), arguments.report)
    print(f"\n{arguments.report / 'report.html'}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
