"""All groups and datasets of an HDF5 file: what one level of the tree needs is read together. No I/O here.

Links are followed within the file only. Those that lead back to a group that they lie in are reported, not followed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from refshard_fs.core.keys import MOST_CHARACTERS, is_within, join, parent
from refshard_fs.core.model import Steps, together
from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf5 import structure
from refshard_fs.formats.hdf5.datatypes import Datatype, HeapID, heap_ids, parse_datatype
from refshard_fs.formats.hdf5.file import MetadataFile, both, verified
from refshard_fs.formats.hdf5.filters import parse_pipeline
from refshard_fs.formats.hdf5.groups import Link, is_group, read_ahead, read_links
from refshard_fs.formats.hdf5.heaps import (
    FractalHeap,
    heap_objects,
    parse_collection,
    read_collection,
    read_dense,
    read_fractal_heap,
)
from refshard_fs.formats.hdf5.structure import (
    SMALL,
    Attribute,
    Contiguous,
    HDF5Object,
    Layout,
    Message,
    Superblock,
    Virtual,
    parse_attribute,
    parse_dataspace,
    parse_fill,
    parse_layout,
    read_extension,
    read_header,
    read_rest,
    read_start,
)
from refshard_fs.formats.hdf5.virtual import parse_mappings

PATHS_PER_BYTE: Final = 1 / 8  # of the file: many links may lead to one group, but a file of so many would be a bomb
LEAST_PATHS: Final = 10_000
DEEPEST: Final = 256  # groups in groups: each depth takes rounds of requests
MOST_LOOKS: Final = 1 << 26  # at paths, while soft links are followed: some seconds
MOST_TARGETS: Final = 32  # soft links that lead to soft links, one after the other


class Tree(NamedTuple):
    """All objects by path, the root's empty; and why others are not among them."""

    objects: Mapping[str, HDF5Object]
    reports: Mapping[str, str]


class _Node(NamedTuple):
    """An object as its header tells."""

    messages: list[Message]
    links: list[Link]
    is_group: bool
    layout: Layout | None  # if the header's first block has it


def read_tree(file: MetadataFile, superblock: Superblock) -> Steps[tuple[Superblock, Tree]]:
    """Return all objects below the root group, and the superblock with what its extension says."""
    superblock, shared = yield from read_extension(file, superblock)
    reader = _Reader(file, superblock, shared)
    yield from reader.read_all()
    return superblock, reader.tree()


