"""Write the DMR++ document of an HDF5 file by its specification, with the places of chunks from h5py."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import h5py
import numpy as np

TYPES = {
    "i1": "Int8",
    "u1": "UInt8",
    "i2": "Int16",
    "u2": "UInt16",
    "i4": "Int32",
    "u4": "UInt32",
    "i8": "Int64",
    "u8": "UInt64",
    "f4": "Float32",
    "f8": "Float64",
}
MEMBERS = TYPES | {"S1": "Char"}
HIDDEN = {"DIMENSION_LIST", "REFERENCE_LIST", "CLASS", "NAME", "_Netcdf4Dimid", "_Netcdf4Coordinates", "_NCProperties"}


def write_dmrpp(path: Path, href: str = "OPeNDAP_DMRpp_DATA_ACCESS_URL") -> Path:
    """Write the document beside the file ``path``, and return its path."""
    with h5py.File(path) as file:
        root = (
            '<?xml version="1.0" encoding="ISO-8859-1"?>\n'
            '<Dataset xmlns="http://xml.opendap.org/ns/DAP/4.0#" xmlns:dmrpp="http://xml.opendap.org/dap/dmrpp/1.0.0#"'
            f' dapVersion="4.0" dmrVersion="1.0" name="{path.name}" dmrpp:href={quoteattr(href)}>\n'
        )
        text = root + _write_enumerations(file) + _write_group(file) + "</Dataset>\n"
    document = path.with_name(path.name + ".dmrpp")
    document.write_bytes(text.encode("iso-8859-1", "xmlcharrefreplace"))
    return document


def _write_enumerations(file: Any) -> str:
    names: dict[str, dict[str, int]] = {}
    file.visititems(
        lambda name, item: names.update(
            {name: h5py.check_enum_dtype(item.dtype)}
            if isinstance(item, h5py.Dataset) and h5py.check_enum_dtype(item.dtype)
            else {}
        )
    )
    return "".join(
        f'<Enumeration name="type of {name.replace("/", " ")}" basetype="{TYPES[file[name].dtype.str[1:]]}">'
        + "".join(f'<EnumConst name="{key}" value="{value}"/>' for key, value in names[name].items())
        + "</Enumeration>"
        for name in names
    )


def _write_group(group: Any) -> str:
    out = []
    for name, item in group.items():
        if isinstance(item, h5py.Dataset) and item.is_scale:
            out.append(f'<Dimension name="{name}" size="{item.size}"/>')
    for name, item in group.items():
        if isinstance(item, h5py.Group):
            out.append(f"<Group name={quoteattr(name)}>\n{_write_group(item)}</Group>")
        elif not (item.is_scale and b"This is a netCDF dimension but not" in _encode_text(item.attrs.get("NAME", b""))):
            out.append(_write_variable(name, item))
    return "\n".join([*out, *_write_attributes(group.attrs)]) + "\n"


def _encode_text(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _write_attributes(attributes: Any) -> list[str]:
    out = []
    for name, value in attributes.items():
        if name in HIDDEN:
            continue
        values = np.atleast_1d(value)
        kind = TYPES.get(values.dtype.str[1:], "String")
        texts = [v.decode() if isinstance(v, bytes) else str(v) for v in values]
        spelled = "".join(f"<Value>{escape(text)}</Value>" for text in texts)
        out.append(f"<Attribute name={quoteattr(name)} type={quoteattr(kind)}>{spelled}</Attribute>")
    return out


def _write_dims(item: Any) -> list[str]:
    if item.is_scale and item.ndim == 1:
        return [f"<Dim name={quoteattr(item.name)}/>"]
    out = []
    for axis, dim in enumerate(item.dims):
        named = f"name={quoteattr(dim[0].name)}" if len(dim) else f'size="{item.shape[axis]}"'
        out.append(f"<Dim {named}/>")
    return out


def _write_variable(name: str, item: Any) -> str:
    kind, extra = TYPES.get(item.dtype.str[1:], "String"), ""
    inside = [*_write_dims(item), *_write_attributes(item.attrs)]
    if item.dtype.names is not None:
        kind = "Structure"
        for name_, (member, *_) in item.dtype.fields.items():
            dims = "".join(f'<Dim size="{size}"/>' for size in member.shape)
            inside.append(f'<{MEMBERS[member.base.str[1:]]} name="{name_}">{dims}</{MEMBERS[member.base.str[1:]]}>')
    elif h5py.check_enum_dtype(item.dtype):
        kind, extra = "Enum", f' enum="type of {item.name[1:].replace("/", " ")}"'
    if h5py.check_string_dtype(item.dtype) is not None and item.dtype.kind == "O":
        texts = "".join(f"<v>{escape(text.decode())}</v>" for text in np.ravel(item[()]))
        inside.append(f"<dmrpp:vlsa>{texts}</dmrpp:vlsa>")
    elif item.id.get_create_plist().get_layout() == h5py.h5d.COMPACT:
        inside.append(f"<dmrpp:compact>{base64.b64encode(item[()].tobytes()).decode()}</dmrpp:compact>")
    else:
        inside.append(_write_chunks(item))
    return f"<{kind} name={quoteattr(name)}{extra}>\n" + "\n".join(inside) + f"\n</{kind}>"


def _write_chunks(item: Any) -> str:
    order = "BE" if ">" in str(item.dtype.descr) else "LE"
    fill = "" if item.dtype.kind in "SV" else f' fillValue="{item.fillvalue}"'
    filters = []
    plist = item.id.get_create_plist()
    levels = []
    for number in range(plist.get_nfilters()):
        code, _, values, _ = plist.get_filter(number)
        filters.append({1: "deflate", 2: "shuffle", 3: "fletcher32"}.get(code, f"filter{code}"))
        levels += [str(values[0])] if code == 1 else []
    compression = f' compressionType="{" ".join(filters)}"' if filters else ""
    compression += f' deflateLevel="{" ".join(levels)}"' if levels else ""
    inside = []
    if item.dtype.kind == "S":
        inside.append(f'<dmrpp:FixedLengthStringArray string_length="{item.dtype.itemsize}" pad="null"/>')
    if item.chunks is None:
        if item.id.get_offset() is not None:
            inside.append(f'<dmrpp:chunk offset="{item.id.get_offset()}" nBytes="{item.id.get_storage_size()}"/>')
    else:
        inside.append(f"<dmrpp:chunkDimensionSizes>{' '.join(map(str, item.chunks))}</dmrpp:chunkDimensionSizes>")
        for number in range(item.id.get_num_chunks()):
            found = item.id.get_chunk_info(number)
            mask = f' fm="{found.filter_mask}"' if found.filter_mask else ""
            position = ",".join(map(str, found.chunk_offset))
            inside.append(
                f'<dmrpp:chunk offset="{found.byte_offset}" nBytes="{found.size}" '
                f'chunkPositionInArray="[{position}]"{mask}/>'
            )
    if item.dtype.names is not None:
        offsets = [at for _, at, *_ in item.dtype.fields.values()][1:]
        compression += f' structOffset="{" ".join(map(str, [*offsets, item.dtype.itemsize]))}"'
    return f'<dmrpp:chunks{compression}{fill} byteOrder="{order}">' + "\n".join(inside) + "</dmrpp:chunks>"


HEAD = (
    '<?xml version="1.0" encoding="ISO-8859-1"?>'
    '<Dataset xmlns="http://xml.opendap.org/ns/DAP/4.0#" xmlns:dmrpp="http://xml.opendap.org/dap/dmrpp/1.0.0#" '
)


def make_document(body: str, attributes: str = 'name="x" dmrpp:href="files://data"') -> bytes:
    return f"{HEAD}{attributes}>{body}</Dataset>".encode("iso-8859-1", "xmlcharrefreplace")
