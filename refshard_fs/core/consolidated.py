"""Consolidated metadata: a document that repeats other documents follows them when they change. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from refshard_fs.core import zarrmeta
from refshard_fs.core.keys import is_within, join, parent, relative, splits
from refshard_fs.core.zarrmeta import CONSOLIDATED

ROOT: Final = "zarr.json"
DOCUMENTS: Final = (CONSOLIDATED, ROOT)  # which may have consolidated metadata

Documents = Mapping[str, Any]  # metadata by key: bytes, or the object that these are; None for a removed document


def consolidating(keys: Iterable[str]) -> list[str]:
    """Return the documents that may repeat those at ``keys``, or below them, the inner ones first."""
    found: dict[str, None] = {}
    for key in keys:
        name = parent(key)[1]
        wanted = (ROOT,) if name == ROOT else (CONSOLIDATED,) if zarrmeta.is_metadata(key) else DOCUMENTS
        found |= {join(path, document): None for path, _ in splits(key) for document in wanted}
    return sorted(found, key=lambda key: -key.count("/"))


def reconsolidated(
    key: str, document: Any, changes: Documents, is_gone: Callable[[str], bool], *, is_whole: bool = False
) -> Any:
    """Return ``document``, an object that is at ``key``, with the ``changes`` of the documents that it repeats.

    Of the others, those that are gone are left out. It is returned itself if nothing changes, or it repeats nothing.
    ``is_whole``: it is the document of a parquet set, which has those of zarr version 3, too.
    """
    path, name = parent(key)
    match name, document:
        case ".zmetadata", {"metadata": dict(members), **rest}:
            new = {member: value for member, value in members.items() if not is_gone(join(path, member))}
            for changed, value in _below(path, changes):
                if parent(changed)[1] not in DOCUMENTS or (is_whole and changed != key):
                    _set(new, relative(changed, path), value, bare=not is_whole)
            if is_whole:
                new = {k: value for k, value in new.items() if parent(k)[1] != CONSOLIDATED}
                new |= in_step(new)
            return document if new == members else {"metadata": new, **rest}
        case "zarr.json", {"consolidated_metadata": {"metadata": dict(members), **inline}, **rest}:
            new = {node: value for node, value in members.items() if not is_gone(join(path, join(node, ROOT)))}
            for changed, value in _below(path, changes):
                node = relative(parent(changed)[0], path) if parent(changed)[0] != path else ""
                if node and parent(changed)[1] == ROOT:
                    _set(new, node, value)
            same = {node: _bare(value) for node, value in members.items()} == {n: _bare(v) for n, v in new.items()}
            return document if same else {**rest, "consolidated_metadata": {**inline, "metadata": new}}
    return document


def in_step(documents: Documents) -> dict[str, Any]:
    """Return those of ``documents``, which are all of a set, that have to be others to repeat what the others say.

    One that repeats none of them is left alone: it is all that its readers have.
    """
    found: dict[str, Any] = {}
    for key in [key for key, value in documents.items() if parent(key)[1] in DOCUMENTS and repeats(key, value)]:
        is_root = parent(key)[1] == ROOT
        others = (k for k, _ in _below(parent(key)[0], documents) if k != key and k != CONSOLIDATED)
        if any((parent(k)[1] == ROOT) == is_root for k in others):
            before = parsed(documents[key])
            after = reconsolidated(key, before, documents, lambda k: k not in documents)
            if after is not before:
                found[key] = after
    return found


def repeats(key: str, value: Any) -> bool:
    """Whether the document ``value`` at ``key`` may have consolidated metadata."""
    member = "consolidated_metadata" if parent(key)[1] == ROOT else "metadata"
    return (member.encode() if isinstance(value, bytes) else member) in value


def parsed(value: Any) -> Any:
    """Return the value of a JSON text, or ``value`` itself where it is none, or an object already."""
    try:
        return zarrmeta.loads(value) if isinstance(value, bytes | str) else value
    except ValueError:
        return value


def _below(path: str, changes: Documents) -> Iterator[tuple[str, Any]]:
    return ((key, value) for key, value in changes.items() if is_within(key, path))


def _set(members: dict[str, Any], name: str, value: Any, *, bare: bool = True) -> None:
    found = None if value is None else parsed(value)
    if isinstance(found, dict):
        members[name] = _bare(found) if bare else found
    else:
        members.pop(name, None)


def _bare(document: Any) -> Any:
    """Return a node's document without what it repeats itself, which that of an outer node does not."""
    if isinstance(document, dict) and "consolidated_metadata" in document:
        return {name: value for name, value in document.items() if name != "consolidated_metadata"}
    return document