class _Reader:
    """Reads the objects of one file, each once."""

    def __init__(self, file: MetadataFile, superblock: Superblock, shared: bytes | None) -> None:
        self._file = file
        self._superblock = superblock
        self._shared = shared
        self._shared_heaps: list[tuple[int, int]] = []  # flags of message types, and the address of their heap
        self._tables: dict[int, FractalHeap] = {}  # of the heaps of shared messages, by their address
        self._collections: dict[int, dict[int, bytes]] = {}
        self._reading: list[Steps[None]] = []  # of each object that is begun, by its address
        self._begun: set[int] = set()
        self._links_read = 0
        self._most = max(LEAST_PATHS, int(file.size * PATHS_PER_BYTE))
        self._nodes: dict[int, _Node] = {}
        self._found: dict[int, HDF5Object] = {}

    def read_all(self) -> Steps[None]:
        """Read every object that hard links lead to."""
        if self._shared is not None:
            self._shared_heaps = yield from _read_shared_heaps(self._file, self._shared)
        self._begin(Link("", self._superblock.root), 0)
        yield from together(self._reading)

    def _begin(self, link: Link, depth: int) -> None:
        if depth > DEEPEST:
            raise ManifestError(f"its groups lie more than {DEEPEST} deep in one another")
        if link.address is not None and link.address not in self._begun:
            self._begun.add(link.address)
            self._reading.append(self._read(link.address, depth))
            ks = self._superblock.group_k, self._superblock.group_leaf_k
            self._reading.append(read_ahead(self._file, link.table, *ks))

    def tree(self) -> Tree:
        """Return the objects by their paths."""
        objects: dict[str, HDF5Object] = {}
        reports: dict[str, str] = {}
        soft: dict[str, str] = {}
        most = self._most
        pending: list[tuple[str, int, tuple[int, ...]]] = [("", self._superblock.root, (self._superblock.root,))]
        while pending:
            path, address, above = pending.pop()
            objects[path] = msgspec.structs.replace(self._found[address], path=path)
            if len(objects) + len(pending) > most:
                raise ManifestError(f"its links make more than {most} paths")
            for link in self._nodes[address].links:
                below = join(path, link.name)
                if len(below) > MOST_CHARACTERS:  # nor can what lies in it
                    reports[below[:MOST_CHARACTERS]] = f"its path has more than {MOST_CHARACTERS} characters"
                elif link.name in ("", ".", "..") or "/" in link.name:
                    reports[below] = f"its name {link.name!r} cannot be part of a path"
                elif link.refusal is not None:
                    reports[below] = link.refusal
                elif link.target is not None:
                    soft[below] = link.target
                elif link.address is None:
                    reports[below] = "it is a link to no object"
                elif link.address in above:
                    reports[below] = "it is a link back to a group that it lies in"
                else:
                    pending.append((below, link.address, (*above, link.address)))
        _follow(soft, objects, reports, most)
        return Tree(objects, reports)

    # ------------------------------------------------------------------ headers

    def _read(self, address: int, depth: int) -> Steps[None]:
        """Read an object, and have those that it links to read meanwhile."""
        start = yield from read_start(self._file, address)
        layout = self._layout(start.messages)
        rest, links = yield from both(read_rest(self._file, start), self._links(start.messages))
        links += yield from self._links(rest)
        self._links_read += len(links)
        if self._links_read > self._most:  # many groups may have the same links
            raise ManifestError(f"its links make more than {self._most} paths")
        messages = start.messages + rest
        self._nodes[address] = _Node(messages, links, is_group(messages), layout)
        for link in links:
            self._begin(link, depth + 1)
        yield from self._read_object(address)

    def _links(self, messages: Sequence[Message]) -> Steps[list[Link]]:
        return read_links(self._file, messages, self._superblock.group_k, self._superblock.group_leaf_k)

    def _layout(self, messages: Sequence[Message]) -> Layout | None:
        """Return the layout that ``messages`` say.

        Values of what may be a small coordinate are read together with its attributes: `prepare` asks for them.
        """
        for message in messages:
            if message.type == structure.LAYOUT and not message.is_shared:
                layout = parse_layout(message.data, self._file.sizes)
                if isinstance(layout, Contiguous) and 0 < layout.size <= SMALL:
                    self._file.expect(layout.address, layout.size)
                return layout
        return None

    def _read_object(self, address: int) -> Steps[None]:
        node = self._nodes[address]
        contents = yield from self._contents(node.messages)
        by_type: dict[int, bytes] = {}
        raw: list[tuple[int, bytes]] = []
        for message, content in zip(node.messages, contents, strict=True):
            if message.type == structure.ATTRIBUTE:
                raw.append((message.order, content))
            else:
                by_type[message.type] = content
        if structure.ATTRIBUTE_INFO in by_type:
            raw += yield from self._dense_attributes(by_type[structure.ATTRIBUTE_INFO])
        attributes = yield from self._attributes(raw)
        described = HDF5Object("", address, node.is_group, attributes)
        if not node.is_group:
            described = yield from self._with_sources(self._dataset(described, by_type, node.layout))
        self._found[address] = described

    def _with_sources(self, found: HDF5Object) -> Steps[HDF5Object]:
        """Return a dataset; a virtual one has the mappings that the global heap says."""
        layout = found.layout
        if not isinstance(layout, Virtual) or layout.address is None or found.refusal is not None:
            return found
        yield from self._load_collections([layout.address])
        data = self._collections[layout.address].get(layout.index)
        if data is None:
            raise ValueError(f"the mappings of a virtual dataset are not in the global heap at {layout.address}")
        try:
            sources = parse_mappings(data, self._file.sizes)
        except ManifestError as e:
            return msgspec.structs.replace(found, refusal=f"it is a virtual dataset: {e}")
        return msgspec.structs.replace(found, layout=msgspec.structs.replace(layout, sources=sources))

    def _dataset(self, found: HDF5Object, messages: Mapping[int, bytes], layout: Layout | None) -> HDF5Object:
        """Return ``found`` with what a dataset's messages say."""
        sizes = self._file.sizes
        if structure.DATATYPE not in messages or structure.DATASPACE not in messages:
            refusal: str | None = "it is neither a group nor a dataset"
            if structure.DATATYPE in messages:
                refusal = "it is a datatype that others share, and no dataset"
            return msgspec.structs.replace(found, refusal=refusal)
        space = parse_dataspace(messages[structure.DATASPACE], sizes)
        datatype = parse_datatype(messages[structure.DATATYPE])
        fill: bytes | None = None
        for kind in (structure.OLD_FILL_VALUE, structure.FILL_VALUE):
            if kind in messages:
                fill = parse_fill(messages[kind], sizes, kind)
        if layout is None and structure.LAYOUT in messages:
            layout = parse_layout(messages[structure.LAYOUT], sizes)
        refusal = datatype.refusal
        if structure.EXTERNAL_FILES in messages:
            refusal = "its values lie in external files, which are never opened"
        elif layout is None:
            refusal = "it has no data layout"
        filters = parse_pipeline(messages[structure.FILTERS]) if structure.FILTERS in messages else ()
        return msgspec.structs.replace(
            found,
            shape=space.shape,
            maxshape=space.maxshape,
            datatype=datatype,
            layout=layout,
            filters=filters,
            fill=fill,
            refusal=refusal,
        )

    # ------------------------------------------------------------------ attributes

    def _dense_attributes(self, info: bytes) -> Steps[list[tuple[int, bytes]]]:
        dense = yield from read_dense(self._file, info, 2)
        if dense is None:  # they are messages
            return []
        heap, records = dense
        found: list[bytes] = [b""] * len(records)
        ids: dict[int, bytes] = {}
        shared: dict[int, bytes] = {}
        if any(len(record) < 9 for record in records):
            raise ValueError("the B-tree of an object's attributes has no records of attributes")
        for place, record in enumerate(records):
            if record[8] & 2:  # the heap of shared messages has it
                shared[place] = record[:8]
            else:
                ids[place] = record[:8]
        objects = yield from heap_objects(self._file, heap, list(ids.values()))
        for place, data in zip(ids, objects, strict=True):
            found[place] = data
        if shared:
            others = yield from together([self._from_table(structure.ATTRIBUTE, raw) for raw in shared.values()])
            for place, data in zip(shared, others, strict=True):
                found[place] = data
        orders = [int.from_bytes(record[9:13], "little") for record in records]
        return list(zip(orders, found, strict=True))

    def _attributes(self, messages: Sequence[tuple[int, bytes]]) -> Steps[dict[str, Attribute]]:
        """Return attributes by their names; what they refer to in the global heap is read together.

        They come in the order in which they were made, where the file tells it, and else by name: as h5py has them.
        """
        ordered = sorted([(order, parse_attribute(data)) for order, data in messages], key=lambda p: (p[0], p[1].name))
        parts = [part for _, part in ordered]
        contents = yield from self._contents([part.datatype for part in parts] + [part.dataspace for part in parts])
        found: list[tuple[str, Datatype, tuple[int, ...] | None, bytes, list[HeapID]]] = []
        for part, datatype_data, space_data in zip(parts, contents[: len(parts)], contents[len(parts) :], strict=True):
            datatype, shape = parse_datatype(datatype_data), parse_dataspace(space_data, self._file.sizes).shape
            size = 0 if shape is None else math.prod(shape) * datatype.size
            if size > len(part.raw):
                raise ValueError(f"the attribute {part.name!r} has {len(part.raw)} bytes of {size}")
            raw = part.raw[:size]
            found.append((part.name, datatype, shape, raw, heap_ids(datatype, raw)))
        yield from self._load_collections(sorted({address for *_, ids in found for address, _, _ in ids}))
        attributes: dict[str, Attribute] = {}
        for name, datatype, shape, raw, ids in found:
            heap = {(at, index): self._collections[at].get(index) for at, index, _ in ids}
            there = {place: data for place, data in heap.items() if data is not None}
            attributes[name] = Attribute(name, datatype, shape, raw, there, sum([length for _, _, length in ids]))
        return attributes

    def _load_collections(self, addresses: Sequence[int]) -> Steps[None]:
        missing = [address for address in addresses if address not in self._collections]
        if not missing:
            return
        found = yield from together([read_collection(self._file, address) for address in missing])
        for address, data in zip(missing, found, strict=True):
            if address not in self._collections:  # for another attribute that asked in the same round
                self._collections[address] = parse_collection(data, self._file.sizes)

    # ------------------------------------------------------------------ messages that are shared

    def _contents(self, messages: Sequence[Message]) -> Steps[list[bytes]]:
        """Return the contents of messages, wherever they lie."""
        shared = [place for place, message in enumerate(messages) if message.is_shared]
        found = [message.data for message in messages]
        contents = (yield from together([self._content(messages[place]) for place in shared])) if shared else []
        for place, content in zip(shared, contents, strict=True):
            found[place] = content
        return found

    def _content(self, message: Message) -> Steps[bytes]:
        """Return the content of a message that is shared."""
        fields = self._file.fields(message.data)
        version, kind = fields.uint(1), fields.uint(1)
        if version == 3 and kind == 1:
            return (yield from self._from_table(message.type, fields.take(8)))
        if version == 1:
            fields.take(6)
        elif version not in (2, 3):
            raise ValueError(f"a shared message of version {version}; versions 1 to 3 are known")
        address = fields.address()
        if address is None:
            raise ValueError("a shared message lies nowhere")
        for other in (yield from read_header(self._file, address)):
            if other.type == message.type and not other.is_shared:
                return other.data
        raise ValueError(
            f"the object at {address} does not have the message of type {message.type:#06x} that it shares"
        )

    def _from_table(self, kind: int, raw: bytes) -> Steps[bytes]:
        """Return the message of a type whose id in the heap of shared messages is ``raw``."""
        address = next((heap for flags, heap in self._shared_heaps if flags >> kind & 1), None)
        if address is None:
            raise ValueError(f"the file has no table of shared messages of type {kind:#06x}")
        if address not in self._tables:
            self._tables[address] = yield from read_fractal_heap(self._file, address)
        (found,) = yield from heap_objects(self._file, self._tables[address], [raw])
        return found


