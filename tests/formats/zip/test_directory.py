"""Names without objects: found and listed like a sorted list of bytes would be."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from refshard_fs.formats.zip.directory import SortedNames

name = st.text(st.sampled_from("ab/é\x01"), min_size=1, max_size=26).map(str.encode)


def build(names: Sequence[bytes]) -> tuple[SortedNames, list[int]]:
    found, order, repeated = SortedNames.sort(names)
    assert repeated == {name for name in names if names.count(name) > 1}
    return found, order


@given(st.lists(name, max_size=30))
def test_names_sort_by_their_bytes_and_of_equal_ones_the_last_stays(names: list[bytes]) -> None:
    found, order = build(names)
    want = sorted(set(names))
    assert [found[i] for i in range(len(found))] == want
    assert [names[i] for i in order] == want
    assert order == [len(names) - 1 - names[::-1].index(n) for n in want]


@given(st.lists(name, max_size=30), name)
def test_a_name_is_found_where_it_stands(names: list[bytes], wanted: bytes) -> None:
    found, _ = build(names)
    ordered = sorted(set(names))
    place = bisect.bisect_left(ordered, wanted)
    assert found.find(wanted) == (place if wanted in names else None)
    assert [found.find(n) for n in ordered] == list(range(len(ordered)))


@given(st.lists(name, max_size=30), st.sampled_from([b"", b"a/", b"b/a/", b"ab/", "é/".encode()]))
def test_children_are_names_and_directories_below(names: list[bytes], directory: bytes) -> None:
    found, _ = build(names)
    below = [n for n in sorted(set(names)) if n.startswith(directory)]
    assert [found[i] for i in found.below(directory)] == below
    tails = [n[len(directory) :].partition(b"/") for n in below]
    want = {(head, bool(slash)) for head, slash, _ in tails if head}
    children = list(found.children(directory))
    assert {(head, place is None) for head, place in children} == want
    assert len(children) == len(want)
    assert all(found[place] == directory + head for head, place in children if place is not None)


def test_long_names_that_are_alike_sort_too() -> None:
    names = [b"x" * 60_000 + bytes([97 + i]) for i in (2, 0, 1)]
    assert build(names)[1] == [1, 2, 0]
