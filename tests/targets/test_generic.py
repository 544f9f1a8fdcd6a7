"""Other filesystems of fsspec are read through their public API, on any loop, and their answers are checked."""

from __future__ import annotations

import asyncio
import gc
import io
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.archive import AbstractArchiveFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.http import HTTPFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from refshard_fs.core.model import Listed, Pin
from refshard_fs.errors import TargetChanged, TargetNotAllowed
from refshard_fs.targets import Pool, PoolOptions, Retry, generic
from refshard_fs.targets.connections import Guard
from refshard_fs.targets.failures import HttpStatus, Incomplete, Unfit, Unreadable
from tests.servers.http import RangeServer
from tests.support.target_reading import AT_ONCE, Reader, run_with_pool

DATA = bytes(i * 31 % 251 for i in range(3000))
RANGES = [(0, 10), (10, 2000), (2990, 3000), (0, 3000), (-7, None), (5, None), (0, None), (-9999, None), (9, 9)]


class Odd(AbstractFileSystem):
    """A filesystem with the same file under every name; ``how`` selects a correct or a faulty way of reading."""

    protocol = "odd"
    cachable = False

    def __init__(self, how: str = "right", etag: str = "1", **options: Any) -> None:
        super().__init__(**options)
        self.how = how
        self.etag = etag
        self.tries = 0

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        self.tries += 1
        match self.how:
            case "right":
                return DATA[start:end]
            case "ignores ranges":
                return DATA
            case "short":
                return DATA[start:end][:-1]
            case "long":
                return DATA[start:end] + b"more"
            case "short once":
                return DATA[start:end][:-1] if self.tries == 1 else DATA[start:end]
            case "lost once" if self.tries > 1:
                return DATA[start:end]
            case "lost once" | "lost":
                raise ConnectionResetError("lost")
            case "empty to zarr":
                raise OSError(22, "The requested range is not satisfiable")
            case "odd":
                raise KeyError("what nobody expects")
            case "missing":
                raise FileNotFoundError(path)
        raise AssertionError(self.how)

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        return {"name": path, "size": len(DATA), "type": "file", "ETag": self.etag}


class OddAsync(AsyncFileSystem):
    """The same filesystem with coroutines."""

    protocol = "odda"
    cachable = False

    def __init__(self, how: str = "right", **options: Any) -> None:
        super().__init__(**options)
        self.like = Odd(how)
        self.loops: set[int] = set()

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        self.loops.add(id(asyncio.get_running_loop()))
        await asyncio.sleep(0)
        return self.like.cat_file(path, start, end)

    async def _info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        return self.like.info(path)


def odd(how: str) -> list[AbstractFileSystem]:
    return [Odd(how), OddAsync(how), OddAsync(how, asynchronous=True)]


def reader(fs: AbstractFileSystem, retries: int = 0) -> Reader:
    return Reader(by_protocol={"odd": fs}, retry=Retry(retries=retries, timeout=20))


@pytest.mark.parametrize(("start", "stop"), RANGES)
@pytest.mark.parametrize("how", ["right", "ignores ranges"])
@pytest.mark.parametrize("kind", range(3))
def test_range_equals_a_slice(how: str, kind: int, start: int, stop: int | None) -> None:
    assert reader(odd(how)[kind]).read("odd://x", start, stop) == DATA[start:stop]


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("how", ["short", "long"])
@pytest.mark.parametrize(("start", "stop"), [r for r in RANGES if r not in ((0, None), (9, 9))])
def test_wrong_length_is_an_error(how: str, kind: int, start: int, stop: int | None) -> None:
    with pytest.raises(Unfit):
        reader(odd(how)[kind]).read("odd://x", start, stop)


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("how", ["lost", "odd", "empty to zarr"])
def test_failures_are_not_a_missing_object(how: str, kind: int) -> None:
    with pytest.raises(OSError) as caught:  # noqa: PT011  # the exact class is checked below
        reader(odd(how)[kind]).read("odd://x", 0, 5)
    assert not isinstance(caught.value, (FileNotFoundError, IsADirectoryError, NotADirectoryError))
    assert "not satisfiable" not in str(caught.value)
    if how == "odd":
        assert isinstance(caught.value, Unreadable)
        assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("kind", range(3))
