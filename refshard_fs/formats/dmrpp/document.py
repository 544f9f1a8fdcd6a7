"""Parse a DMR++ document: groups, dimensions, variables and the locations of their bytes. No I/O here.

A document type declaration is refused, because it can declare entities, with which a document can refer to files and
servers, or expand in memory. The names come from DAP4 and the dmrpp namespace.
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
DMRPP: Final = "/dmrpp/"  # part of the namespace in all versions
MOST_LEVELS: Final = 100  # levels of nested elements
MOST_REPEATED: Final = 1 << 25  # bytes of compressed texts, and of repeated texts: each repetition counts 8 bytes more
MOST_CHARACTERS: Final = 32  # characters of a number, including spaces
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
# Attributes in which HDF5 and netCDF store dimensions and versions of software.
_HIDDEN: Final = frozenset(["DIMENSION_LIST", "REFERENCE_LIST", "DIMENSION_LABELS", "_NCProperties"])
_HIDDEN_NETCDF: Final = ("_Netcdf4", "_nc3_strict")
_DECIMAL: Final = re.compile(r"[0-9]{1,19}", re.ASCII)


class Variable(msgspec.Struct):
    """A variable, with texts as they are in the document. ``inline`` are values in the document: (element, text).

    An item of ``dims`` is the path of a shared dimension, or the size of an unnamed one. Structures have ``members``.
    The lists from ``offsets`` on have an item for each chunk or linked block.
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
    padding: str = ""  # the name of the padding of fixed-length texts
    inline: tuple[str, str] | None = None
    texts: list[str] = []
    members: list[Variable] = []
    struct_offsets: str = ""  # offsets of a structure's members except the first, then the size of the structure
    problem: str | None = None  # the reason why the variable cannot be shown
    # These stay texts because `parse_numbers` converts hundreds of thousands of them together.
    offsets: list[str] = []
    sizes: list[str] = []
    positions: list[str] = []
    hrefs: list[str | None] = []
    masks: list[str] = []  # a bit for each filter that the chunk skips
    blocks: list[str] = []  # the number of a linked block in its chunk; "" for a chunk that is not divided


class Enumeration(NamedTuple):
    """The type of an enumeration's numbers, and the number of each name."""

    type: str
    names: dict[str, int]


class DmrppDocument(msgspec.Struct):
    """The content of a document: its objects by path.

    ``href`` is the place of the described file. ``groups`` has the attributes of groups, ``reports`` the reasons why
    other objects are not shown.
    """

    href: str | None = None
    groups: dict[str, dict[str, Any]] = {}
    dimensions: dict[str, int] = {}
    variables: dict[str, Variable] = {}
    enumerations: dict[str, Enumeration] = {}
    reports: dict[str, str] = {}