def _read_shared_heaps(file: MetadataFile, message: bytes) -> Steps[list[tuple[int, int]]]:
    """Return what the table of shared messages says: flags of the types that an index has, and its heap."""
    fields = file.fields(message)
    fields.take(1)
    address, indexes = fields.address(), fields.uint(1)
    if address is None:
        return []
    what = "the table of shared messages"
    size = 8 + indexes * (14 + 2 * file.sizes.address)
    data = yield from file.read(address, size, what)
    fields = file.fields(verified(data, what))
    fields.expect(b"SMTB")
    found: list[tuple[int, int]] = []
    for _ in range(indexes):
        fields.take(2)
        flags = fields.uint(2)
        fields.take(10)
        fields.address()
        heap = fields.address()
        if heap is not None:
            found.append((flags, heap))
    return found


# ----------------------------------------------------------------------------------------------------
# Soft links: paths in the same file.


def _follow(soft: dict[str, str], objects: dict[str, HDF5Object], reports: dict[str, str], most: int) -> None:
    """Add to ``objects`` what soft links lead to, by the paths that they make; and to ``reports`` those that fail."""
    looks = 0
    targets = {path: _absolute(parent(path)[0], target) for path, target in soft.items()}
    for _ in range(MOST_TARGETS):
        ready = [path for path, target in targets.items() if target in objects]
        if not ready:
            break
        for path in ready:
            target = targets.pop(path)
            if is_within(path, target):
                reports[path] = "it is a soft link back to a group that it lies in"
                continue
            if not objects[target].is_group:
                objects[path] = msgspec.structs.replace(objects[target], path=path)
                continue
            looks += len(objects) + len(targets)
            if looks > MOST_LOOKS:
                raise ManifestError(f"its {len(soft)} soft links lead to too many groups")
            stem = len(target) + 1 if target else 0
            for other in [target, *_below(objects, target)]:
                under = join(path, other[stem:]) if other != target else path
                if len(under) > MOST_CHARACTERS:
                    reports[under[:MOST_CHARACTERS]] = f"its path has more than {MOST_CHARACTERS} characters"
                    continue
                objects[under] = msgspec.structs.replace(objects[other], path=under)
            for other in _below(targets, target):
                if len(path) + len(other) - stem < MOST_CHARACTERS:
                    targets[join(path, other[stem:])] = targets[other]
            if len(objects) + len(targets) > most:
                raise ManifestError(f"its links make more than {most} paths")
    for path, target in targets.items():
        reports[path] = f"it is a soft link to {target!r}, where there is no object"


def _below(paths: Mapping[str, object], target: str) -> list[str]:
    stem = target + "/" if target else ""
    return [path for path in paths if path != target and path.startswith(stem)]


def _absolute(group: str, target: str) -> str:
    """Return the normal path that ``target`` is, seen from ``group``."""
    parts = [part for part in target.split("/") if part not in ("", ".")]
    return join("" if target.startswith("/") else group, "/".join(parts))
