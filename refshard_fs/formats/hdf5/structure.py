"""What an HDF5 file is made of: its superblock, object headers and their messages, dataspaces, layouts, attributes.

After the HDF5 File Format Specification, whose names are used. Every size is held against the file's length before
anything is read; checksums are verified. No I/O here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from refshard_fs.core.model import Steps, together
from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf5 import SIGNATURE, signature_at
from refshard_fs.formats.hdf5.datatypes import Datatype
from refshard_fs.formats.hdf5.file import PARSED, Fields, MetadataFile, Sizes, verified
from refshard_fs.formats.hdf5.filters import Filter

HEADER: Final = 512  # bytes of an object header that are read at once: most have fewer
SMALL: Final = 1 << 16  # bytes of a coordinate that are read together: xarray would read parts of it in several rounds
MOST_DIMENSIONS: Final = 32
MOST_BLOCKS: Final = 1 << 16  # continuations of one object header
UNDEFINED: Final = (1 << 32) - 1  # -1, the size of a fill value that old writers leave undefined

# Messages of object headers, by their type.
DATASPACE: Final = 0x01
LINK_INFO: Final = 0x02
DATATYPE: Final = 0x03
OLD_FILL_VALUE: Final = 0x04
FILL_VALUE: Final = 0x05
LINK: Final = 0x06
EXTERNAL_FILES: Final = 0x07
LAYOUT: Final = 0x08
FILTERS: Final = 0x0B
ATTRIBUTE: Final = 0x0C
CONTINUATION: Final = 0x10
SYMBOL_TABLE: Final = 0x11
B_TREE_K: Final = 0x13
DRIVER: Final = 0x14
ATTRIBUTE_INFO: Final = 0x15

_IS_SHARED: Final = 0x02
_MUST_BE_KNOWN: Final = 0x80
_LAST_KNOWN: Final = 0x18
_ATTRIBUTE_HEAD = struct.Struct("<BBHHH")
_OLD_PREFIX, _PREFIX, _TRACKED_PREFIX = struct.Struct("<HHB3x"), struct.Struct("<BHB"), struct.Struct("<BHBH")


# ----------------------------------------------------------------------------------------------------
# The superblock.


class Superblock(msgspec.Struct, frozen=True):
    """What a file says of itself as a whole; ``chunk_k`` is half of the entries of a chunk B-tree's node."""

    root: int
    group_leaf_k: int = 4
    group_k: int = 16
    chunk_k: int = 32
    extension: int | None = None


def parse_superblock(file: MetadataFile, head: bytes) -> Superblock:
    """Return the superblock, and tell ``file`` its base address and sizes; ManifestError if there is none.

    It lies at the start of the file, or after a user block of 512 bytes, 1024, 2048 and so on.
    """
    at = signature_at(head)
    if at is None:
        raise ManifestError(f"there is no HDF5 signature in its first {len(head)} bytes")
    fields = Fields(head, Sizes(), at + len(SIGNATURE))
    version = fields.uint(1)
    if version > 3:
        raise ManifestError(f"its superblock is of version {version}; versions up to 3 are read")
    address, length = fields.unpack("4xBBx" if version < 2 else "BBx")
    if not {address, length} <= {2, 4, 8}:
        raise ManifestError(f"its addresses have {address} bytes, its lengths {length}; 2, 4 and 8 are read")
    fields.sizes = Sizes(address, length)
    ks: dict[str, int] = {}
    extension = driver = None
    if version < 2:
        ks["group_leaf_k"], ks["group_k"] = fields.unpack("HH4x")
        if version == 1:
            (ks["chunk_k"],) = fields.unpack("H2x")
        base, _, end, driver, _, root = fields.unpack("PPPPNP")
    else:
        base, extension, end, root = fields.unpack("PPPP")
        verified(head[at : fields.at + 4], "the superblock")
    if driver is not None:
        raise ManifestError("it has a driver information block: files of several parts are not read")
    if base is None or end is None or root is None:
        raise ManifestError("its superblock has no base address, end or root group")
    file.base = at  # the user block may have been added later: then the superblock says another base
    file.sizes = fields.sizes
    end += at - base
    if end > file.size:
        raise ManifestError(f"it is cut short: {file.size} bytes of {end} are there. Was it written to the end?")
    return Superblock(root, extension=extension, **ks)


