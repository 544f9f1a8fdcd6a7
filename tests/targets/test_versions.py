"""One version of each object per session."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from refshard_fs.core.model import Pin
from refshard_fs.errors import TargetChanged
from refshard_fs.targets import Versions
from refshard_fs.targets import versioned as versions
from refshard_fs.targets.versioned import Version, seconds

MONDAY, TUESDAY = "Mon, 16 Nov 2026 00:00:00 GMT", "Tue, 17 Nov 2026 00:00:00 GMT"

Seen = tuple[str | None, str | None, int | None]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (('"a"', MONDAY, 5), ('"a"', MONDAY, 5)),
        (('"a"', MONDAY, 5), ('"a"', TUESDAY, 5)),  # servers of one name may have copied it at different times
        (('"a"', MONDAY, 5), ('W/"a"', MONDAY, 5)),
        (('W/"a"', MONDAY, 5), ('W/"b"', MONDAY, 5)),
        (('"a"', MONDAY, 5), (None, None, None)),
        ((None, None, None), ('"a"', MONDAY, 5)),
        ((None, MONDAY, 5), (None, MONDAY, None)),
    ],
)
def test_the_same_version(first: Seen, then: Seen) -> None:
    version = Version("u")
    version.observe(*first, None)
    version.observe(*then, None)
    version.observe(*first, None)


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
def test_another_version_is_an_error_each_time(first: Seen, then: Seen) -> None:
    version = Version("http://h/x")
    version.observe(*first, None)
    for _ in range(2):
        with pytest.raises(TargetChanged, match="http://h/x"):
            version.observe(*then, None)
    version.observe(*first, None)


def test_what_the_first_answer_lacked_is_learned_from_a_later_one() -> None:
    version = Version("u")
    version.observe(None, None, 5, None)
    version.observe('"a"', None, 5, None)
    with pytest.raises(TargetChanged):
        version.observe('"b"', None, 5, None)


def test_a_pin_is_held_against_answers_that_were_seen_before() -> None:
    version = Version("u")
    version.observe('"a"', MONDAY, 5, None)
    for pin in (Pin(etag='"b"'), Pin(size=6), Pin(etag="b", size=5)):
        with pytest.raises(TargetChanged):
            version.observe('"a"', MONDAY, 5, pin)
    version.observe('"a"', MONDAY, 5, Pin(etag="a", size=5, last_modified="1999-01-01"))


@pytest.mark.parametrize("recorded", [TUESDAY, MONDAY, "2026-11-16T00:00:00+00:00", "2026-11-16", "1794787200", "odd"])
def test_an_object_may_be_older_than_its_manifest(recorded: str) -> None:
    Version("u").observe(None, MONDAY, None, Pin(last_modified=recorded))


@pytest.mark.parametrize("recorded", [MONDAY, "2026-11-16T12:00:00Z", "1794787200.5"])
def test_and_not_younger(recorded: str) -> None:
    with pytest.raises(TargetChanged, match="last modified"):
        Version("u").observe(None, TUESDAY, None, Pin(last_modified=recorded))


def test_only_strong_etags_are_asked_for() -> None:
    version = Version("u")
    assert version.condition(None) is None
    assert version.condition(Pin(etag="abc")) == '"abc"'
    assert version.condition(Pin(etag='W/"abc"')) is None
    version.observe('W/"a"', None, 1, None)
    assert version.condition(Pin(etag="abc")) is None
    version = Version("u")
    version.observe('"a"', None, 1, None)
    assert version.condition(None) == '"a"'


def test_times_are_read_as_they_are_written() -> None:
    assert {seconds(t) for t in (MONDAY, "2026-11-16T00:00:00", "2026-11-16 00:00:00+00:00", "1794787200")} == {
        1794787200.0
    }
    for text in (
        "yesterday",
        "Mon, 16 Nov 99999999999999999999 00:00:00 GMT",
        "16 Nov 2026 00:00 +99999999999999999999",
    ):
        assert seconds(text) is None


def test_threads_get_one_record() -> None:
    known = Versions()
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda i: known.of(f"u{i % 7}"), range(500)))
    assert len(set(map(id, found))) == 7


def test_records_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "REMEMBERED", 10)
    known = Versions()
    first = known.of("u0")
    for i in range(30):
        known.of(f"u{i}")
    assert len(known._known) == 10
    assert known.of("u0") is not first
