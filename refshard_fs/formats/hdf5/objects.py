"""Read all groups and datasets of an HDF5 file; one round reads what a level of the tree needs. No I/O here.

Links to other files are listed. A link back to a group that contains it is reported and not followed.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from refshard_fs.core.keys import MOST_CHARACTERS, join
from refshard_fs.core.model import Steps, run_together
from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf5 import structure
from refshard_fs.formats.hdf5.datatypes import HeapID, heap_ids, parse_datatype
from refshard_fs.formats.hdf5.external import SHOWN, ExternalLink
from refshard_fs.formats.hdf5.file import MetadataFile, UnreadableFile
from refshard_fs.formats.hdf5.filters import parse_pipeline
from refshard_fs.formats.hdf5.heaps import (
    FractalHeap,
    read_collections,
    read_dense_objects,
    read_heap_objects,
    read_local_heap,
    read_shared_heaps,
)
from refshard_fs.formats.hdf5.structure import (
    SMALL,
    Attribute,
    Contiguous,
    Dataspace,
    ExternalFiles,
    ExternalPart,
    HDF5Object,
    Message,
    Order,
    Superblock,
    UnsharedAttribute,
    Virtual,
    parse_attribute,
    parse_dataspace,
    parse_fill,
    parse_layout,
    read_extension,
    read_header,
)
from refshard_fs.formats.hdf5.virtual import parse_mappings

T = TypeVar("T")

PATHS_PER_BYTE: Final = 1 / 8  # paths per byte of the file: many links may lead to one group, so that paths multiply
LEAST_PATHS: Final = 10_000
DEEPEST: Final = 256  # levels of nested groups: each takes rounds of requests
MOST_LOOKS: Final = 1 << 22  # names that are looked up for soft links: some seconds
MOST_HOPS: Final = 32  # soft links in a chain
_OF_GROUPS: Final = (structure.LINK, structure.LINK_INFO, structure.SYMBOL_TABLE)  # messages that only groups have


# Links of groups: in messages, in fractal heaps, or in symbol tables with local heaps.

_GROUP_ENTRY, _SOFT_ENTRY = 1, 2  # cache types in a symbol table entry: a group, a soft link
_MOST_LEVELS: Final = 64  # levels of the B-tree of a symbol table


class Link(NamedTuple):
    """A link to the object at ``address`` or to the path ``target``, in another ``file`` if it has one.

    ``refusal`` says why the link cannot be followed.

    ``order`` is the creation order in its group, if tracked. ``table`` is the address of a group's symbol table, cached
    in the link: it is known before the group's header is read.
    """

    name: str
    address: int | None = None
    target: str | None = None
    refusal: str | None = None
    table: bytes | None = None
    order: int = 0
    file: str | None = None


def read_links(file: MetadataFile, messages: Sequence[Message], group_k: int, leaf_k: int) -> Steps[list[Link]]:
    """Read the links of a group from its header's ``messages``; the k's are the node sizes of old groups."""
    found: list[Link] = []
    for message in messages:
        if message.type == structure.SYMBOL_TABLE:
            found += yield from _read_old_links(file, message, group_k, leaf_k)
        elif message.type == structure.LINK:
            found.append(parse_link(file, message.data))
        elif message.type == structure.LINK_INFO:
            dense = yield from read_dense_objects(file, message.data, "links")
            found += [parse_link(file, data) for _, data in dense]
    return found


def parse_link(file: MetadataFile, data: bytes) -> Link:
    """Parse a link message."""
    fields = file.fields(data)
    version, flags = fields.unpack("BB")
    if version != 1:
        raise ValueError(f"a link of version {version} is not supported: expected 1")
    kind = fields.uint(1) if flags & 8 else 0
    order = fields.uint(8) if flags & 4 else 0
    fields.take(1 if flags & 16 else 0)
    name = fields.take(fields.uint(1 << (flags & 3))).decode("utf-8", "surrogateescape")
    match kind:
        case 0:
            return Link(name, fields.address(), order=order)
        case 1:
            return Link(name, target=fields.take(fields.uint(2)).decode("utf-8", "surrogateescape"), order=order)
        case 64:
            parts = fields.take(fields.uint(2))[1:].split(b"\0")
            if len(parts) < 2:
                raise ValueError(f"the external link {name!r} has no path")
            where, target = (part.decode("utf-8", "surrogateescape") for part in parts[:2])
            return Link(name, target=target, order=order, file=where)
    return Link(name, refusal=f"it is a link of the unknown type {kind}, defined by the program that wrote it")


def read_ahead(file: MetadataFile, table: bytes | None, group_k: int, leaf_k: int) -> Steps[None]:
    """Read a symbol table while the group's header is read: a link cached its address. `read_links` needs it next."""
    if table is not None:
        with contextlib.suppress(ValueError):
            yield from _read_symbol_table(file, table, group_k, leaf_k)


