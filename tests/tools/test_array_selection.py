"""Texts of selections are parsed, and selections are printed as such texts."""

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
def test_selection_text_is_parsed_like_numpy(text: str, name: str, selection: object) -> None:
    assert parse_selection(text) == (name, selection)


@pytest.mark.parametrize(
    "text", ["air", "air[", "air[]", "air[a]", "air[1:2:3:4]", "air[__import__('os')]", "a[1 2]", "a[::0]", "a[1,,2]"]
)
def test_invalid_selection_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"selection|index|step 0"):
        parse_selection(text)


def test_selection_prints_like_its_text() -> None:
    assert format_selection((slice(1, 2), ..., 3, slice(None, None, 2))) == "1:2, ..., 3, ::2"
