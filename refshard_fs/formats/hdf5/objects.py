"""Read the groups and datasets of an HDF5 file, level by level: the objects of a level in the same rounds. No I/O here.

Links to other files are listed. A link back to a group that contains it is reported and not followed.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from refshard_fs.core.keys import MOST_CHARACTERS, join
from refshard_fs.core.model import Steps, run_together
from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf5 import structure
from refshard_fs.formats.hdf5.datatypes import HeapID, decode_references, list_heap_ids, parse_datatype
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
    ContiguousLayout,
    Dataspace,
    ExternalFiles,
    ExternalPart,
    HDF5Object,
    Message,
    Order,
    Superblock,
    UnsharedAttribute,
    VirtualLayout,
    parse_attribute,
    parse_dataspace,
    parse_fill,
    parse_layout,
    read_extension,
    read_header,
)
from refshard_fs.formats.hdf5.virtual import parse_mappings

T = TypeVar("T")

# The most paths for each byte of the file: many links may lead to one group, so that paths multiply.
PATHS_PER_BYTE: Final = 1 / 8
LEAST_PATHS: Final = 10_000  # the most paths in a small file
MOST_LEVELS: Final = 256  # levels of nested groups: reading a level takes rounds of requests
MOST_NAME_LOOKUPS: Final = 1 << 22  # names that are looked up for all soft links: so many take some seconds
MOST_HOPS: Final = 32  # soft links in a chain
_GROUP_MESSAGES: Final = (structure.LINK, structure.LINK_INFO, structure.SYMBOL_TABLE)  # only groups have these
NOTHING_BELOW: Final = ("",)  # names with which no link is followed: the name of a link is not empty


# Links of groups: in messages, in fractal heaps, or in symbol tables with local heaps.

_GROUP_ENTRY, _SOFT_ENTRY = 1, 2  # cache types in a symbol table entry: a group, a soft link
_MOST_TREE_LEVELS: Final = 64  # levels of the B-tree of a symbol table


class Link(NamedTuple):
    """A link to the object at ``address``, to a path ``target`` (soft), or to ``target`` in ``file`` (external).

    ``refusal`` says why the link cannot be followed. ``order`` is the link's creation order in its group; 0 if not
    tracked. ``table`` are the addresses of the symbol table of the group to which an old link leads: so they are known
    before this group's header is read.
    """

    name: str
    address: int | None = None
    target: str | None = None
    refusal: str | None = None
    table: bytes | None = None
    order: int = 0
    file: str | None = None


def read_links(file: MetadataFile, messages: Sequence[Message], group_k: int, leaf_k: int) -> Steps[list[Link]]:
    """Read the links of a group from the ``messages`` of its header.

    The superblock says ``group_k`` and ``leaf_k``, half of the most entries in a node of an old group's B-tree and in a
    leaf.
    """
    links: list[Link] = []
    for message in messages:
        if message.type == structure.SYMBOL_TABLE:
            links += yield from _read_old_links(file, message, group_k, leaf_k)
        elif message.type == structure.LINK:
            links.append(parse_link(file, message.data))
        elif message.type == structure.LINK_INFO:
            dense = yield from read_dense_objects(file, message.data, "links")
            links += [parse_link(file, data) for _, data in dense]
    return links


def parse_link(file: MetadataFile, data: bytes) -> Link:
    """Parse a link message. Raise ValueError if it is damaged."""
    fields = file.make_fields(data)
    version, flags = fields.unpack("BB")
    if version != 1:
        raise ValueError(f"a link of version {version} is not supported: expected 1")
    kind = fields.read_uint(1) if flags & 8 else 0
    order = fields.read_uint(8) if flags & 4 else 0
    fields.take(1 if flags & 16 else 0)
    name = fields.take(fields.read_uint(1 << (flags & 3))).decode("utf-8", "surrogateescape")
    match kind:
        case 0:
            return Link(name, fields.read_address(), order=order)
        case 1:
            return Link(name, target=fields.take(fields.read_uint(2)).decode("utf-8", "surrogateescape"), order=order)
        case 64:
            texts = fields.take(fields.read_uint(2))[1:].split(b"\0")
            if len(texts) < 2:
                raise ValueError(f"the external link {name!r}: expected a file name and a path, found only {texts!r}")
            file_name, target = (text.decode("utf-8", "surrogateescape") for text in texts[:2])
            return Link(name, target=target, order=order, file=file_name)
    return Link(name, refusal=f"it is a link of the unknown type {kind}: expected a hard, soft or external link")


def read_table_ahead(file: MetadataFile, table: bytes | None, group_k: int, leaf_k: int) -> Steps[None]:
    """Read a group's symbol table into memory, so that `read_links` need not wait for it after the group's header.

    ``table`` has the addresses of the table's B-tree and heap, from the link to the group; None if the link has none.
    Errors are left to `read_links`.
    """
    if table is not None:
        with contextlib.suppress(ValueError):
            yield from _read_symbol_table(file, table, group_k, leaf_k)


def _read_symbol_table(file: MetadataFile, data: bytes, group_k: int, leaf_k: int) -> Steps[tuple[list[bytes], bytes]]:
    """Read the symbol table at the addresses in ``data``: the leaves of its B-tree, and the data of its local heap."""
    fields = file.make_fields(data)
    tree, heap = fields.unpack("PP")
    if tree is None or heap is None:
        found = "B-tree" if tree is None else "heap"
        raise ValueError(f"a symbol table has no address of its {found}: expected addresses of a B-tree and a heap")
    reads: list[Steps[Any]] = [_read_symbol_nodes(file, tree, group_k, leaf_k), read_local_heap(file, heap)]
    nodes, segment = yield from run_together(reads)
    return nodes, segment


def _read_old_links(file: MetadataFile, message: Message, group_k: int, leaf_k: int) -> Steps[list[Link]]:
    nodes, segment = yield from _read_symbol_table(file, message.data, group_k, leaf_k)
    names = file.make_fields(segment)
    links: list[Link] = []
    name_length = 0
    for node in nodes:
        fields = file.make_fields(node)
        fields.expect(b"SNOD", 1)
        (count,) = fields.unpack("xH")
        for _ in range(count):
            offset, address, kind, table = fields.unpack("NPI4x16s")
            name, target = names.read_text_at(offset), None
            if kind == _SOFT_ENTRY:
                address, target = None, names.read_text_at(int.from_bytes(table[:4], "little"))
            links.append(Link(name, address, target, table=table if kind == _GROUP_ENTRY else None))
            name_length += len(name) + len(target or "")
            if name_length > len(segment):
                found = f"the names in a local heap have {name_length} bytes or more, so some overlap"
                raise ValueError(f"{found}: expected at most {len(segment)}, the size of the heap")
    return links


def _read_symbol_nodes(file: MetadataFile, address: int, group_k: int, leaf_k: int) -> Steps[list[bytes]]:
    """Read the leaves of a group's B-tree."""
    sizes = file.sizes
    size = struct.calcsize(sizes.convert_to_struct_format(f"8x2P{2 * group_k}P{2 * group_k + 1}N"))
    leaf_size = struct.calcsize(sizes.convert_to_struct_format(f"8x{2 * leaf_k * 24}x{2 * leaf_k}N{2 * leaf_k}P"))
    level = [address]
    parent_level: int | None = None
    while parent_level != 0 and level:
        if len(level) * 8 > file.size:
            raise ValueError(f"a group's B-tree has {len(level)} nodes: expected at most {file.size // 8} in the file")
        if len(set(level)) < len(level):
            twice = next(at for at in level if level.count(at) > 1)
            raise ValueError(f"a group's B-tree points twice to the node at {twice}: expected different nodes")
        nodes = yield from run_together([file.read_up_to(at, 24, size, "a node of a group's B-tree") for at in level])
        next_level: list[int] = []
        for node in nodes:
            fields = file.make_fields(node)
            fields.expect(b"TREE")
            kind, depth, count = fields.unpack("BBH2P")[:3]
            if kind or depth > _MOST_TREE_LEVELS or (parent_level is not None and depth != parent_level - 1):
                limit = f"up to {_MOST_TREE_LEVELS}" if parent_level is None else parent_level - 1
                raise ValueError(
                    f"a group's B-tree has a node of type {kind} and level {depth}: expected type 0 and level {limit}"
                )
            next_level += [child for _, child in [fields.unpack("NP") for _ in range(count)]]
        if None in next_level:
            raise ValueError("a group's B-tree has a child without an address: expected one for each child")
        parent_level, level = depth, next_level
    return (yield from run_together([file.read_up_to(at, 8, leaf_size, "a node of a symbol table") for at in level]))


