"""References written as parquet and as JSON: read again by us and by fsspec, and all or nothing."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refshard_fs import DamagedIndex, ManifestError, RefShardFileSystem, TargetNotAllowed
from refshard_fs.cli import main
from refshard_fs.formats.kerchunk_parquet.source import ParquetKeySpace
from refshard_fs.stores.objects import Objects
from tests.servers.http import RangeServer
from tests.support.parquet_sets import DATA, ENCODINGS, files, store, v2_array

parquet = pytest.importorskip("pyarrow.parquet")


def refs(target: str) -> dict[str, Any]:
    """Return a set with every kind of value, as its version 0 JSON."""
    out: dict[str, Any] = {
        ".zgroup": '{"zarr_format": 2}',
        ".zattrs": {"title": "ünï", "missing": float("nan")},
        "g/.zgroup": {"zarr_format": 2},
        "g/a/.zarray": v2_array([5, 4], [1, 1]),
        "g/a/.zattrs": {"x": [1, None]},
        "s/.zarray": v2_array([], []),
        "s/0": "base64:AAEC/w==",
        "t/.zarray": v2_array([3], [1]),
        "t/0": "text with \0 and ü",
        "t/1": "base64:YmFzZTY0OmhlaA==",
        "t/2": "",
        "none/.zarray": v2_array([7], [1]),
    }
    for n in (0, 1, 2, 5, 8, 13, 19):
        out[f"g/a/{n // 4}.{n % 4}"] = [target, n, n + 1]
    out["g/a/1.2"] = [target]
    out["g/a/4.0"] = [target, 3, 0]
    out["g/a/4.1"] = [target, 0, 0]
    return out


def content(fs: Any, keys: Any) -> dict[str, Any]:
    out = fs.cat(sorted(keys))
    return {
        k: json.loads(v) if k.rpartition("/")[2] in (".zarray", ".zattrs", ".zgroup", "zarr.json") else v
        for k, v in out.items()
    }


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return repr(sorted(one.items())) == repr(sorted(other.items()))  # NaN is not equal to itself


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / "x.bin"
    path.write_bytes(DATA)
    return str(path)


@pytest.mark.parametrize("record_size", [1, 3, 8, 10_000])
def test_json_to_parquet_and_back(record_size: int, tmp_path: Path, target: str) -> None:
    source = refs(target)
    flat = RefShardFileSystem(source)
    expected = content(flat, source)
    flat.save(str(tmp_path / "a.parq"), record_size=record_size)
    lazy = RefShardFileSystem(str(tmp_path / "a.parq"))
    assert isinstance(lazy.source.open().source, ParquetKeySpace)
    assert set(lazy.find("")) == source.keys() | {".zmetadata"}
    assert same(content(lazy, source), expected)
    lazy.save(str(tmp_path / "b.parq"), record_size=4)
    again = RefShardFileSystem(str(tmp_path / "b.parq"))
    assert same(content(again, source), expected)
    again.save(str(tmp_path / "c.json"))
    back = RefShardFileSystem(str(tmp_path / "c.json"))
    assert set(back.references) == source.keys() | {".zmetadata"}
    assert same(content(back, source), expected)
    assert json.loads(back.cat_file(".zmetadata"))["zarr_consolidated_format"] == 1
    assert [p.name for p in tmp_path.rglob("*.tmp")] == []


@pytest.mark.parametrize("record_size", [3, 10_000])
def test_fsspec_reads_what_is_written(record_size: int, tmp_path: Path, target: str) -> None:
    for needed in ("pandas", "fastparquet"):
        pytest.importorskip(needed)
    source = {k: v for k, v in refs(target).items() if k not in ("t/1", "t/2")}
    flat = RefShardFileSystem(source)
    flat.save(str(tmp_path / "a.parq"), record_size=record_size)
    flat.save(str(tmp_path / "a.json"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("a.parq", "a.json"):
            theirs = fsspec.filesystem("reference", fo=str(tmp_path / name), remote_protocol="file")
            for key, value in source.items():
                if isinstance(value, list) and value[1:] != [0, 0]:
                    assert list(theirs.references[key]) == value
                    assert theirs.cat_file(key) == flat.cat_file(key)
                elif not key.rpartition("/")[2].startswith(".z"):
                    assert theirs.cat_file(key) == flat.cat_file(key)
                else:
                    assert repr(json.loads(theirs.cat_file(key))) == repr(json.loads(flat.cat_file(key)))
        # Theirs opens sets without a group below the root only, if it is not told the protocol; and lists only those.
        plain = {k: v for k, v in source.items() if not k.startswith("g/")}
        RefShardFileSystem(plain).save(str(tmp_path / "plain.parq"), record_size=record_size)
        theirs = fsspec.filesystem("reference", fo=str(tmp_path / "plain.parq"))
        assert {i["name"] for i in theirs.ls("none")} == {"none/.zarray"}


@pytest.mark.parametrize("array", ["", "g/a"])
@pytest.mark.parametrize(("meta", "name", "tail"), ENCODINGS.values(), ids=ENCODINGS)
def test_every_spelling_of_keys_survives(
    meta: dict[str, Any], name: str, tail: str, array: str, tmp_path: Path, target: str
) -> None:
    stem = f"{array}/" if array else ""
    source = {stem + name: meta}
    source |= {stem + tail.format(*at): [target, 10 * at[0] + at[1], 4] for at in [(0, 0), (0, 2), (1, 1)]}
    RefShardFileSystem(source).save(str(tmp_path / "a.parq"), record_size=2)
    fs = RefShardFileSystem(str(tmp_path / "a.parq"))
    found = {k: v for k, v in fs.references.items() if k != ".zmetadata"}
    assert {k: json.loads(v) if isinstance(v, str) else v for k, v in found.items()} == source
    fs.save(str(tmp_path / "a.json"))
    back = dict(RefShardFileSystem(str(tmp_path / "a.json")).references)
    assert {k: json.loads(v) if isinstance(v, str) else v for k, v in back.items() if k != ".zmetadata"} == source


@pytest.mark.parametrize("name", ["air.kerchunk.json", "cesm2_native.kerchunk.json", "air.parq"])
def test_real_sets_mean_the_same_wherever_they_are_written(name: str, tmp_path: Path, shared_data: Path) -> None:
    source = RefShardFileSystem(str(shared_data / "values" / name))
    keys = [k for k in source.find("") if k != ".zmetadata"]
    for written in ("a.parq", "a.json"):
        source.save(str(tmp_path / written), record_size=7)
        fs = RefShardFileSystem(str(tmp_path / written))
        assert content(fs, keys) == content(source, keys)


def test_relative_urls_stay_relative_beside_their_source(tmp_path: Path, target: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"a/.zarray": v2_array([1], [1]), "a/0": ["x.bin", 1, 2]}))
    fs = RefShardFileSystem(str(path))
    fs.save(str(tmp_path / "beside.parq"))
    fs.save(str(tmp_path / "else" / "where.parq"))
    for written, url in (("beside.parq", "x.bin"), ("else/where.parq", target)):
        saved = RefShardFileSystem(str(tmp_path / written))
        assert saved.references["a/0"] == [url, 1, 2]
        assert saved.cat_file("a/0") == DATA[1:3]


def test_other_filesystems_take_sets_too(target: str) -> None:
    fs = RefShardFileSystem(refs(target))
    memory = MemoryFileSystem()
    memory.rm("/save", recursive=True) if memory.exists("/save") else None
    fs.save("memory://save/a.parq", record_size=5)
    fs.save("memory://save/a.json")
    for name in ("a.parq", "a.json"):
        saved = RefShardFileSystem(f"memory://save/{name}")
        assert same(content(saved, refs(target)), content(fs, refs(target)))
    with pytest.raises(FileExistsError):
        fs.save("memory://save/a.parq")
    fs.save("memory://save/a.parq", record_size=2, overwrite=True)
    assert "refs.1.parq" in [p.rpartition("/")[2] for p in memory.ls("/save/a.parq/t", detail=False)]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("a/9", ["u", 1, 2], "'a/9' is a reference, and no chunk"),
        ("b/0.0", ["u", 1, 2], "'b/0.0' is a reference, and no chunk"),
        ("readme", "text", "'readme' is neither metadata nor a chunk"),
        ("b/.zattrs", ["u"], "'b/.zattrs' is a reference, and no chunk"),
        ("b/.zattrs", "no JSON", "'b/.zattrs' is not JSON"),
        ("b/.zattrs", "[1]", "'b/.zattrs' is no JSON object"),
        ("a/1", [None, 1, 2], "'a/1' has no URL"),
        ("a/1", ["u", 2**63, 2], "'a/1' has the offset 9223372036854775808"),
        ("a/1", ["u", 2**62, 2**62], "'a/1' has the offset 4611686018427387904"),
    ],
)
def test_what_parquet_cannot_hold_is_an_error_that_names_the_key(
    key: str, value: Any, reason: str, tmp_path: Path, target: str
) -> None:
    fs = RefShardFileSystem({"a/.zarray": v2_array([3], [1]), "a/0": [target], key: value})
    path = tmp_path / "a.parq"
    with pytest.raises(ManifestError, match=reason):
        fs.save(str(path))
    assert not path.exists()
    RefShardFileSystem({"a/.zarray": v2_array([3], [1]), "a/2": [target]}).save(str(path))
    with pytest.raises(ManifestError, match=reason):
        fs.save(str(path), overwrite=True)
    assert "a/2" in RefShardFileSystem(str(path)).references


@pytest.mark.parametrize("format", ["parquet", "chunk-manifest"])
def test_half_a_surrogate_pair_in_a_url_is_told_by_its_key(tmp_path: Path, format: Any) -> None:
    fs = RefShardFileSystem({"a/.zarray": v2_array([2], [1]), "a/1": ["memory://\ud800", 0, 1]})
    with pytest.raises(ManifestError, match=r"'a/1' has the URL .*no UTF-8"):
        fs.save(str(tmp_path / "set.parq"), format=format)
    assert not (tmp_path / "set.parq").exists()


@pytest.mark.parametrize("format", ["parquet", "chunk-manifest"])
def test_half_a_surrogate_pair_in_a_path_is_told_before_anything_is_written(tmp_path: Path, format: Any) -> None:
    fs = RefShardFileSystem({"\ud800/.zarray": v2_array([2], [1]), "\ud800/1": ["memory://x", 0, 1]})
    for place in (str(tmp_path / "set"), "memory://half-a-pair"):
        with pytest.raises(ManifestError, match=r"'\\ud800/\.zarray' has half a surrogate pair.*save it as JSON"):
            fs.save(place, format=format)
    assert not (tmp_path / "set").exists()
    fs.save(str(tmp_path / "set.json"))
    assert dict(RefShardFileSystem(str(tmp_path / "set.json")).references) == dict(fs.references) | {
        "\ud800/.zarray": json.dumps(v2_array([2], [1]), separators=(",", ":"))
    }


def test_references_to_the_default_target_name_it(tmp_path: Path, target: str) -> None:
    fs = RefShardFileSystem({"a/.zarray": v2_array([3], [1]), "a/1": [None, 1, 2]}, target=target)
    fs.save(str(tmp_path / "a.parq"))
    assert RefShardFileSystem(str(tmp_path / "a.parq")).references["a/1"] == [target, 1, 2]


def test_json_is_of_version_1_unless_a_url_would_be_taken_for_a_template(tmp_path: Path) -> None:
    for url, version in (("/x/u", 1), ("/x/{{u}}", 0)):
        written = files({"a/.zarray": v2_array([3], [1])}, 3, {"a/refs.0.parq": [None, [url, 1, 2], None]})
        fs = RefShardFileSystem(store(tmp_path / "a.parq", written))
        assert fs.references["a/1"] == [url, 1, 2]
        fs.save(str(tmp_path / "b.json"))
        document = json.loads((tmp_path / "b.json").read_text())
        assert document.get("version", 0) == version
        assert document.get("refs", document)["a/1"] == [url, 1, 2]
    assert sorted(os.listdir(tmp_path)) == ["a.parq", "b.json"]


@pytest.mark.parametrize(
    ("name", "format"),
    [
        *((f"refs.json{ending}", "kerchunk-json") for ending in ("", ".gz", ".bz2", ".xz", ".zst")),
        ("refs.zarr", "zarr-hierarchy"),
        ("refs.parquet", "kerchunk-parquet"),
        ("refs", "kerchunk-parquet"),
    ],
)
def test_the_name_says_what_a_set_is_written_as(tmp_path: Path, target: str, name: str, format: str) -> None:
    fs = RefShardFileSystem({"a/.zarray": v2_array([2], [1]), "a/0": [target, 0, 1], "a/1": [target, 1, 2]})
    fs.save(str(tmp_path / name))
    again = RefShardFileSystem(str(tmp_path / name))
    assert again.resolve("a/1")[1:] == (1, 3)
    assert again.source.open().format == format
    if name.startswith("refs.json."):
        assert (tmp_path / name).read_bytes()[:1] != b"{"


def test_a_failure_on_the_way_leaves_nothing(tmp_path: Path, target: str) -> None:
    fs = RefShardFileSystem({"a/.zarray": v2_array([300], [1]), **{f"a/{n}": [target, n, 1] for n in range(300)}})
    fs.save(str(tmp_path / "a.parq"), record_size=10)
    (tmp_path / "a.parq" / "a" / "refs.25.parq").write_bytes(b"damaged")
    broken = RefShardFileSystem(str(tmp_path / "a.parq"))
    (tmp_path / "b.json").write_text("{}")
    for name in ("b.parq", "b.json"):
        with pytest.raises(DamagedIndex, match=r"refs\.25\.parq"):
            broken.save(str(tmp_path / name), record_size=10)
    assert sorted(os.listdir(tmp_path)) == ["a.parq", "b.json", "x.bin"]
    assert (tmp_path / "b.json").read_text() == "{}"


def test_only_a_parquet_set_is_ever_replaced(tmp_path: Path, target: str) -> None:
    fs = RefShardFileSystem(refs(target))
    folder = tmp_path / "a.parq"
    folder.mkdir()
    fs.save(str(folder), record_size=1)  # an empty directory is in nobody's way
    with pytest.raises(FileExistsError, match="overwrite=True"):
        fs.save(str(folder))
    fs.save(str(folder), overwrite=True)
    assert not (folder / "g" / "a" / "refs.1.parq").exists()
    (folder / ".zmetadata").write_text('{"metadata": {}}')
    with pytest.raises(FileExistsError, match="no parquet set"):
        fs.save(str(folder), overwrite=True)
    (folder / ".zmetadata").unlink()
    with pytest.raises(FileExistsError, match="no parquet set"):
        fs.save(str(folder), overwrite=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileExistsError, match="is a file"):
        fs.save(str(tmp_path / "file"), "parquet", overwrite=True)


@pytest.mark.parametrize("format", ["parquet", "chunk-manifest"])
@pytest.mark.parametrize("through", ["path", "link"])
def test_a_set_that_is_replaced_stays_until_the_other_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Any, through: str
) -> None:
    """Before it was mended: `fs.save(..., overwrite=True)` of a parquet set or chunk manifests removed the old set
    first: an error on the way, such as a full disk, lost both.
    """
    folder = tmp_path / "set"
    url = str(folder)
    if through == "link":
        (tmp_path / "link").symlink_to(folder, target_is_directory=True)
        url = str(tmp_path / "link")
    array = v2_array([3], [1])
    RefShardFileSystem({"a/.zarray": array, "a/0": ["memory://old", 0, 1]}).save(str(folder), format, record_size=1)
    new = RefShardFileSystem({"a/.zarray": array, "a/0": ["memory://new", 0, 1]})
    put, puts = Objects.put, list[str]()

    def fails(self: Objects, name: str, *given: Any, **options: Any) -> Any:
        puts.append(name)
        if name == last:
            raise OSError("the disk is full")
        return put(self, name, *given, **options)

    last = ".zmetadata" if format == "parquet" else "zarr.json"
    with monkeypatch.context() as patch:
        patch.setattr(Objects, "put", fails)
        with pytest.raises(OSError, match="disk is full"):
            new.save(url, format, record_size=1, overwrite=True)
    assert len(puts) > 1, "something had been written before"
    assert RefShardFileSystem(url, skip_instance_cache=True).resolve("a/0")[0] == "memory://old"
    assert sorted(os.listdir(tmp_path)) == (["set"] if through == "path" else ["link", "set"])
    new.save(url, format, record_size=1, overwrite=True)
    assert RefShardFileSystem(url, skip_instance_cache=True).resolve("a/0")[0] == "memory://new"
    assert sorted(os.listdir(tmp_path)) == (["set"] if through == "path" else ["link", "set"])
    assert folder.is_dir()
    assert not folder.is_symlink()


def test_a_lazy_set_is_not_written_over_itself(tmp_path: Path, target: str) -> None:
    RefShardFileSystem(refs(target)).save(str(tmp_path / "a.parq"))
    fs = RefShardFileSystem(str(tmp_path / "a.parq"))
    with pytest.raises(FileExistsError, match="read from"):
        fs.save(str(tmp_path / "a.parq") + "/", overwrite=True)
    assert fs.cat_file("t/2") == b""


def test_arguments_that_make_no_sense_are_refused(tmp_path: Path, target: str) -> None:
    fs = RefShardFileSystem(refs(target))
    with pytest.raises(ValueError, match="record_size=0"):
        fs.save(str(tmp_path / "a.parq"), record_size=0)
    with pytest.raises(ValueError, match="format='csv'"):
        fs.save(str(tmp_path / "a"), "csv")
    assert sorted(os.listdir(tmp_path)) == ["x.bin"]


def test_many_partitions_without_references_are_not_written(tmp_path: Path, target: str) -> None:
    source = {"a/.zarray": v2_array([10**6, 10**6], [1, 1]), "a/0.0": [target, 1, 2], "a/999999.999999": [target, 2, 3]}
    RefShardFileSystem(source).save(str(tmp_path / "a.parq"))
    assert len(os.listdir(tmp_path / "a.parq" / "a")) == 2
    fs = RefShardFileSystem(str(tmp_path / "a.parq"))
    assert fs.ls("a", detail=False) == ["a/.zarray", "a/0.0", "a/999999.999999"]
    assert len(fs.references) == 4


keys = st.tuples(st.integers(0, 4), st.integers(0, 3))
values = (
    st.binary(max_size=5)
    | st.tuples(st.sampled_from(["s3://b/x", "/ü/y", "http://h/z z"]))
    | st.tuples(st.sampled_from(["s3://b/x", "/ü/y"]), st.integers(0, 2**62), st.integers(1, 2**62 - 1))
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chunks=st.dictionaries(keys, values), size=st.integers(1, 25))
def test_any_set_survives_both_ways(
    tmp_path_factory: pytest.TempPathFactory, chunks: dict[Any, Any], size: int
) -> None:
    root = tmp_path_factory.mktemp("set")
    source = {f"a/{i}.{j}": v if isinstance(v, bytes) else list(v) for (i, j), v in chunks.items()}
    RefShardFileSystem({"a/.zarray": v2_array([5, 4], [1, 1]), **source}).save(str(root / "a.parq"), record_size=size)
    lazy = RefShardFileSystem(str(root / "a.parq"))
    assert {k: v for k, v in lazy.references.items() if k.startswith("a/") and k[2] != "."} == source
    lazy.save(str(root / "a.json"))
    back = RefShardFileSystem(str(root / "a.json"))
    for key, value in source.items():
        assert (back.cat_file(key) if isinstance(value, bytes) else back.references[key]) == value


def test_the_command_converts(tmp_path: Path, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(refs(target)))
    assert main(["convert", str(path), str(tmp_path / "a.parq"), "--record-size", "3"]) == 0
    assert json.loads((tmp_path / "a.parq" / ".zmetadata").read_bytes())["record_size"] == 3
    assert main(["convert", str(tmp_path / "a.parq"), str(tmp_path / "b"), "--format", "json"]) == 0
    back = RefShardFileSystem(str(tmp_path / "b"))
    assert same(content(back, refs(target)), content(RefShardFileSystem(str(path)), refs(target)))
    told, wrong = capsys.readouterr()
    assert (told.count(", written in "), wrong) == (2, "")
    assert main(["convert", str(path), str(tmp_path / "a.parq")]) == 2
    assert "overwrite" in capsys.readouterr().err
    assert main(["convert", str(path), str(tmp_path / "a.parq"), "--overwrite"]) == 0


@pytest.mark.parametrize("format", ["json", "parquet", "chunk-manifest"])
def test_a_set_from_elsewhere_is_not_saved_with_what_it_may_not_reach(
    http_server: RangeServer, tmp_path: Path, format: Any
) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    array = {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|S6", "order": "C", "fill_value": "",
             "filters": None, "compressor": None}  # fmt: skip
    refs = {".zgroup": '{"zarr_format":2}', "a/.zarray": json.dumps(array), "a/0": [str(tmp_path / "secret"), 0, 6]}
    url = http_server.put("/theirs.json", json.dumps({"version": 1, "refs": refs}).encode())
    with pytest.raises(TargetNotAllowed, match="this machine's files"):
        RefShardFileSystem(url).save(str(tmp_path / "mine"), format)
    assert not (tmp_path / "mine").exists()
    named = [str(tmp_path) + "/", http_server.url + "/"]
    RefShardFileSystem(url, allow=named).save(str(tmp_path / "mine"), format)
    assert (tmp_path / "mine").exists()
