"""Describe the pyramids of N5 as OME-NGFF 0.4 does. No I/O here.

A pyramid is a group with the datasets ``s0``, ``s1``... Writers state its steps in one of three ways: n5-viewer and
BigDataViewer by ``downsamplingFactors`` and ``pixelResolution``; Paintera by ``downsamplingFactors``, ``resolution``
and ``offset``; COSEM (OpenOrganelle) by a ``transform`` of each dataset. Lists of the first two name the fastest
dimension first, those of ``transform`` last, as zarr does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

_AXES: Final = {1: ["x"], 2: ["y", "x"], 3: ["z", "y", "x"]}
_KINDS: Final = {"t": "time", "c": "channel"}
_UNITS: Final = {
    **dict.fromkeys(["nm", "nanometers"], "nanometer"),
    **dict.fromkeys(["um", "\N{MICRO SIGN}m", "\N{GREEK SMALL LETTER MU}m", "micron", "microns"], "micrometer"),
    **dict.fromkeys(["mm", "millimeters"], "millimeter"),
    "m": "meter",
}


def describe_pyramid(name: str, group: Mapping[str, Any], datasets: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return ``multiscales`` for the attributes of a ``group``; None if it is not a pyramid, or has them already.

    ``datasets`` are the attributes of the datasets in the group, by name.
    """
    levels: list[Mapping[str, Any]] = []
    while f"s{len(levels)}" in datasets:
        levels.append(datasets[f"s{len(levels)}"])
    given = group.get("multiscales")
    known: Mapping[str, Any] = given[0] if isinstance(given, list) and given and isinstance(given[0], dict) else {}
    if not levels or "axes" in known:
        return None
    ndim = len(levels[0]["dimensions"])
    stated = [_entry_of(known, number) for number in range(len(levels))]
    transforms = [_transform_of(level, entry) for level, entry in zip(levels, stated, strict=True)]
    axes, units = transforms[0].get("axes") or _AXES.get(ndim), transforms[0].get("units") or [""] * ndim
    steps = [_parse_numbers(transform.get("scale"), ndim) for transform in transforms]
    starts = [_parse_numbers(transform.get("translate"), ndim) for transform in transforms]
    if None in steps:
        factors = [_factors_of(group, level, number, ndim) for number, level in enumerate(levels)]
        if None in factors or len(levels) == 1:
            return None
        size, unit = _resolution_of(group, levels[0], ndim)
        offset = _parse_numbers(group.get("offset", levels[0].get("offset")), ndim) or [0.0] * ndim
        units = [unit] * ndim
        steps = [[size * factor for size, factor in zip(size, each or (), strict=True)][::-1] for each in factors]
        # The first element of a level is the mean of as many elements of the full resolution as its factor.
        corners = [zip(offset, size, each or (), strict=True) for each in factors]
        starts = [[start + size * (factor - 1) / 2 for start, size, factor in each][::-1] for each in corners]
    if not isinstance(axes, list) or len(axes) != ndim or not all(isinstance(axis, str) for axis in axes):
        return None
    described: list[dict[str, Any]] = [{"name": axis, "type": _KINDS.get(axis, "space")} for axis in axes]
    if isinstance(units, list) and len(units) == ndim:
        for axis, unit in zip(described, units, strict=True):
            axis |= {"unit": _UNITS.get(unit, unit)} if isinstance(unit, str) and unit else {}
    shown = []
    for number, (scale, start) in enumerate(zip(steps, starts, strict=True)):
        changes: list[dict[str, Any]] = [{"type": "scale", "scale": scale}]
        changes += [{"type": "translation", "translation": start}] if start is not None and any(start) else []
        shown.append({**stated[number], "path": f"s{number}", "coordinateTransformations": changes})
    return [{**known, "version": "0.4", "name": known.get("name") or name, "axes": described, "datasets": shown}]


def _entry_of(known: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the entry of a level in COSEM's ``multiscales`` of the group; empty if there is none."""
    listed = known.get("datasets")
    entry = listed[number] if isinstance(listed, list) and number < len(listed) else None
    return entry if isinstance(entry, dict) else {}


def _transform_of(*owners: Mapping[str, Any]) -> dict[str, Any]:
    """Return COSEM's transform of a level, from the first of its ``owners`` that has one."""
    found = (owner.get("transform") for owner in owners)
    return next((each for each in found if isinstance(each, dict)), {})


def _factors_of(group: Mapping[str, Any], level: Mapping[str, Any], number: int, ndim: int) -> list[float] | None:
    """Return the factors by which a level is smaller than the full resolution; ``s0`` may lack them."""
    own = _parse_numbers(level.get("downsamplingFactors"), ndim)
    for name in ("scales", "downsamplingFactors"):
        listed = group.get(name)
        if own is None and isinstance(listed, list) and number < len(listed):
            own = _parse_numbers(listed[number], ndim)
    return [1.0] * ndim if own is None and number == 0 else own


def _resolution_of(group: Mapping[str, Any], level: Mapping[str, Any], ndim: int) -> tuple[list[float], str]:
    """Return the sizes of an element of the full resolution, and their unit."""
    for owner in (group, level):
        given: Any = owner.get("pixelResolution", owner.get("resolution"))
        unit = "" if "pixelResolution" in owner else "nm"  # Paintera states nanometers
        if isinstance(given, dict):
            given, unit = given.get("dimensions"), str(given.get("unit") or "")
        found = _parse_numbers(given, ndim)
        if found is not None:
            return found, unit
    return [1.0] * ndim, ""


def _parse_numbers(value: Any, ndim: int) -> list[float] | None:
    """Return a list of ``ndim`` finite numbers; None for any other value."""
    if not isinstance(value, list) or len(value) != ndim:
        return None
    fits = all(type(each) in (int, float) and abs(each) < 1e100 and math.isfinite(each) for each in value)
    return [float(each) for each in value] if fits else None