class _Builder(TreeBuilder):
    """A builder of the tree of a document. Elements of the dmrpp namespace are named ``dmrpp:name``."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def start(self, tag: str, attrs: dict[str, str]) -> Element:
        space, _, name = tag.rpartition("}")
        if not self._depth and not (name == "Dataset" and space.endswith(DAP)):
            raise ValueError(f"its root element is {name!r}: expected Dataset in the namespace of DAP4")
        self._depth += 1
        if self._depth > MOST_LEVELS:
            raise ValueError(f"its elements are nested too deeply: expected at most {MOST_LEVELS} levels")
        return super().start("dmrpp:" + name if DMRPP in space else name, attrs)

    def end(self, tag: str) -> Element:
        self._depth -= 1
        return super().end(tag)

    def doctype(self, *declared: object) -> None:
        """Refuse a document type declaration, the only place where entities can be declared."""
        raise ValueError("it has a document type declaration: expected none, because DMR++ does not need it")


def parse_document(data: bytes, label: str) -> DmrppDocument:
    """Parse a document. Raise ManifestError, whose text begins with ``label``, if it is damaged."""
    parser = XMLParser(target=_Builder())  # noqa: S314  # document types, and so entities, are refused
    try:
        parser.feed(data)
        return _Reader(parser.close()).document
    except (ParseError, UnicodeDecodeError, LookupError) as e:
        raise ManifestError(f"{label}: expected a whole XML document, found an error: {e}") from None
    except ValueError as e:
        raise ManifestError(f"{label}: {e}") from None


class _Reader:
    """A converter of the tree of a document to a `DmrppDocument`."""

    def __init__(self, root: Element) -> None:
        href = next((value for key, value in root.items() if key.rpartition("}")[2] == "href"), None)
        self.document = DmrppDocument(href, {"": {}})
        self._repeated = 0  # bytes counted for `MOST_REPEATED`
        self._convert_group(root, "")

    def _convert_group(self, group: Element, path: str) -> None:
        document = self.document
        _read_attributes(group, document.groups[path], {})
        for element in group:
            name = element.get("name", "")
            child_path = join(path, name)
            if element.tag not in _VARIABLES and element.tag not in ("Group", "Dimension", "Enumeration"):
                continue
            try:
                if not is_node_name(name) or not is_key(child_path):
                    raise ValueError(f"its name is {name!r}: expected a name that can be part of a key of zarr")
                if element.tag == "Dimension":
                    document.dimensions[child_path] = _parse_integer(element.get("size"), "its size")
                elif element.tag == "Enumeration":
                    document.enumerations[child_path] = _parse_enumeration(element)
                elif child_path in document.reports or child_path in document.variables:
                    document.variables.pop(child_path, None)
                    raise ValueError("expected different names, found another variable or group of the same name")
                elif element.tag == "Group":
                    document.groups.setdefault(child_path, {})
                    self._convert_group(element, child_path)
                elif child_path in document.groups:
                    raise ValueError("expected different names, found a group of the same name")
                else:
                    document.variables[child_path] = self._convert_variable(element, child_path)
            except ValueError as e:
                is_type = element.tag in ("Dimension", "Enumeration")
                document.reports[f"{element.tag} {child_path}" if is_type else child_path] = str(e)

    def _convert_variable(self, element: Element, path: str) -> Variable:
        if element.tag in _UNSUPPORTED:
            raise ValueError(f"its type {element.tag} is not supported: expected numbers, texts or structures of these")
        variable = Variable(path, element.tag)
        _read_attributes(element, variable.attributes, variable.attribute_dtypes)
        if element.tag == "Enum":
            variable.type, names = self._find_enumeration(element.get("enum", ""), path)
            variable.attributes.setdefault("flag_values", list(names.values()))
            variable.attributes.setdefault("flag_meanings", " ".join("_".join(name.split()) for name in names))
        if element.tag == STRUCTURE:
            members = [child for child in element if child.tag in _VARIABLES]
            unsupported = [
                child
                for child in members
                if child.tag not in (*NUMBERS, *TEXTS) or not is_node_name(child.get("name", ""))
            ]
            if unsupported:
                name = unsupported[0].get("name")
                reason = "expected numbers and texts with names that can be part of a key"
                raise ValueError(f"it has the member {name!r} of type {unsupported[0].tag}: {reason}")
            variable.members = [self._convert_variable(child, join(path, child.get("name", ""))) for child in members]
        for dim in element.findall("Dim"):
            shared, size = dim.get("name"), dim.get("size")
            if shared is None and size is None:
                raise ValueError(f"a Dim of {path!r}: expected a name or a size, found {dim.attrib}")
            variable.dims.append(
                _parse_integer(size, f"the size of a Dim of {path!r}") if shared is None else shared.strip("/")
            )
        for child in element.iter():
            self._add_location(variable, child)
        return variable

    def _find_enumeration(self, name: str, path: str) -> Enumeration:
        """Find the enumeration of a variable by its path, or by its name in the variable's group or a parent group."""
        enumerations, group = self.document.enumerations, "" if name.startswith("/") else parent(path)[0]
        while (enumeration := enumerations.get(join(group, name.strip("/")))) is None:
            if not group:
                raise ValueError(f"expected the Enumeration {name!r}, to which it refers, in the document; found none")
            group = parent(group)[0]
        return enumeration

    def _add_location(self, variable: Variable, element: Element) -> None:
        """Add to ``variable`` the locations, values or encoding that ``element``, one of its descendants, describes."""
        match element.tag:
            case "dmrpp:chunk" | "dmrpp:block":
                is_block = element.tag == "dmrpp:block"
                variable.blocks.append(element.get("LinkedBlockIndex", str(len(variable.blocks)) if is_block else ""))
                variable.masks.append(element.get("fm", "0"))
                variable.byte_order = element.get("byteOrder", variable.byte_order)
                variable.offsets.append(element.get("offset", ""))
                variable.sizes.append(element.get("nBytes", ""))
                variable.positions.append(element.get("chunkPositionInArray", ""))
                variable.hrefs.append(element.get("href"))
            case "dmrpp:chunks":
                variable.has_chunks = True
                variable.compression = element.get("compressionType", "")
                variable.levels = element.get("deflateLevel", element.get("deflate_level", ""))
                variable.byte_order = element.get("byteOrder", "")
                variable.fill = element.get("fillValue")
                variable.struct_offsets = element.get("structOffset", "")
            case "dmrpp:chunkDimensionSizes":
                variable.chunk_sizes = element.text or ""
            case "dmrpp:FixedLengthStringArray":
                variable.string_length = _parse_integer(element.get("string_length"), "string_length")
                variable.padding = element.get("pad", "")
            case "dmrpp:compact" | "dmrpp:missingdata" | "dmrpp:vlsa" | "dmrpp:specialstructuredata":
                variable.inline = element.tag.removeprefix("dmrpp:"), element.text or ""
            case "v":
                text, repeats = _decode_text(element), _parse_integer(element.get("c", "1"), "c")
                self._repeated += (repeats - 1) * (len(text) + 8) + (len(text) if element.get("s") else 0)
                if self._repeated > MOST_REPEATED:
                    found = f"its compressed or repeated texts take {self._repeated} bytes or more"
                    raise ValueError(f"{found}: expected at most {MOST_REPEATED}")
                variable.texts += [text] * repeats
            case str(tag) if tag.startswith("dmrpp:"):
                variable.problem = (
                    f"its bytes are located by the element {tag.removeprefix('dmrpp:')}, which is not supported: open "
                    "the file itself"
                )


