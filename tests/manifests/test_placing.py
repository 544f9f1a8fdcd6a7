"""Many small arrays share columns, and are the same tables as if each had its own."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from refshard_fs.core.columns import Tables
from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding
from refshard_fs.core.zarrmeta import dumps
from refshard_fs.formats.kerchunk_json.source import JsonIndex, parse_document
from refshard_fs.references import binary as compiled
from refshard_fs.references.place_small_arrays import Placer
from refshard_fs.references.reference_set import References

ENCODINGS = [
    ChunkKeyEncoding("v2", "."),
    ChunkKeyEncoding("v2", "/"),
    ChunkKeyEncoding("default", "."),
    ChunkKeyEncoding("default", "/"),
]


def metadata(counts: tuple[int, ...], separator: str = ".") -> str:
    array = {"zarr_format": 2, "shape": counts, "chunks": [1] * len(counts), "dtype": "<i2", "order": "C"}
    array |= {"compressor": None, "filters": None, "fill_value": 0, "dimension_separator": separator}
    return dumps(array).decode()


def small_arrays() -> dict[str, Any]:
    """Dense ones, sparse ones, empty ones, one without dimensions, one in the other, both separators."""
    refs: dict[str, Any] = {}
    for n in range(60):
        path = f"g{n % 7}/v{n}"
        refs[f"{path}/.zarray"] = metadata((5, 4), "./"[n % 2])
        refs[f"{path}/.zattrs"] = "{}"
        for i in range(0, 20, 1 + n % 11):
            if n % 5:
                refs[f"{path}/{i // 4}{'./'[n % 2]}{i % 4}"] = [f"u{n}", 100 * n + i, i + 1]
    refs |= {"g0/v0/in/.zarray": metadata((3,)), "g0/v0/in/0": ["in", 1, 2], "g0/v0/in/2": "data"}
    refs |= {"s/.zarray": metadata(()), "s/0": ["whole"], "s/1": ["stray", 1, 2], "g1/v1/9.9": ["stray", 3, 4]}
    return refs


def test_arrays_that_share_columns_are_as_they_were_written() -> None:
    refs = small_arrays()
    for found in (JsonIndex("refs.json").decode(dumps(refs)), parse_document(refs, "refs", {})):
        assert dict(References(found)) == refs
        assert len(found) == len(refs)
        assert "s/0" not in found.side
        assert {key for key in found.side if ".z" not in key} == {"g0/v0/in/2", "s/1", "g1/v1/9.9"}


def test_shared_columns_survive_pickling_and_the_compiled_form() -> None:
    refs = small_arrays()
    found = JsonIndex("refs.json").decode(dumps(refs))
    again = compiled.unpack(memoryview(b"".join(compiled.pack(found))))
    assert dict(References(again)) == refs
    for path, table in found.tables.items():
        one = pickle.loads(pickle.dumps(table))
        assert list(one.rows()) == list(table.rows()) == list(again.tables[path].rows())
        assert len(one) == len(table)
        assert one.nbytes == table.nbytes <= 28 * table.grid.size


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
@pytest.mark.parametrize("path", ["", "a", "a/b"])
@pytest.mark.parametrize("counts", [(), (3,), (2, 3), (2, 1, 2)])
def test_every_chunk_of_a_small_array_has_a_number_of_its_own(
    encoding: ChunkKeyEncoding, path: str, counts: tuple[int, ...]
) -> None:
    grid = ChunkGrid(counts, encoding)
    placer = Placer({"first": ChunkGrid((7,), encoding), path: grid})
    stem = path + "/" if path else ""
    assert placer.numbers([stem + tail for tail in grid.tails()]).tolist() == list(range(7, 7 + grid.size))
    others = ["x", "9.9.9.9.9", "00", "-1", "c", "c/", "1/", "c/9/9/9/9", "0.0.0.0.0", "first"]
    assert set(placer.numbers([stem + other for other in others if other != "c" or counts]).tolist()) == {-1}


def test_tables_that_are_made_when_asked_for_are_a_mapping() -> None:
    refs = small_arrays()
    refs |= {"large/.zarray": metadata((600,)), "large/7": ["u", 1, 2], "empty/.zarray": metadata((600,))}
    tables = JsonIndex("refs.json").decode(dumps(refs)).tables
    assert isinstance(tables, Tables)
    assert sorted(tables) == sorted(key[: -len("/.zarray")] for key in refs if key.endswith("/.zarray"))
    assert len(tables) == len(list(tables))
    assert all(path in tables and tables.grid(path) == tables[path].grid for path in tables)
    assert sorted(tables.full()) == sorted(path for path, table in tables.items() if table)
    assert tables.count() == sum(map(len, tables.values()))
    assert "missing" not in tables
    assert tables.get("missing") is None
    assert tables.grid("missing") is None
    with pytest.raises(KeyError):
        tables["missing"]
