"""Widen arrays of characters in the document of a cube, if a new piece has longer texts. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from refshard_fs.core.keys import parent
from refshard_fs.cubes.document import ConcatDocument, Piece
from refshard_fs.cubes.placement import Placement
from refshard_fs.sets.variables import NamedSet


def find_text_dims(document: ConcatDocument) -> set[str]:
    """Return the dimensions in ``unions`` that count characters: the other dimensions there have coordinates."""
    return document.unions.keys() - {parent(path)[1] for path in document.held}


def grow_texts(document: ConcatDocument, joined: ConcatDocument, whole: NamedSet) -> ConcatDocument:
    """Return ``document`` with its characters placed as in ``joined``, and arrays as wide as in ``whole``.

    ``joined`` is a document of two pieces: all pieces of ``document`` as one, and a new piece. It shows ``whole``.
    """
    places = {path: dim for dim in find_text_dims(joined) for path in joined.unions[dim]}
    if not places:
        return document
    before = {path: dim for dim, paths in document.unions.items() for path in paths if path in places}
    unions = {dim: {p: axis for p, axis in paths.items() if p not in before} for dim, paths in document.unions.items()}
    unions = {dim: paths for dim, paths in unions.items() if paths} | joined.unions
    own = joined.pieces[0].places
    pieces = tuple(piece if piece.is_gap else _place(piece, places, before, own) for piece in document.pieces)
    widths = {path: whole.variables[path].meta.shape[-1] for path in places if path in document.chunks}
    chunks = {path: (*document.chunks[path][:-1], width) for path, width in widths.items()}
    return msgspec.structs.replace(document, pieces=pieces, unions=unions, chunks={**document.chunks, **chunks})


def _place(piece: Piece, places: Mapping[str, str], before: Mapping[str, str], whole: Mapping[str, Placement]) -> Piece:
    """Return ``piece`` with characters along the dimensions ``places`` in place of ``before``, both by path.

    If the piece has no places for an array, it gets those in ``whole``.
    """
    moved = {dim: placement for dim, placement in piece.places.items() if dim not in before.values()}
    for path, dim in places.items():
        placement = piece.places.get(before.get(path, ""), whole.get(dim))
        if placement is not None:
            moved[dim] = placement
    return msgspec.structs.replace(piece, places=moved)
