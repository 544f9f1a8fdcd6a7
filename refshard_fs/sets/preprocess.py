"""Select a part of each set by a function of the user (``preprocess=``), when sets are joined or appended."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from types import CodeType
from typing import Any, Final

import fsspec

from refshard_fs.core.model import Facts, Stat, Steps, iterate_batches
from refshard_fs.cubes.choice import Choice
from refshard_fs.errors import RefShardError, TargetNotAllowed
from refshard_fs.references.reference_set import adopt
from refshard_fs.sets.collect_references import collect_references
from refshard_fs.sets.opened_set import is_open
from refshard_fs.sets.scanning import Known, SameVersion, ScanResult
from refshard_fs.sets.scans_file import open_scans
from refshard_fs.sets.sources import TOGETHER
from refshard_fs.sets.stored_coordinates import add_coordinates
from refshard_fs.sets.variables import NamedSet, VariableReader
from refshard_fs.source.collect import UnreadArrays
from refshard_fs.source.in_memory_source import make_portable_source
from refshard_fs.source.source import find_running_loop

Preprocess = Callable[[Any], Any]  # takes a `RefShardFileSystem`, and returns one that its method `select` made
BATCH: Final = 64  # sets that a worker opens in one call


def get_import_path(function: Preprocess) -> str:
    """Return the import path of a function, for people; ValueError for a function without a name.

    >>> get_import_path(get_import_path)
    'refshard_fs.sets.preprocess:get_import_path'
    """
    name = getattr(function, "__qualname__", "<none>")
    if "<lambda>" in name or "<none>" in name:
        raise ValueError(f"preprocess={function!r}: expected a function with a name, which documents record")
    return f"{function.__module__}:{name}"


def read_selected(
    sets: Sequence[Any],
    options: Mapping[str, Any],
    function: Preprocess,
    count: Callable[[int], object],
    failed: dict[int, Exception] | None = None,
    executor: Executor | None = None,
    resume: str | os.PathLike[str] | None = None,
    unread: UnreadArrays | None = None,
) -> tuple[list[NamedSet], dict[str, tuple[Choice, ...]]]:
    """Return the part of each set that ``function`` selects, and by URL the selections.

    The other arguments are those of `read_sets`. The workers of ``executor`` call the function, and must be able to
    import it. The file ``resume`` keeps a selection until the set or the function changes.
    """
    urls = [str(make_portable_source(fo, None, None, True)) if isinstance(fo, str) else "" for fo in sets]
    variables, parts, own = VariableReader(), dict[int, NamedSet](), dict[str, tuple[Choice, ...]]()

    def take(number: int, found: ScanResult | Exception) -> None:
        if isinstance(found, Exception):
            if failed is None or isinstance(found, TargetNotAllowed):
                raise found
            failed[number] = found
            return
        fo = sets[number]
        name = f"set {number} ({fo})" if isinstance(fo, str) else f"set {number}"
        select = {"select": [*(options.get("select") or ()), *found.select]} if found.select else {}
        read = variables.read(found.refs, name)
        parts[number] = NamedSet(name, found.refs, read, fo=fo, options={**options, **select})
        if isinstance(fo, str):
            own[fo] = tuple(map(Choice.read, found.select))
        count(1)

    identity = f"{get_import_path(function)} {_digest(function)}"
    with open_scans(resume, filter(None, urls), options, unread, identity) as (known, resolve):
        parts_of_work = list(iterate_batches(range(len(sets)), BATCH))
        choose = partial(select_parts, options=dict(options), function=function, known=known, unread=unread)
        tasks = [[sets[number] for number in batch] for batch in parts_of_work]
        run = map if executor is None else executor.map
        for batch, results in zip(parts_of_work, run(choose, tasks), strict=True):
            for number, result in zip(batch, results, strict=True):
                take(number, resolve(urls[number], result))
    return [parts[number] for number in sorted(parts)], own


def call_preprocess(fo: Any, options: Mapping[str, Any], function: Preprocess) -> Any:
    """Return the filesystem that ``function`` returns for a set; TypeError if it is not a selection of this set."""
    source = _make_filesystem(fo, options)
    try:
        shown = function(source)
    except AttributeError as e:
        if e.obj is source:
            e.add_note("preprocess= is called with a filesystem, not with a Dataset: see the arguments of its select()")
        raise
    if getattr(shown, "fo", None) != source.fo:
        raise TypeError(
            f"{get_import_path(function)} returned {shown!r} for {source!r}: expected the result of its method select()"
        )
    return shown


def select_parts(
    sets: Sequence[Any], *, options: Mapping[str, Any], function: Preprocess, known: Known, unread: UnreadArrays | None
) -> list[ScanResult | SameVersion | Exception]:
    """Return the part of each set that ``function`` chooses, or the error of a set that cannot be read."""
    name = get_import_path(function)

    def choose(fo: Any) -> ScanResult | SameVersion | Exception:
        try:
            source = _make_filesystem(fo, options)
            facts = None
            if isinstance(fo, str):
                url = str(make_portable_source(fo, None, None, True))
                facts = source.source.run("", partial(_stat, url)) if "::" not in url else None
                if facts is not None and known.get(url) == facts:
                    return SameVersion()
            source.source.open()
        except (RefShardError, FileNotFoundError) as e:
            return e
        shown = call_preprocess(source, options, function)
        try:
            refs = adopt(collect_references(shown, unread), shown.source.admission)
            part = NamedSet(name, refs, VariableReader().read(refs, name))
            refs = shown.source.run("", lambda: add_coordinates(part)).refs
        except (RefShardError, FileNotFoundError) as e:
            return e
        select = list(shown.storage_options.get("select", ()))[len(source.storage_options.get("select") or ()) :]
        return ScanResult(refs, facts, select)

    if find_running_loop() is not None:  # other threads would wait for this loop
        return list(map(choose, sets))
    with ThreadPoolExecutor(TOGETHER) as pool:
        return list(pool.map(choose, sets))


def _make_filesystem(fo: Any, options: Mapping[str, Any]) -> Any:
    """Return a filesystem of ``fo``, for the user's function; ``fo`` itself if it is one.

    fsspec makes it, since the class is defined above this module.
    """
    if is_open(fo):
        return fo
    fs = fsspec.filesystem("refshard", fo=fo, **options)
    fs.source.reads_small_files_whole = False
    return fs


def _stat(url: str) -> Steps[Facts | None]:
    found: Facts | None = yield Stat(url, fresh=True)
    return found


def _digest(function: Preprocess) -> str:
    """Return a digest of the function's code; empty if it has none."""
    code = getattr(function, "__code__", None)
    return "" if code is None else hashlib.sha256(repr(_describe(code)).encode()).hexdigest()[:16]


def _describe(code: CodeType) -> tuple[Any, ...]:
    """Return the instructions, names and constants of code, in a form that is equal in all processes."""
    consts = [_describe(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    plain = [c for c in consts if not str(c).startswith("frozenset")]  # the order of a frozenset differs
    return code.co_code, code.co_names, plain
