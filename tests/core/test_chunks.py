"""The chunks of a whole array agree with the look-ups of its keys."""

from __future__ import annotations

import base64
import itertools
import json
import random
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem
from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import Chunks, ChunksBuilder, Contents
from refshard_fs.core.keys import join
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.cubes.choice import Choice
from refshard_fs.references.values import decode
from tests.support.shard_writers import make_sparse, write_prototype

GROUP = {2: {"zarr_format": 2}, 3: {"zarr_format": 3, "node_type": "group", "attributes": {}}}


def open_anew(fo: Any, **options: Any) -> RefShardFileSystem:
    return RefShardFileSystem(fo, skip_instance_cache=True, **options)


def document(version: int, shape: Sequence[int], chunks: Sequence[int], separator: str, **more: Any) -> dict[str, Any]:
    if version == 2:
        return {"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": "|u1", "order": "C", "fill_value": 0,
                "filters": None, "compressor": None, "dimension_separator": separator, **more}  # fmt: skip
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": separator}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
        "attributes": {},
        **more,
    }


def references(rng: random.Random, folder: Path, *, stray: bool = True, remote: float = 0.0) -> dict[str, Any]:
    """Return references of every kind; ``remote`` is the share of array documents that are references."""
    data = folder / "data.bin"
    data.write_bytes(bytes(range(256)) * 8)
    version = rng.choice([2, 3])
    root, name = (".zgroup", ".zarray") if version == 2 else ("zarr.json", "zarr.json")
    refs: dict[str, Any] = {root: json.dumps(GROUP[version])}
    for number, path in enumerate(["a", "g/b", "g/ü x"]):
        ndim, separator = rng.randint(0, 3), rng.choice("./")
        shape, chunks = [rng.randint(1, 9) for _ in range(ndim)], [rng.randint(1, 4) for _ in range(ndim)]
        text = json.dumps(document(version, shape, chunks, separator))
        refs[f"{path}/{name}"] = text
        if rng.random() < remote:
            (folder / f"{number}.json").write_text(text)
            refs[f"{path}/{name}"] = [str(folder / f"{number}.json")]
        for coords in itertools.product(*(range(-(-s // c)) for s, c in zip(shape, chunks, strict=True))):
            tail = separator.join([*(["c"] if version == 3 else []), *map(str, coords)]) or "0"
            value = rng.choice([None, "text", "base64:" + base64.b64encode(b"\xff\0").decode(), [str(data)], [], []])
            if value is not None:
                refs[f"{path}/{tail}"] = value or [str(data), rng.randint(0, 999), rng.randint(1, 99)]
        if stray:
            refs |= {f"{path}/stray.txt": "hello", f"{path}/99.9.9.9": [str(data), 1, 2]}
    return refs


def hierarchy(rng: random.Random, folder: Path, **shards: Any) -> str:
    zarr = pytest.importorskip("zarr", minversion="3")
    group = zarr.open_group(str(folder / "a.zarr"), mode="w", zarr_format=3)
    for path in ("a", "g/b"):
        shape, separator = tuple(rng.randint(1, 20) for _ in range(2)), rng.choice("./")
        encoding = {"name": rng.choice(["default", "v2"]), "separator": separator}
        made = group.create_array(
            path, shape=shape, chunks=(2, 3), dtype="i4", fill_value=0, chunk_key_encoding=encoding, **shards
        )
        made[...] = make_sparse(shape)
        (folder / "a.zarr" / path / "note.txt").write_text("stray")
    return str(folder / "a.zarr")


def zipped(rng: random.Random, folder: Path) -> str:
    root = Path(hierarchy(rng, folder))
    with zipfile.ZipFile(folder / "a.zip", "w", rng.choice([zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])) as file:
        for path in root.rglob("*"):
            file.write(path, path.relative_to(root))
    return str(folder / "a.zip")


def parquet(rng: random.Random, folder: Path) -> str:
    pytest.importorskip("pyarrow")
    there = folder / "refs.parq"
    open_anew(references(rng, folder, stray=False)).save(str(there), record_size=rng.choice([1, 3, 1000]))
    for file in there.rglob("refs.*.parq"):
        if rng.random() < 0.2:
            file.unlink()
    return str(there)


def manifests(rng: random.Random, folder: Path) -> str:
    counts, entries = (5, 4), {}
    for i, j in itertools.product(*map(range, counts)):
        some = {"path": "../data.bin", "offset": i, "length": 3, "last_modified": "2026-01-01T00:00:00Z"}
        kinds: list[Any] = [None, {}, {"data": "XX"}, {"path": "../data.bin"}, some]
        if (kind := rng.choice(kinds)) is not None:
            entries[f"{i}.{j}"] = kind
    (folder / "data.bin").write_bytes(bytes(99))
    (folder / "pre/c/1").mkdir(parents=True)
    (folder / "pre/c/1/3").write_bytes(b"mapped")
    manifest = {"prefix": {"": {"path": f"{folder}/pre/c/", "separator": "/"}}, **entries}
    declared = [{"name": "chunk-manifest-json", "configuration": {"manifest": manifest}}]
    (folder / "a").mkdir()
    (folder / "a/zarr.json").write_text(json.dumps(document(3, (9, 8), (2, 2), "/", storage_transformers=declared)))
    (folder / "a/stray").write_text("stray")
    return str(folder / "a")


def prototype(rng: random.Random, folder: Path) -> str:
    ndim = rng.randint(0, 2)
    data = make_sparse((9, 7)[:ndim]) if ndim else np.array(5, "<i4")
    write_prototype(folder, data, (2, 3)[:ndim], (2, 2)[:ndim], separator=rng.choice("./"))
    return str(folder)


def remote_shards(rng: random.Random, folder: Path) -> dict[str, Any]:
    """Return references to shards of an array whose metadata document is a reference, too."""
    root = Path(hierarchy(rng, folder, shards=(4, 6)))
    refs: dict[str, Any] = {p.relative_to(root).as_posix(): [str(p)] for p in root.rglob("*") if p.is_file()}
    return {key: value for key, value in refs.items() if "/" not in key or rng.random() < 0.8 or "zarr" in key}


def cube(rng: random.Random, folder: Path) -> Any:
    xr = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    urls = [str(folder / f"{number}.nc") for number in range(2)]
    packing = rng.choice([{}, {"dtype": "i2", "_FillValue": -1}])
    for number, url in enumerate(urls):
        own = {**packing, "scale_factor": 1.0 + number, "add_offset": 0.0} if packing else {}
        times = np.arange(4) + 4 * number
        made = xr.Dataset({"x": (("t", "y"), np.ones((4, 6), "f4"))}, coords={"t": times})
        made.to_netcdf(url, engine="h5netcdf", encoding={"x": {"chunksizes": (2, 3), **own}})
    return refshard_fs.concat(urls, "t", lazy=True)


def cubes_of_variables(rng: random.Random, folder: Path) -> Any:
    (folder / "v").mkdir()
    one = cube(rng, folder)
    other = cube(rng, folder / "v").document
    renamed = msgspec.structs.replace(other, select=(Choice.of(rename={"x": "v"}),), axes={"v": 0, "t": 0})
    return msgspec.structs.replace(one.document, beside=(renamed,)).dumps()


SOURCES: dict[str, Callable[[random.Random, Path], Any]] = {
    "references": references,
    "documents that are references": partial(references, remote=0.6),
    "parquet": parquet,
    "hierarchy": hierarchy,
    "shards": partial(hierarchy, shards=(4, 6)),
    "shards of the prototype": prototype,
    "shards of references": remote_shards,
    "manifests": manifests,
    "zip": zipped,
    "cube": cube,
    "cubes of variables": cubes_of_variables,
}


class Answers:
    """Get the answers of a source about its keys: one by one, and for whole arrays."""

    def __init__(self, fs: RefShardFileSystem) -> None:
        self.run = fs.source.run
        self.keyspace: KeySpace = fs.source.open()

    def value(self, chunks: Chunks, row: int) -> Any:
        """Return the range or the bytes of the chunk in ``row``, with its pin and checks."""
        value = chunks.packed.get(row, chunks.get_value(row))
        if not chunks.packed.get(row) and value is not None and not isinstance(value, bytes):
            url = self.keyspace.resolve(chunks.urls[value.target])
            pin = chunks.pins[value.target] if chunks.pins else None
            return url, value.offset, value.length, pin, dict(chunks.checks.get(row, {}))
        return value

    def key(self, key: str) -> Any:
        """Return the answer for a key that is looked up."""
        builder = ChunksBuilder(1)
        builder.put_entry(0, self.run(key, partial(self.keyspace.lookup, key)))
        return self.value(builder.finish(), 0)

    def chunks(self, path: str, array: Any, numbers: Any) -> dict[str, Any]:
        """Return the answers for the chunks ``numbers``, by key."""
        chunks = self.run(path, partial(self.keyspace.chunks, path, numbers, array.grid))
        assert len(chunks) == len(numbers)
        keys = [join(path, array.grid.tail(int(number))) for number in numbers]
        return {key: self.value(chunks, row) for row, key in enumerate(keys)}

    def member(self, key: str, value: Any) -> Any:
        """Return the answer for a key that the contents have."""
        if isinstance(value, list):
            return self.key(key)
        return zarrmeta.dumps(value) if isinstance(value, Mapping) else decode(value)

    def all(self, prefix: str, rng: random.Random) -> dict[str, Any]:
        """Return the answers of `contents` and `chunks` for all keys below ``prefix``."""
        contents: Contents = self.run(prefix, partial(self.keyspace.contents, prefix))
        found = {key: self.member(key, value) for key, value in contents.members.items()}
        found |= {key: self.key(key) for key in contents.others}
        for path, array in contents.arrays.items():
            for numbers, _ in array.iterate_batches(7):
                found |= self.chunks(path, array, numbers)
            size = array.grid.size
            some = np.array(rng.sample(range(size), rng.randint(0, size)), np.uint64)
            for numbers in (some, some[:0], range(size // 3, size)):
                for key, value in self.chunks(path, array, numbers).items():
                    assert value == self.key(key), key
        return {key: value for key, value in found.items() if value is not None}


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 20), marks=pytest.mark.slow)], ids=["one", "more"])
@pytest.mark.parametrize("is_edited", [False, True], ids=["as it is", "edited"])
@pytest.mark.parametrize("kind", SOURCES)
def test_chunks_agree_with_lookups(kind: str, is_edited: bool, seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        rng = random.Random(f"{kind} {seed}")
        folder = tmp_path / str(seed)
        folder.mkdir()
        fs = open_anew(SOURCES[kind](rng, folder), mode="a" if is_edited and "cube" not in kind else "r")
        if fs.mode == "a":
            keys = [key for key in fs.find("") if not zarrmeta.is_metadata(key)]
            fs.rm_file(keys[0])
            fs.pipe_file(keys[-1], b"written")
        answers = Answers(fs)
        found = answers.all("", rng)  # before any document is read
        paths = ["", *(key.rpartition("/")[0] for key in found if key.endswith(("/.zarray", "/zarr.json")))]
        for path in paths:
            expected = {key: answers.key(key) for key in fs.find(path) if key != ".zmetadata"}
            there = answers.all(path, rng) if path else found
            assert {key: value for key, value in there.items() if key != ".zmetadata"} == expected
        if fs.mode == "a":
            fs.discard()


def test_snapshot_of_inner_chunks_keeps_stray_keys(tmp_path: Path) -> None:
    refs = refshard_fs.snapshot(hierarchy(random.Random(0), tmp_path, shards=(4, 6)), shards="inner")
    assert open_anew(refs).cat_file("g/b/note.txt") == b"stray"


def test_chunk_of_a_sharded_scalar_is_found(tmp_path: Path) -> None:
    write_prototype(tmp_path, np.array(5, "<i4"), (), ())
    answers = Answers(open_anew(str(tmp_path)))
    assert answers.all("", random.Random(0))["0"] == answers.key("0")


def test_contents_lack_only_the_array_with_unreadable_metadata(tmp_path: Path) -> None:
    text = json.dumps(document(2, [4], [2], "."))
    refs: dict[str, Any] = {".zgroup": json.dumps(GROUP[2]), "bad/.zarray": [str(tmp_path / "gone.json")]}
    for number in range(5):
        refs |= {f"{number}/.zarray": text, f"{number}/0": "xy"}
    answers = Answers(open_anew(refs))
    errors: dict[str, Exception] = {}
    contents: Contents = answers.run("", partial(answers.keyspace.contents, "", errors))
    assert set(errors) == {"bad/.zarray"}
    assert {path: array.count for path, array in contents.arrays.items()} == dict.fromkeys("01234", 1)


def test_damaged_partition_is_an_error_of_each_of_its_keys(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    refs = {"a/.zarray": json.dumps(document(2, [4], [1], ".")), **{f"a/{i}": "x" for i in range(4)}}
    open_anew(refs).save(str(tmp_path / "refs.parq"), record_size=2)
    file = tmp_path / "refs.parq/a/refs.1.parq"
    file.write_bytes(file.read_bytes()[:20])
    report = refshard_fs.check(open_anew(str(tmp_path / "refs.parq")))
    assert [found.key for found in report.findings if found.kind == "index"] == ["a/2", "a/3"]
