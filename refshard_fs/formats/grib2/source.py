"""GRIB2 files as a zarr group: a variable for each parameter and kind of level, a chunk for each field. No I/O here."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from refshard_fs.core.array_group import ArrayDescription, ArrayGroupBuilder, Chunks, Given, made
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Inline, Listed, Load, Span, Steps, together
from refshard_fs.errors import ManifestError
from refshard_fs.formats.grib2.decoding import Named, Points, Values, named
from refshard_fs.formats.grib2.messages import Field, Grib, Offsets, Unshown, integer, signed

SIDECARS: Final = (".idx", ".index")  # wgrib2's and ECMWF's, after the file's name, or in place of its last part
LARGEST: Final = 1 << 27  # points of a grid that is shown, 512 MiB of them; the largest in use have some 30 million
LONGEST: Final = 1 << 17  # points along a side of it, whose coordinates are made: 1 MiB
_TIME: Final = {
    "units": "seconds since 1970-01-01",
    "calendar": "proleptic_gregorian",
    "standard_name": "forecast_reference_time",
}
_STEP: Final = {"units": "seconds", "dtype": "timedelta64[ns]", "standard_name": "forecast_period"}
# Templates of grids (section 3) by number: the octet of how they are scanned. Others are shown as a list of points.
_SCANNED: Final = {0: 72, 1: 72, 10: 60, 20: 65, 30: 65, 40: 72}
_LATITUDE: Final = {"units": "degrees_north", "standard_name": "latitude"}
_LONGITUDE: Final = {"units": "degrees_east", "standard_name": "longitude"}


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a GRIB2 file."""
    source, size = probe.file("GRIB2")
    grib = Grib(probe.url, source, size, probe.head)
    offsets = None if probe.is_in_memory else (yield from _sidecar(probe.url))
    if offsets is None:
        messages = yield from grib.messages()
    else:
        yield from grib.read(offsets)
        messages = [(at, grib.length(at)) for at in offsets]
        for (at, length), after in itertools.pairwise([*messages, (size, 0)]):
            if at + length > after[0]:
                raise ManifestError(
                    f"{probe.url}: its index names a message at byte {after[0]}, within the one at {at}"
                )
    found = yield from together([grib.fields(*message) for message in messages])
    group = _Group(probe.url, source, options.zarr_format)
    group.show(list(itertools.chain.from_iterable(found)))
    return group.keyspace(options.zarr_format, {"Conventions": "CF-1.7"})


def _sidecar(url: str) -> Steps[tuple[int, ...] | None]:
    """Return the offsets of messages that a sidecar tells; None where there is none."""
    if "?" in url:  # signed, for instance: another name would not be allowed
        return None
    stem = url.rpartition(".")[0] if "." in url.rpartition("/")[2] else url
    names = dict.fromkeys(base + end for base in (url, stem) for end in SIDECARS)
    found = yield tuple(Load(Span(name, optional=True), Offsets()) for name in names)
    return next((offsets for offsets in found if offsets), None)


class FieldChunks(Chunks):
    """The chunks of a variable: the field at each place of its dimensions, or None where the file has none."""

    def __init__(self, source: Span | Inline, grid: ChunkGrid, fields: Mapping[int, Field]) -> None:
        self._source = source
        self._grid = grid
        self._fields = fields

    def entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        field = self._fields.get(number)
        if field is None:
            return None
        return _made(self._source, field.parts, Values(field.count, tuple(size for _, size in field.parts)))

    def listed(self) -> Steps[list[Listed] | None]:
        yield from ()
        return [Listed(self._grid.tail(number), None) for number in sorted(self._fields)]


class _PointChunks(Chunks):
    """The latitudes or longitudes of a grid, in one chunk."""

    def __init__(self, source: Span | Inline, field: Field, key: str) -> None:
        self._made = partial(_made, source, [field.grid_at], Points(key, field.count))

    def entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        return self._made()


