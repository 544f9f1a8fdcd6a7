"""Each URL has one number in the end, however many there are and in however many blocks they come."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refshard_fs.core.swar import PAD
from refshard_fs.errors import ManifestError
from refshard_fs.references import json_scan
from refshard_fs.references.json_scan import NotExpanded, Urls


def taken(urls: Urls, found: list[bytes]) -> list[int]:
    stops = len(PAD) + np.cumsum(np.fromiter(map(len, found), np.int64, len(found)))
    starts = stops - [len(url) for url in found]
    return urls.numbers(b"".join((PAD, *found, PAD)), starts, stops).tolist()


def settled(urls: Urls, numbers: list[int]) -> list[str | None]:
    column, became = urls.finish()
    assert len(set(column)) == len(column)
    return [column[number if became is None else int(became[number])] for number in numbers]


names = st.sampled_from([b"", b"s3://a/b", b"s3://a/c", b"x" * 600, b"x" * 599 + b"y", "é".encode()])
blocks = st.lists(st.one_of(st.none(), names, st.lists(names, max_size=12)), max_size=8)


@settings(deadline=None)
@given(blocks, st.sampled_from([0, 3, 256]))
def test_every_number_leads_to_its_url(given_blocks: list[bytes | list[bytes] | None], few: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_scan, "FEW", few)
        urls, numbers, expected = Urls(), list[int](), list[str | None]()
        for block in given_blocks:
            if isinstance(block, list):
                numbers += taken(urls, block)
                expected += [url.decode() for url in block]
            else:
                numbers.append(urls.number(block))
                expected.append(None if block is None else block.decode())
        assert settled(urls, numbers) == expected
        became = urls.expand(lambda url: url)
        assert became is None  # nothing to expand


def test_urls_whose_hashes_are_alike_are_told_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_scan, "FEW", 2)
    monkeypatch.setattr(json_scan, "hashes", lambda text, starts, stops: np.zeros(len(starts), np.uint64))
    found = [b"a/%d" % (i % 7) for i in range(50)]
    urls = Urls()
    numbers = taken(urls, found) + taken(urls, found[::-1])
    assert settled(urls, numbers) == [url.decode() for url in found + found[::-1]]


@pytest.mark.parametrize("few", [0, 256])
def test_templates_are_expanded_once_a_url_and_what_becomes_one_is_one(
    monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(json_scan, "FEW", few)
    urls, asked = Urls(), list[str]()

    def expanded(url: str) -> str:
        asked.append(url)
        return url.replace("{{u}}", "s3")

    found = [b"{{u}}/a", b"s3/a", b"plain", b"{{u}}/b"] * 3
    numbers = taken(urls, found) + taken(urls, found)
    became = urls.expand(expanded)
    assert became is not None
    assert sorted(asked) == ["{{u}}/a", "{{u}}/b"]
    assert settled(urls, became[numbers].tolist()) == ["s3/a", "s3/a", "plain", "s3/b"] * 6


@pytest.mark.parametrize("few", [0, 256])
def test_a_url_that_cannot_be_expanded_is_named_by_a_number_that_it_has(
    monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(json_scan, "FEW", few)
    urls = Urls()
    taken(urls, [b"a", b"b"] * 3)
    numbers = taken(urls, [b"a", b"{{u}}"] * 3)

    def expanded(url: str) -> str:
        raise ManifestError(url)

    with pytest.raises(NotExpanded) as caught:
        urls.expand(expanded)
    assert (caught.value.number, caught.value.text) == (numbers[1], "{{u}}")


def test_urls_of_their_own_for_all_references_take_no_objects() -> None:
    found = [b"s3://bucket/archive/2021/file_%06d.nc" % i for i in range(20_000)]
    stops = len(PAD) + np.cumsum(np.fromiter(map(len, found), np.int64, len(found)))
    starts, text = stops - [len(url) for url in found], b"".join((PAD, *found, PAD))
    urls = Urls()
    urls.numbers(text, starts[:100], stops[:100])
    tracemalloc.start()
    urls.numbers(text, starts, stops)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < (len(text) // len(found) + 40) * len(found)
