"""Decode fields and coordinates of GRIB 2: values have the size of the array, or an error of this package is raised."""

from __future__ import annotations

import itertools
from contextlib import nullcontext as set_up
from contextlib import suppress

import numpy as np

from refshard_fs.core.model import Inline
from refshard_fs.errors import RefShardError
from refshard_fs.formats.grib2.messages import Field, Grib
from refshard_fs.formats.grib2.source import (
    FieldGroup,
    _describe_grid,
    _read_fields,
    _run_in_memory,
    get_scan_flags,
    make_recipe,
)
from tests.fuzz.parsers.grib2_file import WORDS
from tests.support.grib_messages import eccodes, make_message
from tests.support.shards_in_memory import ROOT

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds", "make_seeds_of"]

IS_TEXT = False
_POINTS = 1 << 16  # points of a grid whose coordinates are computed: eccodes takes 3 s for a million
_PARALLELS = 1 << 10  # latitudes between a pole and the equator of a Gaussian grid whose coordinates are computed
_COMPUTED: set[bytes] = set()  # grids whose coordinates were computed; this takes eccodes longer than all the rest
_GRIDS = ("reduced_ll_sfc", "reduced_gg_pl_32")  # samples with a list of rows
# For each edition: the key of a grid's template and the templates that are supported, and the packings.
_TEMPLATES = {
    1: ("dataRepresentationType", (0, 1, 3, 4, 5, 10, 14, 90)),
    2: ("gridDefinitionTemplateNumber", (0, 1, 2, 3, 10, 12, 13, 20, 23, 30, 31, 33, 40, 41, 42, 43, 90, 101, 140)),
}
# For each edition: grids on an ellipsoid. Samples have a sphere.
_LAMBERT = {"Latin1": 30, "Latin2": 50, "LoV": 10}
_ELLIPSOIDS: dict[int, tuple[dict[str, int], ...]] = {
    1: tuple(
        {"earthIsOblate": 1, "latitudeOfFirstGridPoint": 40_000, "dataRepresentationType": kind, **keys}
        for kind, keys in (
            (1, {"Latin": 20_000, "DiInMetres": 9000, "DjInMetres": 9000}),
            (3, {key: value * 1000 for key, value in _LAMBERT.items()} | {"Dx": 9000, "Dy": 9000}),
        )
    ),
    2: tuple(
        {"latitudeOfFirstGridPoint": 40_000_000, "gridDefinitionTemplateNumber": template, **keys, **earth}
        for earth in ({"shapeOfTheEarth": 5}, {
            "shapeOfTheEarth": 7, "scaleFactorOfEarthMajorAxis": 1, "scaledValueOfEarthMajorAxis": 63_781_370,
            "scaleFactorOfEarthMinorAxis": 0, "scaledValueOfEarthMinorAxis": 6_356_752,
        })
        for template, keys in (
            (10, {"LaD": 20_000_000, "Di": 9_000_000, "Dj": 9_000_000}),
            (30, {key: value * 10**6 for key, value in _LAMBERT.items()} | {"Dx": 9_000_000, "Dy": 9_000_000}),
            (140, {"standardParallelInMicrodegrees": 50_000_000, "Dx": 9_000_000, "Dy": 9_000_000}),
        )
    ),
}  # fmt: skip
_PACKINGS = {
    1: ("grid_simple", "grid_second_order"),
    2: ("grid_simple", "grid_complex", "grid_complex_spatial_differencing", "grid_ccsds", "grid_jpeg", "grid_png",
        "grid_ieee", "grid_simple_log_preprocessing", "grid_run_length"),
}  # fmt: skip


def make_seeds() -> list[bytes]:
    return make_seeds_of(2)


def make_seeds_of(edition: int) -> list[bytes]:
    """Return a small message of each grid, and one of each packing with and without a bitmap."""
    rng = np.random.default_rng(1)
    spectrum = {"values": rng.normal(size=506), "J": 21, "K": 21, "M": 21, "packingType": "spectral_complex"}
    found = [make_message(sample=f"sh_ml_grib{edition}", **spectrum)]
    for grid in _GRIDS:
        handle = eccodes.codes_grib_new_from_samples(f"{grid}_grib{edition}")
        found.append(bytes(eccodes.codes_get_message(handle)))
        eccodes.codes_release(handle)
    key, templates = _TEMPLATES[edition]
    sample, small = f"regular_ll_sfc_grib{edition}", {"Nx": 4, "Ny": 3}
    for template in templates:
        keys = {key: template, **(small if template != 101 else {"numberOfDataPoints": 12})}
        found.append(make_message(np.arange(12.0), sample, bitsPerValue=8, **keys))
    found += [make_message(np.arange(12.0), sample, bitsPerValue=8, **keys, **small) for keys in _ELLIPSOIDS[edition]]
    for packing, has_holes in itertools.product(_PACKINGS[edition], (False, True)):
        values = 280 + np.cumsum(rng.normal(size=128))
        values[: 20 if has_holes else 0] = np.nan
        plain = make_message(values, sample, bitsPerValue=9, Nx=16, Ny=8)
        handle = eccodes.codes_new_from_message(plain)
        eccodes.codes_set(handle, "packingType", packing)
        found.append(bytes(eccodes.codes_get_message(handle)))
        eccodes.codes_release(handle)
    return found


def check_input(data: bytes) -> None:
    grib = Grib(ROOT, Inline(data), len(data), data)
    group = FieldGroup(ROOT, Inline(data), 2)
    with suppress(RefShardError, ValueError):
        for message_at in _run_in_memory(grib.find_messages()):
            for field in _run_in_memory(_read_fields(grib, *message_at)):
                if isinstance(field, Field):
                    _, places, inner = group.add_grid(field)
                    sections = b"".join([data[at : at + size] for at, size in field.parts])
                    made = make_recipe(field, inner[-1], get_scan_flags(field, inner)).make(sections)
                    assert len(made) == 4 * field.count
                    is_small = field.count <= _POINTS and _describe_grid(field).parallels <= _PARALLELS
                    if is_small and field.grid not in _COMPUTED:
                        for name in places:
                            _run_in_memory(group.chunks[name].find_entry(0))
                        _COMPUTED.add(field.grid)
