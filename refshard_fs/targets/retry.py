"""Which failures are worth another try, and how long to wait before it."""

from __future__ import annotations

import random

import msgspec

from refshard_fs.targets.failures import ABSENT, HttpStatus, Incomplete, Unfit, Unreadable

__all__ = ["Retry"]

_STATUSES = frozenset([408, 425, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524, 529, 598, 599])
_CODES = frozenset(["SlowDown", "RequestTimeout", "RequestTimeTooSkewed", "InternalError", "ServiceUnavailable"])
_FIRST = 0.1  # seconds before the second try, give or take; doubled for each further one
_LONGEST = 20.0


class Retry(msgspec.Struct, frozen=True):
    """``retries`` further tries of what fails for a passing reason, ``timeout`` seconds for a read and all its tries.

    ``longest`` bounds, in seconds, the wait that a server's Retry-After is granted; one
    that asks for more gets no further try.
    """

    retries: int = 5
    timeout: float = 300.0
    longest: float = 60.0

    def at_most(self, retries: int) -> Retry:
        """Return the same with no more than ``retries``."""
        return self if self.retries <= retries else Retry(retries, self.timeout, self.longest)

    def pause(self, failure: OSError, tried: int) -> float | None:
        """Return the seconds to wait after ``tried`` tries, the last of which ended in ``failure``; None to give up."""
        if tried > self.retries or not transient(failure):
            return None
        asked = failure.retry_after if isinstance(failure, HttpStatus) else None
        if asked is not None and asked > self.longest:
            return None
        # Jitter, so that readers which failed together do not come back together.
        own = min(_LONGEST, _FIRST * 2.0 ** (tried - 1)) * random.uniform(0.5, 1.0)  # noqa: S311  # no secret
        return own if asked is None else asked + own


def transient(failure: OSError) -> bool:
    """Whether ``failure`` may pass by itself: lost connections, short answers, overloaded servers; never a refusal."""
    match failure:
        case HttpStatus(status=status, code=code):
            return status in _STATUSES or code in _CODES
        case Incomplete():
            return True
        case Unfit() | Unreadable():
            return False
        case _ if isinstance(failure, ABSENT):
            return False
        case ConnectionError() | TimeoutError():
            return True
        case _:
            return False
