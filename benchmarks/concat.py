"""A thousand reference sets of a thousand references made one, and grown, beside kerchunk's MultiZarrToZarr.

    python -m benchmarks.concat [--quick] [--large]

Both take the same dicts, and in turn the same files; what they return has the same references and the same times. The
set is then opened by fsspec's `reference`, beside a document that names the thousand sets, and a day appended to both.
``--quick``: 100 sets. ``--large``: also a thousand sets of 10,000 references, ours alone.
"""

from __future__ import annotations

import argparse
import base64
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import zarr
from kerchunk.combine import MultiZarrToZarr

import refshard_fs
from benchmarks.measure import Goal, Row, show

SETS, QUICK = 1000, 100
STEPS, PLACES = 10, 100  # chunks of one set along each dimension


def part(number: int, steps: int = STEPS) -> dict[str, Any]:
    """Return one set: a variable in chunks of one, its times and places inline."""

    def array(shape: list[int], dtype: str, chunks: list[int]) -> str:
        meta = {"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": dtype, "order": "C"}
        return json.dumps(meta | {"compressor": None, "filters": None, "fill_value": None})

    def values(start: int, count: int) -> str:
        return "base64:" + base64.b64encode(np.arange(start, start + count, dtype="<f8").tobytes()).decode()

    refs: dict[str, Any] = {".zgroup": '{"zarr_format": 2}', ".zattrs": "{}"}
    for name, shape, dims in (
        ("air", [steps, PLACES], ["time", "x"]),
        ("time", [steps], ["time"]),
        ("x", [PLACES], ["x"]),
    ):
        refs[f"{name}/.zarray"] = array(shape, "<f4" if name == "air" else "<f8", [1, 1] if name == "air" else shape)
        refs[f"{name}/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": dims})
    refs["time/0"], refs["x/0"] = values(number * steps, steps), values(0, PLACES)
    url = f"s3://bucket/day_{number:05d}.nc"
    refs |= {f"air/{i // PLACES}.{i % PLACES}": [url, 40_000 * i, 40_000] for i in range(steps * PLACES)}
    return {"version": 1, "refs": refs}


def theirs(sets: list[Any]) -> dict[str, Any]:
    """Return the references that kerchunk makes."""
    made = MultiZarrToZarr(sets, concat_dims=["time"], identical_dims=["x"], remote_protocol="memory").translate()
    refs: dict[str, Any] = made["refs"]
    return refs


def ours(sets: list[Any]) -> Any:
    """Return the set that we make."""
    return refshard_fs.concat(sets, dim="time", index_cache=False)


def timed(make: Callable[[list[Any]], Any], sets: list[Any]) -> tuple[float, Any]:
    """Return the seconds of processor time that ``make`` takes, in all threads, and its result.

    Nothing here waits, and what else the machine does is no part of it.
    """
    start = time.process_time()
    made = make(sets)
    return time.process_time() - start, made


def main() -> None:
    """Measure, compare what was made, and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.concat", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} sets")
    parser.add_argument("--large", action="store_true", help="also a thousand sets of 10,000 references, ours alone")
    arguments = parser.parse_args()
    count = QUICK if arguments.quick else SETS
    dicts = [part(number) for number in range(count)]
    ours(dicts[:2])
    theirs(dicts[:2])
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"{number:05d}.json") for number in range(count)]
        for path, refs in zip(paths, dicts, strict=True):
            Path(path).write_text(json.dumps(refs))
        for what, sets in (("dicts", dicts), ("files", paths)):
            mine, made = timed(ours, sets)
            base, expected = timed(theirs, sets)
            compare(made.references, expected)
            rows.append(Row(f"{count} sets of {STEPS * PLACES} references, {what}", "s", base, mine, Goal(ratio=20)))
        rows += growing(Path(folder), paths, expected)
    if arguments.large:
        del dicts
        rows += large()
    show("concat", rows, "kerchunk", "refshard")


def growing(folder: Path, paths: list[str], expected: dict[str, Any]) -> list[Row]:
    """Return the lines about sets that grow by a day, and about a document that names its parts."""
    rows = []
    count, day = len(paths), str(folder / "day.json")
    Path(day).write_text(json.dumps(part(count)))
    for name in ("all.json", "theirs.json"):
        (folder / name).write_text(json.dumps({"version": 1, "refs": expected}))
    (folder / "lazy.json").write_bytes(b"")
    mine, lazy = timed(lambda sets: refshard_fs.concat(sets, "time", lazy=True), paths)
    lazy.save(str(folder / "lazy.json"))
    rows.append(Row(f"a document of {count} parts, made", "s", None, mine, Goal()))
    key = f"air/{count * STEPS - 5}.7"

    def looked_up(fs: Any) -> None:
        fs.cat_file("time/0")
        fs.info(key)

    def fsspecs(sets: list[Any]) -> None:
        looked_up(fsspec.filesystem("reference", fo=sets[0], remote_protocol="memory", skip_instance_cache=True))

    def refshards(sets: list[Any]) -> None:
        looked_up(refshard_fs.RefShardFileSystem(sets[0], skip_instance_cache=True, index_cache=False))

    base, _ = timed(fsspecs, [str(folder / "theirs.json")])
    mine, _ = timed(refshards, [str(folder / "lazy.json")])
    rows.append(Row(f"{count} parts opened: times, one chunk", "s", base, mine, Goal()))

    def theirs_appended(sets: list[Any]) -> None:
        original = json.loads((folder / "theirs.json").read_text())
        grown = MultiZarrToZarr.append(
            sets, original, concat_dims=["time"], identical_dims=["x"], remote_protocol="memory"
        )
        (folder / "theirs.json").write_text(json.dumps(grown.translate()))

    base, _ = timed(theirs_appended, [day])
    for name, what in (("all.json", "JSON set"), ("lazy.json", "document")):
        mine, _ = timed(lambda sets, name=name: refshard_fs.append(folder / name, sets[0], "time"), [day])
        rows.append(Row(f"a day appended to a {what} of {count}", "s", base, mine, Goal()))
    return rows


def large() -> list[Row]:
    """Return the lines about sets of 10,000 references; dicts of which are many gigabytes, and so only a tenth."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"{number:05d}.json") for number in range(SETS)]
        for number, path in enumerate(paths):
            Path(path).write_text(json.dumps(part(number, 10 * STEPS)))
        mine, made = timed(ours, paths)
        assert len(made) > SETS * 10_000
        rows.append(Row(f"{SETS} sets of 10,000 references, files", "s", None, mine, Goal(most=30)))
    dicts = [part(number, 10 * STEPS) for number in range(SETS // 10)]
    mine, _ = timed(ours, dicts)
    rows.append(Row(f"{SETS // 10} sets of 10,000 references, dicts", "s", None, mine, Goal(most=3)))
    return rows


def compare(made: Any, expected: dict[str, Any]) -> None:
    """See that both have the same chunks and times."""
    theirs_air = {key: value for key, value in expected.items() if key.startswith("air/") and ".z" not in key}
    assert {key: made[key] for key in theirs_air} == theirs_air
    assert sum(key.startswith("air/") and ".z" not in key for key in made) == len(theirs_air)
    for name in ("time", "x"):
        values = [np.asarray(_values(refs, name)) for refs in (made, expected)]
        np.testing.assert_array_equal(*values)


def _values(refs: Any, name: str) -> Any:
    """Return the values of an array that is inline."""
    fs = refshard_fs.RefShardFileSystem({key: refs[key] for key in refs if key.startswith(name + "/")})
    return zarr.open_array(fs.get_mapper(name), mode="r")[...]


if __name__ == "__main__":
    main()
