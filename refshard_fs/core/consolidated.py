"""Update consolidated metadata when the documents that they repeat change. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from refshard_fs.core import zarrmeta
from refshard_fs.core.keys import is_within, iterate_splits, join, make_relative, parent
from refshard_fs.core.zarrmeta import CONSOLIDATED

ROOT: Final = "zarr.json"
DOCUMENTS: Final = (CONSOLIDATED, ROOT)  # documents that may have consolidated metadata

# Metadata by key: bytes, or a JSON object; None for a removed document, a list for a reference, which is not read.
Documents = Mapping[str, Any]


def find_consolidated(keys: Iterable[str]) -> list[str]:
    """Return the keys of the consolidated documents that may repeat the documents ``keys``, the innermost first."""
    found: dict[str, None] = {}
    for key in keys:
        name = parent(key)[1]
        wanted = (ROOT,) if name == ROOT else (CONSOLIDATED,) if zarrmeta.is_metadata(key) else DOCUMENTS
        found |= {join(path, document): None for path, _ in iterate_splits(key) for document in wanted}
    return sorted(found, key=lambda key: -key.count("/"))


def reconsolidate(
    key: str, document: Any, changes: Documents, is_gone: Callable[[str], bool], *, is_whole: bool = False
) -> Any:
    """Apply ``changes`` to the consolidated metadata in ``document``, the JSON object at ``key``.

    Documents for which ``is_gone`` returns True are left out. If nothing changes, or the document has no consolidated
    metadata, ``document`` itself is returned. ``is_whole`` is true for the document of a parquet set, which has all
    metadata of the set, also of zarr version 3.
    """
    path, name = parent(key)
    match name, document:
        case ".zmetadata", {"metadata": dict(members), **rest}:
            new = {member: value for member, value in members.items() if not is_gone(join(path, member))}
            for changed, value in _select_below(path, changes):
                if parent(changed)[1] not in DOCUMENTS or (is_whole and changed != key):
                    _set(new, make_relative(changed, path), value, bare=not is_whole)
            if is_whole:
                new = {k: value for k, value in new.items() if parent(k)[1] != CONSOLIDATED}
                new |= update_consolidated(new)
            return document if new == members else {"metadata": new, **rest}
        case "zarr.json", {"consolidated_metadata": {"metadata": dict(members), **inline}, **rest}:
            new = {node: value for node, value in members.items() if not is_gone(join(path, join(node, ROOT)))}
            for changed, value in _select_below(path, changes):
                node = make_relative(parent(changed)[0], path) if parent(changed)[0] != path else ""
                if node and parent(changed)[1] == ROOT:
                    _set(new, node, value)
            same = {node: _drop_consolidated(value) for node, value in members.items()} == {
                n: _drop_consolidated(v) for n, v in new.items()
            }
            return document if same else {**rest, "consolidated_metadata": {**inline, "metadata": new}}
    return document


def update_consolidated(documents: Documents) -> dict[str, Any]:
    """Return the new content of the documents whose consolidated metadata differ from the other ``documents``.

    ``documents`` are all metadata of a set. If none of the documents that a consolidated one repeats is in the set, it
    stays unchanged: readers have no other copy of these metadata.
    """
    found: dict[str, Any] = {}
    for key in [key for key, value in documents.items() if parent(key)[1] in DOCUMENTS and may_repeat(key, value)]:
        is_root = parent(key)[1] == ROOT
        others = (k for k, _ in _select_below(parent(key)[0], documents) if k != key and k != CONSOLIDATED)
        if any((parent(k)[1] == ROOT) == is_root for k in others):
            before = parse_json(documents[key])
            after = reconsolidate(key, before, documents, lambda k: k not in documents)
            if after is not before:
                found[key] = after
    return found


def may_repeat(key: str, value: Any) -> bool:
    """Return whether the document ``value`` at ``key`` may have consolidated metadata."""
    member = "consolidated_metadata" if parent(key)[1] == ROOT else "metadata"
    return (member.encode() if isinstance(value, bytes) else member) in value


def parse_json(value: Any) -> Any:
    """Parse a JSON text; return ``value`` itself if it is not JSON, or not a text."""
    try:
        return zarrmeta.loads(value) if isinstance(value, bytes | str) else value
    except ValueError:
        return value


def _select_below(path: str, changes: Documents) -> Iterator[tuple[str, Any]]:
    return ((key, value) for key, value in changes.items() if is_within(key, path))


def _set(members: dict[str, Any], name: str, value: Any, *, bare: bool = True) -> None:
    found = None if value is None else parse_json(value)
    if isinstance(found, list):
        return
    if isinstance(found, dict):
        members[name] = _drop_consolidated(found) if bare else found
    else:
        members.pop(name, None)


def _drop_consolidated(document: Any) -> Any:
    """Return a node's document without its own consolidated metadata, which an outer document does not repeat."""
    if isinstance(document, dict) and "consolidated_metadata" in document:
        return {name: value for name, value in document.items() if name != "consolidated_metadata"}
    return document
