"""A document is put several times, and other writers' changes in between are noticed."""

from __future__ import annotations

import uuid

import pytest

from refshard_fs.errors import ConflictError
from refshard_fs.stores.objects import Objects
from refshard_fs.stores.replaced_document import ReplacedDocument


@pytest.mark.parametrize("is_new", [True, False])
def test_document_that_another_writer_put_is_not_replaced(*, is_new: bool) -> None:
    objects = Objects(f"memory://{uuid.uuid4().hex}", {})
    if not is_new:
        objects.put("x", (b"0",))
    document, other = ReplacedDocument(objects, "x"), ReplacedDocument(objects, "x")
    document.put(b"1")
    document.put(b"2")
    assert not document.is_unseen
    with pytest.raises(ConflictError, match="x has changed while the set was saved"):
        other.put(b"3")
    assert other.is_unseen, "readers have not seen a document of this save"
    found = objects.fetch("x")
    assert found is not None
    assert found.data == b"2"
