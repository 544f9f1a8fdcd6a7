"""Decode fields and coordinates of GRIB 1: values have the size of the array, or an error of this package is raised."""

from __future__ import annotations

from tests.fuzz.parsers.grib2_values import IS_TEXT, WORDS, check_input, make_seeds_of, set_up

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]


def make_seeds() -> list[bytes]:
    return make_seeds_of(1)
