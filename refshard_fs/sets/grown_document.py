"""Append pieces to the document of a cube: only its first piece and the new pieces are opened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from refshard_fs.cubes.choice import VERSION_3, Choice
from refshard_fs.cubes.document import ConcatDocument
from refshard_fs.cubes.keyspace import ConcatKeySpace
from refshard_fs.errors import ManifestError, RefShardError
from refshard_fs.sets.added_piece import add_piece, find_spare, free_first_piece
from refshard_fs.sets.common_version import convert_to_common_version, get_version
from refshard_fs.sets.compatibility import check_merged
from refshard_fs.sets.coordinates import OutOfOrder
from refshard_fs.sets.grown_texts import find_text_dims
from refshard_fs.sets.inputs import get_set_url
from refshard_fs.sets.new_elements import AppendRules
from refshard_fs.sets.preprocess import Preprocess, get_import_path, read_selected
from refshard_fs.sets.sources import describe_error, read_sets, report_skipped
from refshard_fs.sets.variables import NamedSet
from refshard_fs.source.collect import UnreadArrays
from refshard_fs.source.transaction import Base
from refshard_fs.stores.document import DocumentObject
from refshard_fs.stores.stores import Stores
from refshard_fs.writing.cube_document import make_relative_speller


def extend_document(
    stores: Stores,
    base: Base,
    joined: ConcatKeySpace,
    sets: Sequence[Any],
    rules: AppendRules,
    options: Mapping[str, Any],
    preprocess: Preprocess | None = None,
) -> int:
    """Append each set, as ``preprocess`` shows it, to the document that has its variables.

    Return the number of elements that are added. If ``rules`` skip sets that are unreadable or out of order, the
    document records them.
    """
    document = joined.document
    before = [document, *document.beside]
    _check_function(document, preprocess, base.url)
    for cube in before:
        _check_growable(cube, document, rules.dim, base.url)
    if document.select:
        options = {**options, "select": [choice.to_json() for choice in document.select]}
    urls = [get_set_url(fo, options, base.url) for fo in sets]
    leads = {lead.url: lead.select for lead in (cube.pieces[cube.first] for cube in before)}
    unread = UnreadArrays(frozenset([rules.dim]), rules.same)
    lines = [make_relative_speller(base.url)(url) for url in urls]  # as spelled in the document
    chosen: Mapping[str, tuple[Choice, ...]] = {}
    failed: dict[int, Exception] = {}
    errors = failed if rules.skips_unreadable else None
    if preprocess is None and errors is None and not any(leads.values()):
        read = read_sets([*map(joined.resolve, leads), *urls], options, lambda _: None, unread=unread)
    else:
        read = [_read_lead(joined.resolve(url), select, options, unread) for url, select in leads.items()]
        if preprocess is None:
            read += read_sets(urls, options, lambda _: None, errors, unread=unread)
        else:
            new, chosen = read_selected(urls, options, preprocess, lambda _: None, errors, unread=unread)
            read += new
            document = msgspec.structs.replace(document, preprocess=get_import_path(preprocess))
            before[0] = document
    opened = [number for number in range(len(urls)) if number not in failed]
    if preprocess is None and 3 in map(get_version, read[: len(leads)]):

        def read_again(sets: Sequence[Any], more: Mapping[str, Any]) -> Sequence[NamedSet]:
            return read_sets(sets, more, lambda _: None, unread=unread)

        read, converted = convert_to_common_version(read, options, read_again)
        chosen = {urls[opened[number - len(leads)]]: (VERSION_3,) for number in converted}
    by_url = dict(zip([*leads, *(lines[number] for number in opened)], read, strict=True))
    after, wholes = list(before), dict[int, NamedSet]()
    added = [0 for _ in before]
    for url, line in ((urls[number], lines[number]) for number in opened):
        number = _find_cube(after, by_url[line], base.url)
        cube, replaced_length = after[number], 0
        spare = find_spare(cube) if rules.on_duplicate == "replace" else None
        if spare is not None and spare.url not in by_url:
            with suppress(RefShardError):  # this may be the set to replace
                by_url[spare.url] = _read_lead(joined.resolve(spare.url), spare.select, options, unread)
        if spare is not None and spare.url in by_url:
            cube, replaced_length = free_first_piece(cube, by_url, line, rules.dim)
        try:
            longer = add_piece(cube, base.url, by_url, line, rules, chosen.get(url, ()))
        except OutOfOrder as e:
            if errors is None:
                raise
            errors[urls.index(url)] = e
            continue
        if longer is not None:
            after[number], wholes[number] = longer.document, longer.whole
            added[number] += longer.added - replaced_length
    report_skipped(failed, any_left=True)
    if not wholes:
        return 0
    _check_together(before, after, wholes, base.url)
    lost = {url: why for url, why in document.lost.items() if url not in by_url}
    lost |= {lines[number]: describe_error(error) for number, error in failed.items()}
    document = msgspec.structs.replace(after[0], beside=tuple(after[1:]), lost=lost)
    DocumentObject(base.url, stores, base.facts).put(document.dumps())
    return max(added)


def _check_growable(document: ConcatDocument, whole: ConcatDocument, dim: str, name: str) -> None:
    """Raise ManifestError unless ``document``, a part of the ``whole`` at ``name``, can get another piece."""
    if document.dim != dim:
        raise ManifestError(f"{name} joins its sets along {document.dim!r}: expected this dimension, got dim={dim!r}")
    reason = ""
    if document.stacked and document.coordinate not in document.stacked:
        reason = f"its sets get the dimension {dim!r} from a pattern, a table or coords="
    if any(piece.document is not None for piece in document.pieces):
        reason = "it joins sets along several dimensions"
    unions = document.unions.keys() - find_text_dims(document)
    if unions:
        reason = f"its sets have different values of {', '.join(map(repr, sorted(unions)))}"
    if any(dim in choice.isel or choice.squeeze for choice in document.view):
        reason = f"it shows only a selected part along {dim!r}"
    if document is not whole and (document.beside or document.select != whole.select):
        reason = "it merges documents with different selections"
    if reason:
        raise ManifestError(
            f"append cannot extend {name}: {reason}. Make it anew by concat with resume=, which keeps the scan of each "
            "file"
        )


def _check_function(document: ConcatDocument, preprocess: Preprocess | None, name: str) -> None:
    """Raise ManifestError unless ``preprocess`` is the function that chose the pieces of the document at ``name``."""
    function = "" if preprocess is None else get_import_path(preprocess)
    if document.preprocess and function != document.preprocess:
        found = f"preprocess={function}" if function else "no preprocess="
        raise ManifestError(
            f"{name} joins parts of sets that {document.preprocess} selects: expected this function as preprocess=, "
            f"found {found}"
        )


def _read_lead(url: str, select: Sequence[Choice], options: Mapping[str, Any], unread: UnreadArrays) -> NamedSet:
    """Read the first set of a document, of which a function selected the part ``select``."""
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
            f"{name} joins files of different variables ({known}), and {new.name} has {has}: expected one file for "
            "each variable, like the first files; or make the document anew"
        )
    return found[0]


def _check_together(
    before: Sequence[ConcatDocument], after: Sequence[ConcatDocument], wholes: Mapping[int, NamedSet], name: str
) -> None:
    """Raise ManifestError unless documents of different variables have the same length and coordinate."""
    grown = [n for n, (old, new) in enumerate(zip(before, after, strict=True)) if _get_extent(old) != _get_extent(new)]
    if not grown:
        return
    first, whole = after[grown[0]], wholes[grown[0]]
    for number, document in enumerate(after):
        if number not in grown or document.starts[-1] != first.starts[-1]:
            names = [min(cube.axes.keys() - {cube.coordinate}) for cube in (first, document)]
            raise ManifestError(
                f"{name} would have {first.starts[-1]} elements of {names[0]!r} along {first.dim!r}, and "
                f"{document.starts[-1]} of {names[1]!r}: append the files of all variables together, as a list or a "
                "pattern"
            )
        if document.coordinate in whole.variables:
            check_merged(str(document.coordinate), whole, wholes[number])


def _get_extent(document: ConcatDocument) -> tuple[int, bytes]:
    """Return the length of a document, and the values of its coordinate."""
    return document.starts[-1], b"".join(piece.values or b"" for piece in document.pieces)
