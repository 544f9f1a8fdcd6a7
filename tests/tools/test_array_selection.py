"""Selections as people write them."""

from __future__ import annotations

import pytest

from refshard_fs.tools.array_selection import format_selection, parse_selection


@pytest.mark.parametrize(
    ("text", "name", "selection"),
    [
        ("air[0:10, :, :]", "air", (slice(0, 10), slice(None), slice(None))),
        ("[::-2]", "", (slice(None, None, -2),)),
        (" /g/a[0][ ..., 5] ", "g/a[0]", (..., 5)),
        ("a[-1,]", "a", (-1,)),
    ],
)
def test_it_is_read_as_numpy_would(text: str, name: str, selection: object) -> None:
    assert parse_selection(text) == (name, selection)


@pytest.mark.parametrize(
    "text", ["air", "air[", "air[]", "air[a]", "air[1:2:3:4]", "air[__import__('os')]", "a[1 2]", "a[::0]", "a[1,,2]"]
)
def test_what_is_none_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"selection|index|step of 0"):
        parse_selection(text)


def test_it_is_spelled_as_it_is_written() -> None:
    assert format_selection((slice(1, 2), ..., 3, slice(None, None, 2))) == "1:2, ..., 3, ::2"
