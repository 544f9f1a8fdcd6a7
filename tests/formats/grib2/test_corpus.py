"""Compare files that eccodes writes, for all editions, grids, packings, products and scan directions.

Values are the same as in eccodes bit for bit, and datasets the same as in cfgrib; `DIFFERENCES` lists the exceptions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.support.grib_messages import check_same_as_cfgrib, make_message
from tests.support.shard_writers import open_array

eccodes = pytest.importorskip("eccodes", exc_type=Exception)
xr = pytest.importorskip("xarray")
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
SCANS = [(0, 0), (1, 0), (0, 1), (1, 1)]  # by columns, in alternating directions
KINDS = ["smooth", "with holes", "noise", "one value"]


class Case(NamedTuple):
    edition: int
    grid: str
    packing: str = "grid_simple"
    product: int | str = 0  # number of its template; in edition 1, the `stepType` of eccodes
    scan: str = ""

    def __str__(self) -> str:
        return "-".join(map(str, filter(None, self)))


MORE_GRIDS = ["regular_ll_pl", "regular_gg_sfc", "reduced_gg_sfc", "reduced_ll_sfc", "rotated_gg_ml", "regular_gg_pl"]
PRODUCTS: dict[int, list[int | str]] = {
    1: ["accum", "avg", "max", "min", "diff"],
    2: [1, 2, 5, 6, 8, 9, 10, 11, 12, 15, 40, 41, 42, 43, 44, 45, 46, 47, 48, 60, 61, 70, 71, 72, 73, 103, 107],
}
SCANNED = {"columns": "jPointsAreConsecutive", "north": "jScansPositively", "west": "iScansNegatively"}
# Keys of the first and the last point, whose values are exchanged for scans to the north and to the west.
CORNERS = {"north": "latitudeOf{}GridPointInDegrees", "west": "longitudeOf{}GridPointInDegrees"}
# Coordinates of products that cfgrib does not show.
MORE: dict[int | str, frozenset[str]] = {
    **dict.fromkeys([5, 9], frozenset(["threshold"])),
    **dict.fromkeys([6, 10], frozenset(["percentile"])),
    **dict.fromkeys([40, 41, 42, 43], frozenset(["constituent"])),
    **dict.fromkeys([44, 45, 46, 47], frozenset(["constituent", "size"])),
    48: frozenset(["constituent", "size", "wavelength"]),
    103: frozenset(["wave_period"]),
    107: frozenset(["typeOfRelationToReferenceDataset"]),
}
# Scans for which the dataset of cfgrib differs.
DIFFERENCES = {
    "columns": "cfgrib reads columns as rows; for the coordinates of Gaussian and polar grids, eccodes does this, too",
    "west": "cfgrib sorts the longitudes, but not the values, which go from east to west as in the file",
}


def list_cases() -> Iterator[Case]:
    """Yield each packing and each product on each grid, and each scan of each packing on each regular grid."""
    for edition in (1, 2):
        grids = [*GRIDS, *MORE_GRIDS]
        yield from (Case(edition, *pair) for pair in itertools.product(grids, PACKINGS[edition]))
        yield from (Case(edition, grid, product=product) for grid in grids for product in PRODUCTS[edition])
        regular = [grid for grid in grids if "reduced" not in grid and not grid.startswith("rotated_gg")]
        triples = itertools.product(regular, PACKINGS[edition], SCANNED)
        yield from (Case(edition, grid, packing, scan=scan) for grid, packing, scan in triples)


def write_case(case: Case) -> bytes:
    """Return the file of a case; ValueError if eccodes does not write it.

    A file with columns has the same values at each point as the file with rows.
    """
    keys: dict[str, Any] = {"bitsPerValue": 12} | ({SCANNED[case.scan]: 1} if case.scan else {})
    if case.product:
        keys |= {"productDefinitionTemplateNumber": case.product} if case.edition == 2 else {"stepType": case.product}
        if case.edition == 1:
            keys["stepRange"] = "0-6"
    sample = f"{case.grid}_grib{case.edition}"
    handle = eccodes.codes_grib_new_from_samples(sample)
    values = 280 + np.cumsum(np.random.default_rng(41).normal(size=eccodes.codes_get(handle, "numberOfDataPoints")))
    if case.scan == "columns":
        values = values.reshape(eccodes.codes_get(handle, "Nj"), -1).T.ravel()
    if corner := CORNERS.get(case.scan):
        ends = [corner.format(end) for end in ("First", "Last")]
        keys |= dict(zip(ends, [eccodes.codes_get(handle, end) for end in reversed(ends)], strict=True))
    eccodes.codes_release(handle)
    handle = eccodes.codes_new_from_message(make_message(values, sample, **keys))
    if case.packing != "grid_simple":
        eccodes.codes_set(handle, "packingType", case.packing)
    data = bytes(eccodes.codes_get_message(handle))
    eccodes.codes_get_values(handle)
    eccodes.codes_release(handle)
    return data


ALL = list(list_cases())
QUICK = {*ALL[::20], Case(2, "regular_gg_ml", product=44)}  # cases that are not marked as slow


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if case in QUICK else [pytest.mark.slow]) for case in ALL],
    ids=str,
)
def test_datasets_equal_cfgrib_or_eccodes(case: Case, tmp_path: Path) -> None:
    """Scans in `DIFFERENCES` are compared with eccodes, or with a file that has the same values in rows."""
    path = tmp_path / "a.grib"
    try:
        path.write_bytes(write_case(case))
    except (eccodes.CodesInternalError, ValueError) as e:
        pytest.skip(f"eccodes does not write it: {e}")
    if case.scan not in DIFFERENCES:
        check_same_as_cfgrib(path, MORE.get(case.product, frozenset()))
        return
    found = xr.open_dataset(path, engine="refshard")
    if case.scan == "columns":
        rows = tmp_path / "rows.grib"
        rows.write_bytes(write_case(case._replace(scan="")))
        xr.testing.assert_identical(found, xr.open_dataset(rows, engine="refshard"))
        return
    handle = eccodes.codes_new_from_message(path.read_bytes())
    (name,) = found.data_vars
    shown = found[name]
    for key, own in (("latitudes", found.latitude), ("longitudes", found.longitude), ("values", shown)):
        listed = own.broadcast_like(shown).transpose(*shown.dims).values.ravel()
        np.testing.assert_allclose(listed, eccodes.codes_get_array(handle, key), rtol=1e-6, atol=2e-6, err_msg=key)
    eccodes.codes_release(handle)


def make_values(kind: str, count: int) -> np.ndarray:
    if kind == "one value":
        return np.full(count, 3.25)
    values = RNG.normal(280, 9, count) if kind == "noise" else 280 + np.cumsum(RNG.normal(size=count)) / 10
    return np.where(RNG.random(count) < 0.3, np.nan, values) if kind == "with holes" else values


def decode_by_eccodes(data: bytes) -> np.ndarray:
    """Return the values of a message as 32-bit floats, NaN where missing."""
    handle = eccodes.codes_new_from_message(data)
    try:
        eccodes.codes_set(handle, "missingValue", 1e300)
        values = eccodes.codes_get_values(handle)
    finally:
        eccodes.codes_release(handle)
    with np.errstate(over="ignore"):
        return np.where(values == 1e300, np.nan, values).astype("f4")


def list_packed(edition: int, grid: str) -> list[tuple[str, str]]:
    """Return each packing with two kinds of values, which differ from grid to grid: all kinds on each pair of grids."""
    kinds = KINDS[:2] if GRIDS.index(grid) % 2 else KINDS[2:]
    return list(itertools.product(PACKINGS[edition], kinds))


@pytest.mark.parametrize("edition", [1, 2])
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "all"])
def test_values_of_packings_equal_eccodes(edition: int, grid: str, is_whole: bool) -> None:
    compared = 0
    sample = f"{grid}_grib{edition}"
    packed = list(itertools.product(PACKINGS[edition], KINDS)) if is_whole else list_packed(edition, grid)
    for packing, kind in packed:
        for by_columns, alternates in SCANS if packing == "grid_simple" and "reduced" not in grid else SCANS[:1]:
            handle = eccodes.codes_grib_new_from_samples(sample)
            values = make_values(kind, eccodes.codes_get(handle, "numberOfDataPoints"))
            eccodes.codes_release(handle)
            scans = {"jPointsAreConsecutive": by_columns} | (
                {"alternativeRowScanning": alternates} if alternates else {}
            )
            try:
                plain = make_message(values, sample, bitsPerValue=12, **scans)
                handle = eccodes.codes_new_from_message(plain)
                eccodes.codes_set(handle, "packingType", packing)
                data = bytes(eccodes.codes_get_message(handle))
                eccodes.codes_release(handle)
                want = decode_by_eccodes(data)
            except (eccodes.CodesInternalError, ValueError):
                continue  # eccodes does not write it
            name = get_name_by_eccodes(data)
            found = open_array(data, name)[...]
            if by_columns or alternates:
                want = arrange_in_rows(want, found.shape, by_columns, alternates)
            np.testing.assert_array_equal(found.ravel(), want.ravel(), f"{packing}, {kind}, {by_columns}{alternates}")
            compared += 1
    assert 2 * compared >= len(packed), "eccodes writes most packings"


def get_name_by_eccodes(data: bytes) -> str:
    handle = eccodes.codes_new_from_message(data)
    name = eccodes.codes_get(handle, "cfVarName")
    eccodes.codes_release(handle)
    return str(name)


def arrange_in_rows(values: np.ndarray, shape: tuple[int, ...], by_columns: int, alternates: int) -> np.ndarray:
    """Return scanned values as an array of rows and columns of the grid."""
    lines = values.reshape(shape[::-1] if by_columns else shape).copy()
    if alternates:
        lines[1::2] = lines[1::2, ::-1].copy()
    return lines.T if by_columns else lines