def read_extension(file: MetadataFile, found: Superblock) -> Steps[Superblock]:
    """Return the superblock with what its extension adds."""
    messages = (yield from read_header(file, found.extension)) if found.extension is not None else []
    for message in messages:
        if message.type == B_TREE_K:
            chunk_k, group_k, leaf_k = file.fields(message.data).unpack("xHHH")
            found = msgspec.structs.replace(found, chunk_k=chunk_k, group_k=group_k, group_leaf_k=leaf_k)
        elif message.type == DRIVER:
            raise ManifestError("it has driver information: files of several parts are not read")
    return found


# ----------------------------------------------------------------------------------------------------
# Object headers: their messages, from all of their blocks.


class Message(NamedTuple):
    """One message of an object header; ``is_shared``: ``data`` say where its content lies.

    ``order`` counts an object's attributes as they were made, where its header tells.
    """

    type: int
    data: bytes
    is_shared: bool
    order: int = 0


def read_header(
    file: MetadataFile, address: int, begun: Callable[[list[Message]], None] = lambda messages: None
) -> Steps[list[Message]]:
    """Return all messages of the object header at ``address``, in the order of its blocks.

    ``begun`` is given the messages of the first block, and of those that each round reads, as soon as they are there.
    """
    what = "an object header"
    data = yield from file.peek(address, 16, HEADER, what)
    fields = file.fields(data)
    prefix = _OLD_PREFIX  # of each message: its type, its size and its flags
    if data.startswith(b"OHDR"):
        fields.expect(b"OHDR", 2)
        flags = fields.uint(1)
        fields.take((16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0))
        size = fields.uint(1 << (flags & 3))
        prefix = _TRACKED_PREFIX if flags & 4 else _PREFIX
        block = yield from file.read(address, fields.at + size + 4, what)
        body = verified(block, f"the object header at {address}")[fields.at :]
    else:
        version, size = fields.unpack("B7xI")
        if version != 1:
            raise ValueError(f"an object header at {address} is of version {version}; versions 1 and 2 are known")
        body = (yield from file.read(address, 16 + size, what))[16:]
    messages: list[Message] = []
    seen = {address}
    bodies = [body]
    while bodies:
        found = [message for body in bodies for message in _messages(body, prefix)]
        places = [file.fields(message.data).unpack("PN") for message in found if message.type == CONTINUATION]
        found = [message for message in found if message.type != CONTINUATION]
        begun(found)
        messages += found
        for at, _ in places:
            if at is None or at in seen or len(seen) > MOST_BLOCKS:
                raise ValueError(f"an object header continues at {at}, where it was already")
            seen.add(at)
        bodies = yield from together([file.read(at, length, what) for at, length in places])
        if prefix is not _OLD_PREFIX:
            if not all(body.startswith(b"OCHK") for body in bodies):
                raise ValueError(f"a continuation of the object header at {address} has no signature OCHK")
            bodies = [verified(body, f"a continuation of the object header at {address}")[4:] for body in bodies]
    return messages


def _messages(block: bytes, prefix: struct.Struct) -> Iterator[Message]:
    """Yield the messages of one block of a header."""
    at = 0
    while at + prefix.size <= len(block):  # what is shorter is a gap
        kind, size, flags, *order = prefix.unpack_from(block, at)
        at += prefix.size + size
        if at > len(block):
            raise ValueError(f"a message of type {kind:#06x} ends beyond its object header's block")
        if kind > _LAST_KNOWN and flags & _MUST_BE_KNOWN:
            raise ManifestError(f"it has a message of type {kind:#06x}, which is not known and must be")
        yield Message(kind, block[at - size : at], bool(flags & _IS_SHARED), *order)


# ----------------------------------------------------------------------------------------------------
# What single messages say.


class Dataspace(NamedTuple):
    """The extents of an array; None for those of one that has no elements, and no shape."""

    shape: tuple[int, ...] | None
    maxshape: tuple[int | None, ...]


