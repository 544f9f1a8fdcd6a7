"""A commit replaces a document only if it has the opened version, or was put by an earlier try of the same commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from refshard_fs.errors import ConflictError
from refshard_fs.stores.document import DocumentObject
from refshard_fs.stores.objects import Objects
from refshard_fs.stores.store import compute_checksum


def test_document_of_an_earlier_attempt_is_replaced(tmp_path: Path) -> None:
    url, sent = str(tmp_path / "set.json"), set[bytes]()
    tried = DocumentObject(url, {}, None, sent)
    tried.put(b"first")
    sent.add(compute_checksum([b"first"]))  # as if the answer had been lost
    DocumentObject(url, {}, None, sent).put(b"second")
    assert Path(url).read_bytes() == b"second"


def test_document_of_another_writer_is_kept(tmp_path: Path) -> None:
    url = str(tmp_path / "set.json")
    opened = Objects(url, {}).put("", [b"opened"])
    Objects(url, {}).put("", [b"somebody else's"])
    document = DocumentObject(url, {}, opened)
    with pytest.raises(ConflictError, match="has changed since it was opened"):
        document.put(b"ours")
    with pytest.raises(ConflictError), document.stream() as file:
        file.write(b"ours")
    assert Path(url).read_bytes() == b"somebody else's"
    assert not document.may_be_stored(b"ours")