def _read_symbol_table(file: MetadataFile, data: bytes, group_k: int, leaf_k: int) -> Steps[tuple[list[bytes], bytes]]:
    """Read the leaves of a group's B-tree, and the data of its local heap."""
    fields = file.fields(data)
    tree, heap = fields.unpack("PP")
    if tree is None or heap is None:
        raise ValueError("a symbol table has no address of its B-tree or its heap")
    many: list[Steps[Any]] = [_read_symbol_nodes(file, tree, group_k, leaf_k), read_local_heap(file, heap)]
    nodes, segment = yield from run_together(many)
    return nodes, segment


def _read_old_links(file: MetadataFile, message: Message, group_k: int, leaf_k: int) -> Steps[list[Link]]:
    nodes, segment = yield from _read_symbol_table(file, message.data, group_k, leaf_k)
    names = file.fields(segment)
    found: list[Link] = []
    named = 0
    for node in nodes:
        fields = file.fields(node)
        fields.expect(b"SNOD", 1)
        (count,) = fields.unpack("xH")
        for _ in range(count):
            offset, address, kind, table = fields.unpack("NPI4x16s")
            name, target = names.text_at(offset), None
            if kind == _SOFT_ENTRY:
                address, target = None, names.text_at(int.from_bytes(table[:4], "little"))
            found.append(Link(name, address, target, table=table if kind == _GROUP_ENTRY else None))
            named += len(name) + len(target or "")
            if named > len(segment):
                raise ValueError(f"the names in a local heap of {len(segment)} bytes overlap")
    return found


def _read_symbol_nodes(file: MetadataFile, address: int, group_k: int, leaf_k: int) -> Steps[list[bytes]]:
    """Read the leaves of a group's B-tree."""
    sizes = file.sizes
    size = struct.calcsize(sizes.plain(f"8x2P{2 * group_k}P{2 * group_k + 1}N"))
    leaf_size = struct.calcsize(sizes.plain(f"8x{2 * leaf_k * 24}x{2 * leaf_k}N{2 * leaf_k}P"))
    level = [address]
    above: int | None = None
    while above != 0 and level:
        if len(level) * 8 > file.size or len(set(level)) < len(level):
            raise ValueError("a group's B-tree has a loop, or more nodes than the file can hold")
        nodes = yield from run_together([file.peek(at, 24, size, "a node of a group's B-tree") for at in level])
        below: list[int] = []
        for node in nodes:
            fields = file.fields(node)
            fields.expect(b"TREE")
            kind, depth, count = fields.unpack("BBH2P")[:3]
            if kind or depth > _MOST_LEVELS or (above is not None and depth != above - 1):
                raise ValueError(f"a group's B-tree has a node of type {kind}, level {depth} below level {above}")
            below += [child for _, child in [fields.unpack("NP") for _ in range(count)]]
        if None in below:
            raise ValueError("a group's B-tree has a child without an address")
        above, level = depth, below
    return (yield from run_together([file.peek(at, 8, leaf_size, "a node of a symbol table") for at in level]))


