"""Make sources in memory, of every kind that pictures show."""

from __future__ import annotations

import json
from typing import Any

from refshard_fs import RefShardFileSystem


def make_source(
    counts: tuple[int, ...], where: Any, missing: Any = (), path: str = "air", dims: list[str] | None = None
) -> RefShardFileSystem:
    """Return a source of an array with one element in each chunk; ``where(number)`` returns the reference of a chunk.

    Numbers in ``missing`` have none.
    """
    meta = {
        "zarr_format": 2,
        "shape": list(counts),
        "chunks": [1] * len(counts),
        "dtype": "|u1",
        "order": "C",
        "fill_value": 0,
        "filters": None,
        "compressor": None,
    }
    refs: dict[str, Any] = {f"{path}/.zarray": json.dumps(meta)}
    if dims is not None:
        refs[f"{path}/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": dims})
    numbers = [()]
    for count in counts:
        numbers = [(*coords, i) for coords in numbers for i in range(count)]  # type: ignore[misc]  # lengthening
    for number, coords in enumerate(numbers):
        if number not in missing:
            refs[f"{path}/{'.'.join(map(str, coords)) or '0'}"] = where(number)
    return RefShardFileSystem(refs)


def place_in_files(each: int, size: int = 100, stem: str = "s3://bucket/data/f") -> Any:
    """Return a function from chunk numbers to references: ``each`` chunks lie in one file, one after the other."""
    return lambda number: [f"{stem}{number // each}.nc", number % each * size, size]


def make_sources() -> dict[str, tuple[RefShardFileSystem, Any]]:
    """Return sources by name, each with a selection."""
    return {
        "scalar": (make_source((), place_in_files(1)), "air[...]"),
        "one chunk": (make_source((1, 1), place_in_files(1)), "air[0]"),
        "line": (make_source((300,), place_in_files(50)), "air[10:60]"),
        "plane of one file": (make_source((20, 30), place_in_files(600), range(7)), "air[0:3, 2:9]"),
        "few files": (make_source((4, 3, 5), place_in_files(12), dims=["time", "lat", "lon"]), "air[1, :, 2]"),
        "many files": (make_source((40, 10), place_in_files(10)), "air[5:15]"),
        "a file a chunk": (make_source((9, 9), lambda n: [f"s3://bucket/{n}"]), "air[0]"),
        "inline": (make_source((6,), lambda n: "x"), "air[1:3]"),
        "some of all": (
            make_source((30,), lambda n: "x" if n % 3 else [f"https://h/{n % 2}.bin", n, 9], [4]),
            "air[::2]",
        ),
        "nothing there": (make_source((8, 8), place_in_files(1), range(64)), "air[0]"),
        "empty": (make_source((0, 4), place_in_files(1)), "air[:, 0]"),
        "long names": (
            make_source(
                (3, 3),
                place_in_files(2, stem="s3://" + "bücket-界" * 30 + "/" + "W" * 400),
                path="W" * 300 + "/" + "m" * 99,
            ),
            None,
        ),
        "backwards": (make_source((50,), lambda n: ["s3://b/one", 5000 - 100 * n, 100]), "air[3:5]"),
    }


SOURCES = [
    "values/air.kerchunk.json",
    "values/cesm2_native.parq",
    "values/lcmap.tifffile.json",
    "refs/arg-wrf-parquet/combined.parq",
    "refs/titiler-reference/reference.json",
    "shards/zarrs-rust-8x8",
    "shards/zarrita-py-2d-ragged",
    "shards/zarrita-py-1d-filled",
    "shards/zarr-java-index-start",
    "bcolz/table.bcolz",
    "shards-v2/pr876-zlib-1d",
    "zips/ome-zarr-simple-0.5.zip",
    "manifests/virtualizarr-1.0.0/combined.zarr",
]


def make_metadata(shape: list[int], chunks: list[int]) -> dict[str, Any]:
    common = {"dtype": "|u1", "order": "C", "fill_value": 0, "filters": None, "compressor": None}
    return {"zarr_format": 2, "shape": shape, "chunks": chunks, **common}
