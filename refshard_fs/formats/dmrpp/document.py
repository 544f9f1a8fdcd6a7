"""A DMR++ document as it is written: groups, dimensions, variables and where their bytes lie. No I/O here.

It is read by expat as a stream. Document types, and with them entities, are refused: nothing in a document can refer to
files or servers, or make much of little. Names are those of DAP4 and of the dmrpp namespace.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final
from xml.parsers import expat

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.array_group import PACKING
from refshard_fs.core.keys import is_key, join
from refshard_fs.core.zarrmeta import COUNTABLE, is_node_name
from refshard_fs.errors import ManifestError

DAP: Final = "DAP/4.0#"
DMRPP: Final = "dmrpp/1.0.0#"
DEEPEST: Final = 100  # elements within one another
REPEATED: Final = 1 << 25  # bytes of texts that a document says once for many, with 8 for each of them
LONGEST: Final = 32  # characters of a number, with space around it
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
_OTHERS: Final = ("Structure", "Sequence", "Enum", "Opaque")
# Attributes by which HDF5 and netCDF keep dimensions, and what DMR++ says of itself.
_HIDDEN: Final = frozenset(["DIMENSION_LIST", "REFERENCE_LIST", "DIMENSION_LABELS", "_NCProperties"])
_HIDDEN_NETCDF: Final = ("_Netcdf4", "_nc3_strict")
_DECIMAL: Final = re.compile(r"[0-9]{1,19}", re.ASCII)


class Dim(msgspec.Struct, frozen=True):
    """One dimension of a variable: the path of a shared one, or the size of one of its own."""

    path: str | None
    size: int | None


class Variable(msgspec.Struct):
    """A variable as it is declared. ``inline`` are its values where they stand in the document: (how, text)."""

    path: str
    type: str
    dims: list[Dim] = []
    attributes: dict[str, Any] = {}
    attribute_dtypes: dict[str, str] = {}
    has_chunks: bool = False
    chunk_sizes: str = ""
    compression: str = ""
    levels: str = ""
    byte_order: str = ""
    fill: str | None = None
    string_length: int | None = None
    inline: tuple[str, str] | None = None
    texts: list[str] = []
    problem: str | None = None
    # Of each chunk, as it is spelled: there are hundreds of thousands, which become numbers all at once (`numbers`).
    offsets: list[str] = []
    sizes: list[str] = []
    positions: list[str] = []
    hrefs: list[str | None] = []


class Document(msgspec.Struct):
    """All that a document says."""

    href: str | None = None
    groups: dict[str, dict[str, Any]] = {}
    dimensions: dict[str, int] = {}
    variables: dict[str, Variable] = {}
    reports: dict[str, str] = {}


def parse_document(data: bytes, where: str) -> Document:
    """Return what a document says; ManifestError, which begins with ``where``, where it is damaged."""
    reader = _Reader(where)
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.StartDoctypeDeclHandler = reader.refuse
    parser.EntityDeclHandler = reader.refuse
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, UnicodeDecodeError, LookupError) as e:
        raise ManifestError(f"{where} is no XML, or cut short: {e}") from None
    except ValueError as e:
        raise ManifestError(f"{where}, line {parser.CurrentLineNumber}: {e}") from None
    if not reader.is_dataset:
        raise ManifestError(f"{where}: its root is no Dataset of DAP4")
    return reader.document


class _Attribute(msgspec.Struct):
    name: str
    type: str
    values: list[str] = []


class _Reader:
    """Takes the elements of a document as they come."""

    def __init__(self, where: str) -> None:
        self.document = Document(groups={"": {}})
        self.is_dataset = False
        self._where = where
        self._path: list[str] = []  # of groups
        self._elements: list[str] = []
        self._variable: Variable | None = None
        self._inner = 0  # elements of a variable within that variable, whose members are not shown
        self._attributes: list[_Attribute] = []
        self._text: list[str] = []
        self._repeats = 1
        self._repeated = 0  # bytes, as `REPEATED` counts them

    def refuse(self, *declared: Any) -> None:
        """Refuse a document type or an entity."""
        raise ValueError("it declares a document type or an entity, which no DMR++ needs: they are refused")

    def text(self, data: str) -> None:
        self._text.append(data)

    def start(self, tag: str, given: dict[str, str]) -> None:
        space, _, name = tag.rpartition(" ")
        self._text.clear()
        self._elements.append(name)
        if len(self._elements) > DEEPEST:
            raise ValueError(f"more than {DEEPEST} elements lie within one another")
        if space.endswith(DMRPP):
            if self._variable is not None and not self._inner:
                self._located(self._variable, name, given)
        elif name == "Dataset":
            self.is_dataset |= space.endswith(DAP) and len(self._elements) == 1
            self.document.href = next((v for key, v in given.items() if key.rpartition(" ")[2] == "href"), None)
        elif name == "Group" and self._variable is None:
            self._path.append(self._name(given))
            self.document.groups.setdefault("/".join(self._path), {})
        elif name == "Dimension":
            self.document.dimensions[self._below(self._name(given))] = _integer(given.get("size"), "size")
        elif name == "Attribute":
            self._attributes.append(_Attribute(given.get("name", ""), given.get("type", "String")))
        elif name == "Value" and self._attributes and "value" in given:
            self._attributes[-1].values.append(given["value"])
        elif name == "v":
            self._repeats = _integer(given.get("c", "1"), "c")
        elif name in NUMBERS or name in TEXTS or name in _OTHERS:
            self._declared(name, given)
        elif name == "Dim" and self._variable is not None and not self._inner:
            shared, size = given.get("name"), given.get("size")
            if shared is None and size is None:
                raise ValueError(f"a Dim of {self._variable.path!r} has neither a name nor a size")
            own = None if shared is not None else _integer(size, "size")
            self._variable.dims.append(Dim(None if shared is None else shared.strip("/"), own))

    def end(self, tag: str) -> None:
        space, _, name = tag.rpartition(" ")
        self._elements.pop()
        text = "".join(self._text)
        self._text.clear()
        variable = self._variable
        if space.endswith(DMRPP):
            if variable is not None and not self._inner and name == "chunkDimensionSizes":
                variable.chunk_sizes = text
            elif variable is not None and not self._inner and name in ("compact", "missingdata"):
                variable.inline = (name, text)
        elif name == "Group" and variable is None:
            self._path.pop()
        elif name == "Value" and self._attributes and (text or not self._attributes[-1].values):
            self._attributes[-1].values.append(text)
        elif name == "v" and variable is not None:
            self._repeated += (self._repeats - 1) * (len(text) + 8)
            if self._repeated > REPEATED:
                raise ValueError(f"texts that are said once for many take more than {REPEATED} bytes")
            variable.texts += [text] * self._repeats
        elif name == "Attribute":
            self._end_attribute()
        elif name in NUMBERS or name in TEXTS or name in _OTHERS:
            if self._inner:
                self._inner -= 1
            else:
                self._variable = None

    # ------------------------------------------------------------------

    def _declared(self, kind: str, given: dict[str, str]) -> None:
        """Note the variable that begins here."""
        if self._variable is not None:
            self._inner += 1
            return
        name = given.get("name", "")
        path = self._below(name)
        self._variable = Variable(path, kind)
        if not is_node_name(name) or not is_key(path):
            self.document.reports[path] = f"its name {name!r} is no name that a key can have"
        elif path in self.document.variables or path in self.document.groups:
            raise ValueError(f"two variables or groups are called {path!r}")
        elif kind in _OTHERS:
            self.document.reports[path] = f"it is of the type {kind}"
        else:
            self.document.variables[path] = self._variable

    def _located(self, variable: Variable, name: str, given: dict[str, str]) -> None:
        """Note what an element of the dmrpp namespace says of where the bytes of ``variable`` lie."""
        if name == "chunk":
            if given.get("fm", "0") != "0":
                variable.problem = "some of its chunks skip filters (fm)"
            if "LinkedBlockIndex" in given:
                variable.problem = "its chunks are made of linked blocks"
            variable.byte_order = given.get("byteOrder", variable.byte_order)
            variable.offsets.append(given.get("offset", ""))
            variable.sizes.append(given.get("nBytes", ""))
            variable.positions.append(given.get("chunkPositionInArray", ""))
            variable.hrefs.append(given.get("href"))
        elif name == "chunks":
            variable.has_chunks = True
            variable.compression = given.get("compressionType", "")
            variable.levels = given.get("deflateLevel", given.get("deflate_level", ""))
            variable.byte_order = given.get("byteOrder", "")
            variable.fill = given.get("fillValue")
        elif name == "FixedLengthStringArray":
            variable.string_length = _integer(given.get("string_length"), "string_length")
        elif name == "vlsa":
            variable.inline = (name, "")
        elif name not in ("chunkDimensionSizes", "compact", "missingdata"):
            variable.problem = f"its bytes are told of by {name}"

    def _end_attribute(self) -> None:
        found = self._attributes.pop()
        container = self._attributes[-1].name if self._attributes else None
        if self._inner or found.type in ("Container", "OtherXML") or container not in (None, "HDF5_GLOBAL"):
            return  # what nests is no attribute of HDF5
        if found.name in _HIDDEN or found.name.startswith(_HIDDEN_NETCDF) or not found.name:
            return
        values = [_value(found.type, text) for text in found.values]
        whole: Any = values[0] if len(values) == 1 else values
        if not values and found.type in TEXTS:
            whole = ""
        of = self._variable.attributes if self._variable is not None else self.document.groups["/".join(self._path)]
        of[found.name] = whole
        if self._variable is not None and found.name in PACKING and isinstance(whole, (int, float)):
            self._variable.attribute_dtypes[found.name] = NUMBERS[found.type]

    def _name(self, given: dict[str, str]) -> str:
        name = given.get("name", "")
        if not is_node_name(name):
            raise ValueError(f"a group or a dimension is called {name!r}, which is no name that a key can have")
        return name

    def _below(self, name: str) -> str:
        return join("/".join(self._path), name)


def _integer(text: str | None, what: str) -> int:
    if text is None or not _DECIMAL.fullmatch(text.strip()) or int(text) >= COUNTABLE:
        raise ValueError(f"{what} is {text!r}, no number from 0 to 2**63-1")
    return int(text)


def _value(kind: str, text: str) -> Any:
    """Return an attribute's value as JSON has it; as text where it is no number of its type."""
    if kind in TEXTS or kind not in NUMBERS or NUMBERS[kind] == "S1":
        return text
    try:
        return number(text, np.dtype(NUMBERS[kind])).item()
    except ValueError:
        return text