def _read_external_files(file: MetadataFile, data: bytes) -> Steps[tuple[ExternalPart, ...]]:
    """Read the parts of a dataset in external files from its message."""
    fields = file.fields(data)
    version, count, heap = fields.unpack("B5xHP")
    if version != 1 or heap is None:
        raise ValueError(f"a message of external files is of version {version}, or has no heap: expected version 1")
    slots = [fields.unpack("3N") for _ in range(count)]
    names = file.fields((yield from read_local_heap(file, heap)))
    return tuple(ExternalPart(names.text_at(name), offset, size) for name, offset, size in slots)


# The tree of objects.


class Tree(NamedTuple):
    """The objects by path (the root's is empty), external links by path, and reasons why other objects are missing."""

    objects: dict[str, HDF5Object]
    external: dict[str, ExternalLink]
    reports: dict[str, str]


def read_tree(file: MetadataFile, superblock: Superblock) -> Steps[tuple[Superblock, Tree]]:
    """Read all objects below the root group, and the superblock's extension."""
    superblock = yield from read_extension(file, superblock)
    table = superblock.shared_messages
    reader = _Reader(file, superblock, {} if table is None else (yield from read_shared_heaps(file, *table)))
    yield from reader.read_all()
    return superblock, reader.build_tree()


def _catch_damage(steps: Steps[T]) -> Steps[T | ValueError]:
    """Run ``steps``. Return their result, or the error that concerns only this object."""
    try:
        return (yield from steps)
    except UnreadableFile:
        raise
    except ValueError as e:
        return e


