"""All benchmarks, one after the other: ``python -m benchmarks [NAME ...] [--quick]``."""

from __future__ import annotations

import argparse
import pkgutil
import subprocess
import sys

import benchmarks
from benchmarks import measure


def main() -> int:
    """Run the modules that are named, or all; return how many failed."""
    own = {"__main__", measure.__name__.rpartition(".")[2]}
    known = sorted({module.name for module in pkgutil.iter_modules(benchmarks.__path__)} - own)
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(known)}; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller measurements")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(known)
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    failed = 0
    for name in arguments.names or known:
        print(f"\n== {name}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", *(["--quick"] if arguments.quick else [])]
        failed += subprocess.run(command, check=False).returncode != 0  # noqa: S603  # its own
    return failed


if __name__ == "__main__":
    sys.exit(main())
