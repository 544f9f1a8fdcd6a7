"""All benchmarks, one after the other: ``python -m benchmarks [NAME ...] [--quick] [--report DIR]``.

What they print is also kept as ``report.json`` and as a page with plots, ``report.html``, in ``benchmark-report`` or
the directory that is named. They measure and assert nothing: read where we lose as well. One that has nothing to
compare with, because the peer is not installed, is left out, and that is said. Further arguments go to the one that is
named.
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
from benchmarks import held, measure, record, report

# What a benchmark cannot do without, beside what the tests need.
PEERS = {"bcolz": "bcolz", "concat": "kerchunk", "parquet": "fastparquet", "s3": "s3fs", "shards": "tensorstore"}


def main() -> int:
    """Run the modules that are named, or all; return how many failed."""
    own = {
        "__main__",
        "bars",
        "peers",
        "server",
        *(module.__name__.rpartition(".")[2] for module in (held, measure, record, report)),
    }
    known = sorted({module.name for module in pkgutil.iter_modules(benchmarks.__path__)} - own)
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure everything.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(known)}; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller measurements")
    parser.add_argument("--report", type=Path, default=Path("benchmark-report"), metavar="DIR", help="of the report")
    arguments, further = parser.parse_known_args()
    if further and len(arguments.names) != 1:
        parser.error(f"expected one NAME, whose arguments {' '.join(further)} are")
    unknown = set(arguments.names) - set(known)
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder, "cases")
        for name in arguments.names or known:
            print(f"\n== {name}", flush=True)
            peer = PEERS.get(name)
            if peer is not None and find_spec(peer) is None:
                print(f"left out: {peer} is not installed")
                continue
            command = [sys.executable, "-m", f"benchmarks.{name}", *(["--quick"] if arguments.quick else []), *further]
            environment = {**os.environ, record.FILE: str(kept)}
            began = time.monotonic()
            failed += subprocess.run(command, check=False, env=environment).returncode != 0  # noqa: S603  # its own
            print(f"-- {name}: {time.monotonic() - began:.0f} s", flush=True)
        report.write(record.kept(kept), arguments.report)
    print(f"\n{arguments.report / 'report.html'}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
