"""A reference set of version 1 with values of every kind."""

from __future__ import annotations

from typing import Any

TARGET = bytes(range(256)) * 4


def make_version_1(refs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"version": 1, "refs": refs, **more}