@lru_cache(PARSED)
def parse_dataspace(data: bytes, sizes: Sizes) -> Dataspace:
    """Return what a dataspace message says."""
    fields = Fields(data, sizes)
    version, rank, flags, kind = fields.unpack("BBBB")
    if version not in (1, 2):
        raise ValueError(f"a dataspace of version {version}; versions 1 and 2 are known")
    if version == 1:
        fields.take(4)
    elif kind == 2:
        return Dataspace(None, ())
    if rank > MOST_DIMENSIONS:
        raise ValueError(f"a dataspace of {rank} dimensions; there are {MOST_DIMENSIONS} at most")
    shape = fields.unpack(f"{rank}N")
    unlimited = (1 << 8 * sizes.length) - 1
    limits = fields.unpack(f"{rank}N") if flags & 1 else shape
    maxshape = tuple([None if limit == unlimited else limit for limit in limits])
    if math.prod(max(extent, 1) for extent in shape) >= 1 << 63:
        raise ValueError(f"a dataspace of {shape} has more elements than 63 bits count")
    return Dataspace(shape, maxshape)


def parse_fill(data: bytes, sizes: Sizes, kind: int = FILL_VALUE) -> bytes | None:
    """Return the fill value that a message of either type says, as one element's bytes; None for zeros."""
    fields = Fields(data, sizes)
    has_value = True
    if kind == FILL_VALUE:
        version, flags = fields.unpack("BB")
        if version == 3:
            has_value = flags & 0x30 == 0x20  # defined, and not said to be undefined
        elif version in (1, 2):
            _, is_defined = fields.unpack("BB")
            has_value = (version == 1 or is_defined) and len(data) >= 8
        else:
            raise ValueError(f"a fill value message of version {version}; versions 1 to 3 are known")
    size = fields.uint(4) if has_value else 0
    if size == UNDEFINED:
        return None
    return fields.take(size) or None


class Attribute(msgspec.Struct, frozen=True):
    """One attribute: its elements are ``raw``; there are none without a shape.

    They refer to ``heap`` by (address, index), each to so many bytes of it that they are ``referred`` in all.
    """

    name: str
    datatype: Datatype
    shape: tuple[int, ...] | None
    raw: bytes
    heap: Mapping[tuple[int, int], bytes] = {}
    referred: int = 0


class UnsharedAttribute(NamedTuple):
    """An attribute message, taken apart; a datatype or a dataspace that is shared says where it lies."""

    name: str
    datatype: Message
    dataspace: Message
    raw: bytes


def parse_attribute(data: bytes) -> UnsharedAttribute:
    """Return the parts of an attribute message."""
    version, flags, *lengths = _ATTRIBUTE_HEAD.unpack_from(data) if len(data) >= _ATTRIBUTE_HEAD.size else (0, 0)
    if not 1 <= version <= 3:
        raise ValueError(f"an attribute of version {version}; versions 1 to 3 are known")
    at = _ATTRIBUTE_HEAD.size + (version == 3)  # which says that the name is UTF-8: that holds ASCII as well
    parts = []
    for length in lengths:
        parts.append(data[at : at + length])
        at += length + (-length % 8 if version == 1 else 0)
    if at > len(data):
        raise ValueError(f"an attribute of {len(data)} bytes ends before its value at {at}")
    name = parts[0].split(b"\0")[0].decode("utf-8", "surrogateescape")
    shared = flags if version > 1 else 0
    datatype = Message(DATATYPE, parts[1], bool(shared & 1))
    return UnsharedAttribute(name, datatype, Message(DATASPACE, parts[2], bool(shared & 2)), data[at:])


# ----------------------------------------------------------------------------------------------------
# How the elements of a dataset are laid out.


class Compact(msgspec.Struct, frozen=True):
    """The elements are in the object header."""

    data: bytes


class Contiguous(msgspec.Struct, frozen=True):
    """The elements lie one after the other; no address: nothing was written."""

    address: int | None
    size: int


class Chunked(msgspec.Struct, frozen=True):
    """The elements lie in chunks of ``shape``, of which an index of ``kind`` at ``address`` tells.

    ``parameters`` are those of the index. ``whole_edges``: filters apply to chunks that reach beyond the array, too.
    """

    shape: tuple[int, ...]
    itemsize: int
    kind: str  # "B-tree 1" "single" "implicit" "fixed array" "extensible array" "B-tree 2"
    address: int | None
    parameters: tuple[int, ...] = ()
    whole_edges: bool = True