def test_missing_object_is_file_not_found(kind: int) -> None:
    with pytest.raises(FileNotFoundError):
        reader(odd("missing")[kind]).read("odd://x", 0, 5)


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("how", ["short once", "lost once"])
def test_temporary_failures_are_retried(how: str, kind: int) -> None:
    assert reader(odd(how)[kind], retries=1).read("odd://x", 0, 5) == DATA[:5]


def test_filesystem_of_fsspec_gets_at_most_two_retries() -> None:
    fs = Odd("lost")
    with pytest.raises(ConnectionError):
        reader(fs, retries=5).read("odd://x", 0, 5)
    assert fs.tries <= 3


@pytest.mark.evidence(id="T32")
def test_filesystem_instance_runs_on_its_loop_or_ours() -> None:
    synchronous, asynchronous = OddAsync(), OddAsync(asynchronous=True)
    reader(synchronous).read("odd://x", 0, 5)
    reader(asynchronous).read("odd://x", 0, 5)
    assert synchronous.loops == {id(synchronous.loop)}
    assert len(asynchronous.loops) == 1
    assert not asynchronous.loops & synchronous.loops


def test_manifest_may_pin_a_version() -> None:
    fs = Odd(etag='"abc"')
    assert reader(fs).read("odd://x", 0, 5, Pin(etag="abc")) == DATA[:5]
    with pytest.raises(TargetChanged):
        reader(fs).read("odd://x", 0, 5, Pin(etag="abd"))


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_pinned_object_replaced_after_the_first_read_is_noticed(
    kind: int,
) -> None:
    """The version is compared at each read, not only at the first: otherwise old and new bytes would be mixed."""
    fs = odd("right")[kind]
    versions = fs if isinstance(fs, Odd) else fs.like  # type: ignore[attr-defined]
    pin = Pin(etag="1")

    async def read(pool: Pool) -> None:
        opened, path = pool.place("odd://x")  # type: ignore[misc]  # it is not None
        assert (await opened.read(path, 0, 5, pin)).data == DATA[:5]
        versions.etag = "2"
        with pytest.raises(TargetChanged):
            await opened.read(path, 5, 9, pin)

    run_with_pool(PoolOptions({"odd": fs}, retry=AT_ONCE), read)


def test_pin_is_compared_with_a_fresh_listing() -> None:
    class Listing(Odd):
        listed: str | None = None

        def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
            Listing.listed = Listing.listed or self.etag
            return super().info(path) | {"ETag": Listing.listed}

        def invalidate_cache(self, path: str | None = None) -> None:
            Listing.listed = None

    fs = Listing()

    async def read(pool: Pool) -> None:
        opened, path = pool.place("odd://x")  # type: ignore[misc]  # it is not None
        await opened.read(path, 0, 5, Pin(etag="1"))
        fs.etag = "2"
        with pytest.raises(TargetChanged):
            await opened.read(path, 5, 9, Pin(etag="1"))

    run_with_pool(PoolOptions({"odd": fs}, retry=AT_ONCE), read)


def test_answers_of_a_subclass_of_http_are_checked(http_server: RangeServer) -> None:
    class Mine(HTTPFileSystem):
        pass

    url = http_server.put("/x", DATA)
    mine = Reader(by_protocol={"http": Mine()}, retry=AT_ONCE)
    for start, stop in RANGES:
        assert mine.read(url, start, stop) == DATA[start:stop]
    with pytest.raises(FileNotFoundError):
        mine.read(url + "/none", 0, 5)
    http_server.fault("short_body")
    with pytest.raises(Incomplete):
        mine.read(url, 0, 50)
    http_server.heal()
    http_server.fault(403)
    with pytest.raises(HttpStatus):
        mine.read(url, 0, 50)
    http_server.heal()
    http_server.fault("ignored_range")
    assert mine.read(url, 10, 50) == DATA[10:50]


def test_instance_of_another_loop_is_copied(http_server: RangeServer) -> None:
    class Mine(HTTPFileSystem):
        pass

    url = http_server.put("/x", DATA)
    fs = Mine(asynchronous=True, skip_instance_cache=True)
    mine = Reader(by_protocol={"http": fs})

    async def read_and_close(opened: Any, path: str) -> bytes:
        data = (await opened.read(path, 0, 5)).data
        await fs._session.close()
        return data  # type: ignore[no-any-return]  # of an Any

    assert mine.run(url, read_and_close) == DATA[:5]
    assert mine.read(url, 5, 10) == DATA[5:10]


