"""A `Fetcher` fetches the first bytes of objects before look-ups choose ranges; readers share requests and memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from refshard_fs.core.model import Pin, Span
from refshard_fs.core.stats import Stats
from refshard_fs.errors import TargetChanged
from refshard_fs.reading import dispatch, fetch
from refshard_fs.reading.dispatch import Reader
from refshard_fs.reading.fetch import Fetcher
from refshard_fs.reading.memory import Budget, SharedBudget
from refshard_fs.reading.plan import Limits
from refshard_fs.targets import Pool, PoolOptions, Retry
from refshard_fs.targets.failures import Unfit
from tests.servers.http import RangeServer

DATA = bytes(i * 31 % 251 for i in range(1000))


@pytest.fixture(autouse=True)
def _first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "FIRST", 100)


def run(use: Callable[[Fetcher], Awaitable[None]]) -> None:
    async def go() -> None:
        pool = Pool(PoolOptions(retry=Retry(retries=0)), asyncio.get_running_loop())
        fetcher = Fetcher(pool, Limits(), SharedBudget(Budget()), Stats())
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
    return sorted((r.start, r.stop) for r in server.requests())  # type: ignore[type-var]  # each request has a range


def test_first_bytes_of_an_object_serve_later_reads(http_server: RangeServer) -> None:
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


def test_range_beyond_the_first_bytes_is_requested(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)

    async def use(fetcher: Fetcher) -> None:
        begun = fetcher.begin([Span(url)])
        found = read(fetcher, Span(url, 10, 20), Span(url, 500, 510))
        assert await asyncio.gather(*found) == [DATA[10:20], DATA[500:510]]
        fetcher.release(begun)

    run(use)
    assert ranges(http_server) == [(0, 100), (500, 510)]


def test_only_the_reader_beyond_the_end_of_an_object_fails(
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
def test_failed_first_bytes_do_not_fail_reads(http_server: RangeServer, kind: int | str) -> None:
    url = http_server.put("/x", DATA)
    http_server.fault(kind, times=1)  # type: ignore[arg-type]  # a status, or the name of a fault

    async def use(fetcher: Fetcher) -> None:
        begun = fetcher.begin([Span(url)])
        found = read(fetcher, Span(url, 10, 20), Span(url, 30, 40))
        assert await asyncio.gather(*found) == [DATA[10:20], DATA[30:40]]
        fetcher.release(begun)

    run(use)


def test_unread_first_bytes_are_released(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)

    async def use(fetcher: Fetcher) -> None:
        begun = fetcher.begin([Span(url), Span(http_server.url + "/none")])
        while fetcher.requests.active:
            await fetcher.requests.wait_for_change()
        fetcher.release(begun)
        fetcher.release(begun)

    run(use)


def test_requests_within_concurrency_start_together(http_server: RangeServer) -> None:
    spans = [Span(http_server.put(f"/{i}", DATA), 0, 5) for i in range(20)]

    async def use(fetcher: Fetcher) -> None:
        futures = read(fetcher, *spans)
        assert fetcher.requests.active == len(spans)
        assert await asyncio.gather(*futures) == [DATA[:5]] * 20

    run(use)


@pytest.mark.parametrize("begins", [False, True])
def test_dropped_request_that_was_not_sent_is_not_counted(http_server: RangeServer, begins: bool) -> None:
    """If a request that was never sent still counted, readers would finally wait for ever."""
    url = http_server.put("/x", DATA)

    async def use(fetcher: Fetcher) -> None:
        for at in range(0, 1280, 10):
            if begins:
                fetcher.release(fetcher.begin([Span(url, at)]))
            else:
                fetcher.read((), [Span(url, at, at + 10)])
                fetcher.drop([Span(url, at, at + 10)], stop=True)
        async with asyncio.timeout(10):
            (found,) = read(fetcher, Span(url, 0, 5))
            assert await found == DATA[:5]
            while fetcher.requests.active:
                await fetcher.requests.wait_for_change()

    run(use)


@pytest.mark.parametrize("pin", [None, Pin(size=1000)])
def test_concurrent_readers_fetch_an_object_once(http_server: RangeServer, pin: Pin | None) -> None:
    url = http_server.put("/x", DATA)

    async def use(fetcher: Fetcher) -> None:
        one = fetcher.begin([Span(url, pin=pin)])
        other = fetcher.begin([Span(url, pin=pin)])
        while fetcher.requests.active:
            await fetcher.requests.wait_for_change()
        fetcher.release(one)
        fetcher.release(one)  # a second release has no effect
        (found,) = read(fetcher, Span(url, 10, 20, pin=pin))
        assert await found == DATA[10:20]
        fetcher.release(other)

    run(use)
    assert ranges(http_server) == [(0, 100)]


@pytest.mark.parametrize("size", [50, 400])
def test_objects_of_unknown_size_stay_within_max_memory(http_server: RangeServer, size: int) -> None:
    http_server.latency = 0.05
    spans = [Span(http_server.put(f"/{i}", DATA[:size])) for i in range(60)]

    async def use(fetcher: Fetcher) -> None:
        fetcher.requests.shared.budget = Budget(memory=1600)
        assert await asyncio.gather(*read(fetcher, *spans)) == [DATA[:size]] * 60

    run(use)
    assert http_server.log.peak <= max(dispatch.UNSIZED_AT_ONCE, 1600 // size)


@pytest.mark.parametrize("order", [1, -1])
def test_range_with_a_wrong_pin_fails_alone(http_server: RangeServer, order: int) -> None:
    """In a common request, the answer would be compared with the pin of one range only."""
    url = http_server.put("/x", DATA)
    right, wrong = Span(url, 0, 10, pin=Pin(size=len(DATA))), Span(url, 10, 20, pin=Pin(size=len(DATA) + 1))

    async def use(fetcher: Fetcher) -> None:
        found = dict(zip([right, wrong][::order], read(fetcher, *[right, wrong][::order]), strict=True))
        assert await found[right] == DATA[:10]
        with pytest.raises(TargetChanged):
            await found[wrong]

    run(use)
