"""The greatest width of texts."""

from __future__ import annotations

import pytest

from refshard_fs.tools.text_width import measure_text, shorten_text


def test_width_grows_with_size_and_weight() -> None:
    assert measure_text("air", 20) == 2 * measure_text("air", 10)
    assert measure_text("air", 10, bold=True) > measure_text("air", 10)
    assert measure_text("雨", 10) > measure_text("W", 10) > measure_text("i", 10)


@pytest.mark.parametrize("keep_end", [False, True])
def test_shortened_texts_fit_and_keep_one_end(keep_end: bool) -> None:
    text = "s3://bucket/2024/air.nc"
    for room in range(1, 20):
        short = shorten_text(text, room, keep_end=keep_end)
        assert measure_text(short, 1) <= room
        assert text.endswith(short.removeprefix("…")) if keep_end else text.startswith(short.removesuffix("…"))
    assert shorten_text(text, 100, keep_end=keep_end) == text
