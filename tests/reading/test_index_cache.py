"""Files of the index cache are complete, have a limit together, and are checked before they are used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.core.model import Pin
from refshard_fs.formats.kerchunk_json import source as kerchunk_json
from refshard_fs.reading import index_cache, loading
from refshard_fs.reading.index_cache import IndexCache, find_default_directory
from refshard_fs.source.source import INDEXES
from refshard_fs.targets import local
from tests.support.threads import wait_for_writes

ARRAY = {"zarr_format": 2, "shape": [100], "chunks": [1], "dtype": "|u1", "compressor": None, "fill_value": 0}
ARRAY |= {"order": "C", "filters": None}


@pytest.fixture(autouse=True)
def fresh_process() -> Iterator[None]:
    INDEXES.clear()
    yield
    wait_for_writes()


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each decoding of a source adds the source's name."""
    seen: list[str] = []
    finish = kerchunk_json.Decoder.finish

    def watched(self: kerchunk_json.Decoder) -> Any:
        seen.append(self._index.where)
        return finish(self)

    monkeypatch.setattr(kerchunk_json.Decoder, "finish", watched)
    return seen


def source(tmp_path: Path, size: int = 100) -> Path:
    (tmp_path / "data").write_bytes(bytes(range(200)))
    refs: dict[str, Any] = {"a/.zarray": json.dumps(ARRAY), "a/.zattrs": {"x": float("nan")}, "text": "base64:AAEC"}
    refs |= {f"a/{i}": ["data", i, 1] for i in range(size)}
    refs |= {"whole": ["data"], "b/0": [None, 5, 2]}
    path = tmp_path / "refs.json"
    # The padding makes the document too long to be decoded from its first bytes alone.
    path.write_text(json.dumps({"version": 1, "templates": {}, "refs": {**refs, "pad": "x" * 8192}}))
    make_old(path)
    return path


def make_old(path: Path) -> None:
    """Make ``path`` some minutes old, because the time of a new file does not identify its version."""
    os.utime(path, (time.time() - 200.5, time.time() - 200.5))


def open_with_cache(path: Path, cache: Path | bool | None, **options: Any) -> RefShardFileSystem:
    INDEXES.clear()
    fs = RefShardFileSystem(str(path), index_cache=cache, target=str(path.parent / "data"), **options)
    assert fs.cat("a/7") == b"\7"
    wait_for_writes()
    return fs


def read_all(fs: RefShardFileSystem) -> dict[str, bytes]:
    return {key: fs.cat_file(key) for key in fs.find("")}


def test_new_filesystem_uses_the_index_of_an_earlier_one(tmp_path: Path, parses: list[str]) -> None:
    path, cache = source(tmp_path), tmp_path / "cache"
    first = read_all(open_with_cache(path, cache))
    second = open_with_cache(path, cache)
    assert read_all(second) == first
    assert len(parses) == 1
    assert json.loads(first["a/.zattrs"].replace(b"NaN", b"1")) == {"x": 1}
    assert second.references["b/0"] == [None, 5, 2]


