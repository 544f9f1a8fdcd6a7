"""Decoding of values of CDF files: types, leap seconds, compression."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from refshard_fs import ManifestError
from refshard_fs.formats.cdf.records import GZIP, RLE
from refshard_fs.formats.cdf.values import (
    ConversionRecipe,
    DecompressionRecipe,
    Kind,
    convert_epoch,
    convert_tt2000,
    find_kind,
    make_default_pad,
)
from tests.support.cdf_writer import encode_runs


def test_tt2000_becomes_utc_around_leap_seconds() -> None:
    # Computed with cdflib 1.3.16: seconds around some leap seconds, and before the first one.
    tt2000_by_utc = {
        "1955-01-01T00:00:00": -1420113567816000000,
        "1970-01-01T00:00:00": -946727959814622001,
        "1972-06-30T23:59:59": -867931158816000000,
        "1972-07-01T00:00:00": -867931156816000000,
        "1998-12-31T23:59:59": -31579137816000000,
        "1999-01-01T00:00:00": -31579135816000000,
        "2000-01-01T12:00:00": 64184000000,
        "2016-12-31T23:59:59": 536500867184000000,
        "2017-01-01T00:00:00": 536500869184000000,
        "2026-11-29T00:00:00": 849182469184000000,
    }
    converted = convert_tt2000(np.array(list(tt2000_by_utc.values())))
    assert converted.view("M8[ns]").astype("M8[s]").astype(str).tolist() == list(tt2000_by_utc)
    missing = convert_tt2000(np.array([np.iinfo("i8").min, np.iinfo("i8").min + 1, np.iinfo("i8").max]))
    assert np.isnat(missing.view("M8[ns]")).all()


def test_epochs_are_converted_exactly() -> None:
    epochs = np.array([63429523200000.0, 63429523200000.0 + 0.125, 0.0, -1e31, np.nan, 315569519999999.0])
    converted = convert_epoch(epochs).view("M8[us]")
    assert converted[:2].astype(str).tolist() == ["2010-01-01T00:00:00.000000", "2010-01-01T00:00:00.000125"]
    assert np.isnat(converted[2:]).all()
    epochs_16 = np.array([63429523200.0 + 123456789012j, -1e31 - 1e31j, 0])
    converted = convert_epoch(epochs_16).view("M8[ns]")
    assert str(converted[0]) == "2010-01-01T00:00:00.123456789"
    assert np.isnat(converted[1:]).all()


def test_encoding_number_gives_the_byte_order_or_an_error() -> None:
    assert [find_kind(2, 1, encoding).name for encoding in (1, 6, 3)] == [">i2", "<i2", "<i2"]
    assert find_kind(51, 5, 3).name == "S5"
    with pytest.raises(ManifestError, match="VAX floats"):
        find_kind(44, 1, 3)
    with pytest.raises(ManifestError, match="data type has the number 99"):
        find_kind(99, 1, 6)
    with pytest.raises(ManifestError, match="encoding has the number 77"):
        find_kind(2, 1, 77)


def test_default_pads_match_the_cdf_library() -> None:
    kinds = [Kind(1, "<i1"), Kind(12, ">u2"), Kind(21, "<f4"), Kind(31, "<f8")]
    values = [np.frombuffer(make_default_pad(kind), kind.stored_dtype)[0] for kind in kinds]
    assert values == [-127, 65534, np.float32(-1e30), 0]
    assert make_default_pad(Kind(51, "S3")) == b"   "


@pytest.mark.parametrize(
    ("compression", "encode"), [(GZIP, lambda data: zlib.compress(data, wbits=31)), (RLE, encode_runs)]
)
def test_decompression_to_another_size_is_an_error(compression: int, encode: object) -> None:
    data = b"\0\1\2\0\0\3"
    packed = encode(data)  # type: ignore[operator]
    assert DecompressionRecipe(compression, len(data)).make(packed) == data
    for size in (len(data) - 1, len(data) + 1):
        with pytest.raises(ValueError, match="bytes"):
            DecompressionRecipe(compression, size).make(packed)


def test_runs_that_decode_to_too_many_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="expected 100"):
        DecompressionRecipe(RLE, 100).make(b"\0\xff" * 1_000_000)


def test_short_last_chunk_is_padded_and_reordered() -> None:
    kind = Kind(2, ">i2")
    values = np.arange(12, dtype=">i2").reshape(2, 3, 2)  # records, then the axes in the file
    raw = ConversionRecipe(kind, (3, 3, 2), (0, 2, 1), is_compressed=False).make(values.tobytes())
    converted = np.frombuffer(raw, ">i2").reshape(3, 2, 3)
    np.testing.assert_array_equal(converted[:2], values.transpose(0, 2, 1))
    assert not converted[2].any()
    with pytest.raises(ValueError, match="at most 36"):
        ConversionRecipe(kind, (3, 3, 2), (0, 2, 1), is_compressed=False).make(bytes(38))