def _made(source: Span | Inline, parts: Sequence[tuple[int, int]], recipe: Values | Points) -> Entry:
    """Return what a recipe makes of (offset, size) ``parts`` of the file."""
    start, stop = min(at for at, _ in parts), max(at + size for at, size in parts)
    cuts = tuple((at - start, size) for at, size in parts)
    are_joined = all(a + size == b for (a, size), (b, _) in itertools.pairwise(cuts))
    return made(source.part(start, stop - start), recipe, recipe.size, "the file", () if are_joined else cuts)


class _Group(ArrayGroupBuilder):
    """The variables of a file, while they are put together."""

    def __init__(self, url: str, source: Span | Inline, zarr_format: int) -> None:
        super().__init__(url)
        self._source = source
        self._zarr_format = zarr_format
        self._names: dict[str, list[Hashable]] = {}  # of coordinates: what each of that name has

    def show(self, found: Sequence[Field | Unshown]) -> None:
        """Show all fields that can be."""
        variables: dict[tuple[str, str, int, bytes], list[Field]] = {}
        texts: dict[tuple[str, str, int, bytes], Named] = {}
        for field in found:
            if isinstance(field, Unshown):
                self.reports[f"the message at byte {field.at}"] = field.reason
                continue
            text = named(field.parameter)
            key = (text.name, text.level, field.parameter.statistic, field.grid)
            variables.setdefault(key, []).append(field)
            texts[key] = text
        alike: dict[str, list[tuple[str, str, int, bytes]]] = {}
        for key in variables:
            alike.setdefault(key[0], []).append(key)
        for key, fields in variables.items():
            name = self._unused(key, alike[key[0]])
            try:
                self._variable(name, texts[key], fields)
            except ValueError as e:
                self.reports[name] = str(e)

    @staticmethod
    def _unused(key: tuple[str, str, int, bytes], alike: Sequence[tuple[str, str, int, bytes]]) -> str:
        """Return a name of a variable that tells it from those ``alike``: with its kind of level, or with a number."""
        name, level, *_ = key
        if len(alike) == 1:
            return name
        same = [other for other in alike if other[1] == level]
        return f"{name}_{level}" if len(same) == 1 else f"{name}_{level}_{same.index(key)}"

    def _variable(self, name: str, text: Named, fields: Sequence[Field]) -> None:
        levels = _levels(fields)
        axes: dict[str, list[Any]] = {
            "number": [field.member for field in fields],
            "time": [field.time for field in fields],
            "step": [field.step for field in fields],
            text.level: [levels[field.parameter.surfaces] for field in fields],
        }
        dimensions, shape, scalars = [], [], []
        ordered = {axis: sorted(set(values)) for axis, values in axes.items()}
        ordered[text.level].sort(reverse=text.level.startswith("isobaric"))
        for axis, values in ordered.items():
            is_scalar = len(values) == 1
            if is_scalar and axis == "number" and not values[0]:
                continue
            attributes = {"time": _TIME, "step": _STEP}.get(axis, {})
            dtype = "<i8" if axis in ("number", "time", "step") else "<f8"
            own = self._coordinate(axis, np.array(values, dtype)[0 if is_scalar else slice(None)], attributes)
            if is_scalar:
                scalars.append(own)
            else:
                dimensions.append(own)
                shape.append(len(values))
        within, places, inner = self._grid(fields[0])
        attributes = {**text.attributes, "coordinates": " ".join([*scalars, *places])}
        described = ArrayDescription(
            f"{self.url}: {name}", (*shape, *inner), (*(1 for _ in shape), *inner), np.dtype("<f4"), "C", None,
            [*dimensions, *within], attributes, "NaN", is_masked=True,
        )  # fmt: skip
        chunks: dict[int, Field] = {}
        ranks = {axis: {value: rank for rank, value in enumerate(values)} for axis, values in ordered.items()}
        for place, field in enumerate(fields):
            number = 0
            for axis, rank in ranks.items():
                number = number * len(rank) + rank[axes[axis][place]]
            if number in chunks:
                self.reports[f"{name} at byte {field.parts[0][0]}"] = "another field has its place: it is not shown"
            else:
                chunks[number] = field
        self.add(name, described, FieldChunks(self._source, described.grid(self._zarr_format), chunks))

    def _coordinate(self, name: str, values: Any, attributes: Mapping[str, Any]) -> str:
        """Return the name of a coordinate of these ``values``: with a number where another one has taken ``name``."""
        key = (values.shape, values.tobytes())
        known = self._names.setdefault(name, [])
        if key not in known:
            known.append(key)
        own = _numbered(name, known.index(key))
        self.add_coordinate(own, values.shape, values.dtype.str, Given(values.tobytes()), attributes)
        return own

    def _grid(self, field: Field) -> tuple[list[str], list[str], tuple[int, ...]]:
        """Return the names of a grid's dimensions, and of the coordinates that are no dimensions, and its shape."""
        grid, known = field.grid, self._names.setdefault("grid", [])
        if grid not in known:
            known.append(grid)
        number = known.index(grid)
        template = integer(grid, 13, 2)
        across, down = integer(grid, 31, 4), integer(grid, 35, 4)
        is_flat = template not in _SCANNED or across * down != field.count
        if not 0 < field.count <= LARGEST or (not is_flat and max(across, down) > LONGEST):
            raise ValueError(f"its grid has {field.count} points, {down} down and {across} across: they are too many")
        if not is_flat and integer(grid, _SCANNED[template]) & 0x30:
            raise ValueError("its grid is scanned by columns, or to and fro, which is not shown")
        names = [_numbered("latitude", number), _numbered("longitude", number)]
        if template == 0 and not is_flat:
            latitudes, longitudes = _axes(grid, across, down)
            own = [
                self._coordinate("latitude", latitudes, _LATITUDE),
                self._coordinate("longitude", longitudes, _LONGITUDE),
            ]
            return own, [], (down, across)
        inner = (field.count,) if is_flat else (down, across)
        dimensions = [_numbered(axis, number) for axis in (("values",) if is_flat else ("y", "x"))]
        for name, key, attributes in zip(names, ("latitudes", "longitudes"), (_LATITUDE, _LONGITUDE), strict=True):
            array = ArrayDescription(name, inner, inner, np.dtype("<f8"), "C", None, dimensions, attributes)
            self.add(name, array, _PointChunks(self._source, field, key))
        return dimensions, names, inner


def _numbered(name: str, number: int) -> str:
    return f"{name}_{number}" if number else name


def _levels(fields: Sequence[Field]) -> dict[Any, float]:
    """Return the level of each pair of surfaces: the first one's value, or where these are not enough, a number."""
    pairs = sorted({field.parameter.surfaces for field in fields})
    scale = 100.0 if pairs[0][0].kind == 100 else 1.0  # isobaric levels are in Pa, and shown in hPa
    values = {pair: pair[0].value / scale for pair in pairs}
    return values if len(set(values.values())) == len(pairs) else {pair: float(at) for at, pair in enumerate(pairs)}


def _axes(grid: bytes, across: int, down: int) -> tuple[Any, Any]:
    """Return the latitudes and longitudes of a regular grid."""
    basic, parts = integer(grid, 39, 4), integer(grid, 43, 4)
    unit = basic / parts if basic and parts not in (0, 0xFFFFFFFF) else 1e-6
    north, west, south, east = (signed(grid, octet, 4) * unit for octet in (47, 51, 56, 60))
    if integer(grid, 72) & 0x80:
        west += 360 if west < east else 0
    elif east < west:
        west -= 360
    longitudes = np.linspace(west, east, across)
    return np.linspace(north, south, down), longitudes
