"""Open DMR++ documents: chunks have valid offsets and a bounded size, or an error of this package is raised."""

from __future__ import annotations

import base64
import zlib
from contextlib import nullcontext as set_up

from refshard_fs.core.array_group import MOST_FILL
from refshard_fs.core.format import HEAD, OpenOptions, Probe
from refshard_fs.core.model import Facts, Inline, Span
from refshard_fs.errors import RefShardError
from refshard_fs.formats.dmrpp.source import open_
from tests.support.shards_in_memory import ROOT, Files

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = True
WORDS = tuple(
    b"""
    <Dataset <Group <Dim <Dimension <dmrpp:chunks <dmrpp:chunk <Attribute <Value> </Value> <!DOCTYPE <!ENTITY &a; &#x20;
    name= size= offset= nBytes= chunkPositionInArray="[0]" compressionType="shuffle" fillValue="NaN" fm="1" c="99"
    byteOrder="BE" <![CDATA[ ]]> <String <Float64 <Int8 9223372036854775807 -1 1e999
    <Structure structOffset="4 12" <Enum <Enumeration <EnumConst value= enum="/e" basetype="Int8" <dmrpp:block
    LinkedBlockIndex="0" LinkedBlockIndex="1" <dmrpp:specialstructuredata> LBChunk="true"
    """.split()
)


def make_seeds() -> list[bytes]:
    root = (
        '<?xml version="1.0" encoding="ISO-8859-1"?><Dataset xmlns="http://xml.opendap.org/ns/DAP/4.0#" '
        'xmlns:dmrpp="http://xml.opendap.org/dap/dmrpp/1.0.0#" dmrpp:href="files://data">'
    )
    chunked = (
        '<Dimension name="x" size="5"/><Group name="g"><Dimension name="y" size="3"/>'
        '<Int16 name="a"><Dim name="/x"/><Dim name="/g/y"/><Dim size="1"/>'
        '<Attribute name="_FillValue" type="Int16"><Value>-1</Value></Attribute>'
        '<dmrpp:chunks compressionType="shuffle deflate fletcher32" deflateLevel="4" fillValue="-1" byteOrder="LE">'
        "<dmrpp:chunkDimensionSizes>2 3 1</dmrpp:chunkDimensionSizes>"
        '<dmrpp:chunk offset="10" nBytes="9" chunkPositionInArray="[2,0,0]"/>'
        '<dmrpp:chunk offset="19" nBytes="9" chunkPositionInArray="[4,0,0]" href="files://b"/>'
        "</dmrpp:chunks></Int16></Group>"
    )
    missing = base64.b64encode(zlib.compress(bytes(24))).decode()
    inline = (
        '<Float64 name="a"><Dim size="100"/><dmrpp:chunk offset="7" nBytes="800"/></Float64>'
        f'<Float64 name="b"><Dim size="3"/><dmrpp:missingdata>{missing}</dmrpp:missingdata></Float64>'
        '<String name="c"><dmrpp:compact>R29vZA==</dmrpp:compact></String>'
        '<String name="d"><Dim size="3"/><dmrpp:vlsa><v>a</v><v c="2">b</v></dmrpp:vlsa></String>'
        '<Attribute name="HDF5_GLOBAL" type="Container"><Attribute name="t" type="Float32"><Value>1e3</Value>'
        "</Attribute></Attribute>"
    )
    structures = (
        '<Enumeration name="e" basetype="Int8"><EnumConst name="no" value="0"/><EnumConst name="b" value="-3"/>'
        '</Enumeration><Enum name="f" enum="/e"><Dim size="3"/><dmrpp:compact>AP0A</dmrpp:compact></Enum>'
        '<Structure name="s"><Int16 name="a"/><Float32 name="b"><Dim size="2"/></Float32><Dim size="4"/>'
        '<dmrpp:chunks byteOrder="BE" structOffset="4 12" fillValue="1 2" compressionType="shuffle deflate">'
        "<dmrpp:chunkDimensionSizes>2</dmrpp:chunkDimensionSizes>"
        '<dmrpp:chunk offset="9" nBytes="24" chunkPositionInArray="[0]" fm="3"/></dmrpp:chunks></Structure>'
        '<Int8 name="l"><Dim size="6"/><dmrpp:chunks><dmrpp:block offset="1" nBytes="4"/>'
        '<dmrpp:block offset="9" nBytes="2"/></dmrpp:chunks></Int8>'
    )
    return [f"{root}{body}</Dataset>".encode() for body in (chunked, inline, chunked + inline, structures)]


def check_input(data: bytes) -> None:
    files = Files({ROOT: data})
    try:
        keys = files.run(open_(Probe(ROOT, Facts(len(data)), data[:HEAD]), OpenOptions(zarr_format=2 + len(data) % 2)))
    except RefShardError:
        return
    for path, grid in keys.grids.items():
        for number in {0, grid.size // 2, grid.size - 1} if grid.size else ():
            if number >= 1 << 63:
                continue
            try:
                entry = files.run(keys.lookup(f"{path}/{grid.tail(number)}"))
            except RefShardError:
                continue
            match entry:
                case Span(start=start, stop=int(stop)):
                    assert 0 <= start <= stop
                case Inline(made):
                    assert len(made) <= 2 * MOST_FILL