def number(text: str, dtype: np.dtype[Any]) -> np.generic:
    """Return the number of ``dtype`` that a text spells; ValueError where it spells none."""
    if dtype.kind == "f":
        with np.errstate(all="ignore"):
            return dtype.type(float(text))  # type: ignore[no-any-return]  # numpy types it as Any
    whole = int(text)
    bounds = np.iinfo(dtype)
    if not bounds.min <= whole <= bounds.max:
        raise ValueError(f"{text} is no number of {dtype}")
    return dtype.type(whole)  # type: ignore[no-any-return]  # numpy types it as Any


def numbers(texts: Sequence[str], what: str) -> npt.NDArray[np.int64]:
    """Return the numbers that are spelled, one in each text; ValueError where one is none, or negative."""
    try:
        if max(map(len, texts), default=0) > LONGEST:  # numpy makes all as long as the longest
            raise ValueError
        found = np.array(texts, "U").astype(np.int64)
    except (ValueError, OverflowError):
        found = np.full(1, -1)
    if (found < 0).any():
        wrong = next((text for text in texts if not _DECIMAL.fullmatch(text) or int(text) >= COUNTABLE), "")
        raise ValueError(f"{what} is {wrong!r}, no number from 0 to 2**63-1")
    return found


def integers(text: str) -> tuple[int, ...]:
    """Return the numbers in a text, between which are spaces or commas, in brackets or not."""
    found = text.strip().strip("[]").replace(",", " ").split()
    return tuple(_integer(part, "a list of numbers") for part in found)
