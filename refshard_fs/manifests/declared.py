"""Metadata in which nodes declare ``chunk-manifest-json``: shown without it, and what it says. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from refshard_fs import zarrmeta
from refshard_fs.documents import Shown, grid_of
from refshard_fs.encodings import lost, names_codecs
from refshard_fs.keys import ChunkGrid
from refshard_fs.manifests.entries import NAME

__all__ = ["MARK", "Declared", "Unmapped", "declaration"]

MARK = NAME.encode()


class Declared(NamedTuple):
    """What is known of a node: the grid of an array, its manifest (a path, or JSON) if it has one, or what is wrong."""

    grid: ChunkGrid | None
    manifest: str | bytes | None = None
    problem: str | None = None


class Unmapped(msgspec.Struct, frozen=True):
    """Shows nodes with a chunk manifest as if they had none."""

    def over(self, data: bytes) -> Callable[[Mapping[str, Any], str], Shown[Declared]]:
        return _rewrite if MARK in data else _plain


def _plain(doc: Mapping[str, Any], path: str) -> Shown[Declared]:
    return doc, None if doc.get("node_type") == "group" else Declared(grid_of(doc))


def _rewrite(doc: Mapping[str, Any], path: str) -> Shown[Declared]:
    match doc.get("storage_transformers"):
        case [{"name": name} as transformer] if name == NAME:
            pass
        case _:
            return _plain(doc, path)
    grid = None if doc.get("node_type") == "group" else grid_of(doc)
    if grid is None and doc.get("node_type") != "group":
        return doc, Declared(None, None, "its chunk grid or chunk keys are not known, so its manifest cannot be used")
    manifest = declaration(transformer)
    if manifest is None:
        return doc, Declared(grid, None, f"its {NAME} lacks a configuration with a manifest: a path, or an object")
    shown = {k: v for k, v in doc.items() if k != "storage_transformers"}
    if grid is not None and not names_codecs(doc.get("codecs")):
        shown |= {"codecs": [lost(path)], "fill_value": _neutral(doc)}
    return shown, Declared(grid, manifest)


def _neutral(doc: Mapping[str, Any]) -> Any:
    """Return the fill value, or one that lets readers go on to the codecs."""
    match doc.get("fill_value"), doc.get("data_type"):
        case None, "bool":
            return False
        case None, "complex64" | "complex128":
            return [0, 0]
        case None, _:
            return 0
        case given, _:
            return given


def declaration(transformer: Mapping[str, Any]) -> str | bytes | None:
    """Return the manifest that a storage transformer names, or holds as JSON; None if it does not say."""
    match transformer:
        case {"configuration": {"manifest": str(path)}} if path:
            return path
        case {"configuration": {"manifest": dict(inline)}}:
            return zarrmeta.dumps(inline)
    return None
