"""Objects of which it is not known yet what will be read: begun at once, and never in anyone's way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from refshard_fs.core.model import Pin, Span
from refshard_fs.core.stats import Stats
from refshard_fs.reading import dispatch, fetch, plan
from refshard_fs.reading import dispatch as paces
from refshard_fs.reading.dispatch import FEW, Budget
from refshard_fs.reading.fetch import Fetcher, Reader
from refshard_fs.reading.plan import Limits
from refshard_fs.targets import Answer, Pool, PoolOptions, Retry
from refshard_fs.targets.failures import Unfit
from tests.servers.http import RangeServer

DATA = bytes(i * 31 % 251 for i in range(1000))


@pytest.fixture(autouse=True)
def _first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "FIRST", 100)


def run(use: Callable[[Fetcher], Awaitable[None]]) -> None:
    async def go() -> None:
        pool = Pool(PoolOptions(retry=Retry(retries=0)), asyncio.get_running_loop())
        fetcher = Fetcher(pool, Limits(), Budget(), Stats())
        try:
            await use(fetcher)
            assert fetcher.requests.used == 0
        finally:
            await fetcher.close()
            await pool.close()

    asyncio.run(go())


def read(fetcher: Fetcher, *spans: Span) -> list[asyncio.Future[bytes]]:
    readers = [Reader(None, span, asyncio.get_running_loop().create_future()) for span in spans]
    fetcher.read(readers)
    return [reader.future for reader in readers]


def ranges(server: RangeServer) -> list[tuple[int | None, int | None]]:
    return sorted((r.start, r.stop) for r in server.requests())  # type: ignore[type-var]  # all are ranges


def test_what_is_read_of_a_begun_object_takes_no_request_of_its_own(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA[:90])

    async def use(fetcher: Fetcher) -> None:
        begun = fetcher.begin([Span(url)])
        early = read(fetcher, Span(url, 10, 20))
        assert await early[0] == DATA[10:20]
        late = read(fetcher, Span(url, 0, 5), Span(url, 85, 90))
        fetcher.release(begun)
        assert await asyncio.gather(*late) == [DATA[:5], DATA[85:90]]

    run(use)
    assert ranges(http_server) == [(0, 90)]


def test_what_lies_beyond_the_first_bytes_is_read_by_itself(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)

    async def use(fetcher: Fetcher) -> None:
        begun = fetcher.begin([Span(url)])
        found = read(fetcher, Span(url, 10, 20), Span(url, 500, 510))
        assert await asyncio.gather(*found) == [DATA[10:20], DATA[500:510]]
        fetcher.release(begun)

    run(use)
    assert ranges(http_server) == [(0, 100), (500, 510)]


def test_a_reader_beyond_the_end_of_a_begun_object_gets_an_error_and_the_others_their_bytes(
    http_server: RangeServer,
) -> None:
    url = http_server.put("/x", DATA[:50])

    async def use(fetcher: Fetcher) -> None:
        begun = fetcher.begin([Span(url)])
        right, wrong = read(fetcher, Span(url, 10, 20), Span(url, 40, 60))
        assert await right == DATA[10:20]
        with pytest.raises(Unfit):
            await wrong
        fetcher.release(begun)

    run(use)


@pytest.mark.parametrize("kind", [403, "ignored_range", "wrong_content_range", "unknown_total"])
def test_a_beginning_that_fails_fails_nobody(http_server: RangeServer, kind: int | str) -> None:
    url = http_server.put("/x", DATA)
    http_server.fault(kind, times=1)  # type: ignore[arg-type]  # both kinds of it

    async def use(fetcher: Fetcher) -> None:
        begun = fetcher.begin([Span(url)])
        found = read(fetcher, Span(url, 10, 20), Span(url, 30, 40))
        assert await asyncio.gather(*found) == [DATA[10:20], DATA[30:40]]
        fetcher.release(begun)

    run(use)


def test_what_nobody_reads_is_not_held(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)

    async def use(fetcher: Fetcher) -> None:
        begun = fetcher.begin([Span(url), Span(http_server.url + "/none")])
        while fetcher.requests.active:
            await fetcher.requests.change()
        fetcher.release(begun)
        fetcher.release(begun)

    run(use)


@pytest.mark.parametrize(("seconds", "begun"), [(None, FEW), (0.0001, FEW), (0.05, 20)])
def test_many_are_begun_at_once_where_answers_are_known_to_take_time(
    http_server: RangeServer, seconds: float | None, begun: int
) -> None:
    spans = [Span(http_server.put(f"/{i}", DATA), 0, 5) for i in range(20)]
    if seconds is not None:
        paces.SHARED.note(http_server.url, seconds)

    async def use(fetcher: Fetcher) -> None:
        futures = read(fetcher, *spans)
        assert fetcher.requests.active == begun
        assert await asyncio.gather(*futures) == [DATA[:5]] * 20

    run(use)
    assert seconds is None or paces.SHARED.of(http_server.url) != 0.05  # the shortest of the last times counts
    assert paces.SHARED.of(http_server.url) is not None


@pytest.mark.parametrize(
    ("seconds", "under_way", "sizes"), [(0.0001, 0, 4), (0.05, 0, 16), (0.05, 8, 8), (0.05, 16, 4)]
)
def test_few_bytes_of_a_server_that_is_waited_for_come_by_as_many_connections_as_are_of_use(
    http_server: RangeServer, seconds: float, under_way: int, sizes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "SMALL", 10)
    paces.SHARED.note(http_server.url, seconds)
    http_server.latency = 0.05
    url = http_server.put("/x", DATA)
    others = [Span(http_server.put(f"/{i}", DATA), 0, 5) for i in range(under_way)]
    pieces = [Span(url, start, start + 10) for start in range(0, 640, 10)]

    async def use(fetcher: Fetcher) -> None:
        before = read(fetcher, *others)
        fetcher.limits = Limits(block=160)
        after = read(fetcher, *pieces)
        assert fetcher.requests.active == under_way + sizes
        assert await asyncio.gather(*before) == [DATA[:5]] * under_way
        assert b"".join(await asyncio.gather(*after)) == DATA[:640]

    run(use)


def test_the_paces_of_few_servers_are_remembered() -> None:
    known = paces.Paces()
    for i in range(paces.REMEMBERED + 1):
        known.note(f"http://{i}", i)
    assert known.of("http://0") is None
    assert known.of("http://1") == 1


def test_a_server_is_as_fast_as_the_fastest_of_its_last_answers() -> None:
    known = paces.Paces()
    for seconds, expected in [(0.3, 0.3), (0.1, 0.1), (0.2, 0.1), (0.2, 0.1), (0.2, 0.1), (0.2, 0.2)]:
        known.note("http://1", seconds)
        assert known.of("http://1") == expected


@pytest.mark.parametrize("begins", [False, True])
def test_what_is_stopped_before_it_was_sent_takes_no_place_of_other_requests(
    http_server: RangeServer, begins: bool
) -> None:
    """They would be too few in the end, and then none: whoever reads would wait for ever."""
    url = http_server.put("/x", DATA)

    async def use(fetcher: Fetcher) -> None:
        for at in range(0, 10 * FEW, 10):
            if begins:
                fetcher.release(fetcher.begin([Span(url, at)]))
            else:
                fetcher.read((), [Span(url, at, at + 10)])
                fetcher.drop([Span(url, at, at + 10)], stop=True)
        async with asyncio.timeout(10):
            (found,) = read(fetcher, Span(url, 0, 5))
            assert await found == DATA[:5]
            while fetcher.requests.active:
                await fetcher.requests.change()

    run(use)


@pytest.mark.parametrize("pin", [None, Pin(size=1000)])
def test_what_several_begin_is_fetched_once_and_held_until_all_have_read(
    http_server: RangeServer, pin: Pin | None
) -> None:
    url = http_server.put("/x", DATA)

    async def use(fetcher: Fetcher) -> None:
        one = fetcher.begin([Span(url, pin=pin)])
        other = fetcher.begin([Span(url, pin=pin)])
        while fetcher.requests.active:
            await fetcher.requests.change()
        fetcher.release(one)
        fetcher.release(one)  # as at the end of a wave, and of all
        (found,) = read(fetcher, Span(url, 10, 20, pin=pin))
        assert await found == DATA[10:20]
        fetcher.release(other)

    run(use)
    assert ranges(http_server) == [(0, 100)]


def test_what_thousands_of_unread_pieces_take_is_not_summed_up_anew_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    class Counted(bytes):
        def __len__(self) -> int:
            nonlocal looks
            looks += 1
            return super().__len__()

    class Target:
        async def read(self, path: str, start: int, stop: int, pin: Pin | None, most: int | None) -> Answer:
            return Answer(Counted(stop - start))

    monkeypatch.setattr(Pool, "place", lambda self, url: (Target(), url))
    monkeypatch.setattr(fetch, "SPARE", 500)

    async def use(fetcher: Fetcher) -> None:
        nonlocal looks
        fetcher.limits = Limits(gap=-1)
        spans = [Span("memory://x", 100 * i, 100 * i + 1) for i in range(1000)]
        fetcher.read((), spans)
        while fetcher.requests.active:
            await fetcher.requests.change()
        looks = 0
        fetcher.drop(spans)
        assert fetcher.requests.used == 500  # and no more is held of what nobody wants
        while fetcher.make_room():
            pass

    run(use)
    assert looks < 5000


def test_what_is_expected_of_a_spare_block_is_spare_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = 0

    class Target:
        async def read(self, path: str, start: int, stop: int, pin: Pin | None, most: int | None) -> Answer:
            nonlocal requests
            requests += 1
            return Answer(bytes(stop - start))

    monkeypatch.setattr(Pool, "place", lambda self, url: (Target(), url))
    monkeypatch.setattr(fetch, "SPARE", 250)

    def dense(start: int, stop: int) -> Span:
        return Span("memory://x", start, stop, dense=True)

    async def use(fetcher: Fetcher) -> None:
        fetcher.limits = Limits(gap=1)
        for start in (0, 1000):  # over the gap between two ranges, and so spare once these are read
            await asyncio.gather(*read(fetcher, dense(start, start + 40), dense(start + 60, start + 100)))
        fetcher.read((), [dense(45, 55)])
        await asyncio.gather(*read(fetcher, dense(2000, 2040), dense(2060, 2100)))
        assert requests == 3
        (found,) = read(fetcher, dense(45, 55))
        assert await found == bytes(10)
        assert requests == 3
        while fetcher.make_room():
            pass

    run(use)


@pytest.mark.parametrize("size", [50, 400])
def test_whole_objects_of_unknown_size_stay_within_the_memory(http_server: RangeServer, size: int) -> None:
    http_server.latency = 0.05
    spans = [Span(http_server.put(f"/{i}", DATA[:size])) for i in range(60)]

    async def use(fetcher: Fetcher) -> None:
        fetcher.requests.budget = Budget(memory=1600)
        assert await asyncio.gather(*read(fetcher, *spans)) == [DATA[:size]] * 60

    run(use)
    assert http_server.log.peak <= max(dispatch.UNSIZED_AT_ONCE, 1600 // size)
