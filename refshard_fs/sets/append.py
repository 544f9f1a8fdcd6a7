"""Append to a set of references, or to the document of a cube, in place."""

from __future__ import annotations

import os
import random
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, get_args

from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from refshard_fs.cubes.choice import list_names
from refshard_fs.cubes.keyspace import ConcatKeySpace
from refshard_fs.errors import ConflictError, NoSuchSource, sanitize
from refshard_fs.sets.cube import open
from refshard_fs.sets.expand import expand
from refshard_fs.sets.grown_document import extend_document
from refshard_fs.sets.grown_references import GrownReferences, make_no_target_error
from refshard_fs.sets.lazy_set import check_document_name
from refshard_fs.sets.new_elements import AppendRules, OnDuplicate
from refshard_fs.sets.opened_set import OpenedSet
from refshard_fs.sets.preprocess import Preprocess, call_preprocess
from refshard_fs.source.in_memory_source import make_portable_source
from refshard_fs.source.normalizing import is_many_sources, parse_options
from refshard_fs.source.options import prepare_keywords
from refshard_fs.source.settings import format_by_suffix
from refshard_fs.source.source import Source
from refshard_fs.tools.progress import show_progress
from refshard_fs.writing.commit import commit
from refshard_fs.writing.cube_document import save_document
from refshard_fs.writing.writer import Writer

_ON_ERROR: Final = ("raise", "skip")
TRIES: Final = 8  # the most tries to append files to a document that other writers change


def append(
    target: str | os.PathLike[str],
    fo: Any,
    dim: str | None = None,
    *,
    same: Iterable[str] | str = (),
    on_duplicate: OnDuplicate = "error",
    on_error: Literal["raise", "skip"] = "raise",
    any_order: bool = False,
    create: bool = False,
    message: str | None = None,
    preprocess: Preprocess | None = None,
    callback: Callback = DEFAULT_CALLBACK,
    **options: Any,
) -> int:
    """Append the set ``fo`` to the set at ``target``, along ``dim``, as `concat` would join both.

    >>> import fsspec, json, refshard_fs
    >>> meta = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|u1", "order": "C",
    ...         "fill_value": None, "filters": None, "compressor": None}
    >>> def day(url):
    ...     return {"a/.zarray": json.dumps(meta), "a/.zattrs": '{"_ARRAY_DIMENSIONS": ["time"]}', "a/0": [url, 0, 2]}
    >>> refshard_fs.RefShardFileSystem(day("memory://one")).save("memory://grows.json")
    >>> refshard_fs.append("memory://grows.json", day("memory://two"), "time")
    2
    >>> refshard_fs.RefShardFileSystem("memory://grows.json").references["a/1"]
    ['memory://two', 0, 2]

    Readers see the old set until the new set is complete. Return the number of elements by which the set is longer, or
    a gap shorter: elements that replace other elements do not count.

    Parameters
    ----------
    target:
        The URL of a JSON or parquet set, of an Icechunk repository, or of a document that `concat` made with
        ``lazy=True``. A document gets one more piece. A repository gets one commit, to the branch ``branch=``.
    fo:
        A set as `RefShardFileSystem` takes it; the URL of a set if ``target`` is a document. The sets of a pattern or a
        list of URLs are appended one after the other, a pattern in natural order. URLs that a document has already are
        not opened again, unless ``on_duplicate="replace"``: a job that runs every day costs only its new files. If a
        document joins files of different variables, give the new files of all variables together: one commit writes
        them.
    dim:
        The dimension. For a document, it is not needed.
    same:
        Variables without the dimension that are not compared, as in `concat`.
    on_duplicate:
        What happens to values of the coordinate that the set has already: ``"error"``; ``"skip"`` appends only
        elements with other values; ``"replace"`` replaces the last elements of the old set by those of the new set. In
        a document, ``"replace"`` also replaces pieces that together have exactly these values. These may be damaged or
        gone, except for the set of the first piece: it, or the new set at its URL, must be readable. If a piece has
        become shorter, or a piece before the last one has become longer, make the document anew.
    on_error:
        ``"skip"`` leaves out sets that cannot be opened or read, or are out of order, with a warning for each; a later
        call appends them if it can. A document that gets longer records them.
    any_order:
        Append values that are out of order, too. Without it, a document gets a late set in its place, which may divide
        the set or pieces; a set whose own values are not sorted in the order of the document is an error. A set with
        the values of a gap in a document (``freq=`` of `concat`) is put into the gap in any case.
    create:
        Make a document by `open` if ``target`` does not exist.
    message:
        The message of the commit to an Icechunk repository.
    preprocess:
        The function that `concat` called with each source, if the document was made with one.
    callback:
        Counts the keys that are written; for a document, the sets that are appended.
    **options:
        Further arguments of `RefShardFileSystem` for both sets.

    Raises
    ------
    SourceNotReachable
        The set at ``target`` does not exist.
    ManifestError
        The sets cannot be joined. The error names the sets, the variable and what differs.
    ConflictError
        Another writer has changed the target meanwhile. If a pattern or a list of new files is appended to a document,
        append first tries 7 more times, except with ``on_duplicate="replace"``.
    ReadOnlyError
        The target cannot be written.
    """
    for name, value, choices in (
        ("on_duplicate", on_duplicate, get_args(OnDuplicate)),
        ("on_error", on_error, _ON_ERROR),
    ):
        if value not in choices:
            raise ValueError(f"{name}={value!r}: expected {' or '.join(map(repr, choices))}")
    rules = AppendRules(
        dim or "",
        frozenset(list_names("same", same)),
        on_duplicate,
        any_order,
        message,
        skips_unreadable=on_error == "skip",
    )
    if create:
        words = {"same": same, "preprocess": preprocess, "on_error": on_error}
        length = _create(target, fo, dim, words, options)
        if length is not None:
            return length
    if isinstance(fo, list) or (isinstance(fo, str | os.PathLike) and is_many_sources(fo)):
        skips_known = on_duplicate != "replace"
        new, are_together = _list_new_sets(target, fo, options, skips_known=skips_known)
        groups = [new] if are_together else [[source] for source in new]
        tries = TRIES if are_together and skips_known else 1
        return sum(
            _append_again(tries, target, group, rules, preprocess, callback, options, skips_known)
            for group in groups
            if group
        )
    return _append(target, [fo], rules, preprocess, callback, options)


