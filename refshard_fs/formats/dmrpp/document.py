"""Parse a DMR++ document: groups, dimensions, variables and the locations of their bytes. No I/O here.

A document type, and with it entities, is refused before it is used: a document cannot refer to files or servers, nor
expand in memory. The names come from DAP4 and the dmrpp namespace.
"""

from __future__ import annotations

import re
import zlib
from base64 import b64decode
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.array_group import PACKING
from refshard_fs.core.compression import decompress
from refshard_fs.core.keys import is_key, join, parent
from refshard_fs.core.zarrmeta import COUNTABLE, is_node_name
from refshard_fs.errors import ManifestError

DAP: Final = "DAP/4.0#"
DMRPP: Final = "/dmrpp/"  # in all versions of its namespace
DEEPEST: Final = 100  # levels of nested elements
REPEATED: Final = 1 << 25  # bytes of compressed texts, and of repeated texts with 8 bytes for each repetition
LONGEST: Final = 32  # characters of a number with spaces
NUMBERS: Final = {
    "Byte": "u1",
    "UByte": "u1",
    "UInt8": "u1",
    "Int8": "i1",
    "Char": "S1",
    "Int16": "i2",
    "UInt16": "u2",
    "Int32": "i4",
    "UInt32": "u4",
    "Int64": "i8",
    "UInt64": "u8",
    "Float32": "f4",
    "Float64": "f8",
}
TEXTS: Final = ("String", "URL", "Url")
STRUCTURE: Final = "Structure"
_UNSUPPORTED: Final = ("Sequence", "Opaque")
_VARIABLES: Final = frozenset([*NUMBERS, *TEXTS, STRUCTURE, "Enum", *_UNSUPPORTED])
# Attributes with which HDF5 and netCDF store dimensions, and attributes about DMR++ itself.
_HIDDEN: Final = frozenset(["DIMENSION_LIST", "REFERENCE_LIST", "DIMENSION_LABELS", "_NCProperties"])
_HIDDEN_NETCDF: Final = ("_Netcdf4", "_nc3_strict")
_DECIMAL: Final = re.compile(r"[0-9]{1,19}", re.ASCII)


class Variable(msgspec.Struct):
    """A variable as declared; ``inline`` are values within the document: (element, text).

    Each of ``dims`` is the path of a shared dimension, or the size of an unnamed one. Structures have ``members``.
    """

    path: str
    type: str
    dims: list[str | int] = []
    attributes: dict[str, Any] = {}
    attribute_dtypes: dict[str, str] = {}
    has_chunks: bool = False
    chunk_sizes: str = ""
    compression: str = ""
    levels: str = ""
    byte_order: str = ""
    fill: str | None = None
    string_length: int | None = None
    padding: str = ""  # padding of fixed-length texts, as written
    inline: tuple[str, str] | None = None
    texts: list[str] = []
    members: list[Variable] = []
    struct_offsets: str = ""  # offsets of the members of a structure after the first, and its size
    problem: str | None = None
    # As written, one for each chunk: `parse_numbers` converts hundreds of thousands of them at once.
    offsets: list[str] = []
    sizes: list[str] = []
    positions: list[str] = []
    hrefs: list[str | None] = []
    masks: list[str] = []  # masks of the filters that a chunk skips
    blocks: list[str] = []  # number of a block within its chunk; empty for a chunk of one piece


class Enumeration(NamedTuple):
    """The type of the numbers of an enumeration, and its names."""

    type: str
    names: dict[str, int]


class Document(msgspec.Struct):
    """The content of a document."""

    href: str | None = None
    groups: dict[str, dict[str, Any]] = {}
    dimensions: dict[str, int] = {}
    variables: dict[str, Variable] = {}
    enumerations: dict[str, Enumeration] = {}
    reports: dict[str, str] = {}


