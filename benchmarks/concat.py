"""Join a thousand sets of a thousand references, and append to the result, with this package and with kerchunk.

    python -m benchmarks.concat [--quick] [--large]

`refshard_fs.concat` and kerchunk's MultiZarrToZarr join the same sets, as dicts and as files, and must return the same
references and times. Then fsspec's `reference` opens kerchunk's result, this package opens a lazy document that names
the thousand sets, and a day is appended to the results of both packages. ``--quick``: 100 sets. ``--large``: also a
thousand sets of 10,000 references, with this package only.
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
from benchmarks.measure import Goal, Row, print_table

SETS, QUICK = 1000, 100
STEPS, PLACES = 10, 100  # chunks of one set along each dimension


def make_set(number: int, steps: int = STEPS) -> dict[str, Any]:
    """Return a reference set: a variable in chunks of one element, and its inline coordinates."""

    def encode_metadata(shape: list[int], dtype: str, chunks: list[int]) -> str:
        meta = {"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": dtype, "order": "C"}
        return json.dumps(meta | {"compressor": None, "filters": None, "fill_value": None})

    def encode_values(start: int, count: int) -> str:
        return "base64:" + base64.b64encode(np.arange(start, start + count, dtype="<f8").tobytes()).decode()

    refs: dict[str, Any] = {".zgroup": '{"zarr_format": 2}', ".zattrs": "{}"}
    for name, shape, dims in (
        ("air", [steps, PLACES], ["time", "x"]),
        ("time", [steps], ["time"]),
        ("x", [PLACES], ["x"]),
    ):
        refs[f"{name}/.zarray"] = encode_metadata(
            shape, "<f4" if name == "air" else "<f8", [1, 1] if name == "air" else shape
        )
        refs[f"{name}/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": dims})
    refs["time/0"], refs["x/0"] = encode_values(number * steps, steps), encode_values(0, PLACES)
    url = f"s3://bucket/day_{number:05d}.nc"
    refs |= {f"air/{i // PLACES}.{i % PLACES}": [url, 40_000 * i, 40_000] for i in range(steps * PLACES)}
    return {"version": 1, "refs": refs}


def concat_by_kerchunk(sets: list[Any]) -> dict[str, Any]:
    """Return the references that kerchunk joins from ``sets``."""
    made = MultiZarrToZarr(sets, concat_dims=["time"], identical_dims=["x"], remote_protocol="memory").translate()
    refs: dict[str, Any] = made["refs"]
    return refs


def concat_by_refshard(sets: list[Any]) -> Any:
    """Return the set that this package joins from ``sets``."""
    return refshard_fs.concat(sets, dim="time", index_cache=False)


def time_call(make: Callable[[list[Any]], Any], sets: list[Any]) -> tuple[float, Any]:
    """Return the seconds of processor time that ``make`` takes, in all threads, and its result.

    Joining waits for nothing, and processor time does not depend on other processes of the machine.
    """
    start = time.process_time()
    made = make(sets)
    return time.process_time() - start, made


def main() -> None:
    """Measure, compare the joined sets, and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.concat", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} sets")
    parser.add_argument("--large", action="store_true", help="also a thousand sets of 10,000 references, ours alone")
    arguments = parser.parse_args()
    count = QUICK if arguments.quick else SETS
    dicts = [make_set(number) for number in range(count)]
    concat_by_refshard(dicts[:2])
    concat_by_kerchunk(dicts[:2])
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"{number:05d}.json") for number in range(count)]
        for path, refs in zip(paths, dicts, strict=True):
            Path(path).write_text(json.dumps(refs))
        for what, sets in (("dicts", dicts), ("files", paths)):
            mine, made = time_call(concat_by_refshard, sets)
            base, expected = time_call(concat_by_kerchunk, sets)
            compare(made.references, expected)
            rows.append(Row(f"{count} sets of {STEPS * PLACES} references, {what}", "s", base, mine, Goal(ratio=20)))
        rows += measure_growth(Path(folder), paths, expected)
    if arguments.large:
        del dicts
        rows += measure_large_sets()
    print_table("concat", rows, "kerchunk", "refshard")


