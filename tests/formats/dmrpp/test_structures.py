"""Structures with texts in a DMR++ document have the values that Hyrax wrote."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from refshard_fs.formats.dmrpp.document import Variable
from refshard_fs.formats.dmrpp.structures import decode_values_with_texts, make_structure

MEMBERS = [Variable("s/a", "Int16"), Variable("s/name", "String"), Variable("s/b", "Float32")]
SHAPES = [(), (2,), (3,)]


def encode_texts(texts: list[str]) -> bytes:
    return b"".join(base64.b64encode(text.encode()) + b";" for text in texts)


def make_values() -> bytes:
    """Make two elements, as Hyrax writes them into a document."""
    first_element = np.int16(5).tobytes() + encode_texts(["a", "long; text"]) + np.arange(3, dtype="<f4").tobytes()
    return first_element + np.int16(59).tobytes() + encode_texts(["", "é"]) + np.arange(3, 6, dtype="<f4").tobytes()


def test_texts_between_numbers_are_decoded() -> None:
    decoded = decode_values_with_texts(Variable("s", "Structure", members=MEMBERS), (2,), SHAPES, make_values(), 1000)
    assert decoded["a"].tolist() == [5, 59]  # 59 is a semicolon
    assert decoded["name"].tolist() == [[b"a", b"long; text"], [b"", "é".encode()]]
    np.testing.assert_array_equal(decoded["b"], np.arange(6, dtype="f4").reshape(2, 3))


@pytest.mark.parametrize(
    ("data", "shape", "limit", "reason"),
    [
        (make_values()[:-1], (2,), 1000, "end after .* structures"),
        (make_values() + b"x", (2,), 1000, "bytes: expected"),
        (make_values().replace(b";", b"!"), (2,), 1000, "end after .* structures"),
        (make_values().replace(b"=;", b";", 1), (2,), 1000, "padding"),
        (make_values(), (1 << 40,), 1000, "end after .* structures"),
        (make_values(), (2,), 10, "at most 1048576, and at most 10 in all"),
    ],
)
def test_values_that_do_not_fit_are_refused(data: bytes, shape: tuple[int, ...], limit: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode_values_with_texts(Variable("s", "Structure", members=MEMBERS), shape, SHAPES, data, limit)


def test_structure_with_a_text_in_the_file_is_refused() -> None:
    with pytest.raises(ValueError, match="member 'name' is a text: expected members of numbers"):
        make_structure(Variable("s", "Structure", members=MEMBERS), SHAPES, "<")
