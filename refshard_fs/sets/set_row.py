"""Join sets in a row along one dimension, to references or to the document of a cube."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.dtypes import is_big_endian, make_plain_array
from refshard_fs.core.keys import join
from refshard_fs.cubes.choice import Choice
from refshard_fs.cubes.document import ConcatDocument, Piece
from refshard_fs.cubes.fit import find_recoding
from refshard_fs.errors import ManifestError
from refshard_fs.references.values import object_in
from refshard_fs.sets.alignment import AlignedSets, prepare_parts
from refshard_fs.sets.arrange import Overlap
from refshard_fs.sets.changed_set import replace_metadata
from refshard_fs.sets.compatibility import get_array_facts
from refshard_fs.sets.concatenation import concatenate
from refshard_fs.sets.fills import set_fill_values
from refshard_fs.sets.gap_set import make_gap
from refshard_fs.sets.recut_shapes import choose_recut_shapes
from refshard_fs.sets.roomier_encodings import find_roomier_encodings
from refshard_fs.sets.stacking import Stacking
from refshard_fs.sets.variables import NamedSet, change_type


class Rules(msgspec.Struct, frozen=True):
    """The arguments of `concat` that the join needs."""

    same: frozenset[str] = frozenset()
    sort: bool = False
    overlap: Overlap = "error"
    freq: str | float | None = None
    regular: Mapping[str, str | float] = {}  # the step between the values of a coordinate, by dimension
    chunks: Mapping[str, int] = {}
    subchunks: Mapping[str, int] = {}
    is_outer: bool = False
    is_rectilinear: bool = False
    lazy: bool = False
    select: tuple[Choice, ...] = ()  # the selections of each set, which documents record
    own: Mapping[str, tuple[Choice, ...]] = {}  # the selections of one set by ``preprocess``, by the set's URL
    union: Mapping[str, npt.NDArray[Any]] = {}  # all values of a coordinate, by dimension; missing ones become gaps


class SetRow(msgspec.Struct, frozen=True):
    """Sets in a row along ``dim``, and the source of each: its URL or document, or an empty text for a gap.

    A gap has the length or the coordinate of its part. A document shows ``metadata`` (by key) in place of the first
    set's, ``bounds`` (arrays) in the units of their coordinates, and the arrays in ``recut`` in chunks of that shape.
    """

    dim: str | None
    sources: Sequence[Any]
    parts: Sequence[NamedSet]
    rules: Rules
    metadata: Mapping[str, dict[str, Any]] = {}
    bounds: Mapping[str, str] = {}
    recut: Mapping[str, tuple[int, ...]] = {}
    stacking: Stacking | None = None

    def make_references(self) -> NamedSet:
        """Join the sets to one set of references; ManifestError if that is impossible."""
        parts = self._prepare_parts(self.parts).parts
        return concatenate(parts, self.dim, self.rules.same, is_rectilinear=self.rules.is_rectilinear)

    def make_document(self) -> tuple[ConcatDocument, NamedSet]:
        """Join the sets; return the document, and the set that it shows. ManifestError if that is impossible."""
        dim = str(self.dim)
        first = next(number for number, source in enumerate(self.sources) if source)
        stored = self.parts[first]
        own = stored.find_coordinate(dim)  # the document has its values as they are stored
        shown = {key: doc for key, doc in self.metadata.items() if own is None or key != own.key}
        with_lead = [*self.parts[:first], replace_metadata(stored, shown), *self.parts[first + 1 :]]
        parts, places, unions = self._prepare_parts(with_lead)
        lead = parts[first]
        axes, variables = lead.find_axes(dim), lead.variables
        changed = _find_changed_documents(lead, stored)
        metadata = {**self.metadata, **changed}
        recut = {**choose_recut_shapes(parts, dim, self.rules.chunks, self.rules.subchunks, places), **self.recut}
        whole = concatenate(parts, dim, self.rules.same, recut=recut)
        _warn_of_lost_variables(whole, parts, first, dim)
        whole = msgspec.structs.replace(whole, units=stored.units)
        lengths = [part.find_length(dim) for part in parts]
        if 0 in lengths:
            raise ManifestError(f"{parts[lengths.index(0)].name} has length 0 along {dim!r}: leave it out")
        coordinate = lead.find_coordinate(dim)
        given = None if self.stacking is None else self.stacking.values
        values: Sequence[bytes | None] = given or [None] * len(lengths)
        joined = None if coordinate is None else whole.decode_values(coordinate.path)
        if coordinate is not None and joined is not None and len(joined):
            meta = zarrmeta.array_meta(metadata.get(coordinate.key) or coordinate.meta.raw, repr(coordinate.path))
            if meta is not None and change_type(meta, joined.dtype) is not meta:
                metadata[coordinate.key] = dict(change_type(meta, joined.dtype).raw)
            pieces = np.split(joined, np.cumsum(lengths)[:-1])
            values = [make_plain_array(whole.variables[coordinate.path].meta, piece)[1] for piece in pieces]
        elif given is None:
            coordinate = None
        # The metadata of one array give the zarr version in which all sets are opened, and the byte order of times.
        telling = coordinate or variables[min(axes)]
        if telling.meta.zarr_format == 3 or is_big_endian(telling.meta):
            metadata.setdefault(telling.key, dict(telling.meta.raw))
        lines = []
        for source, part, length, data, own_places in zip(self.sources, parts, lengths, values, places, strict=True):
            url, within = ("", source) if isinstance(source, ConcatDocument) else (source, None)
            chosen = self.rules.own.get(url, ())
            lines.append(Piece(url, length, data, within, own_places, part.take if source else None, chosen))
        held = {  # values in other units, and all values of `unions`
            path: lead.find_inline_chunks(path)[0]
            for path, v in variables.items()
            if v.is_coordinate
            and (
                v.dims[0] in unions
                or (path not in axes and not changed.keys().isdisjoint((v.key, join(path, ".zattrs"))))
            )
        }
        metadata |= {variables[path].key: dict(variables[path].meta.raw) for path in held}
        document = ConcatDocument(
            dim=dim,
            axes=axes,
            coordinate=None if coordinate is None else coordinate.path,
            chunks=recut,
            join="outer" if self.rules.is_outer else "exact",
            metadata=metadata,
            bounds=dict(self.bounds),
            stacked=() if self.stacking is None else self.stacking.paths,
            unions={d: {path: axis for path, axis in lead.find_axes(d).items() if path in axes} for d in unions},
            pieces=tuple(lines),
            held=held,
            select=self.rules.select if any(line.url for line in lines) else (),
        )
        return document, whole

    def _prepare_parts(self, every: Sequence[NamedSet]) -> AlignedSets:
        """Prepare the parts and the gaps between them for `concatenate`."""
        dim, rules = self.dim, self.rules
        sets = [part for source, part in zip(self.sources, every, strict=True) if source]
        has_gaps = len(sets) < len(every)
        aligned, fills = prepare_parts(
            sets, dim, rules.regular, lazy=rules.lazy, has_gaps=has_gaps, is_outer=rules.is_outer
        )
        parts = aligned.parts
        if rules.lazy:  # chunks of all other sets are recoded to the encoding of the first set
            own = parts[0]
            parts[0] = set_fill_values(own, fills)
            parts[0] = replace_metadata(parts[0], find_roomier_encodings(parts, str(dim)))
            _check_recodable(own, parts[0], str(dim))
        else:
            parts = [set_fill_values(part, fills) for part in parts]
        row, places = list(parts), list(aligned.places)
        for number, (source, extent) in enumerate(zip(self.sources, every, strict=True)):
            if not source:
                row.insert(number, make_gap(parts[0], str(dim), extent.name, extent.find_length(str(dim)), extent))
                places.insert(number, {})
        return AlignedSets(row, places, aligned.unions)


def _warn_of_lost_variables(whole: NamedSet, parts: Sequence[NamedSet], first: int, dim: str) -> None:
    """Warn of variables without ``dim`` that the first set lacks: a document takes such variables from there."""
    for path in whole.variables.keys() - parts[first].variables.keys():
        owner = next(part.name for part in parts if path in part.variables)
        warnings.warn(
            f"{path!r} of {owner} is left out: it does not have the dimension {dim!r}, and {parts[first].name}, from "
            f"which the cube takes such variables, lacks it. drop={path!r} leaves it out without this warning",
            UserWarning,
            stacklevel=2,
        )


def _check_recodable(own: NamedSet, shown: NamedSet, dim: str) -> None:
    """Raise ManifestError if the chunks of a set cannot be recoded to the encodings in which its arrays are shown."""
    for path, variable in shown.variables.items():
        if dim in variable.dims and variable.meta.raw != own.variables[path].meta.raw:
            facts = get_array_facts(path, shown)._replace(name="the joined array")
            find_recoding(path, facts, get_array_facts(path, own), is_recut=True)


def _find_changed_documents(part: NamedSet, stored: NamedSet) -> dict[str, dict[str, Any]]:
    """Return by key the metadata of arrays that differ from those of the set as it is ``stored``."""
    side, known = part.refs.side, stored.refs.side
    keys = [key for v in part.variables.values() for key in (v.key, join(v.path, ".zattrs")) if key in side]
    return {
        key: object_in(side[key], f"{key!r} of {part.name}")
        for key in keys
        if known.get(key) is not side[key] and known.get(key) != side[key]
    }
