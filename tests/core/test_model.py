"""Entries can be sliced, and look-ups that run together each get the answers to their own needs."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refshard_fs.core.array_group import ZeroPaddingRecipe
from refshard_fs.core.model import (
    ChunkPart,
    Entry,
    Inline,
    Listed,
    Load,
    Names,
    Need,
    Packed,
    Raw,
    Span,
    Stat,
    Steps,
    add_origin,
    answer_from_listing,
    clamp,
    drive,
    iterate_batches,
    run_together,
)

BYTES = bytes(range(10))
BOUNDS = st.none() | st.integers(-12, 12)


@given(BOUNDS, BOUNDS)
def test_windows_of_an_entry_follow_the_rules_of_slices(start: int | None, end: int | None) -> None:
    first, stop = clamp(start, end, len(BYTES))
    assert BYTES[first : max(first, stop)] == BYTES[start:end]
    assert Inline(BYTES).take_window(start, end) == Inline(BYTES[start:end])
    window = Span("memory://x", 100, 110).take_window(start, end)
    expected = range(100, 110)[start:end]
    if isinstance(window, Span):
        assert (window.start, window.stop) == (expected.start, expected.stop)
    else:
        assert not expected
        assert window == Inline(b"")


def test_parts_outside_of_an_entry_are_refused() -> None:
    assert Inline(BYTES).part(2, 3) == Inline(BYTES[2:5])
    for entry in (Inline(BYTES), Span("memory://x", 0, 10)):
        with pytest.raises(ValueError, match="10"):
            entry.part(8, 3)


@pytest.mark.parametrize(
    ("entry", "stored"),
    [
        (Span("memory://x", 100, 110), Span("memory://x", 102, 105)),
        (Span("memory://x", 100, 111), None),  # not the size of the chunk
        (Span("memory://x", 100, 110, exact=False), None),
        (Packed(Span("memory://x", 100, 105), ZeroPaddingRecipe(10), 10), Span("memory://x", 102, 105)),
        (Packed(Span("memory://x", 100, 104), ZeroPaddingRecipe(10), 10), None),  # the part is in the padding
        (Packed(Span("memory://x", 100, 105), ZeroPaddingRecipe(10), 10, 0, 10), None),
        (Inline(BYTES), None),
    ],
)
def test_part_of_a_chunk_is_found_where_it_is_stored(entry: Entry, stored: Span | None) -> None:
    assert ChunkPart([2], 3, 10).find_stored(entry) == stored


def test_runs_of_a_chunk_are_joined() -> None:
    runs = ChunkPart([1, 5], 2, 10).find_stored(Span("memory://x", 100, 110))
    assert isinstance(runs, Packed)
    assert runs.spans == (Span("memory://x", 101, 103), Span("memory://x", 105, 107))
    assert runs.finish([b"ab", b"cd"]) == b"abcd"


def ask(*urls: str) -> Steps[list[Any]]:
    """Need the facts of ``urls``, one after another; return the answers."""
    answers = {}
    for url in urls:
        answers[url] = yield Stat(url)
    return list(answers.values())


def run(steps: Steps[Any], rounds: list[Any]) -> Any:
    """Run ``steps``; answer each need with its URL, and append the URLs of each round to ``rounds``."""
    answer: Any = None
    while True:
        try:
            need = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        needs = need if isinstance(need, tuple) else (need,)
        rounds.append([single.url for single in needs])
        answers = [single.url.upper() for single in needs]
        answer = answers if isinstance(need, tuple) else answers[0]


def test_parallel_lookups_share_rounds() -> None:
    rounds: list[Any] = []
    assert run(run_together([ask("a", "b"), ask(), ask("c")]), rounds) == [["A", "B"], [], ["C"]]
    assert rounds == [["a", "c"], ["b"]]


def test_added_lookups_join_the_running_round() -> None:
    many: list[Steps[Any]] = []

    def growing() -> Steps[str]:
        many.append(ask("late"))
        return str((yield Stat("first")))

    many.append(growing())
    rounds: list[Any] = []
    assert run(run_together(many), rounds) == ["FIRST", ["LATE"]]
    assert rounds == [["first", "late"]]


def test_error_of_a_need_is_raised_in_its_lookup() -> None:
    def asking() -> Steps[str]:
        try:
            yield Stat("missing")
        except PermissionError:
            return "refused"
        return "allowed"

    def refuse(need: Need | tuple[Need, ...]) -> Steps[Any]:
        raise PermissionError(need)
        yield

    assert run(drive(asking(), refuse), []) == "refused"


def test_known_directories_are_not_requested() -> None:
    directories = {"s3://b/z": (Listed("zarr.json", False, 2), Listed("c", True))}

    def asking() -> Steps[list[Any]]:
        needs = (Names("s3://b/z"), Load(Span("s3://b/z/.zattrs", optional=True), Raw()), Stat("s3://b/other"))
        return list((yield needs))

    rounds: list[Any] = []
    listed, absent, other = run(answer_from_listing(asking(), "s3://b/z", directories), rounds)
    assert rounds == [["s3://b/other"]]
    assert (listed, absent, other) == (directories["s3://b/z"], None, "S3://B/OTHER")


class Whole(NamedTuple):
    """A recipe that returns the bytes unchanged."""

    def make(self, raw: bytes) -> bytes:
        return raw


def test_add_origin_marks_every_span() -> None:
    packed = Packed(Span("memory://x", 0, 5), Whole(), parts=(Span("memory://y", 1, 2),))
    moved = add_origin(packed, ("https://host/set",))
    assert {span.origin for span in moved.spans} == {("https://host/set",)}
    assert add_origin(moved, ("https://host/set",)) == moved
    assert add_origin(Inline(b"x"), ("https://host/set",)) == Inline(b"x")


def test_batches_keep_all_items_in_order() -> None:
    assert list(iterate_batches(range(5), 2)) == [range(2), range(2, 4), range(4, 5)]
    assert list(iterate_batches([], 2)) == []
