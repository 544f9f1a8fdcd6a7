"""A source in memory exists once in a process, has a compact pickle, and a JSON value with its digest."""

from __future__ import annotations

import gc
import json
import pickle
import subprocess
import sys
from typing import Any

import fsspec
import pytest

from refshard_fs import ManifestError, RefShardFileSystem
from refshard_fs.core.columns import Texts
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.source import in_memory_source

ARRAY = {"zarr_format": 2, "shape": [300, 10], "chunks": [1, 1], "dtype": "|u1", "compressor": None, "fill_value": 0}
ARRAY |= {"order": "C", "filters": None}


def references(step: int = 1) -> dict[str, Any]:
    refs: dict[str, Any] = {"a/.zarray": json.dumps(ARRAY), "a/.zattrs": {"é": [1.5, None]}, "raw": b"\0\xff"}
    refs |= {f"a/{i}.{j}": ["s3://b/x", 100 * i, 2**40 + j] for i in range(0, 300, step) for j in range(10)}
    return refs | {"whole": ["s3://b/y"], "default": [None, 1, 2], "b64": "base64:AA=="}


@pytest.mark.parametrize("step", [1, 50])
def test_pickled_references_are_small_and_complete(step: int) -> None:
    refs = references(step)
    fs = RefShardFileSystem(refs)
    data = pickle.dumps(fs)
    assert len(data) < len(pickle.dumps(refs)) / 8 or step > 1
    in_memory_source._known.clear()  # as in another process
    other = pickle.loads(data)
    assert other.fo is not fs.fo
    assert other == fs
    assert dict(other.references) == refs | {"a/.zattrs": '{"\\u00e9":[1.5,null]}'}
    assert pickle.loads(data).fo is other.fo


def test_source_in_this_process_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = RefShardFileSystem(references())
    data = pickle.dumps(fs)
    monkeypatch.delattr(in_memory_source.pickled, "unpack_compressed")
    assert pickle.loads(data).fo is fs.fo
    again = fsspec.AbstractFileSystem.from_json(fs.to_json())
    assert again.fo is fs.fo
    options = {**fs.storage_options, "asynchronous": True}
    assert RefShardFileSystem(*fs.storage_args, **options).fo is fs.fo


@pytest.mark.parametrize(
    ("source", "packer"), [(references(), "pack_compressed"), (b'{"a": "text"}', "compress_bytes")]
)
def test_pickled_source_is_packed_once(source: Any, packer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = RefShardFileSystem(source)
    data = pickle.dumps(fs)
    monkeypatch.delattr(in_memory_source.pickled, packer)
    assert pickle.dumps(fs) == data
    assert pickle.dumps(RefShardFileSystem(source)) == data


def test_packed_source_in_memory_is_freed_with_its_filesystem() -> None:
    fs = RefShardFileSystem({**references(), "raw": b"of this test alone"})
    pickle.dumps(fs)
    count, digest = len(in_memory_source._packed), fs.fo.digest
    del fs
    gc.collect()
    assert digest not in {source.digest for source in in_memory_source._packed}
    assert len(in_memory_source._packed) < count


def test_equal_references_are_stored_once() -> None:
    first, second = RefShardFileSystem(references()), RefShardFileSystem(references())
    assert first.fo is second.fo
    assert RefShardFileSystem(b'{"a":"b"}').fo is not RefShardFileSystem(b'{"a":"c"}').fo


def test_bytes_source_is_pickled() -> None:
    fs = RefShardFileSystem(json.dumps({"a": "text" * 1000}).encode())
    data = pickle.dumps(fs)
    assert len(data) < 1000
    in_memory_source._known.clear()
    assert pickle.loads(data).cat("a") == b"text" * 1000


def test_another_process_reads_pickled_references(tmp_path: Any) -> None:
    path = tmp_path / "fs.pickle"
    path.write_bytes(pickle.dumps(RefShardFileSystem(references())))
    code = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).references['a/299.9'])"
    run = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(["s3://b/x", 29900, 2**40 + 9])


def test_to_json_is_portable_only_for_small_sets(tmp_path: Any) -> None:
    large = {"a/.zarray": references()["a/.zarray"], "data": "x" * (1 << 20)}
    code = """
import sys, fsspec
from pathlib import Path
try:
    print(fsspec.AbstractFileSystem.from_json(Path(sys.argv[1]).read_text()).cat_file("data")[:4])
except ValueError as e:
    print(e)
"""
    printed = []
    for refs in ({"data": "text"}, large):
        fs = RefShardFileSystem(refs)
        (tmp_path / "fs.json").write_text(fs.to_json())
        assert fsspec.AbstractFileSystem.from_json(fs.to_json()).fo is fs.fo
        command = [sys.executable, "-c", code, tmp_path / "fs.json"]
        printed.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert printed[0] == "b'text'\n"
    assert "pickle.dumps(fs)" in printed[1]
    assert "fs.save('refs.parquet')" in printed[1]


def test_repr_builds_no_index_of_keys() -> None:
    refs = ReferenceSet(Texts.of(["memory://x", "memory://y"]), {}, {"a": b"value"})
    source = in_memory_source.InMemorySource(refs, "0" * 64)
    assert repr(source).startswith("<references to 2 targets, in memory: 0")
    assert "keys" not in vars(refs)


def test_references_that_nest_too_deep_are_refused() -> None:
    """json.loads makes such values of an upload if Python's recursion limit is high."""
    deep: dict[str, Any] = {}
    for _ in range(200_000):
        deep = {"x": deep}
    with pytest.raises(ManifestError, match="nested too deeply"):
        RefShardFileSystem({"k": deep})
    while deep:  # otherwise Python would free the value recursively, and crash
        deep = deep["x"]
