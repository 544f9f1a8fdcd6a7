"""What an object must be to be replaced, and whether it is: versions compared, and the error where they differ."""

from __future__ import annotations

from enum import Enum
from typing import Final

from refshard_fs.errors import ConflictError
from refshard_fs.model import Facts

__all__ = ["ABSENT", "Absent", "Condition", "as_headers", "check", "conflict", "is_version"]


class Absent(Enum):
    """The condition that there is no such object yet."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT

Condition = Facts | Absent | None  # what an object must be to be replaced; None: whatever it is


def check(found: Facts | None, condition: Condition, url: str) -> None:
    """Raise ConflictError if ``found``, the object at ``url``, is not what ``condition`` says."""
    match condition, found:
        case (None, _) | (Absent(), None):
            return
        case Facts(), Facts() if is_version(condition, found):
            return
    raise conflict(url, condition)


def as_headers(condition: Condition) -> dict[str, str]:
    """Return what S3 is told of the version to replace."""
    match condition:
        case None | Facts(etag=None):
            return {}
        case Facts(etag=str(etag)):
            return {"IfMatch": etag}
    return {"IfNoneMatch": "*"}


def is_version(one: Facts, other: Facts) -> bool:
    """Whether both are of one version of an object, as far as they tell."""
    if one.etag is not None and other.etag is not None:
        return one.etag.strip('"') == other.etag.strip('"')
    return one.size == other.size and one.last_modified == other.last_modified


def conflict(url: str, condition: Condition) -> ConflictError:
    """Return the error of an object that is not what ``condition`` says."""
    what = "was not there" if isinstance(condition, Absent) else "was another one"
    return ConflictError(f"{url} {what} when it was read, and somebody else has written it since")
