"""Small files of formats other than HDF5 that describe much data are refused, or open with little memory."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from refshard_fs.core.array_group import UNWRITTEN
from refshard_fs.errors import NotListable, RefShardError
from refshard_fs.formats.dmrpp.document import MOST_REPEATED
from refshard_fs.formats.fits.header import BLOCK
from refshard_fs.formats.fits.tiles import encode_header
from refshard_fs.formats.grib2.decoding import Values
from refshard_fs.formats.grib2.messages import MOST, parse_sidecar
from tests.support.dmrpp_writer import make_document
from tests.support.memory import check_peak
from tests.support.plain_tiff import make_tiff
from tests.support.shards_in_memory import ROOT, Files

pytestmark = pytest.mark.case(id="P32")


def refused(data: bytes, most: int = 64 << 20) -> str:
    """Return the error of opening a file. Check that it takes at most ``most`` bytes."""
    with check_peak(most), pytest.raises(RefShardError) as caught:
        Files({ROOT: data}).open()
    return str(caught.value)


def opened(data: bytes, most: int = 64 << 20, others: Mapping[str, bytes] | None = None) -> Any:
    """Open a file as a key space. Check that it takes at most ``most`` bytes."""
    with check_peak(most):
        return Files({ROOT: data, **(others or {})}).open()


Tags = dict[int, tuple[int, int, int]]  # number: type, count, and value or place


def ifd(tags: Tags, following: int = 0) -> bytes:
    entries = b"".join(struct.pack("<HHII", number, *tags[number]) for number in sorted(tags))
    return struct.pack("<H", len(tags)) + entries + struct.pack("<I", following)


def image(width: int = 4, height: int = 4, **more: tuple[int, int, int]) -> Tags:
    """Return the tags of an image of one strip; ``more`` tags have the names ``t`` and a number."""
    plain = {256: width, 257: height, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: height, 279: 16}
    return {number: (4, 1, value) for number, value in plain.items()} | {int(k[1:]): v for k, v in more.items()}


def tiff(before: bytes, pages: Sequence[Tags]) -> bytes:
    """Return a file of ``pages`` with this many tags each, whose values lie at byte 8."""
    at = first = 8 + len(before)
    data = b""
    for page in pages:
        at += len(ifd(page))
        data += ifd(page, at if page is not pages[-1] else 0)
    return struct.pack("<2sHI", b"II", 42, first) + before + data


def test_sub_ifds_at_one_offset_are_refused() -> None:
    sub = ifd(dict.fromkeys(range(256, 2000), (4, 1, 1)))
    before = sub + struct.pack("<I", 8) * 5000
    assert "overlap" in refused(tiff(before, [image(t330=(4, 5000, 8 + len(sub)))]))


def test_pages_sharing_large_tag_bytes_are_refused() -> None:
    text = b"<GDALMetadata>" + b" " * 100_000
    page = image(t42112=(2, len(text), 8))
    assert "overlap" in refused(tiff(text, [dict(page) for _ in range(300)]))
    many = dict.fromkeys(range(33000, 33300), (1, 50000, 8))
    assert "overlap" in refused(tiff(bytes(50_000), [many]))  # the head, which is held already


def test_pages_may_share_small_tag_bytes() -> None:
    page = image(t270=(2, 1000, 8))
    assert len(opened(tiff(bytes(1000), [dict(page) for _ in range(100)])).grids) == 100


def test_total_planes_of_an_ome_tiff_are_bounded() -> None:
    one = '<Image><Pixels DimensionOrder="XYZCT" SizeZ="60000"><TiffData IFD="0"/></Pixels></Image>'
    again = f'<Image><Pixels DimensionOrder="XYZCT" SizeZ="50">{"<TiffData/>" * 100}</Pixels></Image>'
    for images, reason in ((one * 50, "planes"), (again, "several times")):
        text = f"<OME>{images}</OME>".encode() + b"\0"
        pages = [image(t270=(2, len(text), 8)), *(image() for _ in range(49))]
        found = opened(tiff(text, pages))
        assert reason in found.reports["OME-XML"]
        assert len(found.grids) == 50


def test_oversized_strip_of_a_small_file_is_not_shown() -> None:
    assert "and less than" in refused(make_tiff(bytes(64), 1 << 14, 1 << 13, compression=5))


def test_pages_with_thousands_of_strips_take_little_memory() -> None:
    """Two pages share a table of 8000 strips."""
    strips = 8000
    places = np.arange(8, 8 + strips, dtype="<u4").tobytes() + np.ones(strips, "<u4").tobytes()
    tags = image(1, strips, t278=(4, 1, 1), t273=(4, strips, 8), t279=(4, strips, 8 + 4 * strips))
    found = opened(tiff(places, [dict(tags) for _ in range(2)]))
    assert [grid.size for grid in found.grids.values()] == [1, 1]


def section(number: int, content: bytes) -> bytes:
    return struct.pack(">IB", len(content) + 5, number) + content


def grid(across: int, down: int, first: int = 0) -> bytes:
    corners = struct.pack(">iiBiiiiB", first, 20, 48, 0, 30, 10, 10, 0)
    head = struct.pack(">BIBBH", 0, across * down, 0, 0, 0)
    return section(3, head + bytes(16) + struct.pack(">IIII", across, down, 0, 0) + corners)


def packed(stored: int, template: int = 0, more: bytes = b"\0\0", data: bytes = b"") -> bytes:
    """Return sections 5, 6 and 7 of values of 0 bits."""
    five = struct.pack(">IHfHH", stored, template, 1.0, 0, 0) + more
    return section(5, five) + section(6, b"\xff") + section(7, data)


def message(grid_: bytes, values: bytes) -> bytes:
    time = section(1, bytes(7) + struct.pack(">HBBBBB", 2024, 2, 3, 4, 5, 6) + b"\0\1")
    product = struct.pack(">HHBBBBBHBBIBBIBBI", 0, 0, 0, 0, 2, 0, 0, 0, 0, 1, 6, 100, 0, 50000, 255, 0, 0)
    sections = time + grid_ + section(4, product) + values
    return b"GRIB\0\0\0\2" + struct.pack(">Q", len(sections) + 20) + sections + b"7777"


def test_grid_of_134_million_points_is_refused() -> None:
    assert "134212225 points, in 11585 rows of 11585: expected" in refused(
        message(grid(11585, 11585), packed(11585**2))
    )


def test_total_coordinates_of_a_file_are_bounded() -> None:
    found = opened(b"".join(message(grid(1, 100_000, first), packed(100_000)) for first in range(100)))
    assert 10 < len(found.reports) < 100


def test_groups_of_many_points_take_48_bytes_a_point() -> None:
    count = 1 << 20
    of_groups = struct.pack(">BBBBffIBBIBIB", 0, 0, 1, 0, 0, 0, 1, 0, 0, count, 0, count, 0)
    values = packed(count, 2, of_groups, bytes(8))
    sizes = (len(values) - 6 - 13, 6, 13)
    with check_peak(48 * count):
        assert np.frombuffer(Values(count, sizes).make(values), "<f4")[-1] == 1.0


def test_jpeg_2000_image_of_many_components_is_refused() -> None:
    size = struct.pack(">HHIIIIIIIIH", 38 + 3 * 999, 0, 8, 8, 0, 0, 8, 8, 0, 0, 999)
    values = packed(64, 40, b"\x08\0\0\xff", b"\xff\x4f\xff\x51" + size + b"\7\1\1" * 999)
    with pytest.raises(ValueError, match="999 components"):
        Values(64, (23, 6, len(values) - 29)).make(values)


@pytest.mark.parametrize("offset", ["Infinity", "1e999", "-5", str(2**70), "NaN", "[" * 10_000])
def test_sidecar_with_impossible_offsets_is_refused(offset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refshard_fs.formats.grib2.source.WHOLE", 0)
    data = message(grid(3, 2), packed(6))
    files = Files({ROOT: data, ROOT + ".index": f'{{"_offset": {offset}}}'.encode()})
    with pytest.raises(RefShardError), check_peak(64 << 20):
        files.open(head=64)  # which is not all of the file


def test_sidecar_of_too_many_messages_is_refused() -> None:
    lines = "\n".join(f"1:{at}:d" for at in range(MOST + 1))
    with pytest.raises(ValueError, match=f"expected at most {MOST}"):
        parse_sidecar(lines.encode())


PRIMARY = encode_header({"SIMPLE": True, "BITPIX": 8, "NAXIS": 0, "EXTEND": True})


def test_tiles_that_share_the_bytes_of_a_heap_are_refused() -> None:
    pytest.importorskip("astropy")
    rows, heap = 1000, 20_000
    table = {"XTENSION": "BINTABLE", "BITPIX": 8, "NAXIS": 2, "NAXIS1": 8, "NAXIS2": rows, "PCOUNT": heap, "GCOUNT": 1}
    tiles = {"ZIMAGE": True, "ZBITPIX": 8, "ZNAXIS": 1, "ZNAXIS1": rows, "ZTILE1": 1, "ZCMPTYPE": "GZIP_1"}
    column = {"TFIELDS": 1, "TTYPE1": "COMPRESSED_DATA", "TFORM1": "1PB(9)"}
    data = struct.pack(">ii", heap, 0) * rows + bytes(heap)
    data = PRIMARY + encode_header({**table, **column, **tiles}) + data.ljust(-(-len(data) // BLOCK) * BLOCK, b"\0")
    files = Files({ROOT: data})
    keys = files.open()
    with check_peak(8 << 20), pytest.raises(RefShardError, match="the size of the heap"):
        files.read(keys, "1/0")


def test_fits_headers_are_not_scanned_again_for_each_hdu(monkeypatch: pytest.MonkeyPatch) -> None:
    from refshard_fs.formats.fits.header import Header

    asked = []
    end = Header.end.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Header, "end", property(lambda header: asked.append(1) or end(header)))
    empty = {"XTENSION": "IMAGE", "BITPIX": 8, "NAXIS": 0, "PCOUNT": 0, "GCOUNT": 1}
    unknown = encode_header({**empty, "XTENSION": "UNKNOWN"})
    assert "expected an image or a table" in refused(PRIMARY + encode_header(empty) * 500 + unknown)
    assert len(asked) < 3 * 500


def named(name: bytes) -> bytes:
    return struct.pack(">I", len(name)) + name + bytes(-len(name) % 4)


def test_long_dimension_name_of_all_variables_is_refused() -> None:
    dimension = named(b"n" * 20_000) + struct.pack(">I", 1)
    variables = [named(b"v%d" % n) + struct.pack(">33I4IQ", 32, *[0] * 32, 0, 0, 1, 4, 80_000) for n in range(300)]
    head = b"CDF\2" + struct.pack(">III", 0, 10, 1) + dimension + struct.pack(">IIII", 0, 0, 11, len(variables))
    data = (head + b"".join(variables)).ljust(80_001, b"\0")
    assert "names of its variables' dimensions" in refused(data)


def test_long_number_among_many_is_refused_in_little_memory() -> None:
    long = '<dmrpp:chunk offset="' + "1" * 100_000 + '" nBytes="1" chunkPositionInArray="[0]"/>'
    rest = [f'<dmrpp:chunk offset="1" nBytes="1" chunkPositionInArray="[{number}]"/>' for number in range(1, 1000)]
    chunks = f"<dmrpp:chunkDimensionSizes>1</dmrpp:chunkDimensionSizes>{long}{''.join(rest)}"
    data = make_document(f'<Int8 name="a"><Dim size="1000"/><dmrpp:chunks>{chunks}</dmrpp:chunks></Int8>')
    assert "offset is '1111" in opened(data).reports["a"]


def test_texts_shared_by_many_variables_are_bounded() -> None:
    many = f'<String name="a"><Dim size="1000000"/><dmrpp:vlsa><v c="1000000">{"x" * 100}</v></dmrpp:vlsa></String>'
    assert f"expected at most {MOST_REPEATED}" in opened(make_document(many)).reports["a"]
    short = '<String name="a{0}"><Dim size="1000000"/><dmrpp:vlsa><v c="1000000">x</v></dmrpp:vlsa></String>'
    assert "expected at most" in opened(make_document("".join(map(short.format, range(9)))), 256 << 20).reports["a8"]


def test_inflated_document_is_bounded() -> None:
    text = base64.b64encode(zlib.compress(bytes(1 << 24), 9)).decode()
    one = f'<Int8 name="a{{0}}"><Dim size="{1 << 24}"/><dmrpp:missingdata>{text}</dmrpp:missingdata></Int8>'
    found = opened(make_document("".join(map(one.format, range(9)))), 256 << 20)
    assert 0 < len(found.grids) < 9
    assert len(found.reports) == 9 - len(found.grids)


@pytest.mark.case(id="P26")
def test_too_many_missing_chunks_are_not_listed() -> None:
    sizes = "<dmrpp:chunkDimensionSizes>1</dmrpp:chunkDimensionSizes>"
    body = f'<Int8 name="a"><Dim size="{UNWRITTEN + 1}"/><dmrpp:chunks fillValue="1">{sizes}</dmrpp:chunks></Int8>'
    files = Files({ROOT: make_document(body)})
    keys = files.open()
    assert files.read(keys, "a/7") == b"\1"
    with pytest.raises(NotListable, match=f"{UNWRITTEN + 1} chunks .0 written"):
        files.run(keys.children("a"))


def test_dimensions_without_a_name_are_found_by_their_size() -> None:
    chunks = '<dmrpp:chunks fillValue="1"><dmrpp:chunkDimensionSizes>1 1</dmrpp:chunkDimensionSizes></dmrpp:chunks>'
    sizes = [(3, 3), (3, 4), (4, 4), (4, 3)]
    body = "".join(
        f'<Int8 name="v{at}"><Dim size="{first}"/><Dim size="{second}"/>{chunks}</Int8>'
        for at, (first, second) in enumerate(sizes)
    )
    keys = Files({ROOT: make_document(body)})
    found = keys.open()
    names = [json.loads(keys.read(found, f"v{at}/.zattrs") or b"")["_ARRAY_DIMENSIONS"] for at in range(4)]
    phony = [f"phony_dim_{number}" for number in range(4)]
    assert names == [phony[:2], [phony[0], phony[2]], [phony[2], phony[3]], [phony[2], phony[0]]]
