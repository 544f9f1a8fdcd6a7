"""Opening a reference set as it grows, from 10,000 references to 10 million: time and memory, side by side.

    python -m benchmarks.growth [--quick]

Compact JSON sets of the kind that kerchunk writes; each is opened in a new process that has imported everything.
*compiled* opens what the first open has kept on disk. fsspec's filesystem is left out of the largest, for which it
needs about 5 GB; VirtualiZarr (its ``KerchunkJSONParser``, to a virtual dataset) of all above 100,000. ``--quick``
ends at 200,000.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from benchmarks.manifests import MODULE as MANIFESTS
from benchmarks.manifests import write
from benchmarks.measure import Usage, in_turns, used
from benchmarks.record import Case, keep

MODULE = "benchmarks.growth"
SIZES, QUICK = (10_000, 100_000, 1_000_000, 10_000_000), (10_000, 50_000, 200_000)
LARGEST_FOR_FSSPEC, LARGEST_FOR_VIRTUALIZARR = 1_000_000, 100_000
REPEATS = 3


def child(path: str) -> dict[str, float]:
    """Return the figures of VirtualiZarr."""
    import obspec_utils.registry
    import obstore.store
    import virtualizarr
    import virtualizarr.parsers

    registry = obspec_utils.registry.ObjectStoreRegistry({"file://": obstore.store.LocalStore()})
    parser = virtualizarr.parsers.KerchunkJSONParser(fs_root="file:///", skip_variables=[])
    found = list[Usage]()
    with used(found.append):
        parser(url=f"file://{path}", registry=registry).to_virtual_dataset()
    return {"seconds": found[0].seconds, "added": found[0].added}


def contenders(count: int, path: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the module and the arguments of each that is measured at this size."""
    every = {
        "refshard": (MANIFESTS, ("open", "refshard", path)),
        "compiled": (MANIFESTS, ("compiled", "refshard", path)),
    }
    if count <= LARGEST_FOR_FSSPEC:
        every["fsspec"] = (MANIFESTS, ("open", "fsspec", path))
    if count <= LARGEST_FOR_VIRTUALIZARR and find_spec("virtualizarr") is not None:
        every["VirtualiZarr"] = (MODULE, (path,))
    return every


def main() -> None:
    """Write the sets, open them, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description="Opening sets as they grow.")
    parser.add_argument("--quick", action="store_true", help=f"up to {QUICK[-1]:,} references")
    parser.add_argument("--child", default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(child(given.child)))
        return
    began = time.perf_counter()
    for count in QUICK if given.quick else SIZES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "refs.json")
            write(path, count, "compact")
            repeats = 1 if given.quick or count > LARGEST_FOR_FSSPEC else REPEATS
            figures = {}
            for name, (module, arguments) in contenders(count, str(path)).items():
                if name == "compiled":
                    in_turns(module, [arguments], 1)  # which keeps it
                (figures[name],) = in_turns(module, [arguments], repeats)
        seconds = {name: found["seconds"] for name, found in figures.items()}
        memory = {name: max(found["added"], 0.0) for name, found in figures.items()}
        baseline = "fsspec" if "fsspec" in figures else None
        keep(Case("growth", f"open {count:,}", "s", seconds, ("refshard", "compiled"), baseline, size=count))
        keep(Case("growth", f"memory of {count:,}", "B", memory, ("refshard", "compiled"), baseline, size=count))
        shown = (f"{name} {seconds[name] * 1e3:.0f} ms +{memory[name] / 1e6:.1f} MB" for name in figures)
        print(f"{count:>10,}  {'   '.join(shown)}", flush=True)
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
