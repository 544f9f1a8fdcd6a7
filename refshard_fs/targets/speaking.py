"""What a client of S3 raises, said as all other filesystems do: an OSError, so that whoever expects one sees it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from refshard_fs.targets.failures import as_failure

__all__ = ["as_os_error", "speaking"]

_CLIENTS: Final = ("botocore.", "aiobotocore.", "aiohttp.")


@contextlib.contextmanager
def speaking() -> Iterator[None]:
    """Let whatever the client of S3 raises be an OSError; decorates functions, too."""
    try:
        yield
    except Exception as e:
        if not type(e).__module__.startswith(_CLIENTS):
            raise
        raise as_os_error(e) from e


def as_os_error(error: Exception) -> OSError:
    """Return ``error``, which a client of S3 raised, as an OSError."""
    from s3fs.errors import translate_boto_error  # it is there: its filesystem is what failed

    return as_failure(translate_boto_error(error))