def measure_growth(folder: Path, paths: list[str], expected: dict[str, Any]) -> list[Row]:
    """Measure appending a day to sets, and making and opening a lazy document of the parts at ``paths``."""
    rows = []
    count, day = len(paths), str(folder / "day.json")
    Path(day).write_text(json.dumps(make_set(count)))
    for name in ("all.json", "theirs.json"):
        (folder / name).write_text(json.dumps({"version": 1, "refs": expected}))
    (folder / "lazy.json").write_bytes(b"")
    mine, lazy = time_call(lambda sets: refshard_fs.concat(sets, "time", lazy=True), paths)
    lazy.save(str(folder / "lazy.json"))
    rows.append(Row(f"a document of {count} parts, made", "s", None, mine, Goal()))
    key = f"air/{count * STEPS - 5}.7"

    def look_up(fs: Any) -> None:
        fs.cat_file("time/0")
        fs.info(key)

    def open_by_fsspec(sets: list[Any]) -> None:
        look_up(fsspec.filesystem("reference", fo=sets[0], remote_protocol="memory", skip_instance_cache=True))

    def open_by_refshard(sets: list[Any]) -> None:
        look_up(refshard_fs.RefShardFileSystem(sets[0], skip_instance_cache=True, index_cache=False))

    base, _ = time_call(open_by_fsspec, [str(folder / "theirs.json")])
    mine, _ = time_call(open_by_refshard, [str(folder / "lazy.json")])
    rows.append(Row(f"{count} parts opened: times, one chunk", "s", base, mine, Goal()))

    def append_by_kerchunk(sets: list[Any]) -> None:
        original = json.loads((folder / "theirs.json").read_text())
        grown = MultiZarrToZarr.append(
            sets, original, concat_dims=["time"], identical_dims=["x"], remote_protocol="memory"
        )
        (folder / "theirs.json").write_text(json.dumps(grown.translate()))

    base, _ = time_call(append_by_kerchunk, [day])
    for name, what in (("all.json", "JSON set"), ("lazy.json", "document")):
        mine, _ = time_call(lambda sets, name=name: refshard_fs.append(folder / name, sets[0], "time"), [day])
        rows.append(Row(f"a day appended to a {what} of {count}", "s", base, mine, Goal()))
    return rows


def measure_large_sets() -> list[Row]:
    """Measure sets of 10,000 references. A thousand dicts would take many gigabytes, so only a hundred are joined."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"{number:05d}.json") for number in range(SETS)]
        for number, path in enumerate(paths):
            Path(path).write_text(json.dumps(make_set(number, 10 * STEPS)))
        mine, made = time_call(concat_by_refshard, paths)
        assert len(made) > SETS * 10_000
        rows.append(Row(f"{SETS} sets of 10,000 references, files", "s", None, mine, Goal(most=30)))
    dicts = [make_set(number, 10 * STEPS) for number in range(SETS // 10)]
    mine, _ = time_call(concat_by_refshard, dicts)
    rows.append(Row(f"{SETS // 10} sets of 10,000 references, dicts", "s", None, mine, Goal(most=3)))
    return rows


def compare(made: Any, expected: dict[str, Any]) -> None:
    """Raise AssertionError unless both sets have the same chunks and coordinates."""
    theirs_air = {key: value for key, value in expected.items() if key.startswith("air/") and ".z" not in key}
    assert {key: made[key] for key in theirs_air} == theirs_air
    assert sum(key.startswith("air/") and ".z" not in key for key in made) == len(theirs_air)
    for name in ("time", "x"):
        values = [np.asarray(_read_values(refs, name)) for refs in (made, expected)]
        np.testing.assert_array_equal(*values)


def _read_values(refs: Any, name: str) -> Any:
    """Return the values of an inline array of ``refs``."""
    fs = refshard_fs.RefShardFileSystem({key: refs[key] for key in refs if key.startswith(name + "/")})
    return zarr.open_array(fs.get_mapper(name), mode="r")[...]


if __name__ == "__main__":
    main()
