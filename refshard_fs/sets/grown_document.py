"""The document of a cube that grows by pieces: only the first piece and the new ones are opened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from refshard_fs.cubes.document import ConcatDocument
from refshard_fs.cubes.keyspace import ConcatKeySpace
from refshard_fs.errors import ManifestError
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.sets.added_piece import add_piece
from refshard_fs.sets.compatibility import check_merged
from refshard_fs.sets.grown_texts import text_dims
from refshard_fs.sets.inputs import get_set_url
from refshard_fs.sets.lazy_set import relative_urls
from refshard_fs.sets.new_elements import AppendRules
from refshard_fs.sets.sources import read_sets
from refshard_fs.sets.variables import NamedSet
from refshard_fs.source.collect import Unread
from refshard_fs.source.transaction import Base
from refshard_fs.stores.document import Document


def extend_document(
    fs: RefShardFileSystem,
    base: Base,
    joined: ConcatKeySpace,
    sets: Sequence[Any],
    rules: AppendRules,
    options: Mapping[str, Any],
) -> int:
    """Append each set to the document that has its variables; return how many elements are added."""
    document = joined.document
    before = [document, *document.beside]
    for each in before:
        _check_growable(each, document, rules.dim, base.url)
    if document.select:
        options = {**options, "select": [choice.to_json() for choice in document.select]}
    urls = [get_set_url(fo, options, base.url) for fo in sets]
    leads = list(dict.fromkeys(each.pieces[each.first].url for each in before))
    unread = Unread(frozenset([rules.dim]), rules.same)
    read = read_sets([*map(joined.resolve, leads), *urls], options, lambda _: None, unread=unread)
    lines = [relative_urls(base.url)(url) for url in urls]  # as spelled in the document
    by_url = dict(zip([*leads, *lines], read, strict=True))
    after, wholes = list(before), dict[int, NamedSet]()
    added = [0 for _ in before]
    for url in lines:
        number = _find_cube(after, by_url[url], base.url)
        found = add_piece(after[number], base.url, by_url, url, rules)
        if found is not None:
            after[number], wholes[number] = found.document, found.whole
            added[number] += found.added
    if not wholes:
        return 0
    _check_together(before, after, wholes, base.url)
    lost = {url: why for url, why in document.lost.items() if url not in lines}
    document = msgspec.structs.replace(after[0], beside=tuple(after[1:]), lost=lost)
    Document(base.url, fs.source.stores, base.facts).put(document.dumps())
    return max(added)


def _check_growable(document: ConcatDocument, whole: ConcatDocument, dim: str, name: str) -> None:
    """Raise ManifestError unless ``document``, a part of the ``whole`` at ``name``, can get another piece."""
    if document.dim != dim:
        raise ManifestError(f"{name} joins its sets along {document.dim!r}, not {dim!r}")
    is_by_name = bool(document.stacked) and document.coordinate not in document.stacked
    has_documents = any(part.document is not None for part in document.pieces)
    kinds = "along several dimensions, or by their names," if is_by_name or has_documents else ""
    unions = document.unions.keys() - text_dims(document)
    if unions:
        kinds = f"with several values of {', '.join(map(repr, sorted(unions)))},"
    if document.preprocess:
        kinds = f"of each of which {document.preprocess} selects a part,"
    if any(dim in choice.isel or choice.squeeze for choice in document.view):
        kinds = f"of which it shows a part along {dim!r},"
    if document is not whole and (document.beside or document.select != whole.select):
        kinds = "that documents beside others select,"
    if kinds:
        way = "preprocess=" if document.preprocess else "resume=, which keeps the scan of each file"
        raise ManifestError(
            f"{name} joins sets {kinds} and append cannot extend these: make it anew by concat with {way}"
        )


def _find_cube(cubes: Sequence[ConcatDocument], new: NamedSet, name: str) -> int:
    """Return the number of the document that joins the variables of the set ``new``."""
    if len(cubes) == 1:
        return 0
    counts = Counter(path for document in cubes for path in document.axes)
    only = [{path for path in document.axes if counts[path] == 1} for document in cubes]
    found = [number for number, paths in enumerate(only) if paths & new.variables.keys()]
    if len(found) != 1:
        known = ", ".join(map(repr, sorted(set().union(*only))))
        has = "variables of several of these" if found else "none of these"
        raise ManifestError(
            f"{name} joins files of different variables ({known}), and {new.name} has {has}: expected a file for each, "
            "as the files that it was made of; or make it anew"
        )
    return found[0]


def _check_together(
    before: Sequence[ConcatDocument], after: Sequence[ConcatDocument], wholes: Mapping[int, NamedSet], name: str
) -> None:
    """Raise ManifestError unless documents of different variables have the same length and coordinate."""
    grown = [n for n, (old, new) in enumerate(zip(before, after, strict=True)) if _extent(old) != _extent(new)]
    if not grown:
        return
    first, whole = after[grown[0]], wholes[grown[0]]
    for number, document in enumerate(after):
        if number not in grown or document.starts[-1] != first.starts[-1]:
            some = [min(each.axes.keys() - {each.coordinate}) for each in (first, document)]
            raise ManifestError(
                f"{name} would have {first.starts[-1]} elements of {some[0]!r} along {first.dim!r}, and "
                f"{document.starts[-1]} of {some[1]!r}: append the files of all variables together, as a list or a "
                "pattern"
            )
        if document.coordinate in whole.variables:
            check_merged(str(document.coordinate), whole, wholes[number])


def _extent(document: ConcatDocument) -> tuple[int, bytes]:
    """Return the length of a document, and the values of its coordinate."""
    return document.starts[-1], b"".join(part.values or b"" for part in document.pieces)
