"""The document of a cube that grows by pieces: only the first piece and the new ones are opened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from refshard_fs.cubes.choice import Choice
from refshard_fs.cubes.document import ConcatDocument
from refshard_fs.cubes.keyspace import ConcatKeySpace
from refshard_fs.errors import ManifestError
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.sets.added_piece import add_piece
from refshard_fs.sets.compatibility import check_merged
from refshard_fs.sets.grown_texts import find_text_dims
from refshard_fs.sets.inputs import get_set_url
from refshard_fs.sets.new_elements import AppendRules
from refshard_fs.sets.preprocess import Preprocess, name_of, read_chosen
from refshard_fs.sets.sources import read_sets
from refshard_fs.sets.variables import NamedSet
from refshard_fs.source.collect import UnreadArrays
from refshard_fs.source.transaction import Base
from refshard_fs.stores.document import Document
from refshard_fs.writing.cube_document import make_relative_speller


def extend_document(
    fs: RefShardFileSystem,
    base: Base,
    joined: ConcatKeySpace,
    sets: Sequence[Any],
    rules: AppendRules,
    options: Mapping[str, Any],
    preprocess: Preprocess | None = None,
) -> int:
    """Append each set, as ``preprocess`` shows it, to the document that has its variables.

    Return how many elements are added.
    """
    document = joined.document
    before = [document, *document.beside]
    _check_function(document, preprocess, base.url)
    for each in before:
        _check_growable(each, document, rules.dim, base.url)
    if document.select:
        options = {**options, "select": [choice.to_json() for choice in document.select]}
    urls = [get_set_url(fo, options, base.url) for fo in sets]
    leads = {lead.url: lead.select for lead in (each.pieces[each.first] for each in before)}
    unread = UnreadArrays(frozenset([rules.dim]), rules.same)
    lines = [make_relative_speller(base.url)(url) for url in urls]  # as spelled in the document
    chosen: Mapping[str, tuple[Choice, ...]] = {}
    if preprocess is None:
        read = read_sets([*map(joined.resolve, leads), *urls], options, lambda _: None, unread=unread)
    else:
        read = [_read_lead(joined.resolve(url), select, options, unread) for url, select in leads.items()]
        new, chosen = read_chosen(urls, options, preprocess, lambda _: None, unread=unread)
        read += new
        document = msgspec.structs.replace(document, preprocess=name_of(preprocess))
        before[0] = document
    by_url = dict(zip([*leads, *lines], read, strict=True))
    after, wholes = list(before), dict[int, NamedSet]()
    added = [0 for _ in before]
    for url, line in zip(urls, lines, strict=True):
        number = _find_cube(after, by_url[line], base.url)
        found = add_piece(after[number], base.url, by_url, line, rules, chosen.get(url, ()))
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
    unions = document.unions.keys() - find_text_dims(document)
    if unions:
        kinds = f"with several values of {', '.join(map(repr, sorted(unions)))},"
    if any(dim in choice.isel or choice.squeeze for choice in document.view):
        kinds = f"of which it shows a part along {dim!r},"
    if document is not whole and (document.beside or document.select != whole.select):
        kinds = "that documents beside others select,"
    if kinds:
        raise ManifestError(
            f"{name} joins sets {kinds} and append cannot extend these: make it anew by concat with resume=, which "
            "keeps the scan of each file"
        )


def _check_function(document: ConcatDocument, preprocess: Preprocess | None, name: str) -> None:
    """Raise ManifestError unless ``preprocess`` is the function that chose the pieces of the document at ``name``."""
    given = "" if preprocess is None else name_of(preprocess)
    if document.preprocess and given != document.preprocess:
        found = f"preprocess={given}" if given else "no preprocess="
        raise ManifestError(
            f"{name} joins parts of sets that {document.preprocess} selects: expected this function as preprocess=, "
            f"found {found}"
        )


def _read_lead(url: str, select: Sequence[Choice], options: Mapping[str, Any], unread: UnreadArrays) -> NamedSet:
    """Read the first set of a document; a function chose the part ``select`` of it."""
    every = [*(options.get("select") or ()), *(choice.to_json() for choice in select)]
    (lead,) = read_sets([url], {**options, "select": every} if every else options, lambda _: None, unread=unread)
    return lead


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
    grown = [
        n for n, (old, new) in enumerate(zip(before, after, strict=True)) if _read_extent(old) != _read_extent(new)
    ]
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


def _read_extent(document: ConcatDocument) -> tuple[int, bytes]:
    """Return the length of a document, and the values of its coordinate."""
    return document.starts[-1], b"".join(part.values or b"" for part in document.pieces)
