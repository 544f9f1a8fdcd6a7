"""The groups and arrays of a source as a tree. Metadata is read, and no chunk is listed or looked up."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec

from refshard_fs.core import zarrmeta
from refshard_fs.core.keys import join, normalise, parent
from refshard_fs.core.zarrmeta import NODE_DOCUMENTS

__all__ = ["Node", "tree"]


class Browsed(Protocol):
    """What is needed of a filesystem: `RefShardFileSystem`."""

    def ls(self, path: str, *, detail: Literal[True]) -> list[dict[str, Any]]: ...
    def cat(self, path: list[str], *, on_error: Literal["omit"]) -> dict[str, bytes]: ...
    def isdir(self, path: str) -> bool: ...


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """A group, an array, or a directory of them that says of itself neither; ``cut``: what lies below is not shown."""

    path: str
    kind: Literal["group", "array", "directory"]
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    children: tuple[Node, ...] = ()
    cut: bool = False


def tree(fs: Browsed, path: str = "", depth: int | None = None) -> Node:
    """Return what lies at ``path`` of ``fs`` and, to ``depth`` levels, below.

    Raises FileNotFoundError if there is nothing, ManifestError where metadata is no JSON object.
    """
    path = normalise(path)
    texts = _texts(fs, [path])
    if path and not texts[path] and not fs.isdir(path):
        raise FileNotFoundError(path)
    return _node(fs, path, texts[path], depth)


def _node(fs: Browsed, path: str, text: dict[str, bytes], depth: int | None) -> Node:
    kind: Literal["group", "directory"] = "directory"
    for name in NODE_DOCUMENTS:
        if name in text:
            key = repr(join(path, name))
            meta = zarrmeta.array_meta(zarrmeta.object_in(text[name], key), key)
            if meta is not None:
                return Node(path, "array", meta.shape, meta.dtype)
            kind = "group"
    below = [str(entry["name"]) for entry in fs.ls(path, detail=True) if entry["type"] == "directory"]
    if depth == 0:
        return Node(path, kind, cut=bool(below))
    texts = _texts(fs, below)
    deeper = None if depth is None else depth - 1
    return Node(path, kind, children=tuple(_node(fs, child, texts[child], deeper) for child in sorted(below)))


def _texts(fs: Browsed, paths: list[str]) -> dict[str, dict[str, bytes]]:
    """Return the metadata documents, by name, that lie in each of ``paths``."""
    found: dict[str, dict[str, bytes]] = {path: {} for path in paths}
    keys = [join(path, name) for path in paths for name in NODE_DOCUMENTS]
    for key, text in (fs.cat(keys, on_error="omit") if keys else {}).items():
        path, name = parent(key)
        found[path][name] = text
    return found
