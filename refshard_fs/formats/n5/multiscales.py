"""Describe the pyramids of N5 as OME-NGFF 0.4 does. No I/O here.

A pyramid is a group with the datasets ``s0``, ``s1``... There are three ways to store the sizes of elements: n5-viewer
and BigDataViewer write ``downsamplingFactors`` and ``pixelResolution``; Paintera writes ``downsamplingFactors``,
``resolution`` and ``offset``; COSEM (OpenOrganelle) writes a ``transform`` for each dataset. In a ``transform``, the
fastest dimension comes last, as in zarr; in the other lists, it comes first.
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
    """Return the attribute ``multiscales`` for a group; None if it is not a pyramid, or its ``multiscales`` have axes.

    ``name`` and ``group`` are the name and the attributes of the group, ``datasets`` the attributes of the datasets in
    it, by name.
    """
    levels: list[Mapping[str, Any]] = []
    while f"s{len(levels)}" in datasets:
        levels.append(datasets[f"s{len(levels)}"])
    multiscales = group.get("multiscales")
    existing: Mapping[str, Any] = (
        multiscales[0] if isinstance(multiscales, list) and multiscales and isinstance(multiscales[0], dict) else {}
    )
    if not levels or "axes" in existing:
        return None
    ndim = len(levels[0]["dimensions"])
    level_entries = [_get_entry(existing, number) for number in range(len(levels))]
    transforms = [_find_transform(level, entry) for level, entry in zip(levels, level_entries, strict=True)]
    axes, units = transforms[0].get("axes") or _AXES.get(ndim), transforms[0].get("units") or [""] * ndim
    steps = [_parse_numbers(transform.get("scale"), ndim) for transform in transforms]
    starts = [_parse_numbers(transform.get("translate"), ndim) for transform in transforms]
    if None in steps:
        factors = [_find_factors(group, level, number, ndim) for number, level in enumerate(levels)]
        if None in factors or len(levels) == 1:
            return None
        sizes, unit = _find_resolution(group, levels[0], ndim)
        offset = _parse_numbers(group.get("offset", levels[0].get("offset")), ndim) or [0.0] * ndim
        units = [unit] * ndim
        steps = [
            [size * factor for size, factor in zip(sizes, level_factors or (), strict=True)][::-1]
            for level_factors in factors
        ]
        # An element of a level averages ``factor`` elements of s0. Its center is the mean of their centers.
        axes_by_level = [zip(offset, sizes, level_factors or (), strict=True) for level_factors in factors]
        starts = [
            [start + size * (factor - 1) / 2 for start, size, factor in level_axes][::-1]
            for level_axes in axes_by_level
        ]
    if not isinstance(axes, list) or len(axes) != ndim or not all(isinstance(axis, str) for axis in axes):
        return None
    ome_axes: list[dict[str, Any]] = [{"name": axis, "type": _KINDS.get(axis, "space")} for axis in axes]
    if isinstance(units, list) and len(units) == ndim:
        for axis, unit in zip(ome_axes, units, strict=True):
            axis |= {"unit": _UNITS.get(unit, unit)} if isinstance(unit, str) and unit else {}
    entries = []
    for number, (scale, start) in enumerate(zip(steps, starts, strict=True)):
        transformations: list[dict[str, Any]] = [{"type": "scale", "scale": scale}]
        transformations += [{"type": "translation", "translation": start}] if start is not None and any(start) else []
        entries.append({**level_entries[number], "path": f"s{number}", "coordinateTransformations": transformations})
    return [{**existing, "version": "0.4", "name": existing.get("name") or name, "axes": ome_axes, "datasets": entries}]


def _get_entry(multiscale: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the entry of level ``number`` in the ``multiscales`` that COSEM wrote; empty if there is none."""
    datasets = multiscale.get("datasets")
    entry = datasets[number] if isinstance(datasets, list) and number < len(datasets) else None
    return entry if isinstance(entry, dict) else {}


def _find_transform(*owners: Mapping[str, Any]) -> dict[str, Any]:
    """Return COSEM's transform of a level, from the first of ``owners`` that has a transform; empty without one."""
    transforms = (owner.get("transform") for owner in owners)
    return next((transform for transform in transforms if isinstance(transform, dict)), {})


def _find_factors(group: Mapping[str, Any], level: Mapping[str, Any], number: int, ndim: int) -> list[float] | None:
    """Return the factors by which level ``number`` is smaller than ``s0``; None if unknown, but 1 for ``s0`` itself."""
    factors = _parse_numbers(level.get("downsamplingFactors"), ndim)
    for name in ("scales", "downsamplingFactors"):
        group_factors = group.get(name)
        if factors is None and isinstance(group_factors, list) and number < len(group_factors):
            factors = _parse_numbers(group_factors[number], ndim)
    return [1.0] * ndim if factors is None and number == 0 else factors


def _find_resolution(group: Mapping[str, Any], level: Mapping[str, Any], ndim: int) -> tuple[list[float], str]:
    """Return the sizes of an element of ``s0`` along each dimension, and their unit."""
    for owner in (group, level):
        value: Any = owner.get("pixelResolution", owner.get("resolution"))
        unit = "" if "pixelResolution" in owner else "nm"  # Paintera writes no unit, and means nanometers
        if isinstance(value, dict):
            value, unit = value.get("dimensions"), str(value.get("unit") or "")
        sizes = _parse_numbers(value, ndim)
        if sizes is not None:
            return sizes, unit
    return [1.0] * ndim, ""


def _parse_numbers(value: Any, ndim: int) -> list[float] | None:
    """Return a list of ``ndim`` finite numbers; None for any other value."""
    if not isinstance(value, list) or len(value) != ndim:
        return None
    fits = all(type(item) in (int, float) and abs(item) < 1e100 and math.isfinite(item) for item in value)
    return [float(item) for item in value] if fits else None