def test_other_process_finds_the_index(tmp_path: Path) -> None:
    path, cache = source(tmp_path), tmp_path / "cache"
    open_with_cache(path, cache)
    code = (
        "import sys\nfrom refshard_fs import RefShardFileSystem\n"
        "from refshard_fs.formats.kerchunk_json import source as kerchunk_json\n"
        "del kerchunk_json.Decoder.finish\n"
        "print(RefShardFileSystem(sys.argv[1], index_cache=sys.argv[2]).cat('a/9'))"
    )
    run = subprocess.run([sys.executable, "-c", code, path, cache], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == repr(b"\t")


def test_changed_source_is_decoded_again(tmp_path: Path, parses: list[str]) -> None:
    path, cache = source(tmp_path), tmp_path / "cache"
    open_with_cache(path, cache)
    text = path.read_text()
    path.write_text(text.replace('["data", 7, 1]', '["data", 8, 1]'))
    INDEXES.clear()
    assert RefShardFileSystem(str(path), index_cache=cache).cat("a/7") == b"\10"
    assert len(parses) == 2


def test_options_that_change_the_set_have_an_index_of_their_own(tmp_path: Path, parses: list[str]) -> None:
    path, cache = source(tmp_path), tmp_path / "cache"
    open_with_cache(path, cache)
    open_with_cache(path, cache, template_overrides={"u": "v"})
    open_with_cache(path, cache)
    assert len(parses) == 2


@pytest.mark.parametrize("harm", ["cut", "empty", "flip", "header", "magic", "version", "longer", "garbage"])
def test_damaged_file_is_replaced_without_a_warning(tmp_path: Path, parses: list[str], harm: str) -> None:
    path, cache = source(tmp_path), tmp_path / "cache"
    first = read_all(open_with_cache(path, cache))
    (kept,) = cache.iterdir()
    good = kept.read_bytes()
    harmed = {
        "cut": good[: len(good) // 2],
        "empty": b"",
        "flip": good[:-100] + bytes([good[-100] ^ 1]) + good[-99:],
        "header": good[:40] + b"\xff" * 8 + good[48:],
        "magic": b"x" + good[1:],
        "version": good[:14] + b"\xff\xff" + good[16:],
        "longer": good + bytes(64),
        "garbage": os.urandom(len(good)),
    }[harm]
    kept.unlink()
    kept.write_bytes(harmed)
    assert read_all(open_with_cache(path, cache)) == first
    assert len(parses) == 2
    assert kept.read_bytes() == good
    open_with_cache(path, cache)
    assert len(parses) == 2


def test_old_index_is_replaced_without_a_warning(tmp_path: Path, parses: list[str]) -> None:
    path, cache = source(tmp_path), tmp_path / "cache"
    first = read_all(open_with_cache(path, cache))
    (kept,) = cache.iterdir()
    whole = IndexCache(cache).get(kept.stem)
    assert whole is not None
    older = bytes(whole[:14]) + b"\0\0" + bytes(whole[16:])  # undamaged, but of another version of the layout
    del whole
    good = kept.read_bytes()
    IndexCache(cache).put(kept.stem, [older])
    assert read_all(open_with_cache(path, cache)) == first
    assert len(parses) == 2
    assert kept.read_bytes() == good


@pytest.mark.parametrize("how", ["truncated", "emptied", "overwritten", "removed"])
def test_loaded_index_survives_damage_to_its_file(tmp_path: Path, how: str, parses: list[str]) -> None:
    """If the file were mapped into memory, cutting it short would end the process."""
    path, cache = source(tmp_path), tmp_path / "cache"
    first = read_all(open_with_cache(path, cache))
    fs = open_with_cache(path, cache)
    (kept,) = cache.iterdir()
    match how:
        case "truncated":
            os.truncate(kept, 100)
        case "emptied":
            os.truncate(kept, 0)
        case "overwritten":
            kept.write_bytes(b"x" * kept.stat().st_size)
        case "removed":
            kept.unlink()
    assert read_all(fs) == first
    assert len(parses) == 1


@pytest.mark.parametrize(
    ("etag", "modified", "is_kept"),
    [('"strong"', 1, True), ('W/"weak"', 1, False), (None, 1, False), (None, None, False)],
)
def test_index_is_cached_only_for_an_unambiguous_version(etag: Any, modified: Any, is_kept: bool) -> None:
    headers = None if modified is None else "Sat, 28 Nov 2020 01:00:00 GMT"
    pin = Pin(etag, headers, 10)
    assert loading._tells_versions_apart(pin) is is_kept


@pytest.mark.parametrize(("age", "is_kept"), [(0, False), (1.0, True), (5.0, True)])
@pytest.mark.parametrize("is_coarse", [False, True])
def test_file_is_cached_only_some_time_after_its_last_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: float, is_kept: bool, is_coarse: bool
) -> None:
    """The next version may have the same time, within a tick, or within two seconds if times are whole seconds."""
    modified = 1000.0 if is_coarse else 1000.25
    (tmp_path / "x").touch()
    os.utime(tmp_path / "x", (modified, modified))
    monkeypatch.setattr(loading.time, "time", lambda: modified + age)
    pin = local.facts_of(os.stat(tmp_path / "x")).pin
    assert loading._tells_versions_apart(pin) is (is_kept and not (is_coarse and age == 1.0))


@pytest.mark.parametrize("length", [0, 1, 15, 16, 20, 100])
def test_damaged_index_is_refused_when_it_is_unpacked(length: int) -> None:
    index = kerchunk_json.JsonIndex("x")
    parts = index.pack(index.decode(b'{"a":"b"}'))
    whole = b"".join(parts)
    assert index.unpack(memoryview(whole)).side == {"a": "b"}
    for wrong in (whole[:length], whole + b"x", b"x" + whole[1:], whole[:14] + b"\xff" + whole[15:]):
        with pytest.raises(ValueError, match="it|expected|does not match|damaged"):
            index.unpack(memoryview(wrong))


def test_single_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path, cache = source(tmp_path, 3), tmp_path / "cache"
    fs = RefShardFileSystem(str(path), index_cache=cache)
    fs.ls("")
    wait_for_writes()
    (kept,) = cache.iterdir()
    good = kept.read_bytes()
    store = IndexCache(cache)
    assert store.get(kept.stem) is not None
    for at in range(0, len(good), 7):
        harmed = bytearray(good)
        harmed[at] ^= 1 << at % 8
        kept.write_bytes(harmed)
        assert store.get(kept.stem) is None


def test_two_flipped_bits_at_many_places_are_noticed(tmp_path: Path) -> None:
    cache = IndexCache(tmp_path)
    cache.put("x", [bytes(200)])
    path = tmp_path / "x.refindex"
    sound = path.read_bytes()
    for byte in range(0, 192, 8):
        for other in range(byte + 8, 200, 8):
            for bit in (0x80, 0x40, 0x20, 0x01):
                for place in (0, 3, 7):
                    harmed = bytearray(sound)
                    harmed[byte + place] ^= bit
                    harmed[other + place] ^= bit
                    assert index_cache._read_checked(BytesIO(harmed), len(harmed), "x") is None  # type: ignore[arg-type]


@pytest.mark.case(id="P24")
def test_renamed_index_file_is_ignored(tmp_path: Path) -> None:
    """Another user who may write to the directory could give the index of one set the name of a trusted set."""
    cache = IndexCache(tmp_path)
    cache.put("trusted", [b"of the user"])
    cache.put("other", [b"of somebody"])
    os.replace(tmp_path / "other.refindex", tmp_path / "trusted.refindex")
    assert cache.get("trusted") is None
    os.link(tmp_path / "trusted.refindex", tmp_path / "other.refindex")
    assert bytes(cache.get("other") or b"") == b"of somebody"


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="files of others are made by root")
@pytest.mark.case(id="P24")
def test_file_of_another_user_is_ignored(tmp_path: Path) -> None:
    cache = IndexCache(tmp_path)
    cache.put("x", [b"data"])
    os.chown(tmp_path / "x.refindex", 12345, 12345)
    assert cache.get("x") is None


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="nothing is read-only to root")
def test_unwritable_directory_is_accepted(tmp_path: Path) -> None:
    path, cache = source(tmp_path), tmp_path / "cache"
    cache.mkdir(mode=0o500)
    open_with_cache(path, cache / "below")
    open_with_cache(path, cache)
    assert not list(cache.iterdir())


