"""Objects are stored in the memory of this process, with versions."""

from __future__ import annotations

import uuid

import pytest

from refshard_fs.core.model import ABSENT
from refshard_fs.errors import ConflictError
from refshard_fs.stores.objects import Objects


def test_putting_equal_bytes_makes_a_new_version() -> None:
    objects = Objects(f"memory://{uuid.uuid4().hex}", {})
    first = objects.put("a", [b"x"], ABSENT)
    assert first == objects.get_facts("a")
    objects.put("a", [b"x"])
    with pytest.raises(ConflictError):
        objects.put("a", [b"y"], first)
    objects.remove_tree()
    assert objects.get_facts("a") is None