class _Reader:
    """Reads the objects of one file, each once."""

    def __init__(self, file: MetadataFile, superblock: Superblock, shared: Mapping[int, FractalHeap]) -> None:
        self._file = file
        self._superblock = superblock
        self._shared = shared  # heaps of shared messages, by type
        self._heap: dict[tuple[int, int], bytes] = {}  # objects of the global heap, by (collection, index)
        self._collections: set[int] = set()  # addresses of the collections in `_heap`
        self._reading: list[Steps[None]] = []  # running steps, one for each object
        self._links_read = 0
        self._most = max(LEAST_PATHS, int(file.size * PATHS_PER_BYTE))
        self._looks = 0  # names looked up for soft links
        self._links: dict[int, dict[str, Link]] = {}  # links by object and name
        self._unlisted: dict[int, str] = {}  # reasons why the links of a group cannot be read
        self._found: dict[int, HDF5Object] = {}

    def read_all(self) -> Steps[None]:
        """Read every object at the end of a hard link."""
        self._begin(Link("", self._superblock.root), 0)
        yield from run_together(self._reading)

    def _begin(self, link: Link, depth: int) -> None:
        if depth > DEEPEST:
            raise UnreadableFile(f"its groups are nested more than {DEEPEST} levels deep")
        if link.address is not None and link.address not in self._links:
            self._links[link.address] = {}
            self._reading.append(self._read_and_follow(link.address, depth))
            ks = self._superblock.group_k, self._superblock.group_leaf_k
            self._reading.append(read_ahead(self._file, link.table, *ks))

    def build_tree(self) -> Tree:
        """Return the objects by all paths to them, also through soft links."""
        objects: dict[str, HDF5Object] = {}
        aliases: dict[str, HDF5Object] = {}  # the same objects, by paths through soft links
        reports: dict[str, str] = {}
        external: dict[str, ExternalLink] = {}
        pending: list[tuple[str, tuple[int, ...], bool, Order]] = [("", (self._superblock.root,), False, ())]
        while pending:
            path, way, is_alias, order = pending.pop()  # ``way``: addresses of all objects on the path
            found = msgspec.structs.replace(self._found[way[-1]], path=path, order=order)
            (aliases if is_alias else objects)[path] = found
            if len(objects) + len(aliases) + len(pending) > self._most:
                raise UnreadableFile(f"its links make more than {self._most} paths")
            if way[-1] in self._unlisted:
                reports[path] = f"some of its members cannot be found: {self._unlisted[way[-1]]}"
            for link in self._links[way[-1]].values():
                below = join(path, link.name)
                if len(below) > MOST_CHARACTERS:  # the paths below it are longer still
                    reports[below[:MOST_CHARACTERS]] = f"its path has more than {MOST_CHARACTERS} characters"
                    continue
                address = self._resolve_link(link, way[-1], 0)
                is_soft = link.target is not None
                if link.name in ("", ".", "..") or "/" in link.name:
                    reports[below] = f"a path cannot contain its name {link.name!r}"
                elif link.refusal is not None:
                    reports[below] = link.refusal
                elif isinstance(address, ExternalLink):
                    external[below] = address
                elif address is None:
                    target = (link.target or "")[:SHOWN]
                    to = f"a soft link to {target!r}, where there is no" if is_soft else "a link to no"
                    reports[below] = f"it is {to} object"
                elif address in way:
                    reports[below] = f"it is a {'soft ' * is_soft}link back to a group that contains it"
                else:
                    place = *order, (link.order, link.name)
                    pending.append((below, (*way, address), is_alias or is_soft, place))
        return Tree(aliases | objects, external, reports)  # the last path of a scale gives its dimension the name

    def _resolve_link(self, link: Link, group: int, hops: int) -> int | ExternalLink | None:
        """Return the address of the object at the end of a link in a ``group``; None if there is none."""
        if link.file is not None:
            return ExternalLink(link.file, link.target or "")
        if link.target is None or hops > MOST_HOPS:
            return link.address
        parts = link.target.split("/")
        self._looks += len(parts)
        if self._looks > MOST_LOOKS:
            raise UnreadableFile("its soft links lead to too many further soft links")
        at: int | ExternalLink | None = self._superblock.root if link.target.startswith("/") else group
        for name in parts:
            if isinstance(at, ExternalLink):
                at = at._replace(path=join(at.path.rstrip("/"), name))
            elif at is not None and name not in ("", "."):
                below = self._links[at].get(name)
                at = None if below is None else self._resolve_link(below, at, hops + 1)
        return at

    def _read_and_follow(self, address: int, depth: int) -> Steps[None]:
        """Read an object. As soon as its messages are there, start to read the objects that they point to."""

        def begun(messages: Sequence[Message]) -> None:
            self._reading.append(self._read_links(address, messages, depth))
            for message in messages:
                if message.type == structure.LAYOUT and not message.is_shared:
                    layout = parse_layout(message.data, self._file.sizes)
                    if isinstance(layout, Contiguous) and 0 < layout.size <= SMALL:  # it may be a coordinate
                        self._file.expect(layout.address, layout.size)

        found = yield from _catch_damage(self._read_whole(address, begun))
        if isinstance(found, ValueError):
            if address == self._superblock.root:
                raise found
            found = HDF5Object("", address, False, {}, refusal=f"its object header cannot be read: {found}")
        self._found[address] = found

    def _read_whole(self, address: int, begun: Callable[[list[Message]], None]) -> Steps[HDF5Object]:
        return (yield from self._read_object(address, (yield from read_header(self._file, address, begun))))

    def _read_links(self, address: int, messages: Sequence[Message], depth: int) -> Steps[None]:
        ks = self._superblock.group_k, self._superblock.group_leaf_k
        links = yield from _catch_damage(read_links(self._file, messages, *ks))
        if isinstance(links, ValueError):
            if address == self._superblock.root:
                raise links
            self._unlisted[address] = str(links)
            return
        for link in links:
            self._links_read += 1
            self._links[address][link.name] = link
            self._begin(link, depth + 1)
        if self._links_read > self._most:  # many groups may have the same links
            raise UnreadableFile(f"its links make more than {self._most} paths")

    def _read_object(self, address: int, messages: Sequence[Message]) -> Steps[HDF5Object]:
        contents = yield from self._read_contents(messages)
        raw: list[tuple[int, bytes]] = []
        unread: dict[str, str] = {}
        by_type: dict[int, bytes] = {}
        for message, content in zip(messages, contents, strict=True):
            if message.type == structure.ATTRIBUTE:
                if isinstance(content, ValueError):
                    unread[""] = str(content)
                else:
                    raw.append((message.order, content))
            elif isinstance(content, ValueError):
                raise content
            else:
                by_type[message.type] = content
        if structure.ATTRIBUTE_INFO in by_type:
            dense = yield from _catch_damage(self._read_dense_attributes(by_type[structure.ATTRIBUTE_INFO]))
            if isinstance(dense, ValueError):
                unread[""] = str(dense)
            else:
                raw += dense
        attributes = yield from self._attributes(raw, unread)
        is_group = any(message.type in _OF_GROUPS for message in messages)
        described = HDF5Object("", address, is_group, attributes, unread=unread)
        if is_group:
            return described
        found = yield from self._read_mappings(self._parse_dataset(described, by_type))
        if structure.EXTERNAL_FILES not in by_type or found.refusal is not None:
            return found
        parts = yield from _read_external_files(self._file, by_type[structure.EXTERNAL_FILES])
        return msgspec.structs.replace(found, layout=ExternalFiles(parts))

    def _read_mappings(self, found: HDF5Object) -> Steps[HDF5Object]:
        """Return a dataset; if it is virtual, with its mappings from the global heap."""
        layout = found.layout
        if not isinstance(layout, Virtual) or layout.address is None or found.refusal is not None:
            return found
        yield from self._load_collections({layout.address})
        data = self._heap.get((layout.address, layout.index))
        if data is None:
            raise ValueError(f"the mappings of a virtual dataset are not in the global heap at {layout.address}")
        try:
            sources = parse_mappings(data, self._file.sizes)
        except ManifestError as e:
            return msgspec.structs.replace(found, refusal=f"it is a virtual dataset: {e}")
        return msgspec.structs.replace(found, layout=msgspec.structs.replace(layout, sources=sources))

    def _parse_dataset(self, found: HDF5Object, messages: Mapping[int, bytes]) -> HDF5Object:
        """Return ``found`` with the facts in a dataset's messages."""
        sizes = self._file.sizes
        if structure.DATATYPE not in messages or structure.DATASPACE not in messages:
            if structure.DATATYPE in messages and not messages.keys() & {structure.DATASPACE, structure.LAYOUT}:
                return msgspec.structs.replace(found, is_type=True)
            return msgspec.structs.replace(found, refusal="it is neither a group nor a dataset")
        space = parse_dataspace(messages[structure.DATASPACE], sizes)
        datatype = parse_datatype(messages[structure.DATATYPE])
        layout = parse_layout(messages[structure.LAYOUT], sizes) if structure.LAYOUT in messages else None
        fill: bytes | None = None
        for kind in (structure.OLD_FILL_VALUE, structure.FILL_VALUE):
            if kind in messages:
                fill = parse_fill(messages[kind], sizes, kind)
        refusal: str | None = datatype.refusal
        if layout is None and space.shape is not None:
            refusal = "it has no data layout message"
        filters = parse_pipeline(messages[structure.FILTERS]) if structure.FILTERS in messages else ()
        if space.shape is None:  # a null dataspace: the dataset is shown because of its attributes
            space, layout = Dataspace((0,), (0,)), Contiguous(None, 0)
        how = space.shape, space.maxshape, datatype, layout, filters, fill, refusal, found.unread
        return HDF5Object(found.path, found.address, False, found.attributes, *how)

    def _read_dense_attributes(self, info: bytes) -> Steps[list[tuple[int, bytes]]]:
        dense = yield from read_dense_objects(self._file, info, "attributes", self._shared.get(structure.ATTRIBUTE))
        return [(int.from_bytes(record[9:13], "little"), data) for record, data in dense]

    def _attributes(self, messages: Sequence[tuple[int, bytes]], unread: dict[str, str]) -> Steps[dict[str, Attribute]]:
        """Return attributes by name; the objects in the global heap that they refer to are read together.

        Add to ``unread`` why other attributes cannot be read. Attributes come in their order of creation if the file
        has it, and otherwise by name, as in h5py.
        """
        split: list[tuple[int, UnsharedAttribute]] = []
        for order, data in messages:
            try:
                split.append((order, parse_attribute(data)))
            except ValueError as e:
                unread[""] = str(e)
        parts = [part for _, part in sorted(split, key=lambda p: (p[0], p[1].name))]
        types = yield from self._read_contents([part.datatype for part in parts])
        spaces = yield from self._read_contents([part.dataspace for part in parts])
        found: list[tuple[Attribute, list[HeapID]]] = []
        for part, datatype_data, space_data in zip(parts, types, spaces, strict=True):
            try:
                found.append(self._attribute(part, datatype_data, space_data))
            except ValueError as e:
                unread[part.name] = str(e)
        addresses = list(dict.fromkeys(address for _, ids in found for address, _, _ in ids))
        read = yield from run_together([_catch_damage(self._load_collections({address})) for address in addresses])
        failures = dict(zip(addresses, read, strict=True))
        attributes: dict[str, Attribute] = {}
        for attribute, ids in found:
            lost = next(((at, index) for at, index, size in ids if len(self._heap.get((at, index), b"")) < size), None)
            if lost is not None:
                where = f"object {lost[1]} of the global heap at {lost[0]} is not there, or too short"
                unread[attribute.name] = str(failures[lost[0]] or where)
                continue
            heap = {(at, index): self._heap[at, index] for at, index, _ in ids}
            attributes[attribute.name] = msgspec.structs.replace(attribute, heap=heap) if ids else attribute
        return attributes

    def _attribute(
        self, part: UnsharedAttribute, datatype_data: bytes | ValueError, space_data: bytes | ValueError
    ) -> tuple[Attribute, list[HeapID]]:
        """Parse an attribute, and return where in the global heap its values lie."""
        if isinstance(datatype_data, ValueError):
            raise datatype_data
        if isinstance(space_data, ValueError):
            raise space_data
        datatype, shape = parse_datatype(datatype_data), parse_dataspace(space_data, self._file.sizes).shape
        size = 0 if shape is None else math.prod(shape) * datatype.size
        if size > len(part.raw):
            raise ValueError(f"it has {len(part.raw)} bytes: expected {size} for its elements")
        raw = part.raw[:size]
        ids = heap_ids(datatype, raw)
        return Attribute(part.name, datatype, shape, raw, referred=sum(many for *_, many in ids)), ids

    def _load_collections(self, addresses: set[int]) -> Steps[None]:
        missing = addresses - self._collections
        if missing:
            self._heap |= yield from read_collections(self._file, missing)
            self._collections |= missing

    def _read_contents(self, messages: Sequence[Message]) -> Steps[list[bytes | ValueError]]:
        """Return the contents of messages, also of shared ones, or the error of a message."""
        shared = [place for place, message in enumerate(messages) if message.is_shared]
        found: list[bytes | ValueError] = [message.data for message in messages]
        reads = [_catch_damage(self._read_shared(messages[place])) for place in shared]
        contents = (yield from run_together(reads)) if shared else []
        for place, content in zip(shared, contents, strict=True):
            found[place] = content
        return found

    def _read_shared(self, message: Message) -> Steps[bytes]:
        """Read the content of a shared message."""
        fields = self._file.fields(message.data)
        version, kind = fields.unpack("BB")
        if version == 3 and kind == 1:
            heap = self._shared.get(message.type)
            if heap is None:
                raise ValueError(f"the heap of shared messages of type {message.type:#06x} does not exist")
            (data,) = yield from read_heap_objects(self._file, heap, [fields.take(heap.id_size)])
            return data
        if version == 1:  # it contains a symbol table entry, which begins with the offset of a name
            fields.unpack("6xN")
        elif version not in (2, 3):
            raise ValueError(f"a shared message of version {version} is not supported: expected 1 to 3")
        address = fields.address()
        if address is None:
            raise ValueError("a shared message has no address")
        for other in (yield from read_header(self._file, address)):
            if other.type == message.type and not other.is_shared:
                return other.data
        raise ValueError(f"the object at {address} does not have the shared message of type {message.type:#06x}")
