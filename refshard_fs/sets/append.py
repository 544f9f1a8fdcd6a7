"""Append to a set in place: new elements are written as edits of the set, and committed together."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from refshard_fs.errors import ConflictError, NoSuchSource, sanitize
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.sets.cube import open
from refshard_fs.sets.expand import expand
from refshard_fs.sets.grown_document import extend_document
from refshard_fs.sets.grown_references import GrownReferences
from refshard_fs.sets.new_elements import AppendRules, OnDuplicate
from refshard_fs.sets.preprocess import Preprocess, show_by
from refshard_fs.source.in_memory_source import source_of
from refshard_fs.source.options import for_sources
from refshard_fs.tools.progress import progress


def append(
    target: str | os.PathLike[str],
    fo: Any,
    dim: str | None = None,
    *,
    same: Iterable[str] = (),
    on_duplicate: OnDuplicate = "error",
    any_order: bool = False,
    create: bool = False,
    message: str | None = None,
    preprocess: Preprocess | None = None,
    callback: Callback = DEFAULT_CALLBACK,
    **options: Any,
) -> int:
    """Add the set ``fo`` to the set at ``target``, along ``dim``, as if both had been given to `concat`.

    ``fo`` may also be a pattern or a list of URLs: these are appended one after the other, in natural order; those that
    a document names already are not opened again. So a job that runs every day costs what is new. If a document joins
    files of different variables, the new files of all variables are given together, and are written together. With
    ``create``, a document is made by `open` if there is none at ``target``. A document tells ``dim``; other sets need
    it.

    ``target`` is the URL of a JSON or parquet set, of an Icechunk repository, or of a document that `concat`
    made with ``lazy=True``: that gets one line more, and ``fo`` is a URL then. ``same`` is as `concat` takes it, and
    ``options`` are further arguments of `RefShardFileSystem` for both. To a repository it is one commit with
    ``message``, to the branch ``branch=``. A document whose sets a function showed (``preprocess=`` of `concat`) needs
    the same ``preprocess``.
    The set does not change until it has all of the new one, whatever happens.

    It is safe to repeat: values of the coordinate ``dim`` that the set has already are an error; with
    ``on_duplicate="skip"`` what is new is appended, and ``"replace"`` takes the new set's elements instead of the last
    ones of the old set; in a document, also instead of one part anywhere that has the same values, which may be damaged
    or gone, unless it is the document's first.
    What comes late takes its place in the gap that a document has there (``freq=`` of `concat`). A
    set that is in order stays so, unless ``any_order`` allows otherwise. Returns how many elements the set has more, or
    a gap has less; 0 means that it was left as it is, unless some were replaced.

    Raises SourceNotReachable if there is no set yet, ManifestError where the two do not fit, ConflictError if somebody
    else wrote the target meanwhile, and ReadOnlyError where it cannot be written: then nothing is changed.
    ``callback`` counts the written keys.

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
    """
    rules = AppendRules(dim or "", frozenset(same), on_duplicate, any_order, message)
    if create:
        made = _create(target, fo, dim, same, preprocess, options)
        if made is not None:
            return made
    if isinstance(fo, list) or (isinstance(fo, str | os.PathLike) and "*" in os.fspath(fo)):
        new, are_together = _expand_new(target, fo, options, knows_names=on_duplicate != "replace")
        groups = [new] if are_together else [[each] for each in new]
        return sum(_append(target, group, rules, preprocess, callback, options) for group in groups if group)
    return _append(target, [fo], rules, preprocess, callback, options)


def _append(
    target: str | os.PathLike[str],
    sets: Sequence[Any],
    rules: AppendRules,
    preprocess: Preprocess | None,
    callback: Callback,
    options: Mapping[str, Any],
) -> int:
    """Append ``sets`` in one commit; return by how much the target is longer. Only a document takes several."""
    urls = [os.fspath(each) for each in (target, *sets) if isinstance(each, str | os.PathLike)]
    options = for_sources(options, urls, append)
    url = source_of(os.fspath(target), options.get("target_protocol"), None, True)
    fs = RefShardFileSystem(
        str(url), **{**options, "mode": "a", "shards": "whole", "index_cache": False, "skip_instance_cache": True}
    )
    options = {name: value for name, value in options.items() if name != "branch"}  # the branch belongs to the target
    base = fs.require_writer("append").base()
    joined = base.keyspace.cube
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
            added = extend_document(fs, base, joined, sets, rules, options, preprocess)
            with progress("append", callback) as shown:
                shown.set_size(len(sets))
                shown.relative_update(len(sets))
            return added
        (fo,) = sets if preprocess is None else (show_by(fo, options, preprocess) for fo in sets)
        whole = GrownReferences.of(
            fs, str(url), fo, rules, options, holds_pins=base.keyspace.source.references is not None
        )
        if whole is None:
            fs.discard()
            return 0
        edits = dict(whole.find_edits())
        with progress("append", callback) as shown:
            shown.set_size(len(edits))
            for key, edit in edits.items():
                fs.require_writer("append").overlay.put(key, edit)
                shown.relative_update(1)
            fs.commit(rules.message)
        if whole.remark:
            warnings.warn(whole.remark, UserWarning, stacklevel=3)
        return whole.added
    except BaseException as e:
        fs.discard()  # nothing is left to be committed
        if isinstance(e, ConflictError):
            done = "Nothing was appended" if e.is_certain else "What was to be appended may be there, or not"
            conflict = ConflictError(f"somebody else wrote {sanitize(str(url))} meanwhile. {done}: append again")
            conflict.is_certain = e.is_certain
            raise conflict from e
        raise


def _create(
    target: str | os.PathLike[str],
    fo: Any,
    dim: str | None,
    same: Iterable[str],
    preprocess: Preprocess | None,
    options: Mapping[str, Any],
) -> int | None:
    """Write the document of a cube of ``fo`` to ``target``, and return its length; None if ``target`` exists."""
    try:
        RefShardFileSystem(os.fspath(target), **for_sources(options, [os.fspath(target)], append)).source.open()
    except NoSuchSource:
        made = open(fo, dim, same=same, preprocess=preprocess, **options)
        made.save(os.fspath(target))
        return made.document.starts[-1]
    return None


def _expand_new(
    target: str | os.PathLike[str], fo: Any, options: Mapping[str, Any], *, knows_names: bool
) -> tuple[list[Any], bool]:
    """List the sets of ``fo``, and say whether they are appended in one commit.

    If it ``knows_names``, sets that the target names already are left out.
    """
    urls = [os.fspath(each) for each in (target, *(fo if isinstance(fo, list) else [fo])) if not isinstance(each, dict)]
    found = expand(fo, for_sources(options, urls, append))
    joined = RefShardFileSystem(os.fspath(target), **options).source.open().cube
    known = set() if joined is None or not knows_names else {joined.resolve(url) for url in joined.document.urls}
    new = [each for each in found if not isinstance(each, str) or source_of(each, None, None, True) not in known]
    return new, joined is not None
