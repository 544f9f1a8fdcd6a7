"""Operations on sets with odd metadata or references succeed, or raise an error that explains the fault.

Sets are changed at random, in few places. Each operation must succeed, or raise an error of this package; any other
error is a defect of the code.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import refshard_fs
from refshard_fs import RefShardError, RefShardFileSystem
from refshard_fs.tools.diff import compare
from refshard_fs.tools.info import make_tree, summarise

V2 = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<i2", "order": "C", "fill_value": 0, "filters": None}
V3 = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4],
    "data_type": "int32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0,
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    "attributes": {"units": "days since 2000-01-01", "calendar": "standard"},
    "dimension_names": ["time"],
}
INDEX = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
SHARDS = {"chunk_shape": [1], "codecs": [{"name": "bytes"}], "index_codecs": INDEX, "index_location": "end"}
MANIFEST = {"0": {"path": "memory://odd", "offset": 0, "length": 16, "etag": "a"}}
SETS: list[dict[str, Any]] = [
    {
        ".zgroup": {"zarr_format": 2},
        "air/.zarray": V2 | {"compressor": {"id": "zlib", "level": 1}},
        "air/.zattrs": {"_ARRAY_DIMENSIONS": ["time"], "units": "K"},
        "air/0": ["memory://odd", 0, 4],
        "air/1": ["memory://odd"],
        "time/.zarray": V2 | {"compressor": None},
        "time/.zattrs": {"_ARRAY_DIMENSIONS": ["time"]},
        "time/0": "abcd",
        ".zmetadata": {"zarr_consolidated_format": 1, "metadata": {"time/.zarray": V2 | {"compressor": None}}},
    },
    {
        "zarr.json": {"zarr_format": 3, "node_type": "group", "attributes": {}},
        "air/zarr.json": V3 | {"codecs": [{"name": "sharding_indexed", "configuration": SHARDS}]},
        "air/c/0": ["memory://odd", 0, 200],
        "time/zarr.json": V3,
        "time/c/0": "base64:AAAAAAEAAAACAAAAAwAAAA==",
        "mapped/zarr.json": V3
        | {"storage_transformers": [{"name": "chunk-manifest-json", "configuration": {"manifest": MANIFEST}}]},
    },
]
VALUES = [None, True, -1, 2**63, 1.5, "", "x", "NaN", [], [1], [[]], {}, {"name": "x"}, {"id": 5}, "é\ud800", "../..",
          [None], ["memory://odd", -1, 5], ["memory://odd", 0, 2**64]]  # fmt: skip


def list_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each object or list in ``value`` with the name or position of each of its members."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, member in members:
        yield value, name
        yield from list_places(member)


def change(document: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    out = copy.deepcopy(document)
    for _ in range(chance.choice((1, 1, 2))):
        holder, name = chance.choice(list(list_places(out)))
        if chance.random() < 0.2:
            del holder[name]
        else:
            holder[name] = copy.deepcopy(chance.choice(VALUES))
    return out


def open_fs(fo: Any) -> RefShardFileSystem:
    return RefShardFileSystem(fo, skip_instance_cache=True)


USES: dict[str, Callable[[dict[str, Any], dict[str, Any], Path], object]] = {
    "check": lambda odd, right, folder: refshard_fs.check(open_fs(odd), "full"),
    "info": lambda odd, right, folder: summarise(open_fs(odd)),
    "tree": lambda odd, right, folder: make_tree(open_fs(odd)),
    "diff": lambda odd, right, folder: compare(open_fs(right), open_fs(odd)),
    "notebook": lambda odd, right, folder: open_fs(odd)._repr_html_(),
    "concat": lambda odd, right, folder: refshard_fs.concat([right, odd], "time"),
    "merge": lambda odd, right, folder: refshard_fs.concat([odd, right]),
    "snapshot": lambda odd, right, folder: refshard_fs.snapshot(odd, shards="inner"),
    "rebase": lambda odd, right, folder: refshard_fs.rebase(odd, {"memory://": "s3://x/"}, missing="ignore"),
    "JSON": lambda odd, right, folder: open_fs(odd).save(str(folder / "odd.json")),
    "parquet": lambda odd, right, folder: open_fs(odd).save(str(folder / "odd.parq")),
    "manifests": lambda odd, right, folder: open_fs(odd).save(str(folder / "odd.zarr")),
}


@pytest.mark.filterwarnings("ignore")  # zarr and xarray warn about odd sets
@pytest.mark.parametrize("count", [30, pytest.param(1000, marks=pytest.mark.fuzz)])
@pytest.mark.parametrize("use", USES)
def test_randomly_changed_sets_raise_only_our_errors(use: str, count: int, tmp_path: Path) -> None:
    chance = random.Random(f"{use} of odd sets")
    for number in range(count):
        right = SETS[number % len(SETS)]
        odd = change(right, chance)
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            USES[use](odd, right, folder)
        except (RefShardError, FileNotFoundError):
            continue
        except Exception as e:  # any other error is a defect
            raise AssertionError(f"{use} of {odd!r}") from e