def _read_external_files(file: MetadataFile, data: bytes) -> Steps[tuple[ExternalPart, ...]]:
    """Parse a message of external files, and read the file names in its heap. Return the parts of the dataset."""
    fields = file.make_fields(data)
    version, count, heap = fields.unpack("B5xHP")
    if version != 1:
        raise ValueError(f"a message of external files is of version {version}: expected 1")
    if heap is None:
        raise ValueError("a message of external files: expected the address of a heap of file names, found none")
    slots = [fields.unpack("3N") for _ in range(count)]
    names = file.make_fields((yield from read_local_heap(file, heap)))
    return tuple(ExternalPart(names.read_text_at(name), offset, size) for name, offset, size in slots)


# The tree of objects.


class Tree(NamedTuple):
    """The objects and the external links of a file by path; the root's path is empty.

    ``reports`` says, by path, why an object is not shown, or some of its members are not.
    """

    objects: dict[str, HDF5Object]
    external: dict[str, ExternalLink]
    reports: dict[str, str]


def read_tree(
    file: MetadataFile,
    superblock: Superblock,
    group: str = "",
    is_self_contained: Callable[..., bool] = lambda objects, group, *, has_all_above: True,
) -> Steps[tuple[Superblock, Tree]]:
    """Read the superblock's extension, and all objects below the root group.

    With ``group``, few objects outside of it are read at first: the groups above it, and the dimension scales in them;
    then all objects directly in the groups above it. ``is_self_contained(objects, group, has_all_above=...)`` returns
    whether the group needs no others; if it needs others, all objects are read.
    """
    superblock = yield from read_extension(file, superblock)
    table = superblock.shared_messages
    reader = _Reader(file, superblock, {} if table is None else (yield from read_shared_heaps(file, *table)))
    yield from reader.read_group(group.split("/") if group else [])
    for has_all_above in (False, True):
        if reader.has_links or not reader.has_unread:
            break
        chosen = None if has_all_above else set(list_scales(reader.build_tree().objects.values()))
        yield from reader.read_skipped(chosen, NOTHING_BELOW)
        if not reader.has_links:
            tree = reader.build_tree()
            if is_self_contained(tree.objects, group, has_all_above=has_all_above):
                return superblock, tree
    yield from reader.read_skipped(None, ())
    return superblock, reader.build_tree()