def test_wrapped_local_and_memory_filesystems_are_read_directly(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(DATA)
    MemoryFileSystem().pipe_file("/generic/x", DATA)
    for fs, path in ((LocalFileSystem(), str(tmp_path / "x")), (MemoryFileSystem(), "/generic/x")):
        for given in (fs, AsyncFileSystemWrapper(fs, asynchronous=True)):
            place = Pool(PoolOptions({None: given, "file": given}), None).place(path)
            assert place is not None
            answer = place[0].read_now(place[1], 5, 9)
            assert answer is not None
            assert answer.data == DATA[5:9]


@pytest.mark.evidence(id="T31")
def test_arrow_filesystems_are_read(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow.fs")
    from fsspec.implementations.arrow import ArrowFSWrapper

    (tmp_path / "x").write_bytes(DATA)
    arrow_fs = Reader(by_protocol={"file": ArrowFSWrapper(arrow.LocalFileSystem())})
    for start, stop in RANGES:
        assert arrow_fs.read(f"file://{tmp_path}/x", start, stop) == DATA[start:stop]
    with pytest.raises(FileNotFoundError):
        arrow_fs.read(f"file://{tmp_path}/none", 0, 5)


@pytest.mark.evidence(id="T29")
def test_obstore_filesystems_are_read(http_server: RangeServer) -> None:
    obstore = pytest.importorskip("obstore.fsspec")
    http_server.put("/x", DATA)
    fs = obstore.FsspecStore("http", client_options={"allow_http": True}, retry_config={"max_retries": 0})
    remote = Reader(by_protocol={"http": fs})
    for start, stop in RANGES:
        assert remote.read(http_server.url + "/x", start, stop) == DATA[start:stop]
    with pytest.raises(FileNotFoundError):
        remote.read(http_server.url + "/none", 0, 5)
    http_server.fault(403)
    with pytest.raises(OSError) as caught:  # noqa: PT011  # the exact class is checked below
        remote.read(http_server.url + "/x", 0, 5)
    assert not isinstance(caught.value, FileNotFoundError)


@pytest.fixture
def archive(http_server: RangeServer) -> str:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as members:
        for i in range(20):
            member = tarfile.TarInfo(f"d/{i}")
            member.size = len(DATA) - i
            members.addfile(member, io.BytesIO(DATA[i:]))
    return http_server.put("/a.tar", file.getvalue())


def test_members_of_an_archive_share_one_opening(http_server: RangeServer, archive: str) -> None:
    async def read(pool: Pool) -> list[bytes]:
        async def one(i: int) -> bytes:
            place = pool.place(f"tar://d/{i}::{archive}")
            assert place is not None
            return (await place[0].read(place[1], 5, 50)).data

        return await asyncio.gather(*map(one, range(20)))

    assert run_with_pool(PoolOptions(), read) == [DATA[i:][5:50] for i in range(20)]
    assert len(http_server.requests(method="HEAD")) == 1


def test_chain_is_opened_on_fsspecs_loop(archive: str) -> None:
    """fsspec opens a chain by blocking calls: on its own event loop, instead of in a thread, these would never end."""
    loop = fsspec.asyn.get_loop()

    async def read() -> bytes:
        pool = Pool(PoolOptions(), asyncio.get_running_loop())
        place = pool.place(f"tar://d/3::{archive}")
        assert place is not None
        return (await place[0].read(place[1], 5, 50)).data

    assert asyncio.run_coroutine_threadsafe(read(), loop).result(30) == DATA[3:][5:50]


def test_missing_member_or_archive_is_file_not_found(http_server: RangeServer, archive: str) -> None:
    of_member = FileNotFoundError if fsspec.__version__ >= "2026" else Unreadable  # older fsspec raises KeyError
    for url, error in (
        (f"tar://none::{archive}", of_member),
        (f"tar://d/1::{http_server.url}/none.tar", FileNotFoundError),
    ):
        with pytest.raises(error):
            Reader().read(url, 0, 5)
    assert Reader().list_names(f"tar://d::{archive}")[0] == Listed("0", 3000)  # type: ignore[index]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # fsspec leaves files open
@pytest.mark.parametrize("cache", ["simplecache", "filecache", "blockcache"])
def test_cache_filesystems_serve_parallel_readers(http_server: RangeServer, tmp_path: Path, cache: str) -> None:
    urls = [http_server.put(f"/{i}", DATA[i:]) for i in range(3)]
    options = {cache: {"cache_storage": str(tmp_path / "cache")}}
    http_server.latency = 0.01

    async def read(pool: Pool) -> None:
        async def one(i: int) -> bytes:
            place = pool.place(f"{cache}::{urls[i % 3]}")
            assert place is not None
            return (await place[0].read(place[1], i, i + 50)).data

        assert await asyncio.gather(*map(one, range(24))) == [DATA[i % 3 :][i : i + 50] for i in range(24)]

    run_with_pool(PoolOptions(by_prefix={f"{cache}::": options}), read)


class OneAtATime(Odd):
    protocol = "sftp"


def test_equal_filesystems_have_separate_locks() -> None:
    """Filesystems with equal arguments are equal. So a table of locks would lose both locks if one is collected."""
    first, second = OneAtATime(), OneAtATime()
    assert first == second
    generic.get_lock(first, "x")
    held = generic.get_lock(second, "x")
    assert held is not generic.get_lock(first, "x")
    del first
    gc.collect()
    assert generic.get_lock(second, "x") is held


@pytest.mark.parametrize("shared", ["ftp", "zip", "dir"])
@pytest.mark.evidence(id="T26")
def test_single_threaded_filesystem_is_locked(shared: str) -> None:
    """On Python 3.12.0–3.12.8 and 3.13.0–3.13.1, open handles of one `ZipFile` mix up their positions
    ([gh-127847](https://github.com/python/cpython/issues/127847)): parallel reads returned wrong bytes.
    """

    class OnePlace(AbstractArchiveFileSystem if shared == "zip" else Odd):  # type: ignore[misc]
        protocol = "ftp" if shared == "dir" else shared
        how, etag, tries = "right", "1", 0
        inside = 0
        most = 0

        def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
            with lock:
                OnePlace.inside += 1
                OnePlace.most = max(OnePlace.most, OnePlace.inside)
            data = Odd.cat_file(self, path, start, end)
            with lock:
                OnePlace.inside -= 1
            return data

    lock = threading.Lock()
    fs = DirFileSystem("h", OnePlace()) if shared == "dir" else OnePlace()

    def work(i: int) -> bytes:
        return Reader(by_protocol={"odd": fs}).read("odd://h/x", i, i + 5)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(40))) == [DATA[i : i + 5] for i in range(40)]
    assert OnePlace.most == 1


