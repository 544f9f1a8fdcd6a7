"""The nodes that attributes of OME-Zarr name, by which a hierarchy can be read without listings. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

from refshard_fs.core.keys import join, parent

DEEPEST: Final = 8  # the most names in a path; OME-Zarr has 7: row, column, field, "labels", label, level, document

# What a name stands for: a resolution of an image is an array; "labels" is a group, which an image may lack; an index
# is a group without arrays, whose attributes name groups beside it.
Kind = Literal["resolution", "group", "labels", "index"]


class Member(NamedTuple):
    """A node that the attributes of a group name: its path, relative to ``base``, and its kind.

    The base is the group, or the group above it.
    """

    path: str
    kind: Kind
    base: Literal["group", "above"] = "group"

    def locate(self, group: str) -> str:
        """Return the path of the node, if the attributes are those of ``group``."""
        return join(group if self.base == "group" else parent(group)[0], self.path)


def list_members(attributes: Any) -> Iterator[Member]:
    """Yield the members that the attributes of a group, of version 0.4 or 0.5, name; nothing for other attributes.

    In the layout of bioformats2raw, the group ``OME`` has the attribute ``series``: the paths of images beside it. If
    it lacks the attribute, or does not exist, the images are numbered from 0 on.

    >>> [member.path for member in list_members({"ome": {"multiscales": [{"datasets": [{"path": "0"}]}]}})]
    ['0', 'labels']
    """
    found = attributes.get("ome", attributes) if isinstance(attributes, dict) else None
    match found:
        case {"multiscales": [*scales]}:
            yield from (Member(path, "resolution") for scale in scales for path in _iterate_paths(scale, "datasets"))
            yield Member("labels", "labels")
    match found:
        case {"labels": [*names]}:
            yield from (Member(name, "group") for name in names if isinstance(name, str))
        case {"series": [*names]}:
            yield from (Member(name, "group", "above") for name in names if isinstance(name, str))
        case {"bioformats2raw.layout": _}:
            yield Member("OME", "index")
    for holder, member in (("plate", "wells"), ("well", "images")):
        if isinstance(found, dict):
            yield from (Member(path, "group") for path in _iterate_paths(found.get(holder), member))


def _iterate_paths(holder: Any, member: str) -> Iterator[str]:
    members = holder.get(member) if isinstance(holder, dict) else None
    for item in members if isinstance(members, list) else ():
        if isinstance(item, dict) and isinstance(item.get("path"), str):
            yield item["path"]
