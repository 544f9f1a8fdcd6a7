"""Read the sets to join: their references, and the values of their coordinates.

Sources at URLs are scanned together, by `scanning`. Mappings, and results of `concat`, are parsed here if no coordinate
has to be read. All other sources, and those with options that change what a document means, are opened one by one.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Final, Literal

from refshard_fs.errors import RefShardError, TargetNotAllowed, sanitize
from refshard_fs.reading.read_ranges import ReadRanges
from refshard_fs.references.reference_set import ReferenceSet, adopt
from refshard_fs.security.policy import LOCAL, protocol_of
from refshard_fs.sets.collect_references import collect_references
from refshard_fs.sets.document_template import DocumentParser
from refshard_fs.sets.made_set import MadeSet
from refshard_fs.sets.opened_set import open_set
from refshard_fs.sets.scan_workers import scan_by_workers
from refshard_fs.sets.scanning import SameVersion, ScanResult, can_scan, find_scannable, scan
from refshard_fs.sets.scans_file import open_scans
from refshard_fs.sets.stored_coordinates import add_coordinates, list_coordinates_to_read
from refshard_fs.sets.variables import NamedSet, VariableReader
from refshard_fs.source.collect import UnreadArrays
from refshard_fs.source.in_memory_source import make_portable_source
from refshard_fs.source.source import find_running_loop

OnError = Literal["raise", "skip", "hole"]  # what happens to a set that cannot be opened or read
TOGETHER: Final = 16  # sets that are opened at a time
REASON: Final = 200  # characters of an error that a document keeps


# Options that change what a document means: with one of these each set is opened by itself.
MEANING: Final = frozenset(
    (
        *("as_of", "base_url", "branch", "format", "fs", "remote_protocol", "select", "snapshot", "tag"),
        *("simple_templates", "target", "target_protocol", "template_overrides"),
    )
)


def read_sets(
    sets: Sequence[Any],
    options: Mapping[str, Any],
    count: Callable[[int], object],
    failed: dict[int, Exception] | None = None,
    executor: Executor | None = None,
    resume: str | os.PathLike[str] | None = None,
    unread: UnreadArrays | None = None,
    ranges: ReadRanges | None = None,
) -> list[NamedSet]:
    """Read the sources ``sets``, which `RefShardFileSystem` opens with ``options``; call ``count(1)`` for each.

    With ``failed``, sets that cannot be opened or read are left out, and their errors are put into ``failed``, by
    number. The workers of ``executor`` scan sources at URLs, and the file ``resume`` keeps the scans. Chunks of
    ``unread`` arrays are not decoded. The first bytes of sources at URLs, and the metadata behind these, are put into
    ``ranges``. TargetNotAllowed if a set that is not the user's own points to a URL that it may not point to.
    """
    variables = VariableReader()
    found: dict[int, NamedSet] = {}

    def name_set(number: int, refs: ReferenceSet) -> NamedSet:
        fo = sets[number]
        name = f"set {number} ({fo})" if isinstance(fo, str) else f"set {number}"
        return NamedSet(name, refs, variables.read(refs, name), fo=fo, options=options)

    def take(number: int, result: ScanResult | Exception) -> None:
        match result:
            case ScanResult(refs=refs):
                found[number] = name_set(number, refs)
            case error:
                can_skip = isinstance(error, RefShardError) and not isinstance(error, TargetNotAllowed)
                if failed is None or not can_skip:
                    if can_skip and len(sets) > 1:
                        error.add_note("on_error='skip' leaves out sources that cannot be opened")
                    raise error
                failed[number] = error
        count(1)

    urls = {number: os.fspath(fo) for number, fo in enumerate(sets) if isinstance(fo, str | os.PathLike)}
    if can_scan(options):
        _scan(find_scannable(urls, options), options, take, executor, resume, unread, ranges)
    elif executor is not None or resume is not None:
        raise ValueError(
            "executor= and resume= accept few other options: expected only allow=, options=, select=, target_options=, "
            "ref_storage_args=, index_cache=, max_manifest_bytes=, concurrency=, fast_s3=, max_memory=, retries= and "
            f"timeout=, got {', '.join(f'{name}=' for name in options)}"
        )
    if options.keys().isdisjoint(MEANING):
        parser = DocumentParser()
        for number, fo in enumerate(sets):
            refs = parser.parse(fo, None) if isinstance(fo, dict | MadeSet) else None
            if refs is None:
                continue
            part = name_set(number, refs)
            if not any(list_coordinates_to_read(part)):
                found[number] = part
                count(1)

    def read(number: int) -> NamedSet | None:
        try:
            opened = open_set(sets[number], options)
            refs = adopt(collect_references(opened, unread), opened.source.admission)
            part = name_set(number, refs)
            part = opened.source.run("", lambda: add_coordinates(part))
        except TargetNotAllowed:
            raise
        except (RefShardError, FileNotFoundError) as e:
            if failed is None:
                raise
            failed[number] = e
            return None
        finally:
            count(1)
        return part

    # Threads help only to wait for the network: reading local sets runs Python, in one thread at a time. If zarr calls
    # this on its event loop, other threads would wait for this loop for ever.
    left = [number for number in range(len(sets)) if number not in found and number not in (failed or ())]
    remote = any(isinstance(sets[number], str) and not _is_local(sets[number]) for number in left)
    with contextlib.ExitStack() as stack:
        has_threads = remote and find_running_loop() is None
        run = stack.enter_context(ThreadPoolExecutor(TOGETHER)).map if has_threads else map
        found.update((number, part) for number, part in zip(left, run(read, left), strict=True) if part)
    return [found[number] for number in sorted(found)]


def _scan(
    urls_by_number: Mapping[int, str],
    options: Mapping[str, Any],
    take: Callable[[int, ScanResult | Exception], None],
    executor: Executor | None,
    resume: str | os.PathLike[str] | None,
    unread: UnreadArrays | None,
    ranges: ReadRanges | None,
) -> None:
    """Call ``take`` with the number of each source, and with its scan or error."""
    numbers = list(urls_by_number)
    urls = [str(make_portable_source(url, None, None, True)) for url in urls_by_number.values()]
    with open_scans(resume, urls, options, unread) as (known, resolve):

        def take_result(place: int, result: ScanResult | Exception | SameVersion) -> None:
            take(numbers[place], resolve(urls[place], result))

        if urls and executor is not None:
            scan_by_workers(executor, urls, options, take_result, known, unread)
        elif urls:
            scan(urls, options, take_result, known, unread, ranges)


def report_skipped(failed: Mapping[int, Exception], *, any_left: bool) -> None:
    """Warn of each set that was left out; raise the first error if no set is left."""
    for number, error in sorted(failed.items()):
        if not any_left:
            raise error
        warnings.warn(f"set {number} is left out: {error}", UserWarning, stacklevel=3)


def describe_error(error: Exception) -> str:
    """Return the text by which a document explains why it lacks a set."""
    return sanitize(str(error))[:REASON]


def _is_local(url: str) -> bool:
    return protocol_of(url) in (None, *LOCAL)
