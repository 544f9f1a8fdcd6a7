"""Local files are read from any thread and process, with few descriptors, and changes are noticed."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from refshard_fs.core.model import Listed, Pin
from refshard_fs.errors import TargetChanged
from refshard_fs.targets import Pool, PoolOptions, Versions, local
from refshard_fs.targets.failures import Unreadable
from refshard_fs.targets.local import LocalTarget
from tests.support.target_reading import Reader

DATA = random.Random(0).randbytes(5000)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.bin"
    path.write_bytes(DATA)
    return path


@pytest.fixture(params=["pread", "seek"])
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LocalTarget:
    """A target that reads by ``pread``, as on POSIX, or by seeking, as on Windows."""
    if request.param == "seek":
        monkeypatch.setattr(local, "_read_at", local._seek_and_read)
    return LocalTarget()


@pytest.mark.parametrize(
    ("start", "stop"),
    [(0, 10), (7, 5000), (4990, 6000), (6000, 7000), (5000, None), (-10, None), (-6000, None), (0, 0)],
)
def test_range_equals_a_slice(target: LocalTarget, file: Path, start: int, stop: int | None) -> None:
    answer = target.read_now(str(file), start, stop)
    assert (answer.data, answer.size) == (DATA[start:stop], 5000)


@pytest.mark.parametrize("spelled", ["file://{}", "local://{}", "{}"])
def test_local_file_is_read_without_event_loop(file: Path, spelled: str) -> None:
    place = Pool(PoolOptions(), None).place(spelled.format(file))
    assert place is not None
    answer = place[0].read_now(place[1], 3, 9)
    assert answer is not None
    assert answer.data == DATA[3:9]


def test_threads_get_the_bytes_of_their_own_ranges(target: LocalTarget, file: Path) -> None:
    starts = random.Random(1).choices(range(4900), k=3000)

    def read(start: int) -> bool:
        return target.read_now(str(file), start, start + 100).data == DATA[start : start + 100]

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, starts))


def test_short_reads_of_the_kernel_are_continued(
    target: LocalTarget, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = local._read_at
    monkeypatch.setattr(local, "_read_at", lambda of, length, start: whole(of, min(length, 99), start))
    assert target.read_now(str(file), 1, 4000).data == DATA[1:4000]


def test_open_files_are_bounded(target: LocalTarget, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    for i in range(3 * local.OPEN_FILES):
        (tmp_path / str(i)).write_bytes(DATA[i:])
        assert target.read_now(str(tmp_path / str(i)), 0, 5).data == DATA[i : i + 5]
    if before is None:
        pytest.skip("open files cannot be counted here")
    assert len(os.listdir("/proc/self/fd")) <= before + local.OPEN_FILES


@pytest.mark.evidence(id="T1")
def test_changed_file_is_noticed(file: Path) -> None:
    pool = Pool(PoolOptions(), None, versions := Versions())
    place = pool.place(str(file))
    assert place is not None
    opened, path = place
    opened.read_now(path, 0, 5)
    other = file.with_name("other")
    other.write_bytes(DATA[::-1])
    os.replace(other, file)
    with pytest.raises(TargetChanged, match="replaced since it was first read"):
        opened.read_now(path, 0, 5)
    versions.clear()
    assert Reader().read(str(file), 0, 5) == DATA[::-1][:5]


def test_manifest_may_pin_a_version(file: Path) -> None:
    assert Reader().read(str(file), 0, 5, Pin(size=5000, etag='"of another store"')) == DATA[:5]
    with pytest.raises(TargetChanged, match="5000 bytes, not 4999"):
        Reader().read(str(file), 0, 5, Pin(size=4999))
    with pytest.raises(TargetChanged, match="last modified"):
        Reader().read(str(file), 0, 5, Pin(last_modified="Fri, 01 Jan 1999 00:00:00 GMT"))


def test_missing_file_and_directory_are_file_not_found(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises((FileNotFoundError, IsADirectoryError)):
            Reader().read(str(path), 0, 5)
        with pytest.raises((FileNotFoundError, IsADirectoryError)):
            Reader().get_facts(str(path))


def test_name_longer_than_file_systems_permit_is_missing(tmp_path: Path) -> None:
    for path in (f"{tmp_path}/{'x' * 300}", f"{tmp_path}/{'x' * 300}/zarr.json", f"{tmp_path}/{'a/' * 3000}x"):
        for call in (lambda path=path: Reader().read(path, 0, 5), lambda path=path: Reader().get_facts(path)):
            with pytest.raises(FileNotFoundError):
                call()
        with pytest.raises(FileNotFoundError):
            Reader().list_names(path)


@pytest.mark.skipif(os.stat not in os.supports_dir_fd, reason="this platform opens no path relative to a directory")
def test_file_at_a_path_that_is_too_long_is_not_missing(tmp_path: Path) -> None:
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(25):
        os.mkdir("d" * 200, dir_fd=at)
        deeper = os.open("d" * 200, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = deeper
    os.close(os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)
    path = f"{tmp_path}/{'/'.join(['d' * 200] * 25)}"
    with pytest.raises(OSError, match="too long") as caught:
        Reader().read(f"{path}/x", 0, 5)
    assert not isinstance(caught.value, FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        Reader().read(f"{path}/y", 0, 5)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this platform has no named pipes")
def test_pipe_or_device_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), os.devnull, "/dev/zero"):
        with pytest.raises(Unreadable, match="a pipe or a device"):
            Reader().read(path, 0, 5)
        with pytest.raises(Unreadable, match="a pipe or a device"):  # it is not an empty file
            Reader().get_facts(path)


def test_unreadable_file_is_not_a_missing_one(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> int:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError):
        LocalTarget().read_now(str(file), 0, 5)


def test_directory_lists_files_and_directories(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a").write_bytes(b"123")
    os.utime(tmp_path / "a", (0, 1.5))
    found = Reader().list_names(str(tmp_path))
    assert found == (Listed("a", 3, last_modified="1.5"), Listed("b", None, True))


def test_file_removed_during_a_listing_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error about the removed file must not look as if the directory did not exist."""
    for name in "abc":
        (tmp_path / name).write_bytes(b"123")

    def removes(path: str) -> bool:
        if path == "b":
            (tmp_path / "b").unlink()
        return False

    monkeypatch.setattr(local, "is_draft", removes)
    found = Reader().list_names(str(tmp_path))
    assert found is not None
    assert [listed.name for listed in found] == ["a", "c"]