class Counted(Odd):
    """A filesystem that counts calls in ``tries``: 1 for each read, 100 for each `info`."""

    protocol = "counted"

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        self.tries += 100
        return super().info(path, **kwargs)


def test_size_is_requested_once_for_parallel_reads() -> None:
    fs = Counted()

    async def read(pool: Pool) -> list[bytes]:
        opened, path = pool.place("counted://x")  # type: ignore[misc]  # it is not None
        parts = await asyncio.gather(
            opened.read(path, 0, 5000), opened.read(path, -7, None), opened.read(path, 9, 8000)
        )
        return [part.data for part in parts]

    assert run_with_pool(PoolOptions({"counted": fs}, retry=AT_ONCE), read) == [DATA, DATA[-7:], DATA[9:]]
    assert fs.tries == 103


def test_get_facts_notices_a_replaced_object() -> None:
    fs = Odd()

    async def read(pool: Pool) -> None:
        opened, path = pool.place("odd://x")  # type: ignore[misc]  # it is not None
        await opened.read(path, -7, None)
        fs.etag = "2"
        await opened.get_facts(path)

    with pytest.raises(TargetChanged):
        run_with_pool(PoolOptions({"odd": fs}, retry=AT_ONCE), read)


def test_refused_ftp_address_raises_no_second_error() -> None:
    """fsspec's own destructor raises AttributeError if the address was refused before the first connection."""
    with pytest.raises(TargetNotAllowed):
        generic.GuardedFtp("127.0.0.1", guard=Guard(own=False))
    gc.collect()  # pytest reports an error of a destructor