def _append_again(tries: int, *arguments: Any) -> int:
    """Call `_append` until no other writer changes the document meanwhile; at most ``tries`` times.

    Each try leaves out the sets that the document names by then.
    """
    for tried in range(1, tries):
        try:
            return _append(*arguments)
        except ConflictError:
            time.sleep(random.uniform(0, 0.05 * 2**tried))  # noqa: S311  # not a secret
    return _append(*arguments)


def _append(
    target: str | os.PathLike[str],
    sets: Sequence[Any],
    rules: AppendRules,
    preprocess: Preprocess | None,
    callback: Callback,
    options: Mapping[str, Any],
    skips_known: bool = False,
) -> int:
    """Append ``sets`` in one commit; return by how much the target is longer. Several sets need a document.

    With ``skips_known``, sets that the document already names are left out: another writer may have appended them since
    they were listed.
    """
    urls = [os.fspath(source) for source in (target, *sets) if isinstance(source, str | os.PathLike)]
    options = prepare_keywords(options, urls, append)
    url = make_portable_source(os.fspath(target), options.get("target_protocol"), None, True)
    writer = Writer.of(parse_options(url, {**options, "mode": "a", "shards": "whole", "index_cache": False}))
    options = {name: value for name, value in options.items() if name != "branch"}  # the branch belongs to the target
    base = writer.get_base()
    joined = base.keyspace.cube
    if joined is not None and skips_known:
        sets = _leave_out_known(joined, sets)
        if not sets:
            writer.discard()
            return 0
    if not rules.dim and joined is None:
        raise TypeError(f"append needs dim= for {sanitize(str(url))}, which is not the document of a cube")
    try:
        if joined is not None:
            if rules.message is not None:
                raise ValueError(
                    "message=: only Icechunk repositories keep messages of commits: leave message= out for "
                    f"{sanitize(str(url))}"
                )
            rules = rules if rules.dim else rules._replace(dim=joined.document.dim)
            added = extend_document(writer.source.stores, base, joined, sets, rules, options, preprocess)
            with show_progress("append", callback) as shown:
                shown.set_size(len(sets))
                shown.relative_update(len(sets))
            return added
        (fo,) = sets if preprocess is None else (call_preprocess(fo, options, preprocess) for fo in sets)
        whole = GrownReferences.of(
            OpenedSet(writer.source, writer),
            str(url),
            fo,
            rules,
            options,
            holds_pins=base.keyspace.source.references is not None,
        )
        if whole is None:
            writer.discard()
            return 0
        edits = dict(whole.find_edits())
        with show_progress("append", callback) as shown:
            shown.set_size(len(edits))
            for key, edit in edits.items():
                writer.overlay.put(key, edit)
                shown.relative_update(1)
            commit(writer, rules.message)
        if whole.remark:
            warnings.warn(whole.remark, UserWarning, stacklevel=3)
        return whole.added
    except BaseException as e:
        writer.discard()  # removes the objects of the edits
        if isinstance(e, ConflictError):
            done = "Nothing was appended" if e.is_certain else "The elements may have been appended, or not"
            conflict = ConflictError(f"another writer changed {sanitize(str(url))} meanwhile. {done}: append again")
            conflict.is_certain = e.is_certain
            raise conflict from e
        raise


