"""Open, list and pickle large reference sets, compared with fsspec's ReferenceFileSystem.

    python -m benchmarks.manifests [--quick] [--large]

The sets have a million references (``--quick``: 200,000) in two arrays, with several spellings of the JSON. Every
measurement runs in a new process that has imported everything and opened a small set. Contenders take turns, and the
table has medians. ``--large`` adds a set of ten million references, with a limit of 4 GB of address space.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import Goal, Row, Usage, measure_usage, print_table, run_in_turns

MODULE = "benchmarks.manifests"
COUNT, QUICK = 1_000_000, 200_000
LARGE = 10_000_000
URL = "s3://noaa-example-bucket/archive/2021"
DIMENSIONS = '{"_ARRAY_DIMENSIONS":["time","y","x"]}'
SMALL = {".zgroup": '{"zarr_format":2}', "a": ["/nowhere", 0, 1]}


def iter_text(
    count: int, url: str, *, separators: tuple[str, str], escape: bool = False, indent: str = ""
) -> Iterator[str]:
    """Yield the text of a set of ``count`` references, piece by piece."""
    comma, colon = separators
    steps = count // 200
    array = {"zarr_format": 2, "shape": [steps, 1000, 1000], "chunks": [1, 100, 100], "dtype": "<f4", "order": "C"}
    array |= {"compressor": None, "filters": None, "fill_value": None}
    metadata = {".zgroup": {"zarr_format": 2}, "air/.zarray": array, "wind/.zarray": array}
    consolidated = json.dumps({"zarr_consolidated_format": 1, "metadata": metadata})
    line, slash = ("\n" + indent if indent else ""), "\\/" if escape else "/"
    templates = json.dumps({"u": URL})
    yield f'{{"version"{colon}1{comma}"templates"{colon}{templates}{comma}"refs"{colon}{{'
    yield f'{line}".zmetadata"{colon}{json.dumps(consolidated)}'
    for name in ("air", "wind"):
        yield f'{comma}{line}"{name}/.zarray"{colon}{json.dumps(json.dumps(array))}'
        yield f'{comma}{line}"{name}/.zattrs"{colon}{json.dumps(DIMENSIONS)}'
        for step in range(steps):
            target = f"{url}/file_{step // 10:05d}.nc".replace("/", slash)
            inner = line + indent if indent else ""
            yield "".join(
                f'{comma}{line}"{name}{slash}{step}.{i // 10}.{i % 10}"{colon}[{inner}"{target}"{comma}{inner}'
                f"{8192 + (step * 100 + i) * 40003 % 400_000_000}{comma}{inner}{40003 - i}{line}]"
                for i in range(100)
            )
    yield "}}"


def make_set(name: str, count: int) -> dict[str, Any]:
    """Return a set of about ``count`` references with the structure ``name``, one of `SHAPES`."""
    array: dict[str, Any] = {"zarr_format": 2, "dtype": "<f4", "order": "C", "compressor": None, "filters": None}
    array |= {"fill_value": None, "shape": [count, 100], "chunks": [1, 10]}
    refs: dict[str, Any] = {".zmetadata": '{"metadata":{}}', ".zgroup": '{"zarr_format":2}'}
    large = {**refs, "air/.zarray": json.dumps(array)}
    ranges = [[f"{URL}/file_{i // 1000:05d}.nc", 8192 + i * 40003, 40003 - i % 100] for i in range(count)]
    match name:
        case "arrays of 10 chunks" | "arrays of 100 chunks":
            each = int(name.split()[2])
            small = json.dumps(array | {"shape": [10 * each], "chunks": [10]})
            for i in range(count // each):
                refs[f"group/v{i:05d}/.zarray"] = small
                refs |= {f"group/v{i:05d}/{j}": ranges[i * each + j] for j in range(each)}
        case "/ in keys":
            slashes = json.dumps(array | {"dimension_separator": "/"})
            refs |= {"air/.zarray": slashes} | {f"air/{i // 10}/{i % 10}": r for i, r in enumerate(ranges)}
        case "version 3":
            grid = {"name": "regular", "configuration": {"chunk_shape": [1, 10]}}
            meta = {"zarr_format": 3, "node_type": "array", "shape": [count, 100], "chunk_grid": grid, "codecs": []}
            meta |= {"chunk_key_encoding": {"name": "default"}, "data_type": "float32", "fill_value": 0}
            refs["air/zarr.json"] = json.dumps(meta)
            refs |= {f"air/c/{i // 10}/{i % 10}": r for i, r in enumerate(ranges)}
        case "in any order":
            items = [*large.items(), *((f"air/{i // 10}.{i % 10}", r) for i, r in enumerate(ranges))]
            random.Random(1).shuffle(items)
            refs = dict(items)
        case "one in three inline":
            refs = large | {f"air/{i // 10}.{i % 10}": r if i % 3 else DATA for i, r in enumerate(ranges)}
        case "all inline":
            refs = large | {f"air/{i // 10}.{i % 10}": DATA for i in range(count)}
        case "files of their own":
            own = [[f"{URL}/{i // 1000:05d}/file_{i:07d}.nc", 8192, 40003 - i % 100] for i in range(count)]
            refs = large | {f"air/{i // 10}.{i % 10}": r for i, r in enumerate(own)}
        case "arrays of one chunk" | "arrays of one chunk, all different":
            different = name.endswith("different")
            small = json.dumps(array | {"shape": [10], "chunks": [10]})
            for i in range(count):
                own_text = json.dumps(array | {"shape": [1 + i % 10], "chunks": [10], "fill_value": i})
                refs[f"v{i:06d}/.zarray"] = own_text if different else small
                refs[f"v{i:06d}/0"] = ranges[i]
        case "no chunks":
            refs |= {f"folder{i % 100}/file-{i}.bin": r for i, r in enumerate(ranges)}
    return refs


DATA = "base64:" + "QUJD" * 15
SHAPES = (
    "arrays of 10 chunks",
    "arrays of 100 chunks",
    "/ in keys",
    "version 3",
    "in any order",
    "one in three inline",
    "all inline",
    "no chunks",
    "files of their own",
    "arrays of one chunk",
    "arrays of one chunk, all different",
)

COMPACT, SPACED = (",", ":"), (", ", ": ")
SPELLINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "compact": (URL, {"separators": COMPACT}),
    "templated": ("{{u}}", {"separators": COMPACT}),
    "spaced": (URL, {"separators": SPACED}),
    "escaped": (URL, {"separators": COMPACT, "escape": True}),
    "indented": (URL, {"separators": (",", ": "), "indent": "  "}),
}


def write_set(path: Path, count: int, spelling: str) -> None:
    """Write a set to ``path``."""
    url, options = SPELLINGS[spelling]
    with path.open("w") as file:
        file.writelines(iter_text(count, url, **options))


def make_reader(name: str) -> Callable[..., Any]:
    """Return a function that opens a set with one of the contenders; it has opened a small set before."""
    import fsspec

    if name == "fsspec":
        from fsspec.implementations.reference import ReferenceFileSystem as Incumbent

        def make(fo: Any, **options: Any) -> Any:
            return Incumbent(fo, remote_protocol="file", skip_instance_cache=True)
    else:
        from refshard_fs import RefShardFileSystem

        fsspec.register_implementation("refshard", RefShardFileSystem, clobber=True)

        def make(fo: Any, **options: Any) -> Any:
            return RefShardFileSystem(fo, remote_protocol="file", **{"index_cache": False, **options})

    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder, "refs.json")
        small.write_text(json.dumps({"version": 1, "templates": {"u": "v"}, "refs": SMALL}))
        make(str(small)).cat(".zgroup")
        make(dict(SMALL)).cat(".zgroup")
    return make


def run_child(what: str, contender: str, path: str) -> dict[str, float]:
    """Make one measurement in this process, and return its figures by name: seconds, and bytes of memory."""
    if what == "import":
        start = time.perf_counter()
        exec(path)  # noqa: S102  # one of the statements below
        return {"seconds": time.perf_counter() - start}
    make, found = make_reader(contender), list[Usage]()
    match what:
        case "open" | "compiled":
            folder = str(Path(path).parent / "index-cache")
            with measure_usage(found.append):
                fs = make(path, index_cache=folder if what == "compiled" else False)
                fs.cat(".zmetadata")
        case "shape":
            with measure_usage(found.append):
                fs = make(path)
                fs.cat(".zmetadata")
            keys = json.loads(Path(path).with_suffix(".keys").read_text())
            with measure_usage(found.append):
                fs.ls("")
                fs.ls(keys[0].rpartition("/")[0])
                references = [fs.references[key] for key in keys]
            assert len(references) == len(keys)
            opened, looked = found
            return {"seconds": opened.seconds, "all": opened.seconds + looked.seconds, "added": opened.added}
        case "list":
            fs = make(path)
            fs.cat(".zmetadata")
            with measure_usage(found.append):
                fs.ls("")
            with measure_usage(found.append):
                assert len(fs.ls("air")) > 1000
            return {"root": found[0].seconds, "array": found[1].seconds}
        case "recreate":
            fs = make(path)
            fs.cat(".zmetadata")
            stored = pickle.dumps(fs)
            figures = {}
            for name, again in (
                ("asynchronous", lambda: type(fs)(*fs.storage_args, **{**fs.storage_options, "asynchronous": True})),
                ("unpickle", lambda: pickle.loads(stored)),  # noqa: S301  # its own
            ):
                seconds, reads = [], []
                for _ in range(3):
                    start = time.perf_counter()
                    other = again()
                    seconds.append(time.perf_counter() - start)
                    if name == "unpickle":
                        other.cat(".zmetadata")
                        reads.append(time.perf_counter() - start)
                figures[name] = sorted(seconds)[1]
            return {**figures, "read": sorted(reads)[1]}
        case "pickle":
            document = json.loads(Path(path).read_text())
            with measure_usage(found.append):
                fs = make(document)
            with measure_usage(found.append):
                stored = pickle.dumps(fs)
            return {"open": found[0].seconds, "seconds": found[1].seconds, "bytes": len(stored)}
    return {"seconds": found[0].seconds, "added": found[0].added, "peak": found[0].peak}


def measure_all(folder: Path, count: int, repeats: int) -> list[Row]:
    """Make all measurements with sets of ``count`` references, and return the rows of the table."""
    rows: list[Row] = []
    goals = {"compact": Goal(4), "templated": Goal(8)}
    for spelling in SPELLINGS:
        path = str(folder / f"{spelling}.json")
        write_set(Path(path), count, spelling)
        theirs, ours = run_in_turns(MODULE, [("open", "fsspec", path), ("open", "refshard", path)], repeats)
        rows.append(Row(f"open, {spelling}", "s", theirs["seconds"], ours["seconds"], goals.get(spelling, Goal(1))))
        memory = Goal(5) if spelling in goals else Goal(1)
        rows.append(Row("   added memory", "B", theirs["added"], ours["added"], memory))
        rows.append(Row("   added memory, peak", "B", theirs["peak"], ours["peak"], memory))
    for name in SHAPES:
        path = str(folder / "shape.json")
        size = count if name == "arrays of 100 chunks" else min(count, 100_000)
        document = make_set(name, size)
        Path(path).write_text(json.dumps(document, separators=COMPACT))
        keys = random.Random(1).sample([key for key in document if "/" in key and key[-1] != "y"], 1000)
        Path(path).with_suffix(".keys").write_text(json.dumps(keys))
        theirs, ours = run_in_turns(MODULE, [("shape", "fsspec", path), ("shape", "refshard", path)], repeats)
        rows.append(Row(f"open {size:,}, {name}", "s", theirs["seconds"], ours["seconds"], Goal(1)))
        rows.append(Row("   and list, and look up 1000", "s", theirs["all"], ours["all"], Goal(1)))
        rows.append(Row("   added memory", "B", theirs["added"], ours["added"], Goal(1)))
    path = str(folder / "compact.json")
    run_in_turns(MODULE, [("compiled", "refshard", path)], 1)  # writes the index cache
    theirs, ours = run_in_turns(MODULE, [("open", "fsspec", path), ("compiled", "refshard", path)], repeats)
    rows.append(Row("open, compiled", "s", theirs["seconds"], ours["seconds"], Goal(most=0.010)))
    rows.append(Row("   added memory", "B", theirs["added"], ours["added"], Goal(most=15e6)))
    theirs, ours = run_in_turns(MODULE, [("list", "fsspec", path), ("list", "refshard", path)], repeats)
    rows.append(Row('ls(""), the first', "s", theirs["root"], ours["root"], Goal(most=0.001)))
    both = theirs["root"] + theirs["array"]
    rows.append(Row(f"ls of {count // 2} chunks, the first", "s", both, ours["array"], Goal(3)))
    theirs, ours = run_in_turns(MODULE, [("recreate", "fsspec", path), ("recreate", "refshard", path)], min(repeats, 3))
    rows.append(
        Row("re-create, asynchronous=True", "s", theirs["asynchronous"], ours["asynchronous"], Goal(most=0.001))
    )
    rows.append(Row("unpickle where it is", "s", theirs["unpickle"], ours["unpickle"], Goal(most=0.001)))
    rows.append(Row("   and read", "s", theirs["read"], ours["read"], Goal()))
    theirs, ours = run_in_turns(MODULE, [("pickle", "fsspec", path), ("pickle", "refshard", path)], min(repeats, 3))
    rows.append(Row("open a dict", "s", theirs["open"], ours["open"], Goal(1)))
    rows.append(Row("pickle it", "s", theirs["seconds"], ours["seconds"], Goal(4)))
    rows.append(Row("   its size", "B", theirs["bytes"], ours["bytes"], Goal(8)))
    rows.append(Row("bytes per reference", "B", None, compute_bytes_per_reference(Path(path)), Goal(most=32)))
    statements = ("import fsspec, numpy, aiohttp", "import refshard_fs", "from refshard_fs import RefShardFileSystem")
    imports, bytecode = [("import", "-", s) for s in statements], str(folder / "bytecode")
    run_in_turns(MODULE, imports, 1, bytecode)  # compiles the modules, as an installation does
    base, ours, whole = run_in_turns(MODULE, imports, 2 * repeats + 1, bytecode)
    goal = Goal(1 / 1.3)
    rows.append(Row("import (base: fsspec, numpy, aiohttp)", "s", base["seconds"], ours["seconds"], goal))
    rows.append(Row("   with the filesystem", "s", base["seconds"], whole["seconds"], goal))
    return rows


def compute_bytes_per_reference(path: Path) -> float:
    """Return the bytes of memory that the columns of a set take for each reference."""
    from refshard_fs.formats.kerchunk_json.source import JsonIndex

    refs = JsonIndex(str(path)).decode(path.read_bytes())
    return refs.nbytes / len(refs)


def open_large_sets(folder: Path) -> None:
    """Open a set of a million references and then one of ten million, with at most 4 GB of address space."""
    seconds = []
    for count in (LARGE // 10, LARGE):
        path = folder / "large.json"
        write_set(path, count, "compact")
        (ours,) = run_in_turns(MODULE, [("open", "refshard", str(path))], 1)
        seconds.append(ours["seconds"])
        print(
            f"{count:>10,} references, {path.stat().st_size / 1e6:.0f} MB: {ours['seconds']:.2f} s,"
            f" +{ours['added'] / 1e6:.0f} MB, peak +{ours['peak'] / 1e6:.0f} MB",
            flush=True,
        )
    print(f"ten times as many take {seconds[1] / seconds[0]:.1f} times as long")


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(run_child(*arguments.child)))
        return
    with tempfile.TemporaryDirectory() as folder:
        count, repeats = (QUICK, 1) if arguments.quick else (COUNT, 3)
        print(f"{count:,} references, medians of {repeats}")
        print_table("manifests", measure_all(Path(folder), count, repeats), "fsspec", "refshard")
        if arguments.large:
            resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
            open_large_sets(Path(folder))


if __name__ == "__main__":
    sys.exit(main())
