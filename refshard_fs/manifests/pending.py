"""A commit to a hierarchy that has been made and not written out: its root says what the other documents are.

``consolidated_metadata`` of the root's ``zarr.json`` may have a member ``refshard``: ``pending`` lists nodes whose own
documents are those in it, and ``gone`` nodes that are no more, whatever lies in their places (FORMATS.md). No I/O here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from refshard_fs import zarrmeta
from refshard_fs.edits import REMOVED, Edits
from refshard_fs.errors import ManifestError
from refshard_fs.keys import join, normalise
from refshard_fs.model import Inline

__all__ = ["MARK", "PendingIndex", "root_with"]

MARK = b'"refshard":{"'


class PendingIndex(msgspec.Struct, frozen=True):
    """Decodes the root document called ``where``: to the edits of other documents that it stands for, or None."""

    where: str

    def decode(self, data: bytes) -> Edits | None:
        try:
            doc = zarrmeta.loads(data)
        except ValueError:
            return None  # whoever reads it sees the bytes as they are
        match doc:
            case {"consolidated_metadata": {"metadata": dict(members), "refshard": {"pending": list(pending)} as ours}}:
                pass
            case _:
                return None
        edits = Edits()
        gone = ours.get("gone", [])
        if not isinstance(gone, list):
            raise ManifestError(f"{self.where}: 'gone' is no list of nodes")
        for path in [*pending, *gone]:
            if not isinstance(path, str) or not path or path != normalise(path) or ".." in path.split("/"):
                raise ManifestError(f"{self.where}: {path!r} is no path of a node")
            member = members.get(path)
            if path in pending and not isinstance(member, dict):
                raise ManifestError(f"{self.where}: {path!r} is pending, and not in the consolidated metadata")
            edits.put(join(path, "zarr.json"), Inline(zarrmeta.dumps(member)) if path in pending else REMOVED)
        return edits if len(edits) else None


def root_with(
    nodes: Mapping[str, Mapping[str, Any]], pending: list[str], gone: list[str], replaced: list[str]
) -> dict[str, Any]:
    """Return the root's document with those of all ``nodes`` in it; ``replaced`` are keys that nothing names any more.

    The root itself is the node called "".
    """
    root = {key: value for key, value in nodes[""].items() if key != "consolidated_metadata"}
    if root.get("node_type") != "group":
        return root
    members = {path: doc for path, doc in sorted(nodes.items()) if path}
    inline: dict[str, Any] = {"kind": "inline", "must_understand": False, "metadata": members}
    if pending or gone or replaced:
        inline["refshard"] = {"pending": pending, "gone": gone, "replaced": replaced}
    return {**root, "consolidated_metadata": inline}