def test_file_in_place_of_the_directory_is_accepted(tmp_path: Path) -> None:
    path, cache = source(tmp_path), tmp_path / "cache"
    cache.write_text("no directory")
    open_with_cache(path, cache)
    open_with_cache(path, cache / "below")
    assert cache.read_text() == "no directory"


def test_index_cache_is_not_used_if_off_or_for_small_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    path = source(tmp_path)
    open_with_cache(path, False)
    open_with_cache(path, None)  # the set is too small for the default cache
    assert not (tmp_path / "xdg").exists()


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="XDG directories are those of other platforms")
def test_large_sets_are_kept_by_default_in_users_cache_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parses: list[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(loading, "WORTH_A_LOOK", 1)
    monkeypatch.setattr(loading, "WORTH_KEEPING", 1)
    path = source(tmp_path)
    open_with_cache(path, None)
    (kept,) = (tmp_path / "xdg" / "refshard_fs").iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    assert (kept.parent.stat().st_mode & 0o077) == 0
    open_with_cache(path, True)
    assert len(parses) == 1


def test_missing_home_directory_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setattr(index_cache.Path, "home", homeless)
    assert find_default_directory() is None
    assert RefShardFileSystem({"a": "b"}, index_cache=None).cat("a") == b"b"


@pytest.mark.case(id="P24")
def test_index_files_do_not_contain_the_token_of_the_url(tmp_path: Path, http_server: Any) -> None:
    path, cache = source(tmp_path), tmp_path / "cache"
    http_server.put("/refs.json", path.read_bytes())
    INDEXES.clear()
    url = http_server.url + "/refs.json?token=SECRET"
    fs = RefShardFileSystem(url, index_cache=cache)
    assert fs.cat("text") == b"\0\1\2"
    wait_for_writes()
    (kept,) = cache.iterdir()
    assert b"SECRET" not in kept.read_bytes()
    assert "SECRET" not in kept.name


@pytest.mark.case(id="P24")
def test_signed_urls_are_not_cached(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for query in ("?X-Amz-Signature=HUSH", "?version=1"):
        text = json.dumps({"version": 1, "refs": {"k": [f"https://host/x{query}", 0, 1], "pad": "x" * 8192}})
        (tmp_path / "refs.json").write_text(text)
        make_old(tmp_path / "refs.json")
        assert RefShardFileSystem(tmp_path / "refs.json", index_cache=cache).info("k")["size"] == 1
        wait_for_writes()
    (kept,) = cache.iterdir()
    assert b"version=1" in kept.read_bytes()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has rights and links of another kind")
@pytest.mark.parametrize("kind", ["pipe", "link", "link to a device", "directory"])
@pytest.mark.case(id="P24")
def test_special_files_in_the_cache_are_ignored(kind: str, tmp_path: Path) -> None:
    cache = IndexCache(tmp_path / "cache")
    cache.put("a", [b"kept"])
    path = tmp_path / "cache" / "a.refindex"
    os.rename(path, tmp_path / "moved")
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to(tmp_path / "moved")
        case "link to a device":
            path.symlink_to("/dev/zero")
        case "directory":
            path.mkdir()
    assert cache.get("a") is None


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has rights and links of another kind")
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
@pytest.mark.case(id="P24")
def test_directory_that_others_may_write_is_not_used(mode: int, tmp_path: Path) -> None:
    cache = IndexCache(tmp_path / "cache")
    cache.put("a", [b"kept"])
    assert cache.get("a") is not None
    os.chmod(tmp_path / "cache", mode)
    cache.put("b", [b"kept"])
    assert cache.get("a") is None
    assert [file.name for file in (tmp_path / "cache").iterdir()] == ["a.refindex"]
    (tmp_path / "alias").symlink_to(tmp_path / "cache")
    os.chmod(tmp_path / "cache", 0o700)
    assert IndexCache(tmp_path / "alias").get("a") is None


def test_least_recently_used_files_are_evicted_first(tmp_path: Path) -> None:
    cache = IndexCache(tmp_path, capacity=300)
    for age, name in ((30, "a"), (20, "b")):
        cache.put(name, [bytes(100)])
        stamp = time.time() - age
        os.utime(tmp_path / f"{name}.refindex", (stamp, stamp))
    assert cache.get("a") is not None
    cache.put("c", [bytes(60), memoryview(bytes(40))])
    assert cache.get("b") is None
    assert cache.get("a") is not None
    found = cache.get("c")
    assert found is not None
    assert found[:] == bytes(100)
    cache.put("d", [bytes(300)])
    assert cache.get("d") is None
    assert cache.get("a") is not None


def test_unfinished_files_count_towards_the_capacity(tmp_path: Path) -> None:
    """Otherwise the files of killed writers could fill the disk."""
    for i in range(30):
        (tmp_path / f"{i}-dead.tmp").write_bytes(bytes(1000))
        os.utime(tmp_path / f"{i}-dead.tmp", (time.time() - 60 + i, time.time() - 60 + i))
    cache = IndexCache(tmp_path, capacity=5000)
    cache.put("a", [bytes(1000)])
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 5000
    assert (tmp_path / "29-dead.tmp").exists()
    assert cache.get("a") is not None


def test_file_beyond_the_capacity_is_not_read(tmp_path: Path) -> None:
    cache = IndexCache(tmp_path, capacity=5000)
    cache.put("a", [b"x"])
    with open(tmp_path / "a.refindex", "r+b") as file:
        file.truncate(1 << 40)  # a sparse file, which takes no room on the disk
    assert cache.get("a") is None


def test_old_unfinished_files_are_removed(tmp_path: Path) -> None:
    old, new = tmp_path / "x-1.tmp", tmp_path / "x-2.tmp"
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (1, 1))
    IndexCache(tmp_path).put("a", [b"1"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.refindex", "x-2.tmp"]


def test_readers_beside_writers_see_whole_indexes(tmp_path: Path) -> None:
    cache = IndexCache(tmp_path)
    wrong: list[bytes] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            found = cache.get("a")
            if found is not None and (len(found) != 4096 or len(set(found[:])) != 1):
                wrong.append(found[:])

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    writers = [
        threading.Thread(target=lambda i=i: [cache.put("a", [bytes([i]) * 4096]) for _ in range(40)]) for i in (1, 2)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong
    assert [p.name for p in tmp_path.iterdir()] == ["a.refindex"]
