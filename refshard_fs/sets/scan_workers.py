"""Scan sources by the workers of an executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from typing import Any, Final

from refshard_fs.core.model import batches
from refshard_fs.sets.scanning import Found, Known, scan
from refshard_fs.source.collect import UnreadArrays

PIECE: Final = 64  # sources that a worker scans in one call: some 100 ms, so that it is worth being sent


def scan_by_workers(
    executor: Executor,
    urls: Sequence[str],
    options: Mapping[str, Any],
    found: Found,
    known: Known,
    unread: UnreadArrays | None = None,
) -> None:
    """Scan with the workers of ``executor``; an error of theirs, or what ``found`` raises, ends it all."""
    futures: dict[Future[list[Any]], Sequence[int]] = {}
    try:
        for piece in batches(range(len(urls)), PIECE):
            some = [urls[number] for number in piece]
            theirs = {url: known[url] for url in some if url in known}
            futures[executor.submit(scan_piece, some, dict(options), theirs, unread)] = piece
        for future in as_completed(futures):
            for number, result in zip(futures[future], future.result(), strict=True):
                found(number, result)
    finally:
        for future in futures:
            future.cancel()


def scan_piece(
    urls: Sequence[str], options: Mapping[str, Any], known: Known, unread: UnreadArrays | None = None
) -> list[Any]:
    """Return the result for each of ``urls``."""
    results: list[Any] = [None] * len(urls)
    scan(urls, options, results.__setitem__, known, unread)
    return results
