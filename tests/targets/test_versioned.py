"""All answers about an object must have the same version, as long as a source is open."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest

from refshard_fs.core.model import Facts, Pin
from refshard_fs.errors import TargetChanged
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.targets import Versions
from refshard_fs.targets.versioned import Version, parse_time
from tests.servers.http import RangeServer
from tests.servers.log import Request
from tests.servers.wire import Answer, Head

MONDAY, TUESDAY = "Mon, 16 Nov 2026 00:00:00 GMT", "Tue, 17 Nov 2026 00:00:00 GMT"

Seen = tuple[str | None, str | None, int | None]


def observe(version: Version, etag: str | None, modified: str | None, size: int | None, pin: Pin | None = None) -> None:
    version.observe(Facts(size, etag, modified), pin)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (('"a"', MONDAY, 5), ('"a"', MONDAY, 5)),
        (
            ('"a"', MONDAY, 5),
            ('"a"', TUESDAY, 5),
        ),  # mirrors behind one name may have copied the object at different times
        (('"a"', MONDAY, 5), ('W/"a"', MONDAY, 5)),
        (('W/"a"', MONDAY, 5), ('W/"b"', MONDAY, 5)),
        (('"a"', MONDAY, 5), (None, None, None)),
        ((None, None, None), ('"a"', MONDAY, 5)),
        ((None, MONDAY, 5), (None, MONDAY, None)),
    ],
)
def test_later_answer_of_the_same_version_is_accepted(first: Seen, then: Seen) -> None:
    version = Version("u")
    observe(version, *first)
    observe(version, *then)
    observe(version, *first)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (('"a"', MONDAY, 5), ('"b"', MONDAY, 5)),
        (('W/"a"', MONDAY, 5), ('W/"b"', TUESDAY, 5)),
        ((None, MONDAY, 5), (None, TUESDAY, 5)),
        (('"a"', MONDAY, 5), ('"a"', MONDAY, 6)),
        ((None, None, 5), (None, None, 6)),
    ],
)
def test_each_answer_of_another_version_is_an_error(first: Seen, then: Seen) -> None:
    version = Version("http://h/x")
    observe(version, *first)
    for _ in range(2):
        with pytest.raises(TargetChanged, match="http://h/x"):
            observe(version, *then)
    observe(version, *first)


def test_later_answer_adds_missing_facts_to_the_version() -> None:
    version = Version("u")
    observe(version, None, None, 5, None)
    observe(version, '"a"', None, 5, None)
    with pytest.raises(TargetChanged):
        observe(version, '"b"', None, 5, None)


def test_pin_is_compared_with_earlier_answers() -> None:
    version = Version("u")
    observe(version, '"a"', MONDAY, 5, None)
    for pin in (Pin(etag='"b"'), Pin(size=6), Pin(etag="b", size=5)):
        with pytest.raises(TargetChanged):
            observe(version, '"a"', MONDAY, 5, pin)
    observe(version, '"a"', MONDAY, 5, Pin(etag="a", size=5, last_modified="1999-01-01"))


@pytest.mark.parametrize("recorded", [TUESDAY, MONDAY, "2026-11-16T00:00:00+00:00", "2026-11-16", "1794787200", "odd"])
def test_object_older_than_its_manifest_is_accepted(recorded: str) -> None:
    observe(Version("u"), None, MONDAY, None, Pin(last_modified=recorded))


@pytest.mark.parametrize("recorded", [MONDAY, "2026-11-16T12:00:00Z", "1794787200.5"])
def test_object_younger_than_its_manifest_is_refused(recorded: str) -> None:
    with pytest.raises(TargetChanged, match="last modified"):
        observe(Version("u"), None, TUESDAY, None, Pin(last_modified=recorded))


def test_strong_etags_are_required_and_weak_ones_are_not() -> None:
    version = Version("u")
    assert version.find_required_etag(None) is None
    assert version.find_required_etag(Pin(etag="abc")) == '"abc"'
    assert version.find_required_etag(Pin(etag='W/"abc"')) is None
    observe(version, 'W/"a"', None, 1, None)
    assert version.find_required_etag(Pin(etag="abc")) is None
    version = Version("u")
    observe(version, '"a"', None, 1, None)
    assert version.find_required_etag(None) == '"a"'


def test_times_as_text_are_parsed() -> None:
    assert {parse_time(t) for t in (MONDAY, "2026-11-16T00:00:00", "2026-11-16 00:00:00+00:00", "1794787200")} == {
        1794787200.0
    }
    for text in (
        "yesterday",
        "Mon, 16 Nov 99999999999999999999 00:00:00 GMT",
        "16 Nov 2026 00:00 +99999999999999999999",
    ):
        assert parse_time(text) is None


def test_threads_share_one_version_of_an_object() -> None:
    known = Versions()
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda i: known.of(f"u{i % 7}"), range(500)))
    assert len(set(map(id, found))) == 7


def test_remembered_versions_are_bounded() -> None:
    known = Versions(10)
    first = known.of("u0")
    for i in range(30):
        known.of(f"u{i}")
    assert known._known.weight == 10
    assert known.of("u0") is not first


class Mirrors(RangeServer):
    """Two servers behind one name, which answer in turn with the same bytes and different ETags."""

    turn = 0

    async def answer(self, head: Head, body: bytes, request: Request) -> Answer:
        answer = await super().answer(head, body, request)
        self.turn = 1 - self.turn
        return dataclasses.replace(answer, headers={**answer.headers, "ETag": f'"of mirror {self.turn}"'})


@pytest.mark.evidence(id="T8")
def test_mirrors_with_different_etags_are_read_if_permitted() -> None:
    """If two mirrors have different strong ETags for the same bytes, every other read raises `TargetChanged`."""
    with Mirrors({"/a": bytes(range(100))}) as server:
        refs = {f"k/{i}": [f"{server.url}/a", 10 * i, 5] for i in range(4)}
        strict = RefShardFileSystem(refs, max_gap=-1, retries=0)
        strict.cat_file("k/0")
        with pytest.raises(TargetChanged) as error:
            strict.cat_file("k/1")
        assert f"options={{'{server.url}/': {{'versions': 'ignore'}}}}" in str(error.value)
        loose = RefShardFileSystem(refs, max_gap=-1, options={f"{server.url}/": {"versions": "ignore"}})
        assert [loose.cat_file(f"k/{i}") for i in range(4)] == [bytes(range(10 * i, 10 * i + 5)) for i in range(4)]


def test_ignored_versions_still_compare_sizes() -> None:
    version = Version("http://h/x", only_size=True)
    observe(version, '"a"', MONDAY, 5, Pin('"z"', MONDAY, 5))
    observe(version, '"b"', TUESDAY, 5, None)
    assert version.find_required_etag(Pin('"z"')) is None
    with pytest.raises(TargetChanged, match="its size was 5"):
        observe(version, '"b"', TUESDAY, 6, None)


def test_invalid_versions_option_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 'ignore' or 'compare'"):
        RefShardFileSystem({}, options={"http://h/": {"versions": "never"}})
