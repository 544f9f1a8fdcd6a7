"""Add a set to the document of a cube as a piece: in its order, in a gap, or in place of a piece. No I/O here."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.dtypes import dtype_of
from refshard_fs.core.keys import iterate_splits, join
from refshard_fs.cubes.choice import Choice
from refshard_fs.cubes.document import ConcatDocument, Piece
from refshard_fs.errors import ManifestError
from refshard_fs.references.values import METADATA, object_in
from refshard_fs.sets.changed_set import replace_metadata
from refshard_fs.sets.common_units import convert_to_common_units, make_comparable
from refshard_fs.sets.coordinates import check_order, get_coordinate_values
from refshard_fs.sets.digests import add_digests
from refshard_fs.sets.document_gaps import (
    Filling,
    Run,
    cut_off,
    fill_gaps,
    find_fillings,
    find_runs,
    insert_last_piece,
    list_values_in_gaps,
    replace_pieces,
)
from refshard_fs.sets.gap_set import make_extent, make_gap
from refshard_fs.sets.grown_texts import find_text_dims, grow_texts
from refshard_fs.sets.new_elements import AppendRules, find_new_elements
from refshard_fs.sets.set_row import Rules, SetRow
from refshard_fs.sets.stacking import stack_along
from refshard_fs.sets.trim import trim
from refshard_fs.sets.variables import NamedSet


class LongerDocument(NamedTuple):
    """A document with one more piece, the set that it shows, and the number of elements added."""

    document: ConcatDocument
    whole: NamedSet
    added: int


def add_piece(
    document: ConcatDocument,
    name: str,
    by_url: Mapping[str, NamedSet],
    url: str,
    rules: AppendRules,
    select: tuple[Choice, ...] = (),
) -> LongerDocument | None:
    """Add the set at ``url`` to a document, which errors call ``name``; return None if the set has no new elements.

    ``by_url`` has the document's first set and the new set, by their URLs in the document. ``select`` are the
    selections that the user's function made of the new set; the document records them. ManifestError if the set does
    not fit; OutOfOrder if only its values of the coordinate have no place among those of the document.
    """
    dim, length = rules.dim, document.starts[-1]
    lead = document.pieces[document.first]
    first, new = (stack_along(by_url[spelled], dim, document.stacked) for spelled in (lead.url, url))
    shown = replace_metadata(first, document.metadata)
    if first.find_length(dim) != lead.total:
        raise ManifestError(
            f"{name}: expected the first set, {lead.url!r}, to have {lead.total} elements along {dim!r}, as when the "
            f"document was made, found {first.find_length(dim)}: make the document anew"
        )
    if not new.find_length(dim):
        return None
    stored = first
    units = {path: variable.attributes.get("units") for path, variable in shown.variables.items()}
    times = convert_to_common_units([first, new], dim, lazy=True, fixed=units)
    first, new = times.parts
    values, new_values = _read_coordinate(document, shown), get_coordinate_values([new], dim)
    extent = None  # a set with the coordinate of the document
    fillings: list[Filling] | None = None  # the places in gaps that the new set fills
    runs: list[Run] | None = None  # the places where the new set is inserted
    replaced_length = 0  # of the pieces that the new set replaces
    if values is not None and document.coordinate is not None:
        extent = make_extent(shown.variables[document.coordinate], values, shown, name)
    if values is not None and extent is not None and new_values is not None:
        known = make_comparable(shown.variables[str(document.coordinate)], values)
        if rules.on_duplicate == "replace":
            document, replaced_length = replace_pieces(document, known, new_values[0])
        fillings = find_fillings(document, known, new_values[0])
        if fillings is None:
            if np.isin(new_values[0], list_values_in_gaps(document, known)).any():
                raise ManifestError(
                    f"{url} has values both inside and outside of the gaps of {name}, or values that are not in order: "
                    "append the values inside and outside of gaps as two sets, each in the order of the cube"
                )
            elements = find_new_elements(extent, new, rules._replace(any_order=True))
            if elements is None:
                return None
            if not elements.old:
                raise ManifestError(
                    f"{new.name} would replace the beginning of {name}: append replaces the end of a document, or "
                    "some whole pieces; the first piece only if the next set has its units. Make the document anew"
                )
            if not rules.any_order:
                added = new_values[0][elements.start : elements.stop]
                runs = find_runs(known, added) if elements.old == len(known) else None
                if runs is None:
                    check_order(known[: elements.old], added, extent, new.name, dim)
            document = cut_off(document, elements.old)
            new = trim(new, dim, elements.start, elements.stop, lazy=True)
            extent = make_extent(shown.variables[str(document.coordinate)], values[: elements.old], shown, name)
    first, new = add_digests([first, new], [dim], rules.same)
    # Join the new set to one set without chunks that stands for all pieces of the document: it has their total length
    # and the encoding of the first piece. Metadata documents then give this length, not the length of the first piece.
    metadata = {**document.metadata, **times.metadata}
    recut = dict(document.chunks)
    if fillings is not None:
        cuts = [length for filling in fillings for length in (filling.offset, filling.length)]
        recut |= _find_shapes_of_cut_chunks(document, first, cuts)
    if runs is not None:
        recut |= _find_shapes_of_cut_chunks(document, first, _list_lengths_of_parts(document, runs))
    is_first = runs is not None and runs[0].at <= document.starts[document.first]
    is_first |= fillings is not None and fillings[0].gap < document.first
    if is_first:  # keep the metadata of the first set
        metadata = {**_find_documents(stored, document), **metadata}
    old = make_gap(replace_metadata(first, metadata), dim, name, document.starts[-1], extent, with_others=True)
    metadata |= {v.key: dict(v.meta.raw) for v in old.variables.values() if v.key in metadata and not v.is_coordinate}
    joined, whole = SetRow(
        dim,
        [lead.url, url],
        [old, new],
        Rules(rules.same, is_outer=document.join == "outer", lazy=True),
        metadata,
        {**document.bounds, **times.bounds},
        recut,
    ).make_document()
    differing = joined.unions.keys() - find_text_dims(joined)
    if differing:
        raise ManifestError(
            f"{url} cannot be appended to {name}: their values of {', '.join(map(repr, sorted(differing)))} differ. "
            "Make the document anew"
        )
    if joined.axes != document.axes or joined.coordinate != document.coordinate:
        raise ManifestError(
            f"{name} joins the arrays {sorted(document.axes)} (coordinate {document.coordinate!r}), but its sets now "
            f"have {sorted(joined.axes)} (coordinate {joined.coordinate!r}) along {dim!r}: make the document anew"
        )
    cut_length = length - document.starts[-1]
    line = msgspec.structs.replace(joined.pieces[-1], url=url, select=select)
    document = grow_texts(document.with_values(joined.pieces[0].values), joined, whole)
    document = msgspec.structs.replace(
        document,
        pieces=(*document.pieces, line),
        chunks={**joined.chunks, **document.chunks},
        metadata=joined.metadata,
        bounds=joined.bounds,
    )
    if fillings is not None:
        document = fill_gaps(document, fillings)
    if runs is not None:
        document = insert_last_piece(document, runs)
    return LongerDocument(document, whole, line.length - cut_length - replaced_length)


def find_spare(document: ConcatDocument) -> Piece | None:
    """Return the first piece of another set than the first one; None if there is only one set."""
    lead = document.pieces[document.first]
    return next((piece for piece in document.pieces if not piece.is_gap and piece.url != lead.url), None)


def free_first_piece(
    document: ConcatDocument, by_url: Mapping[str, NamedSet], url: str, dim: str
) -> tuple[ConcatDocument, int]:
    """Replace the first piece by a gap if the set at ``url`` has all of its values, and those of whole other pieces.

    Return the document, which shows the metadata that it has shown before, and the length of the gaps. ``by_url`` has
    the first set, the set of `find_spare`, and the new set. If the new set has taken the URL of the first set, the
    spare set gives the metadata. The length is 0, and the document unchanged, if the spare set has other values than
    the document has for it: then only the old first set would give the units of the document.
    """
    lead, spare = document.pieces[document.first], find_spare(document)
    if document.coordinate is None or spare is None:
        return document, 0
    source = by_url[spare.url if lead.url == url else lead.url]
    metadata = {**_find_documents(stack_along(source, dim, document.stacked), document), **document.metadata}
    first, new = (stack_along(by_url[spelled], dim, document.stacked) for spelled in (spare.url, url))
    shown = replace_metadata(first, metadata)
    units = {path: variable.attributes.get("units") for path, variable in shown.variables.items()}
    parts = convert_to_common_units([first, new], dim, lazy=True, fixed=units).parts
    values, own_values = _read_coordinate(document, shown), get_coordinate_values(parts, dim)
    if values is None or own_values is None:
        return document, 0
    known = make_comparable(shown.variables[document.coordinate], values)
    for piece, start in zip(document.pieces, document.starts, strict=False):
        begin = 0 if piece.take is None else piece.take[0]
        if piece.url == spare.url and not np.array_equal(
            known[start : start + piece.length], own_values[0][begin : begin + piece.length], equal_nan=True
        ):
            return document, 0
    freed, length = replace_pieces(document, known, own_values[1], with_first=True)
    if all(piece.is_gap for piece in freed.pieces) or freed.first == document.first:
        return document, 0
    return msgspec.structs.replace(freed, metadata=metadata), length


def _list_lengths_of_parts(document: ConcatDocument, runs: Sequence[Run]) -> list[int]:
    """Return the lengths of the parts into which ``runs`` divide pieces, and of runs before other elements."""
    numbers = [min(bisect_right(document.starts, run.at), len(document.pieces)) - 1 for run in runs]
    parts = [run.at - document.starts[number] for number, run in zip(numbers, runs, strict=True)]
    return parts + [run.length for run in runs if run.at < document.starts[-1]]


def _find_shapes_of_cut_chunks(
    document: ConcatDocument, first: NamedSet, lengths: Sequence[int]
) -> dict[str, tuple[int, ...]]:
    """Return the chunk shapes of the arrays that must be recut: a part with one of ``lengths`` ends within a chunk."""
    shapes = {}
    for path, axis in document.axes.items():
        chunks = first.variables[path].meta.chunks
        is_cut = path in (document.coordinate, *document.chunks)
        if chunks and not is_cut and any(length % chunks[axis] for length in lengths):
            shapes[path] = chunks
    return shapes


def _find_documents(first: NamedSet, document: ConcatDocument) -> dict[str, dict[str, Any]]:
    """Return the metadata of joined arrays and of their groups in the ``first`` set, by key."""
    paths = {above for path in document.axes for above, _ in iterate_splits(path)} | document.axes.keys()
    keys = [join(path, name) for path in sorted(paths) for name in (*METADATA, ".zattrs")]
    found = {key: object_in(first.refs.side[key], f"{key!r} of {first.name}") for key in keys if key in first.refs.side}
    return {
        key: {name: value for name, value in doc.items() if name != "consolidated_metadata"}
        for key, doc in found.items()
    }


def _read_coordinate(document: ConcatDocument, first: NamedSet) -> npt.NDArray[Any] | None:
    """Decode the coordinate's values in the document; None if it does not hold them, or they are not numbers."""
    if document.coordinate is None or any(piece.values is None for piece in document.pieces):
        return None
    meta = first.variables[document.coordinate].meta
    dtype = dtype_of(meta)
    if dtype is None:
        return None
    values = b"".join(piece.values or b"" for piece in document.pieces)
    return np.frombuffer(values, dtype if meta.zarr_format == 2 else dtype.newbyteorder("<"))
