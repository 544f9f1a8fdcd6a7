"""kerchunk makes the same references whether ``reference`` is fsspec's filesystem or ours."""

from __future__ import annotations

import copy
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.reference import LazyReferenceMapper, ReferenceFileSystem

from refshard_fs import RefShardFileSystem, replace_reference_filesystem

pytest.importorskip("kerchunk", minversion="0.2.8", reason="earlier ones are for zarr 2")
import kerchunk.combine
import kerchunk.df
import kerchunk.utils

COMBINED: dict[str, Any] = {"concat_dims": ["time"], "identical_dims": ["x"], "remote_protocol": "file"}

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of kerchunk and zarr, whatever the filesystem
]


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    fsspec.filesystem("memory").store.clear()
    yield
    fsspec.register_implementation("reference", ReferenceFileSystem, clobber=True)
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def sets(tmp_path: Path) -> list[dict[str, Any]]:
    """Three reference sets of two steps of time each."""
    return [_write_set(tmp_path, day) for day in range(3)]


def _write_set(folder: Path, day: int) -> dict[str, Any]:
    refs: dict[str, Any] = {".zgroup": '{"zarr_format":2}', ".zattrs": "{}"}
    arrays = {
        "t": (["time", "x"], np.arange(6.0).reshape(2, 3) + day),
        "time": (["time"], np.array([2.0, 3]) + 10 * day),
        "x": (["x"], np.arange(3.0)),
        "junk": (["x"], np.ones(3)),
    }
    for name, (dimensions, values) in arrays.items():
        (folder / f"{name}{day}").write_bytes(values.tobytes())
        meta = {"zarr_format": 2, "shape": values.shape, "chunks": values.shape, "dtype": "<f8", "order": "C"}
        refs[f"{name}/.zarray"] = json.dumps({**meta, "fill_value": None, "filters": None, "compressor": None})
        refs[f"{name}/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": dimensions})
        refs[f"{name}/{'.'.join('0' * values.ndim)}"] = [str(folder / f"{name}{day}"), 0, values.nbytes]
    return {"version": 1, "refs": refs}


def _run_with_both(make: Callable[[], Any]) -> tuple[Any, Any]:
    fsspec.register_implementation("reference", ReferenceFileSystem, clobber=True)
    theirs = make()
    replace_reference_filesystem()
    assert fsspec.get_filesystem_class("reference") is RefShardFileSystem
    return theirs, make()


def _flatten(refs: Any) -> dict[str, Any]:
    """Return references with parsed inline JSON, to compare them without spaces and the order of members."""
    found = {}
    for key, value in dict(refs.get("refs", refs)).items():
        value = value.decode("latin-1") if isinstance(value, bytes) else value
        found[key] = json.loads(value) if isinstance(value, str) and value.startswith("{") else value
    return found


def _append(sets: list[dict[str, Any]]) -> Any:
    first = kerchunk.combine.MultiZarrToZarr(sets[:2], **COMBINED).translate()
    return kerchunk.combine.MultiZarrToZarr.append(sets[2:], original_refs=first, **COMBINED).translate()


RECIPES: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "combined": lambda sets: kerchunk.combine.MultiZarrToZarr(sets, **COMBINED).translate(),
    "without a variable": lambda sets: kerchunk.combine.MultiZarrToZarr(
        sets, preprocess=kerchunk.combine.drop("junk"), **COMBINED
    ).translate(),
    "appended": _append,
    "subchunked": lambda sets: kerchunk.utils.subchunk(sets[0], "t", 2),
    "inlined": lambda sets: kerchunk.utils.do_inline(sets[0], 1000, remote_protocol="file"),
    "inlined arrays": lambda sets: kerchunk.utils.inline_array(sets[0], threshold=1000),
    "renamed": lambda sets: kerchunk.utils.rename_target(
        sets[0], {url[0]: "s3://elsewhere" for url in sets[0]["refs"].values() if isinstance(url, list)}
    ),
    "consolidated": lambda sets: kerchunk.utils.consolidate(sets[0]["refs"]),
    "merged": lambda sets: kerchunk.combine.merge_vars([sets[0], sets[0]]),
    "one array concatenated": lambda sets: kerchunk.combine.concatenate_arrays(
        sets, path="t", storage_options={"remote_protocol": "file"}
    ),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_kerchunk_combines_our_and_fsspecs_sets_alike(recipe: str, sets: list[dict[str, Any]]) -> None:
    theirs, ours = _run_with_both(lambda: RECIPES[recipe](copy.deepcopy(sets)))
    assert _flatten(ours) == _flatten(theirs)


def test_auto_dask_makes_the_same_references(sets: list[dict[str, Any]], tmp_path: Path) -> None:
    pytest.importorskip("dask")
    for number, refs in enumerate(sets):
        (tmp_path / f"{number}.json").write_text(json.dumps(refs))
    theirs, ours = _run_with_both(
        lambda: kerchunk.combine.auto_dask(
            [str(tmp_path / f"{number}.json") for number in range(3)],
            single_driver=kerchunk.combine.JustLoad,
            single_kwargs={},
            mzz_kwargs={key: COMBINED[key] for key in ("concat_dims", "identical_dims")},
            n_batches=2,
            remote_protocol="file",
        )
    )
    assert _flatten(ours) == _flatten(theirs)


def test_parquet_sets_are_made_and_appended_to(sets: list[dict[str, Any]]) -> None:
    pytest.importorskip("fastparquet")
    memory = fsspec.filesystem("memory")

    def make() -> dict[str, Any]:
        memory.store.clear()
        lazy = LazyReferenceMapper.create("memory://made.parq", fs=memory, record_size=2)
        kerchunk.combine.MultiZarrToZarr(copy.deepcopy(sets[:2]), out=lazy, **COMBINED).translate()
        lazy = LazyReferenceMapper("memory://made.parq", fs=memory)
        kerchunk.combine.MultiZarrToZarr.append(copy.deepcopy(sets[2:]), original_refs=lazy, **COMBINED).translate()
        found = RefShardFileSystem("memory://made.parq", remote_protocol="file")
        return {
            key: found.cat(key) for key in found.find("") if "/" in key and not key.endswith(("/.zarray", ".zattrs"))
        }

    theirs, ours = _run_with_both(make)
    assert ours == theirs
    assert {"t/0.0", "t/1.0", "t/2.0"} <= ours.keys()


def test_parquet_sets_are_made_of_json_sets(sets: list[dict[str, Any]], tmp_path: Path) -> None:
    pytest.importorskip("fastparquet")
    (tmp_path / "refs.json").write_text(json.dumps(sets[0]))

    def make() -> dict[str, Any]:
        kerchunk.df.refs_to_dataframe(str(tmp_path / "refs.json"), "memory://made.parq", record_size=4)
        return RefShardFileSystem("memory://made.parq", remote_protocol="file").references.copy()  # type: ignore[attr-defined,no-any-return]

    theirs, ours = _run_with_both(make)
    assert ours == theirs


def test_members_of_archives_become_ranges(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("data1", b"piece of data")
    url = f"zip://data1::file://{tmp_path}/archive.zip"
    theirs, ours = _run_with_both(
        lambda: kerchunk.utils.dereference_archives({"a": b"stuff", "b": [url], "c": [url, 5, 2]})
    )
    assert ours == theirs
    fs = fsspec.filesystem("reference", fo=ours)
    assert fs.cat(["a", "b", "c"]) == {"a": b"stuff", "b": b"piece of data", "c": b" o"}
