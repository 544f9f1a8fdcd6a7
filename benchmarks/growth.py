"""Measure time and memory of opening reference sets of 10,000 to 10 million references.

    python -m benchmarks.growth [--quick]

The sets are compact JSON as kerchunk writes it. Each set is opened in a new process that has imported everything.
*compiled* opens a set from the index cache. fsspec's filesystem does not open the largest set, for which it needs about
5 GB; VirtualiZarr (``KerchunkJSONParser``, to a virtual dataset) opens only sets of up to 100,000 references.
``--quick``: up to 200,000 references.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from benchmarks.manifests import MODULE as MANIFESTS
from benchmarks.manifests import write_set
from benchmarks.measure import Usage, measure_usage, run_in_turns
from benchmarks.record import Case, record_case

MODULE = "benchmarks.growth"
SIZES, QUICK = (10_000, 100_000, 1_000_000, 10_000_000), (10_000, 50_000, 200_000)
LARGEST_FOR_FSSPEC, LARGEST_FOR_VIRTUALIZARR = 1_000_000, 100_000
REPEATS = 3


def measure_virtualizarr(path: str) -> dict[str, float]:
    """Return the seconds and the bytes of memory in which VirtualiZarr opens the set at ``path``."""
    import obspec_utils.registry
    import obstore.store
    import virtualizarr
    import virtualizarr.parsers

    registry = obspec_utils.registry.ObjectStoreRegistry({"file://": obstore.store.LocalStore()})
    parser = virtualizarr.parsers.KerchunkJSONParser(fs_root="file:///", skip_variables=[])
    found = list[Usage]()
    with measure_usage(found.append):
        parser(url=f"file://{path}", registry=registry).to_virtual_dataset()
    return {"seconds": found[0].seconds, "added": found[0].added}


def list_contenders(count: int, path: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the module and the arguments of each reader that opens sets of this size, by name."""
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
        print(json.dumps(measure_virtualizarr(given.child)))
        return
    began = time.perf_counter()
    for count in QUICK if given.quick else SIZES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "refs.json")
            write_set(path, count, "compact")
            repeats = 1 if given.quick or count > LARGEST_FOR_FSSPEC else REPEATS
            figures = {}
            for name, (module, arguments) in list_contenders(count, str(path)).items():
                if name == "compiled":
                    run_in_turns(module, [arguments], 1)  # writes the index cache
                (figures[name],) = run_in_turns(module, [arguments], repeats)
        seconds = {name: found["seconds"] for name, found in figures.items()}
        memory = {name: max(found["added"], 0.0) for name, found in figures.items()}
        baseline = "fsspec" if "fsspec" in figures else None
        record_case(Case("growth", f"open {count:,}", "s", seconds, ("refshard", "compiled"), baseline, size=count))
        record_case(Case("growth", f"memory of {count:,}", "B", memory, ("refshard", "compiled"), baseline, size=count))
        shown = (f"{name} {seconds[name] * 1e3:.0f} ms +{memory[name] / 1e6:.1f} MB" for name in figures)
        print(f"{count:>10,}  {'   '.join(shown)}", flush=True)
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