@pytest.mark.skipif(os.name == "nt", reason="few users of Windows have the right to make links")
def test_broken_link_leaves_its_directory_listable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"123")
    (tmp_path / "itself").symlink_to(tmp_path / "itself")
    (tmp_path / "nowhere").symlink_to(tmp_path / "none")
    found = Reader().list_names(str(tmp_path))
    assert found is not None
    assert [(listed.name, listed.size) for listed in found] == [("file", 3), ("itself", None)]
    with pytest.raises(OSError, match="symbolic links"):
        Reader().read(str(tmp_path / "itself"), 0, 5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no os.fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_reads_during_parents_reads(file: Path) -> None:
    place = Pool(PoolOptions(), None).place(str(file))
    assert place is not None
    opened, path = place
    opened.read_now(path, 0, 5)
    results = multiprocessing.get_context("fork").SimpleQueue()

    def child() -> None:
        answer = opened.read_now(path, 5, 10)
        results.put(None if answer is None else answer.data)

    held = threading.Event()
    release = threading.Event()

    def hold() -> None:
        with opened.target._files._lock:  # type: ignore[attr-defined]
            held.set()
            release.wait()  # another thread holds the lock during the fork

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(20)
    release.set()
    thread.join()
    assert process.exitcode == 0
    assert results.get() == DATA[5:10]
    assert Reader().read(str(file), 0, 5) == DATA[:5]


@pytest.mark.skipif(os.open not in os.supports_dir_fd, reason="few users of Windows have the right to make links")
@pytest.mark.parametrize("where", ["x.bin", "folder", "folder/deeper"])
@pytest.mark.case(id="P15")
def test_link_created_after_admission_is_not_followed(where: str, tmp_path: Path) -> None:
    target = LocalTarget(follows=False)
    place = tmp_path / "folder" / "deeper" / "x.bin"
    place.parent.mkdir(parents=True)
    place.write_bytes(DATA)
    assert target.read_now(str(place), 0, 10).data == DATA[:10]
    moved = place if where == "x.bin" else tmp_path / where
    other = tmp_path / "other"
    os.rename(moved, other)
    moved.symlink_to(other)
    if other.is_dir():
        names = asyncio.run(LocalTarget().list_names(str(place.parent)))
        assert names is not None
        with pytest.raises(Unreadable, match="symbolic link"):
            asyncio.run(target.list_names(str(place.parent)))
    fresh = LocalTarget(follows=False)
    for read in (lambda: fresh.read_now(str(place), 0, 10), lambda: asyncio.run(fresh.get_facts(str(place)))):
        with pytest.raises(Unreadable, match="symbolic link"):
            read()
