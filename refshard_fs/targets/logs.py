"""Log each request at DEBUG. The attributes of a record are the facts about the request, for metrics."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

from refshard_fs.errors import sanitize

logger = logging.getLogger(__package__)


class RequestLog:
    """The outcome of a request: HTTP ``status``, and ``size``, the number of bytes in the answer."""

    __slots__ = ("is_sent", "size", "status")

    def __init__(self) -> None:
        self.status: int | None = None
        self.size: int | None = None
        self.is_sent = True  # False if no request was needed


@contextlib.contextmanager
def log_request(method: str, url: str, span: str | None = None) -> Iterator[RequestLog]:
    """Log the request that the block sends, with its time, and its error if it fails; ``span`` is its Range header.

    The record has the attributes ``method``, ``url``, ``range``, ``status``, ``bytes``, ``seconds`` and ``error``;
    unknown values are None.
    """
    outcome = RequestLog()
    if not logger.isEnabledFor(logging.DEBUG):
        yield outcome
        return
    error = None
    began = time.perf_counter()
    try:
        yield outcome
    except BaseException as e:
        error = sanitize(repr(e))
        raise
    finally:
        seconds, url = time.perf_counter() - began, sanitize(url)
        what = f"{method} {url} {span}" if span else f"{method} {url}"
        size = None if outcome.size is None else f"{outcome.size} bytes"
        answer = (outcome.status, size) if outcome.status is not None else (size, error)
        text = ", ".join(str(fact) for fact in answer if fact is not None) or "answered"
        fields = {"method": method, "url": url, "range": span, "status": outcome.status, "bytes": outcome.size}
        extra = {**fields, "seconds": seconds, "error": error}
        if outcome.is_sent:
            logger.debug("%s: %s in %.1f ms", what, text, seconds * 1e3, extra=extra)