def _read_attributes(element: Element, attributes: dict[str, Any], dtypes: dict[str, str]) -> None:
    """Add the attributes of a group or a variable, and to ``dtypes`` the types of packing attributes."""
    for child in element.findall("Attribute"):
        name, kind = child.get("name", ""), child.get("type", "String")
        if name == "HDF5_GLOBAL":
            _read_attributes(child, attributes, dtypes)
        if kind in ("Container", "OtherXML") or not name or name in _HIDDEN or name.startswith(_HIDDEN_NETCDF):
            continue  # HDF5 has no nested attributes
        values = [_parse_value(kind, value.get("value", value.text or "")) for value in child.findall("Value")]
        json_value = values[0] if len(values) == 1 else "" if not values and kind in TEXTS else values
        attributes[name] = json_value
        if name in PACKING and isinstance(json_value, (int, float)):
            dtypes[name] = NUMBERS[kind]


def _parse_enumeration(element: Element) -> Enumeration:
    kind = element.get("basetype", "")
    if kind not in NUMBERS or NUMBERS[kind][0] not in "iu":
        raise ValueError(f"its basetype is {kind!r}: expected a type of integers")
    dtype = np.dtype(NUMBERS[kind])
    constants = element.findall("EnumConst")
    return Enumeration(
        kind, {constant.get("name", ""): int(parse_number(constant.get("value", ""), dtype)) for constant in constants}
    )


def _decode_text(element: Element) -> str:
    """Return a text of a variable. A text with a size (the attribute ``s``) is compressed by zlib, in base64."""
    text = element.text or ""
    if element.get("s") is None:
        return text
    size = _parse_integer(element.get("s"), "s")
    data = decompress(zlib.decompressobj(), b64decode("".join(text.split()), validate=True), min(size, MOST_REPEATED))
    if len(data) != size:
        raise ValueError(f"a text decompresses to {len(data)} bytes: expected {size}, its attribute s")
    return data.decode("utf-8", "replace")


def _parse_integer(text: str | None, label: str) -> int:
    if text is None or not _DECIMAL.fullmatch(text.strip()) or int(text) >= COUNTABLE:
        raise ValueError(f"{label} is {text!r}: expected an integer from 0 to 2**63-1")
    return int(text)


def _parse_value(kind: str, text: str) -> Any:
    """Return the value of an attribute as JSON: a number, or a text if it is not a number of its type."""
    if kind in TEXTS or kind not in NUMBERS or NUMBERS[kind] == "S1":
        return text
    try:
        return parse_number(text, np.dtype(NUMBERS[kind])).item()
    except ValueError:
        return text


def parse_number(text: str, dtype: np.dtype[Any]) -> np.generic:
    """Parse a number of ``dtype``. Raise ValueError if ``text`` is not a number of this type."""
    if dtype.kind == "f":
        with np.errstate(all="ignore"):
            return dtype.type(float(text))  # type: ignore[no-any-return]  # numpy types it as Any
    number = int(text)
    bounds = np.iinfo(dtype)
    if not bounds.min <= number <= bounds.max:
        raise ValueError(f"expected a number of type {dtype}, from {bounds.min} to {bounds.max}, found {text}")
    return dtype.type(number)  # type: ignore[no-any-return]  # numpy types it as Any


def parse_numbers(texts: Sequence[str], label: str) -> npt.NDArray[np.int64]:
    """Parse an integer in each text. Raise ValueError, which names ``label``, if a text is invalid or negative."""
    try:
        # An array of texts takes the memory of the longest text for each text.
        if max(map(len, texts), default=0) > MOST_CHARACTERS:
            raise ValueError
        numbers = np.array(texts, "U").astype(np.int64)
    except (ValueError, OverflowError):
        numbers = np.full(1, -1)
    if (numbers < 0).any():
        wrong = next((text for text in texts if not _DECIMAL.fullmatch(text) or int(text) >= COUNTABLE), "")
        raise ValueError(f"{label} is {wrong!r}: expected an integer from 0 to 2**63-1")
    return numbers


def parse_integers(text: str) -> tuple[int, ...]:
    """Parse integers that are separated by spaces or commas, with or without brackets."""
    numbers = text.strip().strip("[]").replace(",", " ").split()
    return tuple(_parse_integer(number, "a number in a list") for number in numbers)