class Source(NamedTuple):
    """A mapping: the part ``selection`` of a dataset stands at ``place``, each (start, size) an axis; None: all."""

    file: str
    dataset: str
    selection: tuple[tuple[int, int], ...] | None
    place: tuple[tuple[int, int], ...] | None


class Virtual(msgspec.Struct, frozen=True):
    """The elements are those of other datasets, by the mappings in the global heap at ``address``, ``index``.

    They say ``sources``, which are in chunks of ``chunk``.
    """

    address: int | None
    index: int
    sources: tuple[Source, ...] = ()
    chunk: tuple[int, ...] = ()


Layout = Compact | Contiguous | Chunked | Virtual
# Chunk indexes by their type, and the parameters that the message has of each.
INDEXES: Final = {
    1: ("single", ""),
    2: ("implicit", ""),
    3: ("fixed array", "B"),
    4: ("extensible array", "5B"),
    5: ("B-tree 2", "IBB"),
}


def parse_layout(data: bytes, sizes: Sizes) -> Layout:
    """Return what a data layout message says."""
    fields = Fields(data, sizes)
    version = fields.uint(1)
    if not 1 <= version <= 5:
        raise ValueError(f"a data layout of version {version}; versions 1 to 5 are known")
    if version < 3:
        rank, kind = fields.unpack("BB5x")
        address = fields.address() if kind else None
        extents = fields.unpack(f"{rank}I")
    else:
        kind = fields.uint(1)
    match kind:
        case 0:
            return Compact(fields.take(fields.uint(4 if version < 3 else 2)))
        case 1:
            return Contiguous(address, -1) if version < 3 else Contiguous(*fields.unpack("PN"))
        case 2 if version > 3:
            return _new_chunked(fields)
        case 2:
            if version == 3:
                rank, address = fields.unpack("BP")
                extents = fields.unpack(f"{rank}I")
            return _chunked(extents, "B-tree 1", address)
        case 3 if version > 3:
            return Virtual(*fields.unpack("PI"))
    raise ValueError(f"a data layout of class {kind}, which version {version} does not have")


def _new_chunked(fields: Fields) -> Chunked:
    flags, rank, width = fields.unpack("BBB")
    if not 1 <= width <= 8:
        raise ValueError(f"extents of a chunk take {width} bytes each")
    extents = [fields.uint(width) for _ in range(rank)]
    number = fields.uint(1)
    if number not in INDEXES:
        raise ValueError(f"a chunk index of type {number}; types 1 to 5 are known")
    kind, form = INDEXES[number]
    parameters = fields.unpack("NI" if kind == "single" and flags & 2 else form)
    return _chunked(extents, kind, fields.address(), parameters, not flags & 1)


def _chunked(
    extents: Sequence[int],
    kind: str,
    address: int | None,
    parameters: tuple[int, ...] = (),
    whole_edges: bool = True,
) -> Chunked:
    if not 1 < len(extents) <= MOST_DIMENSIONS + 1 or not all(extents):
        raise ValueError(f"chunks of {extents} elements and bytes")
    return Chunked(tuple(extents[:-1]), extents[-1], kind, address, parameters, whole_edges)


# ----------------------------------------------------------------------------------------------------
# Objects: groups and datasets as their headers describe them.


Order = tuple[tuple[int, str], ...]  # where an object stands: of each link on its path, when it was made, and its name


class HDF5Object(msgspec.Struct, frozen=True):
    """A group or a dataset at ``path``; what only datasets have is None for a group.

    ``refusal`` says why the values of a dataset cannot be shown, and ``unread`` why attributes cannot be read, by name;
    the name is empty where it cannot be read either. ``is_type``: it is a datatype that others share, and no dataset.
    """

    path: str
    address: int
    is_group: bool
    attributes: Mapping[str, Attribute]
    shape: tuple[int, ...] | None = None
    maxshape: tuple[int | None, ...] = ()
    datatype: Datatype | None = None
    layout: Layout | None = None
    filters: tuple[Filter, ...] = ()
    fill: bytes | None = None
    refusal: str | None = None
    unread: Mapping[str, str] = {}
    is_type: bool = False
    order: Order = ()
