"""A corpus that eccodes writes: edition x grid x packing x scan. Values are those of eccodes bit for bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.support.grib_messages import message
from tests.support.shard_writers import array

eccodes = pytest.importorskip("eccodes", exc_type=Exception)
pytestmark = pytest.mark.once
RNG = np.random.default_rng(41)

GRIDS = [
    "regular_ll_sfc",
    "rotated_ll_sfc",
    "regular_gg_ml",
    "reduced_gg_pl_32",
    "rotated_gg_pl",
    "polar_stereographic_pl",
]
PACKINGS = {
    1: ["grid_simple", "grid_second_order"],
    2: [
        "grid_simple",
        "grid_ieee",
        "grid_complex",
        "grid_complex_spatial_differencing",
        "grid_ccsds",
        "grid_jpeg",
        "grid_png",
        "grid_simple_log_preprocessing",
        "grid_run_length",
    ],
}
SCANS = [(0, 0), (1, 0), (0, 1), (1, 1)]  # by columns, to and fro
KINDS = ["smooth", "with holes", "noise", "one value"]


def values_of(kind: str, count: int) -> np.ndarray:
    if kind == "one value":
        return np.full(count, 3.25)
    values = RNG.normal(280, 9, count) if kind == "noise" else 280 + np.cumsum(RNG.normal(size=count)) / 10
    return np.where(RNG.random(count) < 0.3, np.nan, values) if kind == "with holes" else values


def decoded(data: bytes) -> np.ndarray:
    handle = eccodes.codes_new_from_message(data)
    try:
        eccodes.codes_set(handle, "missingValue", 1e300)
        values = eccodes.codes_get_values(handle)
    finally:
        eccodes.codes_release(handle)
    with np.errstate(over="ignore"):
        return np.where(values == 1e300, np.nan, values).astype("f4")


@pytest.mark.parametrize("edition", [1, 2])
@pytest.mark.parametrize("grid", GRIDS)
def test_values_of_a_corpus_are_those_of_eccodes(edition: int, grid: str) -> None:
    compared = 0
    sample = f"{grid}_grib{edition}"
    for packing, kind in itertools.product(PACKINGS[edition], KINDS):
        for by_columns, to_and_fro in SCANS if packing == "grid_simple" and "reduced" not in grid else SCANS[:1]:
            handle = eccodes.codes_grib_new_from_samples(sample)
            values = values_of(kind, eccodes.codes_get(handle, "numberOfDataPoints"))
            eccodes.codes_release(handle)
            scans = {"jPointsAreConsecutive": by_columns} | (
                {"alternativeRowScanning": to_and_fro} if to_and_fro else {}
            )
            try:
                plain = message(values, sample, bitsPerValue=12, **scans)
                handle = eccodes.codes_new_from_message(plain)
                eccodes.codes_set(handle, "packingType", packing)
                data = bytes(eccodes.codes_get_message(handle))
                eccodes.codes_release(handle)
                want = decoded(data)
            except (eccodes.CodesInternalError, ValueError):
                continue  # eccodes does not write it
            name = eccodes_name(data)
            found = array(data, name)[...]
            if by_columns or to_and_fro:
                want = in_rows(want, found.shape, by_columns, to_and_fro)
            np.testing.assert_array_equal(found.ravel(), want.ravel(), f"{packing}, {kind}, {by_columns}{to_and_fro}")
            compared += 1
    assert compared >= 4 * (5 if edition == 2 else 1), "most can be written"


def eccodes_name(data: bytes) -> str:
    handle = eccodes.codes_new_from_message(data)
    name = eccodes.codes_get(handle, "cfVarName")
    eccodes.codes_release(handle)
    return str(name)


def in_rows(values: np.ndarray, shape: tuple[int, ...], by_columns: int, to_and_fro: int) -> np.ndarray:
    """Return scanned values as they lie in the grid, of rows and columns."""
    lines = values.reshape(shape[::-1] if by_columns else shape).copy()
    if to_and_fro:
        lines[1::2] = lines[1::2, ::-1].copy()
    return lines.T if by_columns else lines