def list_scales(objects: Iterable[HDF5Object]) -> Iterator[int]:
    """Yield the addresses of the dimension scales that ``objects`` refer to."""
    for hdf5_object in objects:
        attribute = hdf5_object.attributes.get("DIMENSION_LIST")
        if attribute is not None:
            for addresses in decode_references(attribute.datatype, attribute.raw, attribute.heap):
                yield from addresses


def _catch_damage(steps: Steps[T]) -> Steps[T | ValueError]:
    """Run ``steps``. Return their result, or their ValueError, which concerns one object and not the whole file."""
    try:
        return (yield from steps)
    except UnreadableFile:
        raise
    except ValueError as e:
        return e


class _Reader:
    """A reader of the objects of one file, which reads each object once."""

    def __init__(self, file: MetadataFile, superblock: Superblock, shared: Mapping[int, FractalHeap]) -> None:
        self._file = file
        self._superblock = superblock
        self._shared = shared  # heaps of shared messages, by type
        self._heap: dict[tuple[int, int], bytes] = {}  # objects of the global heap, by (collection, index)
        self._collections: set[int] = set()  # addresses of the collections in `_heap`
        self._reading: list[Steps[None]] = []  # steps that read objects, links and tables; running steps add more
        self._links_read = 0
        self._most_paths = max(LEAST_PATHS, int(file.size * PATHS_PER_BYTE))
        self._name_lookups = 0  # names that were looked up for soft links
        self._links: dict[int, dict[str, Link]] = {}  # by address of a group: its links by name
        self._unlisted: dict[int, str] = {}  # reasons why the links of a group cannot be read
        self._objects: dict[int, HDF5Object] = {}
        # Links that were not followed, by the address of their group and by name; and the depth of their targets.
        self._skipped: dict[tuple[int, str], tuple[Link, int]] = {}
        self.has_links = False  # whether a group that was read whole has links to paths

    @property
    def has_unread(self) -> bool:
        """Whether there are objects that were not read."""
        return bool(self._skipped)

    def read_group(self, names: Sequence[str]) -> Steps[None]:
        """Read the groups along the path of ``names``, and below the last one all objects to which hard links lead."""
        self._begin_reading(Link("", self._superblock.root), 0, names)
        yield from run_together(self._reading)

    def read_skipped(self, chosen: Container[int] | None, names: Sequence[str]) -> Steps[None]:
        """Read skipped objects: those at the addresses ``chosen``, or all of them if ``chosen`` is None.

        If a skipped object is a group, follow only its link ``names[0]``; follow all its links if ``names`` is empty.
        """
        self._reading = []
        for place, (link, depth) in list(self._skipped.items()):
            if chosen is None and names and link.address is None:
                self.has_links = True
            elif chosen is None or link.address in chosen:
                del self._skipped[place]
                self._begin_reading(link, depth, names)
        yield from run_together(self._reading)

    def _begin_reading(self, link: Link, depth: int, names: Sequence[str] = ()) -> None:
        if depth > MOST_LEVELS:
            raise UnreadableFile(f"its groups are nested too deeply: expected at most {MOST_LEVELS} levels")
        if link.address is not None and link.address not in self._links:
            self._links[link.address] = {}
            self._reading.append(self._read_and_follow(link.address, depth, names))
            ks = self._superblock.group_k, self._superblock.group_leaf_k
            self._reading.append(read_table_ahead(self._file, link.table, *ks))

    def build_tree(self) -> Tree:
        """Return the objects by all paths to them, including paths through soft links."""
        objects: dict[str, HDF5Object] = {}
        aliases: dict[str, HDF5Object] = {}  # the same objects, by paths through soft links
        reports: dict[str, str] = {}
        external: dict[str, ExternalLink] = {}
        pending: list[tuple[str, tuple[int, ...], bool, Order]] = [("", (self._superblock.root,), False, ())]
        while pending:
            path, addresses, is_alias, order = pending.pop()  # ``addresses``: of all objects on the path
            hdf5_object = msgspec.structs.replace(self._objects[addresses[-1]], path=path, order=order)
            (aliases if is_alias else objects)[path] = hdf5_object
            if len(objects) + len(aliases) + len(pending) > self._most_paths:
                total = len(objects) + len(aliases) + len(pending)
                raise UnreadableFile(f"its links make {total} paths or more: expected at most {self._most_paths}")
            if addresses[-1] in self._unlisted:
                reports[path] = f"some of its members cannot be found: {self._unlisted[addresses[-1]]}"
            for link in self._links[addresses[-1]].values():
                if (addresses[-1], link.name) in self._skipped:
                    continue
                link_path = join(path, link.name)
                if len(link_path) > MOST_CHARACTERS:  # the paths below it are longer still
                    reason = f"its path has {len(link_path)} characters: expected at most {MOST_CHARACTERS}"
                    reports[link_path[:MOST_CHARACTERS]] = reason
                    continue
                address = self._resolve_link(link, addresses[-1], 0)
                is_soft = link.target is not None
                if link.name in ("", ".", "..") or "/" in link.name:
                    expected = "expected a name that is not '', '.' or '..', and without '/'"
                    reports[link_path] = f"the name of its link is {link.name!r}: {expected}"
                elif link.refusal is not None:
                    reports[link_path] = link.refusal
                elif isinstance(address, ExternalLink):
                    external[link_path] = address
                elif address is None:
                    target = (link.target or "")[:SHOWN]
                    expected = "expected an object there, and no loop of links"
                    missing = f"it is a soft link to {target!r}: {expected}"
                    reports[link_path] = missing if is_soft else "it is a hard link without an address: expected one"
                elif address in addresses:
                    found = f"it is a {'soft ' * is_soft}link back to a group that contains it"
                    reports[link_path] = f"{found}: its members are shown once, in that group"
                else:
                    link_order = *order, (link.order, link.name)
                    pending.append((link_path, (*addresses, address), is_alias or is_soft, link_order))
        # `netcdf4` names a dimension by the last path of its scale: paths through soft links come first.
        return Tree(aliases | objects, external, reports)

    def _resolve_link(self, link: Link, group: int, hops: int) -> int | ExternalLink | None:
        """Return the address of the object to which a link in ``group`` leads; None if there is no object.

        The result is an ExternalLink if the link, or a link on its path, leads to another file.
        """
        if link.file is not None:
            return ExternalLink(link.file, link.target or "")
        if link.target is None or hops > MOST_HOPS:
            return link.address
        names = link.target.split("/")
        self._name_lookups += len(names)
        if self._name_lookups > MOST_NAME_LOOKUPS:
            found = f"its soft links have {self._name_lookups} names or more in their paths"
            raise UnreadableFile(f"{found}: expected at most {MOST_NAME_LOOKUPS}")
        place: int | ExternalLink | None = self._superblock.root if link.target.startswith("/") else group
        for name in names:
            if isinstance(place, ExternalLink):
                place = place._replace(path=join(place.path.rstrip("/"), name))
            elif place is not None and name not in ("", "."):
                link_below = self._links[place].get(name)
                place = None if link_below is None else self._resolve_link(link_below, place, hops + 1)
        return place

    def _read_and_follow(self, address: int, depth: int, names: Sequence[str]) -> Steps[None]:
        """Read an object. As soon as the messages of a round are read, begin to read the objects that they point to."""

        def start_reading(messages: Sequence[Message]) -> None:
            self._reading.append(self._read_links(address, messages, depth, names))
            for message in messages:
                if message.type == structure.LAYOUT and not message.is_shared:
                    layout = parse_layout(message.data, self._file.sizes)
                    if isinstance(layout, ContiguousLayout) and 0 < layout.size <= SMALL:  # it may be a coordinate
                        self._file.prefetch(layout.address, layout.size)

        hdf5_object = yield from _catch_damage(self._read_whole(address, start_reading))
        if isinstance(hdf5_object, ValueError):
            if address == self._superblock.root:
                raise hdf5_object
            hdf5_object = HDF5Object("", address, False, {}, refusal=f"its object header cannot be read: {hdf5_object}")
        self._objects[address] = hdf5_object

    def _read_whole(self, address: int, on_messages: Callable[[list[Message]], None]) -> Steps[HDF5Object]:
        return (yield from self._read_object(address, (yield from read_header(self._file, address, on_messages))))

    def _read_links(self, address: int, messages: Sequence[Message], depth: int, names: Sequence[str]) -> Steps[None]:
        """Read the links of a group, and begin to read the linked objects.

        If ``names``, the path of an object below the group, is not empty, only the link ``names[0]`` is followed.
        """
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
            if names and (link.name != names[0] or link.address is None):
                self._skipped[address, link.name] = link, depth + 1
                continue
            self.has_links |= link.address is None
            self._begin_reading(link, depth + 1, names[1:])
        if self._links_read > self._most_paths:  # many groups may have the same links
            raise UnreadableFile(
                f"its groups have {self._links_read} links or more: expected at most {self._most_paths}"
            )

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
        attributes = yield from self._read_attributes(raw, unread)
        is_group = any(message.type in _GROUP_MESSAGES for message in messages)
        described = HDF5Object("", address, is_group, attributes, unread=unread)
        if is_group:
            return described
        dataset = yield from self._read_mappings(self._parse_dataset(described, by_type))
        if structure.EXTERNAL_FILES not in by_type or dataset.refusal is not None:
            return dataset
        external_parts = yield from _read_external_files(self._file, by_type[structure.EXTERNAL_FILES])
        return msgspec.structs.replace(dataset, layout=ExternalFiles(external_parts))

    def _read_mappings(self, dataset: HDF5Object) -> Steps[HDF5Object]:
        """Add the mappings of a virtual dataset, which lie in the global heap; return other datasets unchanged."""
        layout = dataset.layout
        if not isinstance(layout, VirtualLayout) or layout.address is None or dataset.refusal is not None:
            return dataset
        yield from self._load_collections({layout.address})
        data = self._heap.get((layout.address, layout.index))
        if data is None:
            found = (
                f"the mappings of a virtual dataset are object {layout.index} of the global heap at {layout.address}"
            )
            raise ValueError(f"{found}: expected this object there, found none")
        try:
            sources = parse_mappings(data, self._file.sizes)
        except ManifestError as e:
            return msgspec.structs.replace(dataset, refusal=f"it is a virtual dataset: {e}")
        return msgspec.structs.replace(dataset, layout=msgspec.structs.replace(layout, sources=sources))

    def _parse_dataset(self, hdf5_object: HDF5Object, messages: Mapping[int, bytes]) -> HDF5Object:
        """Return ``hdf5_object`` with the shape, datatype, layout, filters and fill value in a dataset's messages."""
        sizes = self._file.sizes
        if structure.DATATYPE not in messages or structure.DATASPACE not in messages:
            if structure.DATATYPE in messages and not messages.keys() & {structure.DATASPACE, structure.LAYOUT}:
                return msgspec.structs.replace(hdf5_object, is_type=True)
            reason = "it is an object of an unknown kind: expected a group, a dataset or a named datatype"
            return msgspec.structs.replace(hdf5_object, refusal=reason)
        space = parse_dataspace(messages[structure.DATASPACE], sizes)
        datatype = parse_datatype(messages[structure.DATATYPE])
        layout = parse_layout(messages[structure.LAYOUT], sizes) if structure.LAYOUT in messages else None
        fill: bytes | None = None
        for kind in (structure.OLD_FILL_VALUE, structure.FILL_VALUE):
            if kind in messages:
                fill = parse_fill(messages[kind], sizes, kind)
        refusal: str | None = datatype.refusal
        if layout is None and space.shape is not None:
            refusal = "it is a dataset without a data layout message: expected one"
        filters = parse_pipeline(messages[structure.FILTERS]) if structure.FILTERS in messages else ()
        if space.shape is None:  # a null dataspace: an empty array shows the attributes
            space, layout = Dataspace((0,), (0,)), ContiguousLayout(None, 0)
        values = space.shape, space.maxshape, datatype, layout, filters, fill, refusal, hdf5_object.unread
        return HDF5Object(hdf5_object.path, hdf5_object.address, False, hdf5_object.attributes, *values)

    def _read_dense_attributes(self, info: bytes) -> Steps[list[tuple[int, bytes]]]:
        dense = yield from read_dense_objects(self._file, info, "attributes", self._shared.get(structure.ATTRIBUTE))
        return [(int.from_bytes(record[9:13], "little"), data) for record, data in dense]

    def _read_attributes(
        self, messages: Sequence[tuple[int, bytes]], unread: dict[str, str]
    ) -> Steps[dict[str, Attribute]]:
        """Parse attributes from (creation order, message), and read their values in the global heap.

        Attributes are sorted by creation order if it is tracked, otherwise by name, as in h5py. For attributes that
        cannot be read, the reasons are added to ``unread``.
        """
        unshared: list[tuple[int, UnsharedAttribute]] = []
        for order, data in messages:
            try:
                unshared.append((order, parse_attribute(data)))
            except ValueError as e:
                unread[""] = str(e)
        ordered = [parts for _, parts in sorted(unshared, key=lambda pair: (pair[0], pair[1].name))]
        types = yield from self._read_contents([parts.datatype for parts in ordered])
        spaces = yield from self._read_contents([parts.dataspace for parts in ordered])
        parsed: list[tuple[Attribute, list[HeapID]]] = []
        for parts, datatype_data, space_data in zip(ordered, types, spaces, strict=True):
            try:
                parsed.append(self._parse_attribute(parts, datatype_data, space_data))
            except ValueError as e:
                unread[parts.name] = str(e)
        addresses = list(dict.fromkeys(address for _, ids in parsed for address, _, _ in ids))
        errors = yield from run_together([_catch_damage(self._load_collections({address})) for address in addresses])
        failures = dict(zip(addresses, errors, strict=True))
        attributes: dict[str, Attribute] = {}
        for attribute, ids in parsed:
            lost_object = next(
                (heap_id for heap_id in ids if len(self._heap.get(heap_id[:2], b"")) < heap_id[2]),
                None,
            )
            if lost_object is not None:
                collection, index, size = lost_object
                length = len(self._heap.get((collection, index), b""))
                found = f"object {index} of the global heap at {collection} has {length} bytes"
                reason = f"{found}: expected at least {size}"
                unread[attribute.name] = str(failures[collection] or reason)
                continue
            heap = {(collection, index): self._heap[collection, index] for collection, index, _ in ids}
            attributes[attribute.name] = msgspec.structs.replace(attribute, heap=heap) if ids else attribute
        return attributes

    def _parse_attribute(
        self, parts: UnsharedAttribute, datatype_data: bytes | ValueError, space_data: bytes | ValueError
    ) -> tuple[Attribute, list[HeapID]]:
        """Parse an attribute. The second result are the places of its values in the global heap."""
        if isinstance(datatype_data, ValueError):
            raise datatype_data
        if isinstance(space_data, ValueError):
            raise space_data
        datatype, shape = parse_datatype(datatype_data), parse_dataspace(space_data, self._file.sizes).shape
        size = 0 if shape is None else math.prod(shape) * datatype.size
        if size > len(parts.raw):
            raise ValueError(f"it has {len(parts.raw)} bytes: expected {size} for its elements")
        raw = parts.raw[:size]
        ids = list_heap_ids(datatype, raw)
        return Attribute(parts.name, datatype, shape, raw, referred=sum(length for *_, length in ids)), ids

    def _load_collections(self, addresses: set[int]) -> Steps[None]:
        missing = addresses - self._collections
        if missing:
            self._heap |= yield from read_collections(self._file, missing)
            self._collections |= missing

    def _read_contents(self, messages: Sequence[Message]) -> Steps[list[bytes | ValueError]]:
        """Return the content of each message, or the error of reading it. Read the contents of shared messages."""
        shared = [position for position, message in enumerate(messages) if message.is_shared]
        results: list[bytes | ValueError] = [message.data for message in messages]
        reads = [_catch_damage(self._read_shared(messages[position])) for position in shared]
        contents = (yield from run_together(reads)) if shared else []
        for position, content in zip(shared, contents, strict=True):
            results[position] = content
        return results

    def _read_shared(self, message: Message) -> Steps[bytes]:
        """Read the content of a shared message."""
        fields = self._file.make_fields(message.data)
        version, kind = fields.unpack("BB")
        if version == 3 and kind == 1:
            heap = self._shared.get(message.type)
            if heap is None:
                found = f"its message of type {message.type:#06x} is shared"
                raise ValueError(f"{found}: expected a heap of such messages in the file, found none")
            (data,) = yield from read_heap_objects(self._file, heap, [fields.take(heap.id_size)])
            return data
        if version == 1:  # a symbol table entry follows, which begins with the offset of a name
            fields.unpack("6xN")
        elif version not in (2, 3):
            raise ValueError(f"a shared message of version {version} is not supported: expected 1 to 3")
        address = fields.read_address()
        if address is None:
            raise ValueError("a shared message: expected the address of an object header, found none")
        for owner_message in (yield from read_header(self._file, address)):
            if owner_message.type == message.type and not owner_message.is_shared:
                return owner_message.data
        expected = f"expected the shared message of type {message.type:#06x}, found none"
        raise ValueError(f"the object header at {address}: {expected}")
