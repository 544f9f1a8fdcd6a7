"""Scan sources by the workers of an executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from typing import Any, Final

from refshard_fs.core.model import iterate_batches
from refshard_fs.sets.scanning import Found, Known, scan
from refshard_fs.source.collect import UnreadArrays

BATCH: Final = 64  # sources in one call of a worker: about 100 ms of work, much more than the call itself takes


def scan_by_workers(
    executor: Executor,
    urls: Sequence[str],
    options: Mapping[str, Any],
    found: Found,
    known: Known,
    unread: UnreadArrays | None = None,
) -> None:
    """Scan ``urls``, as `scan` does, by the workers of ``executor``.

    An error that a worker or ``found`` raises ends the scan.
    """
    futures: dict[Future[list[Any]], Sequence[int]] = {}
    try:
        for batch in iterate_batches(range(len(urls)), BATCH):
            urls_of_batch = [urls[number] for number in batch]
            versions = {url: known[url] for url in urls_of_batch if url in known}
            futures[executor.submit(scan_batch, urls_of_batch, dict(options), versions, unread)] = batch
        for future in as_completed(futures):
            for number, result in zip(futures[future], future.result(), strict=True):
                found(number, result)
    finally:
        for future in futures:
            future.cancel()


def scan_batch(
    urls: Sequence[str], options: Mapping[str, Any], known: Known, unread: UnreadArrays | None = None
) -> list[Any]:
    """Return the result of the scan of each of ``urls``, in their order."""
    results: list[Any] = [None] * len(urls)
    scan(urls, options, results.__setitem__, known, unread)
    return results
