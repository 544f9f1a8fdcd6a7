"""Decode fields and coordinates of GRIB: values have the size of the array, or an error of this package is raised."""

from __future__ import annotations

import itertools
from contextlib import nullcontext as set_up
from contextlib import suppress

import numpy as np

from refshard_fs.core.model import Inline
from refshard_fs.errors import RefShardError
from refshard_fs.formats.grib2.messages import Field, Grib
from refshard_fs.formats.grib2.source import FieldGroup, _read_fields, _run_in_memory, get_scan_flags, make_recipe
from tests.fuzz.parsers.grib2_file import WORDS
from tests.support.grib_messages import eccodes, make_message
from tests.support.shards_in_memory import ROOT

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = False
_POINTS = 1 << 20  # points of a grid whose coordinates are computed: larger grids take eccodes up to 3 s
_GRIDS = ("regular_ll_sfc", "rotated_ll_sfc", "regular_gg_ml", "reduced_gg_pl_32", "polar_stereographic_pl")
_PACKINGS = {
    1: ("grid_simple", "grid_second_order"),
    2: ("grid_simple", "grid_complex", "grid_complex_spatial_differencing", "grid_ccsds", "grid_jpeg", "grid_png",
        "grid_ieee", "grid_simple_log_preprocessing", "grid_run_length"),
}  # fmt: skip


def make_seeds() -> list[bytes]:
    rng = np.random.default_rng(1)
    spectrum = {"values": rng.normal(size=506), "J": 21, "K": 21, "M": 21, "packingType": "spectral_complex"}
    found = [make_message(sample=f"sh_ml_grib{edition}", **spectrum) for edition in (1, 2)]
    small = {"Ni": 16, "Nj": 8}
    for edition, packings in _PACKINGS.items():
        for grid in _GRIDS:
            handle = eccodes.codes_grib_new_from_samples(f"{grid}_grib{edition}")
            found.append(bytes(eccodes.codes_get_message(handle)))
            eccodes.codes_release(handle)
        for packing, has_holes in itertools.product(packings, (False, True)):
            values = 280 + np.cumsum(rng.normal(size=128))
            values[: 20 if has_holes else 0] = np.nan
            plain = make_message(values, f"regular_ll_sfc_grib{edition}", bitsPerValue=9, **small)
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
                    for name in places if field.count < _POINTS else ():
                        _run_in_memory(group.chunks[name].find_entry(0))
