"""Boxes of JP2 files: lengths of every form, lengths that do not fit the file, and nested boxes."""

from __future__ import annotations

import struct

import pytest

from refshard_fs.errors import DamagedIndex, ManifestError
from refshard_fs.formats.jp2.boxes import find_texts, iterate_boxes, parse_box
from tests.support.jp2_files import encode, make_box, make_jp2_file, make_smooth_values
from tests.support.shards_in_memory import ROOT, Files


def test_box_has_a_short_a_long_or_an_open_length() -> None:
    assert parse_box(struct.pack(">I4s", 20, b"xml "), 5, 99) == (b"xml ", 13, 25)
    assert parse_box(struct.pack(">I4sQ", 1, b"jp2c", 40), 5, 99) == (b"jp2c", 21, 45)
    assert parse_box(struct.pack(">I4s", 0, b"jp2c"), 5, 99) == (b"jp2c", 13, 99)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[:32] + b"\0\0\0\7free" + data[32:], "cut short"),
        (lambda data: data[:30], "cut short"),
        (lambda data: data.replace(b"jp2c", b"jp2x"), "no code stream"),
        (lambda data: data[:32] + make_box(b"free", b"") * 2000 + data[32:], "expected at most 1024"),
    ],
)
def test_boxes_that_do_not_fit_the_file_are_refused(change, reason: str) -> None:  # type: ignore[no-untyped-def]
    data = make_jp2_file(encode(make_smooth_values(20, 30)))
    with pytest.raises(ManifestError, match=reason):
        Files({ROOT: change(data)}).open()


def test_texts_are_found_in_nested_boxes() -> None:
    data = make_box(b"lbl ", b"a") + make_box(b"asoc", make_box(b"xml ", b"<a/>\0")) + make_box(b"xml ", b"<b/>")
    assert list(find_texts(data)) == ["<a/>", "<b/>"]
    for _ in range(9):
        data = make_box(b"asoc", data)
    with pytest.raises(ValueError, match="nested"):
        list(find_texts(data))
    with pytest.raises(ValueError, match="cut short"):
        list(iterate_boxes(data[:-1]))


def test_bytes_after_the_code_stream_are_ignored() -> None:
    data = make_jp2_file(encode(make_smooth_values(20, 30)))
    for changed in (data + b"\0\0\0\7free", data + b"?", data[:32] + b"\0\1\0\0" + data[36:]):
        files = Files({ROOT: changed})
        assert files.read(files.open(), "0/0.0")
    files = Files({ROOT: data[:-30]})
    with pytest.raises((DamagedIndex, ValueError), match="cut short"):
        files.read(files.open(), "0/0.0")
