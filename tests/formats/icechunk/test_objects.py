"""Objects of a small repository are decoded without the package icechunk, and wrong or damaged ones are refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import msgspec
import pytest

from refshard_fs import ManifestError, RefShardError, RefShardFileSystem
from refshard_fs.core.compression import import_zstd
from refshard_fs.core.format import OpenOptions
from refshard_fs.formats.icechunk.objects import MAGIC, Repository, Snapshot, decode_snapshot, extract_buffer
from refshard_fs.formats.icechunk.source import IcechunkKeySpace

SAMPLE = Path(__file__).parents[2] / "data" / "icechunk"  # written by icechunk 2.3


def test_repository_is_read_without_icechunk() -> None:
    fs = RefShardFileSystem(str(SAMPLE), tag="t")
    assert fs.cat_file("n/c/1") == bytes(i % 251 for i in range(600, 1200))
    assert fs.cat(["a/c/0/0", "b/c/0"]) == {"a/c/0/0": b"\1", "b/c/0": b"\1\1"}
    assert len(fs.find("a")) == 31
    with pytest.raises(FileNotFoundError):
        fs.cat_file("a/c/30/0")


def test_named_container_resolves_to_its_url() -> None:
    assert Repository.decode((SAMPLE / "repo").read_bytes(), 1 << 20).containers == {"data": "s3://bucket/"}


def test_object_with_a_wrong_id_is_refused(tmp_path: Path) -> None:
    there = tmp_path / "repository"
    shutil.copytree(SAMPLE, there)
    files = sorted((there / "manifests").iterdir(), key=lambda file: file.stat().st_size)
    shutil.copyfile(files[0], files[1])
    with pytest.raises(
        RefShardError, match=f"it is the manifest {files[0].name}: expected {files[1].name}|too few|got"
    ):
        RefShardFileSystem(str(there)).cat(["n/c/1", "b/c/0"])


@pytest.mark.parametrize(("kind", "most", "why"), [(6, 1 << 20, "has .* bytes or more"), (6, 1 << 40, "times as many")])
def test_decompression_bomb_is_refused(kind: int, most: int, why: str) -> None:
    data = MAGIC + b" " * 24 + bytes([2, kind, 1]) + import_zstd().compress(bytes(100 << 20))
    with pytest.raises(ValueError, match=why):
        extract_buffer(data, kind, most)


def test_wrong_header_of_an_object_is_refused() -> None:
    data = (SAMPLE / "repo").read_bytes()
    for damaged, why in (
        (b"x" + data[1:], "begins with"),
        (data[:20], "cut short"),
        (data[:36] + b"\3" + data[37:], "version 3"),
        (data[:37] + b"\1" + data[38:], "type 1 .*: expected type 6"),
        (data[:60], "expected the end of"),
    ):
        with pytest.raises(ValueError, match=why):
            Repository.decode(damaged, 1 << 20)


def test_folder_that_is_not_a_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefShardError, match="main"):
        RefShardFileSystem(f"icechunk::{tmp_path}").ls("")
    (tmp_path / "repo").write_bytes(b"a text")
    with pytest.raises(ManifestError, match="repo: it begins with"):
        RefShardFileSystem(f"icechunk::{tmp_path}").ls("")


@pytest.mark.parametrize(
    "damaged", [b"{", b'{"zarr_format": 3, "node_type": "array", "shape": [4]}', b"hexagonal", b"1D"]
)
def test_array_with_unreadable_metadata_is_left_out(damaged: bytes) -> None:
    snapshot = next((SAMPLE / "snapshots").iterdir())
    nodes = decode_snapshot(snapshot.read_bytes(), snapshot.name, 1 << 20).nodes
    known = next(node.document for node in nodes if node.path == "a")
    if not damaged.startswith(b"{"):
        known = known.replace(b'"regular"', b'"hexagonal"') if damaged == b"hexagonal" else _remove_dimension(known)
        damaged = known
    nodes = [msgspec.structs.replace(node, document=damaged) if node.path == "a" else node for node in nodes]
    keys = IcechunkKeySpace("s3://bucket/r", Snapshot("S", nodes, 0, None, None), {}, OpenOptions())
    assert set(keys.grids) == {"b", "n"}
    for key in ("a/zarr.json", "a/c/0/0"):
        with pytest.raises(ManifestError, match="'a' is left out"):
            next(keys.lookup(key))


def _remove_dimension(document: bytes) -> bytes:
    """Remove a dimension from an array's metadata."""
    content = json.loads(document)
    content["chunk_grid"]["configuration"]["chunk_shape"] = content["shape"] = content["shape"][:1]
    return json.dumps(content).encode()


@pytest.mark.parametrize("location", ["vcc://none/a", "s3://b/a%3A%3Ab", "file:///%00", "s3://b/%ff"])
def test_location_that_no_object_can_have_is_refused(location: str) -> None:
    keys = IcechunkKeySpace("s3://bucket/r", Snapshot("S", (), 0, None, None), {"data": "s3://b/"}, OpenOptions())
    with pytest.raises(ManifestError, match=re.escape(location)):
        keys._resolve_location(location)


def test_locations_are_resolved_to_urls() -> None:
    keys = IcechunkKeySpace("s3://bucket/r", Snapshot("S", (), 0, None, None), {"data": "gcs://b/x/"}, OpenOptions())
    assert keys._resolve_location("vcc://data/a%20b") == "gs://b/x/a b"
    assert keys._resolve_location("azure://c/a%23#f") == "az://c/a#"
    assert keys._resolve_location("https://h/a%20b?c") == "https://h/a%20b?c"
    assert keys._resolve_location("chunks/AAAAAAAAAAAAAAAAAAAA") == "s3://bucket/r/chunks/AAAAAAAAAAAAAAAAAAAA"