def _create(
    target: str | os.PathLike[str],
    fo: Any,
    dim: str | None,
    words: Mapping[str, Any],
    options: Mapping[str, Any],
) -> int | None:
    """Write the document of a cube of ``fo`` to ``target``, and return its length; None if ``target`` exists.

    ``words`` are arguments of `open`.
    """
    source = Source.of(parse_options(target, prepare_keywords(options, [os.fspath(target)], append)))
    try:
        source.open()
    except NoSuchSource:
        if format_by_suffix(os.fspath(target)) == "icechunk":
            raise ValueError(
                f"expected a name such as all.refshard or all.json for the document of a cube, got {target!r}: concat "
                "makes a repository, and append adds to it with dim="
            ) from None
        check_document_name(os.fspath(target))
        document = open(fo, dim, **words, **options).document
        url = str(make_portable_source(os.fspath(target), options.get("target_protocol"), None, True))
        try:
            save_document(document, url, source.stores, only_new=True)
        except ConflictError:  # another writer has made the document meanwhile
            return None
        return document.starts[-1]
    return None


def _list_new_sets(
    target: str | os.PathLike[str], fo: Any, options: Mapping[str, Any], *, skips_known: bool
) -> tuple[list[Any], bool]:
    """Return the sets of ``fo``, and whether one commit appends all of them.

    With ``skips_known``, sets that the document at ``target`` already names are left out.
    """
    sources = (target, *(fo if isinstance(fo, list) else [fo]))
    urls = [os.fspath(source) for source in sources if not isinstance(source, dict)]
    every = expand(fo, prepare_keywords(options, urls, append))
    try:
        joined = Source.of(parse_options(target, options)).open().cube
    except NoSuchSource as e:
        raise make_no_target_error(sanitize(os.fspath(target))) from e
    return every if joined is None or not skips_known else _leave_out_known(joined, every), joined is not None


def _leave_out_known(joined: ConcatKeySpace, sets: Sequence[Any]) -> list[Any]:
    """Return the ``sets`` that the document of ``joined`` does not name."""
    known = {joined.resolve(url) for url in joined.document.urls}
    return [fo for fo in sets if not isinstance(fo, str) or make_portable_source(fo, None, None, True) not in known]