class _Builder(TreeBuilder):
    """Builds the tree of a document. An element of the dmrpp namespace is named ``dmrpp:name``, others ``name``."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def start(self, tag: str, attrs: dict[str, str]) -> Element:
        space, _, name = tag.rpartition("}")
        if not self._depth and not (name == "Dataset" and space.endswith(DAP)):
            raise ValueError("its root element is not a Dataset of DAP4")
        self._depth += 1
        if self._depth > DEEPEST:
            raise ValueError(f"its elements are nested more than {DEEPEST} levels deep")
        return super().start("dmrpp:" + name if DMRPP in space else name, attrs)

    def end(self, tag: str) -> Element:
        self._depth -= 1
        return super().end(tag)

    def doctype(self, *declared: object) -> None:
        """Refuse a document type, and with it entities, which can be declared only there."""
        raise ValueError("it declares a document type or an entity: these are refused, and DMR++ does not need them")


def parse_document(data: bytes, where: str) -> Document:
    """Parse a document. Raise ManifestError, which begins with ``where``, if it is damaged."""
    parser = XMLParser(target=_Builder())  # noqa: S314  # document types, and so entities, are refused
    try:
        parser.feed(data)
        return _Reader(parser.close()).document
    except (ParseError, UnicodeDecodeError, LookupError) as e:
        raise ManifestError(f"{where} is not XML or is cut short: {e}") from None
    except ValueError as e:
        raise ManifestError(f"{where}: {e}") from None


class _Reader:
    """Converts the tree of a document."""

    def __init__(self, root: Element) -> None:
        href = next((value for key, value in root.items() if key.rpartition("}")[2] == "href"), None)
        self.document = Document(href, {"": {}})
        self._repeated = 0  # bytes counted for `REPEATED`
        self._convert_group(root, "")

    def _convert_group(self, group: Element, path: str) -> None:
        document = self.document
        _read_attributes(group, document.groups[path], {})
        for element in group:
            name = element.get("name", "")
            below = join(path, name)
            if element.tag not in _VARIABLES and element.tag not in ("Group", "Dimension", "Enumeration"):
                continue
            try:
                if not is_node_name(name) or not is_key(below):
                    raise ValueError(f"its name {name!r} cannot be part of a key")
                if element.tag == "Dimension":
                    document.dimensions[below] = _parse_integer(element.get("size"), "its size")
                elif element.tag == "Enumeration":
                    document.enumerations[below] = _parse_enumeration(element)
                elif below in document.reports or below in document.variables:
                    document.variables.pop(below, None)
                    raise ValueError("another variable or group has the same name: neither is shown")
                elif element.tag == "Group":
                    document.groups.setdefault(below, {})
                    self._convert_group(element, below)
                elif below in document.groups:
                    raise ValueError("a group has the same name")
                else:
                    document.variables[below] = self._convert_variable(element, below)
            except ValueError as e:
                is_type = element.tag in ("Dimension", "Enumeration")
                document.reports[f"{element.tag} {below}" if is_type else below] = str(e)

    def _convert_variable(self, element: Element, path: str) -> Variable:
        if element.tag in _UNSUPPORTED:
            raise ValueError(f"its type {element.tag} is not supported")
        found = Variable(path, element.tag)
        _read_attributes(element, found.attributes, found.attribute_dtypes)
        if element.tag == "Enum":
            found.type, names = self._find_enumeration(element.get("enum", ""), path)
            found.attributes.setdefault("flag_values", list(names.values()))
            found.attributes.setdefault("flag_meanings", " ".join("_".join(name.split()) for name in names))
        if element.tag == STRUCTURE:
            members = [child for child in element if child.tag in _VARIABLES]
            odd = [c for c in members if c.tag not in (*NUMBERS, *TEXTS) or not is_node_name(c.get("name", ""))]
            if odd:
                name = odd[0].get("name")
                raise ValueError(f"expected a number or a text with a name as member of a structure, found {name!r}")
            found.members = [self._convert_variable(child, join(path, child.get("name", ""))) for child in members]
        for dim in element.findall("Dim"):
            shared, size = dim.get("name"), dim.get("size")
            if shared is None and size is None:
                raise ValueError(f"a Dim of {path!r} has neither a name nor a size")
            found.dims.append(
                _parse_integer(size, f"the size of a Dim of {path!r}") if shared is None else shared.strip("/")
            )
        for child in element.iter():
            self._locate(found, child)
        return found

    def _find_enumeration(self, name: str, path: str) -> Enumeration:
        """Return the enumeration of a variable: its name begins at the root, or in a group of the variable."""
        known, group = self.document.enumerations, "" if name.startswith("/") else parent(path)[0]
        while (found := known.get(join(group, name.strip("/")))) is None:
            if not group:
                raise ValueError(f"it refers to the Enumeration {name!r}, which does not exist")
            group = parent(group)[0]
        return found

    def _locate(self, found: Variable, element: Element) -> None:
        """Add the location of bytes in ``element`` to the variable that contains it."""
        match element.tag:
            case "dmrpp:chunk" | "dmrpp:block":
                is_block = element.tag == "dmrpp:block"
                found.blocks.append(element.get("LinkedBlockIndex", str(len(found.blocks)) if is_block else ""))
                found.masks.append(element.get("fm", "0"))
                found.byte_order = element.get("byteOrder", found.byte_order)
                found.offsets.append(element.get("offset", ""))
                found.sizes.append(element.get("nBytes", ""))
                found.positions.append(element.get("chunkPositionInArray", ""))
                found.hrefs.append(element.get("href"))
            case "dmrpp:chunks":
                found.has_chunks = True
                found.compression = element.get("compressionType", "")
                found.levels = element.get("deflateLevel", element.get("deflate_level", ""))
                found.byte_order = element.get("byteOrder", "")
                found.fill = element.get("fillValue")
                found.struct_offsets = element.get("structOffset", "")
            case "dmrpp:chunkDimensionSizes":
                found.chunk_sizes = element.text or ""
            case "dmrpp:FixedLengthStringArray":
                found.string_length = _parse_integer(element.get("string_length"), "string_length")
                found.padding = element.get("pad", "")
            case "dmrpp:compact" | "dmrpp:missingdata" | "dmrpp:vlsa" | "dmrpp:specialstructuredata":
                found.inline = element.tag.removeprefix("dmrpp:"), element.text or ""
            case "v":
                text, repeats = _decode_text(element), _parse_integer(element.get("c", "1"), "c")
                self._repeated += (repeats - 1) * (len(text) + 8) + (len(text) if element.get("s") else 0)
                if self._repeated > REPEATED:
                    raise ValueError(f"texts that are compressed or repeated take more than {REPEATED} bytes")
                found.texts += [text] * repeats
            case str(tag) if tag.startswith("dmrpp:"):
                found.problem = f"the element {tag.removeprefix('dmrpp:')}, which locates its bytes, is not supported"


def _read_attributes(element: Element, attributes: dict[str, Any], dtypes: dict[str, str]) -> None:
    """Add the attributes of a group or a variable, and to ``dtypes`` the types of packing attributes."""
    for found in element.findall("Attribute"):
        name, kind = found.get("name", ""), found.get("type", "String")
        if name == "HDF5_GLOBAL":
            _read_attributes(found, attributes, dtypes)
        if kind in ("Container", "OtherXML") or not name or name in _HIDDEN or name.startswith(_HIDDEN_NETCDF):
            continue  # nested attributes do not come from HDF5
        values = [_parse_value(kind, value.get("value", value.text or "")) for value in found.findall("Value")]
        whole = values[0] if len(values) == 1 else "" if not values and kind in TEXTS else values
        attributes[name] = whole
        if name in PACKING and isinstance(whole, (int, float)):
            dtypes[name] = NUMBERS[kind]


def _parse_enumeration(element: Element) -> Enumeration:
    kind = element.get("basetype", "")
    if kind not in NUMBERS or NUMBERS[kind][0] not in "iu":
        raise ValueError(f"its basetype is {kind!r}: expected a type of integers")
    dtype = np.dtype(NUMBERS[kind])
    constants = element.findall("EnumConst")
    return Enumeration(kind, {c.get("name", ""): int(parse_number(c.get("value", ""), dtype)) for c in constants})


def _decode_text(element: Element) -> str:
    """Return one text of a variable. If it has a size (``s``), it is stored as base64 of zlib."""
    text = element.text or ""
    if element.get("s") is None:
        return text
    size = _parse_integer(element.get("s"), "s")
    data = decompress(zlib.decompressobj(), b64decode("".join(text.split()), validate=True), min(size, REPEATED))
    if len(data) != size:
        raise ValueError(f"a text decompresses to {len(data)} bytes: expected {size} (s)")
    return data.decode("utf-8", "replace")


def _parse_integer(text: str | None, what: str) -> int:
    if text is None or not _DECIMAL.fullmatch(text.strip()) or int(text) >= COUNTABLE:
        raise ValueError(f"{what} is {text!r}: expected an integer from 0 to 2**63-1")
    return int(text)


def _parse_value(kind: str, text: str) -> Any:
    """Return the value of an attribute as JSON; as text if it is not a number of its type."""
    if kind in TEXTS or kind not in NUMBERS or NUMBERS[kind] == "S1":
        return text
    try:
        return parse_number(text, np.dtype(NUMBERS[kind])).item()
    except ValueError:
        return text


def parse_number(text: str, dtype: np.dtype[Any]) -> np.generic:
    """Parse a number of ``dtype``. Raise ValueError for other text."""
    if dtype.kind == "f":
        with np.errstate(all="ignore"):
            return dtype.type(float(text))  # type: ignore[no-any-return]  # numpy types it as Any
    whole = int(text)
    bounds = np.iinfo(dtype)
    if not bounds.min <= whole <= bounds.max:
        raise ValueError(f"{text} is not a number of type {dtype}")
    return dtype.type(whole)  # type: ignore[no-any-return]  # numpy types it as Any


def parse_numbers(texts: Sequence[str], what: str) -> npt.NDArray[np.int64]:
    """Parse one integer in each text. Raise ValueError if one is invalid or negative."""
    try:
        if max(map(len, texts), default=0) > LONGEST:  # in numpy, every text is as long as the longest
            raise ValueError
        found = np.array(texts, "U").astype(np.int64)
    except (ValueError, OverflowError):
        found = np.full(1, -1)
    if (found < 0).any():
        wrong = next((text for text in texts if not _DECIMAL.fullmatch(text) or int(text) >= COUNTABLE), "")
        raise ValueError(f"{what} is {wrong!r}: expected an integer from 0 to 2**63-1")
    return found


def parse_integers(text: str) -> tuple[int, ...]:
    """Parse integers that are separated by spaces or commas, with or without brackets."""
    found = text.strip().strip("[]").replace(",", " ").split()
    return tuple(_parse_integer(part, "a list of numbers") for part in found)
