"""Writes through fsspec's interface go to an overlay, and reads see them before the commit."""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import fsspec
import pytest

from refshard_fs import ManifestError, ReadOnlyError, RefShardFileSystem
from refshard_fs.source.transaction import Transaction
from tests.support.hierarchy_model import make_array_document, make_group_document, open_for_writes
from tests.support.written_references import LARGE, list_objects


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a set of two keys, one inline and one that is a range of a file; return its path."""
    (tmp_path / "data").write_bytes(LARGE)
    path = tmp_path / "refs.json"
    path.write_text(json.dumps({"text": "inline", "range": ["data", 10, 20]}))
    return path


@pytest.mark.parametrize(
    "write",
    [
        lambda fs: fs.pipe_file("a", b""),
        lambda fs: fs.pipe({"a": b""}),
        lambda fs: fs.rm("text"),
        lambda fs: fs.rm("", recursive=True),
        lambda fs: fs.cp_file("text", "a"),
        lambda fs: fs.mv("text", "a"),
        lambda fs: fs.touch("a"),
        lambda fs: fs.mkdir("a"),
        lambda fs: fs.makedirs("a"),
        lambda fs: fs.open("a", "wb"),
        lambda fs: fs.commit(),
        lambda fs: fs.discard(),
        lambda fs: fs.transaction.__enter__(),
        lambda fs: fs.put_file(__file__, "a"),
    ],
)
def test_write_without_mode_is_refused_with_the_reason(path: Path, write: Any) -> None:
    before = path.read_bytes()
    with pytest.raises(ReadOnlyError, match="mode='a'"):
        write(RefShardFileSystem(str(path)))
    assert path.read_bytes() == before


def test_removal_of_a_key_like_a_pattern_keeps_other_keys() -> None:
    """As a pattern, `T [K]` matches `T K`."""
    names = [f"{path}/{i}" for path in ("T [K]", "T K") for i in range(3)]
    fs = RefShardFileSystem(dict.fromkeys(names, "x"), mode="a")
    asyncio.run(RefShardFileSystem(fs.fo, asynchronous=True, overlay=fs.overlay)._rm("T [K]/0"))
    mapper = fs.get_mapper("")
    del mapper["T [K]/1"]
    with pytest.raises(KeyError):
        del mapper["T [K]/1"]
    with pytest.raises(FileNotFoundError):
        mapper.delitems(["T [K]/0"])
    with pytest.raises(FileNotFoundError):
        fs.rm(["T [K]/0"])
    assert fs.find("") == ["T K/0", "T K/1", "T K/2", "T [K]/2"]
    fs.rm("T ?/[01]")
    fs.rm("T [K]", recursive=True)
    assert fs.find("") == ["T K/2"]
    fs.discard()


def test_unknown_mode_is_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="mode='rw'"):
        RefShardFileSystem(str(path), mode="rw")


def test_writes_are_read_at_once_and_do_not_change_the_source(path: Path, tmp_path: Path) -> None:
    before = path.read_bytes()
    fs = RefShardFileSystem(str(path), mode="a")
    fs.pipe_file("small", b"small")
    fs.pipe({"large": LARGE, "sub/deep/key": b"deep"})
    (tmp_path / "local").write_bytes(b"local")
    fs.put(str(tmp_path / "local"), "put")
    with fs.open("written", "wb") as file:
        file.write(b"one ")
        file.write(b"two")
    with fs.open("written", "ab") as file:
        file.write(b" three")
    with fs.open("words", "w") as file:
        file.write("text")
    fs.touch("empty")
    assert fs.cat_file("large", 10, 20) == LARGE[10:20]
    assert fs.cat(["small", "written", "words", "empty", "put", "text", "sub/deep/key"]) == {
        "small": b"small",
        "written": b"one two three",
        "words": b"text",
        "empty": b"",
        "put": b"local",
        "text": b"inline",
        "sub/deep/key": b"deep",
    }
    names = ["empty", "large", "put", "range", "small", "sub/deep/key", "text", "words", "written"]
    assert fs.find("") == names
    assert fs.ls("sub", detail=False) == ["sub/deep"]
    assert fs.info("large") == {"name": "large", "size": len(LARGE), "type": "file"}
    assert path.read_bytes() == before
    fs.discard()
    assert fs.find("") == ["range", "text"]
    assert not list_objects(path)


def test_file_closed_by_an_exception_is_not_written(path: Path) -> None:
    fs = RefShardFileSystem(str(path), mode="a")

    def fail() -> None:
        with fs.open("a", "wb") as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not fs.exists("a")


def test_exclusive_mode_refuses_an_existing_key(path: Path) -> None:
    fs = RefShardFileSystem(str(path), mode="a")
    with pytest.raises(FileExistsError), fs.open("text", "xb"):
        pass


def test_unclosed_file_warns(path: Path) -> None:
    fs = RefShardFileSystem(str(path), mode="a")
    files = [fs.open("a", "wb")]
    files[0].write(b"half")
    with pytest.warns(RuntimeWarning, match=r"'a' was opened .* never closed"):
        forget(files)
    assert not fs.exists("a")


def test_removed_keys_and_their_directories_are_missing(path: Path) -> None:
    fs = RefShardFileSystem(str(path), mode="a")
    fs.pipe({"d/one": b"1", "d/e/two": b"2"})
    fs.rm("text")
    fs.rm("d/e", recursive=True)
    with pytest.raises(FileNotFoundError):
        fs.cat_file("text")
    with pytest.raises(FileNotFoundError):
        fs.rm("text")
    with pytest.raises(IsADirectoryError):
        fs.rm("d")
    assert fs.find("") == ["d/one", "range"]
    fs.rm("d", recursive=True)
    assert not fs.exists("d")
    fs.rm("", recursive=True)
    assert fs.find("") == []
    fs.pipe_file("d/new", b"new")
    assert fs.find("") == ["d/new"]
    fs.commit()
    assert RefShardFileSystem(str(path)).cat("", recursive=True) == {"d/new": b"new"}


def test_copy_refers_to_the_same_bytes_and_move_removes_the_key(path: Path) -> None:
    fs = RefShardFileSystem(str(path), mode="a")
    fs.cp_file("range", "copy")
    fs.mv("text", "moved")
    assert not list_objects(path)
    fs.commit()
    again = RefShardFileSystem(str(path))
    assert again.cat("", recursive=True) == {"copy": LARGE[10:30], "range": LARGE[10:30], "moved": b"inline"}
    assert again.resolve("copy")[1:] == again.resolve("range")[1:] == (10, 30)


@pytest.mark.parametrize("same", ["/d/0", "d/0/", "refshard://d/0"])
def test_key_moved_to_itself_stays(same: str) -> None:
    fs = RefShardFileSystem({"d/0": "x", "d/1": "y"}, mode="a")
    fs.mv("d/0", same)
    fs.mv("/d", "d/", recursive=True)
    fs.mv("d/0", "d")
    fs.mv("d/*", "d/")
    fs.mv(["d/0"], ["d/0"])
    assert fs.find("") == ["d/0", "d/1"]
    with pytest.raises(FileNotFoundError):
        fs.mv("d/2", "d")


def test_directory_is_not_moved_into_itself() -> None:
    fs = RefShardFileSystem({"d/0": "x", "d/1": "y", "d/e/2": "z"}, mode="a")
    with pytest.raises(ValueError, match="into itself"):
        fs.mv("d", "d/e", recursive=True)
    fs.mv("d", "new", recursive=True, maxdepth=1)
    assert fs.find("") == ["d/e/2", "new/0", "new/1"]


def test_names_like_patterns_are_copied_and_moved_literally(tmp_path: Path) -> None:
    """As patterns, `T [K]` matches `T K`, and `x*` matches `xy`."""
    keys = {"T [K]/0": b"in brackets", "T K/0": b"plain", "x*": b"star", "xy": b"y"}
    fs = RefShardFileSystem(dict(keys), mode="a")
    fs.get("T [K]/0", str(tmp_path / "0"))
    fs.get("T [K]", str(tmp_path / "all"), recursive=True)
    assert (tmp_path / "0").read_bytes() == (tmp_path / "all" / "0").read_bytes() == b"in brackets"
    fs.copy("T [K]/0", "copy")
    fs.copy(["x*"], "d")
    fs.mv("T [K]", "moved", recursive=True)
    fs.mv("x*", "star")
    assert fs.cat("", recursive=True) == {
        "T K/0": b"plain",
        "copy": b"in brackets",
        "d/x*": b"star",
        "moved/0": b"in brackets",
        "star": b"star",
        "xy": b"y",
    }
    fs.copy("x*", "e")  # the key `x*` is gone, so that this is a pattern
    assert fs.cat_file("e/xy") == b"y"


@pytest.mark.parametrize(
    ("source", "target", "recursive"),
    [
        ("a", "new", False),
        ("a", "new/", False),
        ("a", "d", False),
        ("a", "d/", False),
        ("g", "d", True),
        ("g/", "d", True),
        ("g", "new", True),
        ("g", "new/", True),
        ("g/h", "", True),
        ("g/h/0", "", False),
        ("?", "d", False),
        ("g/*", "new", True),
    ],
)
def test_copies_have_the_destinations_of_fsspec(source: str, target: str, recursive: bool, tmp_path: Path) -> None:
    """Because `d` is a directory, `a` is copied to `d/a`, and the directory `g` to `d/g`."""
    keys = {"a": b"a", "b": b"b", "d/0": b"d", "g/0": b"g", "g/h/0": b"h"}
    memory = fsspec.filesystem("memory")
    root = f"/{tmp_path.name}"
    memory.pipe({f"{root}/{key}": data for key, data in keys.items()})
    memory.copy(f"{root}/{source}", f"{root}/{target}", recursive=recursive)
    expected = {name.removeprefix(f"{root}/"): memory.cat_file(name) for name in memory.find(root)}
    fs = RefShardFileSystem(dict(keys), mode="a")
    fs.copy(source, target, recursive=recursive)
    assert fs.cat("", recursive=True) == expected
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "0").write_bytes(b"d")
    RefShardFileSystem(dict(keys)).get(source, f"{tmp_path}/{target}", recursive=recursive)
    assert expected.items() - keys.items() <= {
        (file.relative_to(tmp_path).as_posix(), file.read_bytes()) for file in tmp_path.rglob("*") if file.is_file()
    }


def test_mode_w_begins_empty_and_replaces_the_set_at_the_commit(path: Path) -> None:
    fs = RefShardFileSystem(str(path), mode="w")
    assert fs.find("") == []
    assert RefShardFileSystem(str(path)).exists("text")
    fs.pipe_file("new", b"new")
    fs.commit()
    assert fs.find("") == RefShardFileSystem(str(path)).find("") == ["new"]


def test_copies_of_a_filesystem_share_writes(path: Path) -> None:
    fs = RefShardFileSystem(str(path), mode="a")
    by_arguments = type(fs)(*fs.storage_args, **{**fs.storage_options, "asynchronous": True})
    by_json = fsspec.AbstractFileSystem.from_json(fs.to_json())
    by_pickle = pickle.loads(pickle.dumps(fs))
    by_name = RefShardFileSystem(str(path), mode="a", overlay=fs.overlay)

    async def write_and_read() -> bytes:
        await by_arguments._pipe_file("a", LARGE)
        found: bytes = await by_arguments._cat_file("a")
        return found

    assert asyncio.run(write_and_read()) == LARGE
    assert fs.cat_file("a") == by_json.cat_file("a") == by_pickle.cat_file("a") == by_name.cat_file("a") == LARGE
    assert not RefShardFileSystem(str(path), mode="a").exists("a")
    by_json.pipe_file("b", b"b")
    fs.commit()
    assert by_pickle.overlay == fs.overlay
    assert RefShardFileSystem(str(path)).cat(["a", "b"]) == {"a": LARGE, "b": b"b"}
    assert by_name.cat_file("b") == b"b"
    by_name.pipe_file("c", b"c")
    fs.discard()
    assert not by_name.exists("c")


def forget(held: list[Any]) -> None:
    held.clear()
    gc.collect()


def test_repr_counts_writes_that_wait_for_a_commit(path: Path) -> None:
    fs = RefShardFileSystem(str(path), mode="a", skip_instance_cache=True)
    assert "committed" not in repr(fs)
    fs.pipe({"a/1": b"1", "a/2": b"2"})
    assert repr(fs).endswith(", 2 writes not committed>")
    fs.commit()
    assert "committed" not in repr(fs)


def test_dropped_filesystem_with_uncommitted_writes_warns(path: Path) -> None:
    """The warning tells how many writes are lost. After a commit there is no warning."""
    fs = RefShardFileSystem(str(path), mode="a")
    fs.pipe_file("a", b"lost")
    held = [fs]
    del fs
    with pytest.warns(RuntimeWarning, match=r"1 writes to .*refs\.json were never committed"):
        forget(held)
    fs = RefShardFileSystem(str(path), mode="a")
    fs.pipe_file("a", b"kept")
    fs.commit()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del fs
        gc.collect()


def test_equal_content_addressed_values_are_stored_once(path: Path) -> None:
    fs = RefShardFileSystem(str(path), mode="a", content_addressed=True)
    fs.pipe({"a": LARGE, "b": LARGE, "c": LARGE + b"1"})
    fs.commit()
    assert len(list_objects(path)) == 2
    again = RefShardFileSystem(str(path), mode="a", content_addressed=True)
    again.pipe_file("d", LARGE)
    again.discard()
    assert fs.cat(["a", "b", "c"]) == {"a": LARGE, "b": LARGE, "c": LARGE + b"1"}
    assert len(list_objects(path)) == 2


def test_data_url_places_data_and_small_values_are_inline(tmp_path: Path) -> None:
    path = tmp_path / "refs.json"
    fs = RefShardFileSystem(str(path), mode="a", data_url=str(tmp_path / "elsewhere"), inline_threshold=5)
    fs.pipe({"a": b"12345", "b": b"123456"})
    fs.commit()
    assert [file.read_bytes() for file in (tmp_path / "elsewhere").rglob("*") if file.is_file()] == [b"123456"]
    assert RefShardFileSystem(str(path)).references["a"] == "12345"
    assert RefShardFileSystem(str(path)).cat(["a", "b"]) == {"a": b"12345", "b": b"123456"}


def test_overwritten_values_leave_no_objects(path: Path) -> None:
    fs = RefShardFileSystem(str(path), mode="a")
    for number in range(5):
        fs.pipe_file("a", LARGE + bytes([number]))
    fs.pipe_file("b", LARGE)
    fs.rm("b")
    fs.commit()
    assert [file.read_bytes() for file in list_objects(path)] == [LARGE + b"\x04"]


def test_commit_during_a_write_keeps_its_object(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = RefShardFileSystem(str(path), mode="a")
    fs.pipe_file("a", b"first")
    put = Transaction.put

    def put_after_a_commit(overlay: Transaction, key: str, *args: Any) -> None:
        fs.commit()
        put(overlay, key, *args)

    monkeypatch.setattr(Transaction, "put", put_after_a_commit)
    fs.pipe_file("b", LARGE)
    assert fs.cat_file("b") == LARGE
    fs.discard()
    assert not list_objects(path)


@pytest.mark.parametrize("ending", ["", ".gz", ".bz2", ".xz", ".zst"])
def test_json_set_is_compressed_by_the_ending_of_its_name(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"refs.json{ending}"
    fs = RefShardFileSystem(str(path), mode="a")
    fs.pipe_file("a", b"text")
    fs.commit()
    fs.pipe_file("b", b"more")
    fs.commit()
    assert RefShardFileSystem(str(path)).cat(["a", "b"]) == {"a": b"text", "b": b"more"}
    with fsspec.open(str(path), compression="infer") as file:
        assert json.loads(file.read())["refs"] == {"a": "text", "b": "more"}


def test_commit_leaves_other_references_unchanged(path: Path) -> None:
    fs = RefShardFileSystem(str(path), mode="a")
    fs.pipe_file("a", b"text")
    fs.commit()
    assert json.loads(path.read_bytes())["refs"] == {"text": "inline", "range": ["data", 10, 20], "a": "text"}


def test_growth_of_the_last_dimension_keeps_all_chunks(tmp_path: Path) -> None:
    fs = open_for_writes(tmp_path / "refs.parq", "parquet")
    fs.pipe({"zarr.json": make_group_document(), "a/zarr.json": make_array_document((3, 2))})
    fs.pipe({f"a/c/{i}/{j}": bytes([i, j]) * 20 for i in range(3) for j in range(2)})
    fs.commit()
    fs.pipe({"a/zarr.json": make_array_document((3, 5)), "a/c/1/4": b"new"})
    fs.commit()
    expected = {f"a/c/{i}/{j}": bytes([i, j]) * 20 for i in range(3) for j in range(2)} | {"a/c/1/4": b"new"}
    assert RefShardFileSystem(str(tmp_path / "refs.parq")).cat("a/c", recursive=True) == expected


def test_one_changed_chunk_of_a_parquet_set_writes_one_partition(tmp_path: Path) -> None:
    path = tmp_path / "refs.parq"
    fs = open_for_writes(path, "parquet", record_size=10)
    fs.pipe({"zarr.json": make_group_document(), "a/zarr.json": make_array_document((100,))})
    fs.pipe({f"a/c/{i}": b"v" for i in range(100)})
    fs.commit()
    before = {file.name: file.stat().st_ino for file in (path / "a").iterdir()}
    fs.pipe_file("a/c/35", b"w")
    fs.commit()
    after = {file.name: file.stat().st_ino for file in (path / "a").iterdir()}
    assert {name for name in after if after[name] != before.get(name)} == {"refs.3.parq", "refs.3.1.parq"}
    assert fs.cat_file("a/c/35") == b"w"


def test_unsupported_key_is_refused_at_the_commit_and_kept(tmp_path: Path) -> None:
    fs = open_for_writes(tmp_path / "refs.parq", "parquet")
    fs.pipe({"zarr.json": make_group_document(), "a/zarr.json": make_array_document((3,)), "a/notes.txt": b"text"})
    with pytest.raises(ValueError, match=r"'a/notes\.txt'"):
        fs.commit()
    assert fs.cat_file("a/notes.txt") == b"text"
    assert not (tmp_path / "refs.parq" / ".zmetadata").exists()
    fs.rm("a/notes.txt")
    fs.commit()
    assert sorted(RefShardFileSystem(str(tmp_path / "refs.parq")).find("")) == ["a/zarr.json", "zarr.json"]


def test_numbers_as_values_and_missing_keys_are_refused(path: Path) -> None:
    fs = RefShardFileSystem(str(path), mode="a")
    with pytest.raises(TypeError, match="expected bytes to write, got the integer"):
        fs.pipe_file("a", 5)
    with pytest.raises(TypeError, match="expected bytes to write, got the integer"):
        fs.pipe({"a": 5})  # type: ignore[dict-item]  # tests the wrong type
    with pytest.raises(FileNotFoundError):
        fs.open("a", "r+b")  # the types have no such mode
    assert not fs.exists("a")
    with fs.open("text", "r+b") as file:  # the types have no such mode
        file.write(b"IN")
    with fs.open("new", "ab") as file:
        file.write(b"x")
    assert fs.cat(["text", "new"]) == {"text": b"INline", "new": b"x"}
    fs.discard()


def test_chunk_manifests_refuse_commits_but_can_be_saved(tmp_path: Path) -> None:
    refs = {"zarr.json": make_group_document(), "a/zarr.json": make_array_document((3,)), "a/c/0": b"1"}
    RefShardFileSystem(refs).save(str(tmp_path / "set.zarr"))
    before = {path: path.read_bytes() for path in (tmp_path / "set.zarr").rglob("*.json")}
    fs = RefShardFileSystem(str(tmp_path / "set.zarr"), mode="a")
    fs.pipe_file("a/c/1", b"2")
    with pytest.raises(ReadOnlyError, match=r"without chunk manifests\. fs\.save"):
        fs.commit()
    assert {path: path.read_bytes() for path in (tmp_path / "set.zarr").rglob("*.json")} == before
    fs.save(str(tmp_path / "new.zarr"))
    fs.discard()
    assert RefShardFileSystem(str(tmp_path / "new.zarr")).cat("a/c", recursive=True) == {"a/c/0": b"1", "a/c/1": b"2"}


def test_commit_to_a_missing_icechunk_repository_is_refused(tmp_path: Path) -> None:
    fs = RefShardFileSystem(str(tmp_path / "new.icechunk"), mode="a")
    fs.pipe("zarr.json", make_group_document())
    with pytest.raises(ReadOnlyError, match=r"no Icechunk repository at .*new\.icechunk, and a commit makes none"):
        fs.commit()
    fs.discard()


@pytest.mark.parametrize("key", ["a/../b", "../b", ".", "a/./b", "a\0", "a" * 5000, "a/" * 100 + "a"])
def test_invalid_key_is_refused_at_once(path: Path, tmp_path: Path, key: str) -> None:
    """A JSON set with such a key could not be opened; in a zarr hierarchy, the key could name a file outside of it."""
    (tmp_path / "made.zarr").mkdir()
    (tmp_path / "made.zarr" / "zarr.json").write_bytes(make_group_document())
    for fo in (path, tmp_path / "made.zarr"):
        fs = RefShardFileSystem(str(fo), mode="a")
        fs.pipe_file("text", b"text")
        for write in (
            lambda fs: fs.pipe_file(key, b"x"),
            lambda fs: asyncio.run(fs._pipe_file(key, b"x")),
            lambda fs: fs.refer(key, "data", 0, 1),
            lambda fs: fs.cp_file("text", key),
            lambda fs: fs.open(key, "wb"),
        ):
            with pytest.raises(ValueError, match="cannot write .* it is not a valid key"):
                write(fs)
        fs.commit()
        assert RefShardFileSystem(str(fo)).cat_file("text") == b"text"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["data", "made.zarr", "refs.json"]
    with pytest.raises(IsADirectoryError):
        fs.refer("", "data", 0, 1)


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_range_without_an_end_is_not_committed_to_kerchunk(tmp_path: Path, path: Path, format: str) -> None:
    fs = open_for_writes(tmp_path / format, format)
    fs.pipe({"zarr.json": make_group_document(), "a/zarr.json": make_array_document((2,))})
    fs.refer("a/c/0", str(tmp_path / "data"), 10)
    assert fs.cat_file("a/c/0") == LARGE[10:]
    assert fs.references["a/c/0"][1:] == [10, None]
    with pytest.raises(ManifestError, match="'a/c/0' reaches from byte 10"):
        fs.commit()
    fs.refer("a/c/0", str(tmp_path / "data"), 10, len(LARGE) - 10)
    fs.commit()
    assert RefShardFileSystem(str(tmp_path / format)).cat_file("a/c/0") == LARGE[10:]


@pytest.mark.parametrize(("offset", "length"), [(-1, None), (-1, 5), (0, -1), (5, 2**63), (2**63, None)])
def test_invalid_range_is_refused_at_once(path: Path, offset: int, length: int | None) -> None:
    fs = RefShardFileSystem(str(path), mode="a")
    with pytest.raises(ValueError, match="'a': expected offset and length"):
        fs.refer("a", "data", offset, length)
    with pytest.raises(TypeError):
        fs.refer("a", "data", "0", length)  # type: ignore[arg-type]  # tests the wrong type


@pytest.mark.parametrize("change", ["resized", "added", "removed", "removed whole", "a chunk"])
def test_uncommitted_writes_show_in_consolidated_metadata(tmp_path: Path, change: str) -> None:
    """zarr and xarray open arrays with the shapes in the consolidated metadata."""

    def described(length: int) -> bytes:
        plain = {"dtype": "|u1", "order": "C", "fill_value": 0, "filters": None, "compressor": None, "chunks": [1]}
        return json.dumps({"zarr_format": 2, "shape": [length], **plain}).encode()

    fs = open_for_writes(tmp_path / "refs.parq", "parquet")
    fs.pipe({".zgroup": b'{"zarr_format": 2}', "a/.zarray": described(3), "a/.zattrs": b"{}", "a/0": b"1"})
    fs.commit()
    match change:
        case "resized":
            fs.pipe_file("a/.zarray", described(5))
        case "added":
            fs.pipe_file("b/.zarray", described(5))
        case "removed":
            fs.rm(["a/.zarray", "a/.zattrs", "a/0"])
        case "removed whole":
            fs.rm("a", recursive=True)
        case _:
            fs.pipe_file("a/1", b"2")
    shown = [fs.cat_file(".zmetadata"), fs.cat([".zmetadata", ".zgroup"])[".zmetadata"]]
    listed = {row["name"]: row["size"] for row in fs.ls("")}
    assert listed[".zmetadata"] == fs.info(".zmetadata")["size"] == len(shown[0])
    fs.commit()
    seen = RefShardFileSystem(str(tmp_path / "refs.parq"))
    for data in shown:
        members = json.loads(data)["metadata"]
        assert members == json.loads(seen.cat_file(".zmetadata"))["metadata"]
        assert members == {key: json.loads(seen.cat_file(key)) for key in members}
    assert ("b/.zarray" in members, "a/.zarray" in members) == (change == "added", "removed" not in change)


def test_commit_replaces_the_target_of_a_symbolic_link(tmp_path: Path) -> None:
    """The link stays a link, and the document that it names gets the new content."""
    (tmp_path / "real.json").write_text('{".zgroup": "{}"}')
    try:
        (tmp_path / "current.json").symlink_to("real.json")
    except OSError:
        pytest.skip("this system lets us make no links")
    fs = RefShardFileSystem(str(tmp_path / "current.json"), mode="a")
    fs.pipe_file("k", b"new")
    fs.commit()
    assert (tmp_path / "current.json").is_symlink()
    assert RefShardFileSystem(str(tmp_path / "real.json")).cat_file("k") == b"new"
