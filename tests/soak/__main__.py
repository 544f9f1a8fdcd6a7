"""``python -m tests.soak``: read a million random keys by eight threads and eight dask workers, with faults."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.soak.soaking import soak


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--reads", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--patience", type=float, default=3600, help="seconds after which reads count as a deadlock")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(
            soak(Path(folder), options.keys, options.reads, options.threads, options.processes, options.patience, 2000)
        )


if __name__ == "__main__":
    main()
