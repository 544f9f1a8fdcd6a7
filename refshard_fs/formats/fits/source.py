"""Open FITS files as a group with an array for each image, and a group of columns for each table. No I/O here.

Each header gives the position of the next HDU. Where the sizes of HDUs repeat (science, error, quality, ...), the
positions of several headers are predicted, and the headers read together. Where HDUs are short, the file is read in
blocks. Images without compression are cut into chunks of about 4 MiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, cycle, islice
from typing import Any, Final

import msgspec
import numpy as np

from refshard_fs.core.array_group import ArrayDescription, ArrayGroup, Chunks, Contiguous, choose_chunks
from refshard_fs.core.chain import EVEN, FIRST_BLOCK, LAST_BLOCK, UNEVEN, foresee
from refshard_fs.core.format import FileBytes, OpenOptions, Probe
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Load, Raw, Span, Steps
from refshard_fs.errors import ManifestError
from refshard_fs.formats.fits.header import BLOCK, MOST_HEADER, Header, HeaderIncomplete, make_name, parse_header
from refshard_fs.formats.fits.images import Image, name_axes, parse_image
from refshard_fs.formats.fits.tables import UNSIGNED, cut_unsigned, parse_table
from refshard_fs.formats.fits.tiles import TileChunks

GUESS: Final = 20 * BLOCK  # bytes that are read first for a header, whose size is unknown
MOST_HDUS: Final = 1 << 16  # HDUs in a file; more would take minutes to open
AHEAD: Final = 4  # headers that are read together before it is known whether the sizes of HDUs repeat
SUMMED: Final = 4 << 20  # bytes of an HDU that are read at a time to verify its checksum
ONES: Final = 0xFFFFFFFF  # sums in ones' complement are numbers modulo this number
AT_ONCE: Final = 64  # the most headers that are read together if sizes repeat

_TABLES: Final = ("BINTABLE", "A3DTABLE", "TABLE")


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a FITS file: read all headers, and show images and columns as arrays."""
    source, size = probe.file("FITS file")
    headers, reports = yield from _read_headers(probe, size)
    file = FileBytes(probe.url, source, size, probe.head)
    damage: dict[int, str | None] = {}
    for header in headers if options.verify else ():
        damage[header.start] = yield from _find_wrong_sum(file, header)
    images: dict[str, Image] = {}
    chunk_shapes: dict[str, tuple[int, ...]] = {}
    arrays: dict[str, ArrayDescription] = {}
    chunks: dict[str, Chunks] = {}
    groups: dict[str, dict[str, Any]] = {}
    dtypes: dict[str, Mapping[str, str]] = {}
    taken = set(reports)
    for number, header in enumerate(headers):
        name = _name_array(header, number, taken)
        reason = damage.get(header.start) or _explain_unsupported_hdu(header)
        try:
            if reason is not None:
                reports[name] = reason
            elif header.cards.get("XTENSION") in _TABLES and header.cards.get("ZIMAGE") is not True:
                for title, column in parse_table(header, source):
                    path = f"{name}/{title}"
                    if isinstance(column, str):
                        reports[path] = column
                    else:
                        arrays[path], chunks[path], dtypes[path] = msgspec.structs.astuple(column)
                groups[name] = header.attributes
            elif not header.get_axes():
                if number:
                    groups[name] = header.attributes
                    taken.add(name)
                continue
            else:
                is_compressed = header.cards.get("ZIMAGE") is True
                image = parse_image(header, "Z" if is_compressed else "")
                if is_compressed:
                    chunks[name] = tiles = TileChunks(source, header, image, size)
                    chunk_shapes[name] = tiles.chunks
                else:
                    place = source, header.stop, image.shape
                    itemsize = image.stored.itemsize
                    chunk_shapes[name] = chunk_shape = choose_chunks(image.shape, itemsize)
                    chunks[name] = Contiguous(*place, chunk_shape, itemsize, image.where)
                    if image.dtype == UNSIGNED:
                        chunk_shapes[name], chunks[name] = cut_unsigned(*place, image.where)
                images[name], dtypes[name] = image, image.attribute_dtypes
        except ManifestError as e:
            reports[name] = str(e)
        taken.add(name)
    if not images and not arrays and (reports or not headers):
        reasons = "; ".join(f"{name}: {reason}" for name, reason in list(reports.items())[:10]) or "it is empty"
        raise ManifestError(f"{probe.url}: expected an image or a table that can be shown, found none ({reasons})")
    dimensions = name_axes(images)
    arrays |= {name: image.describe(chunk_shapes[name], dimensions[name]) for name, image in images.items()}
    for name, located in chunks.items():
        if isinstance(located, TileChunks):
            arrays[name] = msgspec.structs.replace(arrays[name], file_codecs=(located.codec,))
    attributes = headers[0].attributes
    keyspace = ArrayGroup(arrays, chunks, options.zarr_format, attributes, reports, groups=groups)
    keyspace.attribute_dtypes = dtypes
    return keyspace


def _read_headers(probe: Probe, size: int) -> Steps[tuple[list[Header], dict[str, str]]]:
    """Read the headers of all HDUs, up to the first HDU that is damaged or cut short.

    The second result is a report about that HDU, by its number; it is empty if no HDU is damaged.
    """
    pin = None if probe.facts is None else probe.facts.pin
    read = {0: probe.head}  # bytes of the file by position
    headers: list[Header] = []
    at, length = 0, GUESS
    # ``run`` headers are read together; the header after them is expected at ``foreseen``.
    block, run, foreseen = FIRST_BLOCK, 1, 0
    while at < size:
        where = f"{probe.url}, HDU {len(headers)}"
        data = next((piece[at - start :] for start, piece in read.items() if start <= at < start + len(piece)), b"")
        try:
            if headers and len(data) >= 8 and data[:8] != b"XTENSION":
                reason = f"expected an HDU at byte {at}, which begins with XTENSION, found {data[:8]!r}"
                return headers, {f"{len(headers)}": reason}
            header = parse_header(data, at, size, where)
            end = header.stop + header.data_size
            if end > size:
                raise ManifestError(f"{where} is cut short: expected data up to byte {end}, found {size} bytes")
        except ManifestError as e:
            if not headers:
                raise
            return headers, {f"{len(headers)}": f"{e}. Later HDUs cannot be found"}
        except HeaderIncomplete:
            if len(data) >= MOST_HEADER:
                raise ManifestError(
                    f"{where}: expected END in the first {MOST_HEADER} bytes of its header, found none"
                ) from None
            sizes = [header.end - header.start for header in headers[1:]]  # the first HDU usually has no data
            period = foresee(sizes)
            likely = period or sizes[-AHEAD:]
            places = [at]
            if 0 < sum(likely) <= len(likely) * (EVEN if period else UNEVEN):
                length, block = max(length, block), min(2 * block, LAST_BLOCK)
            elif len(sizes) < AHEAD or period:
                run = 1 if 0 < foreseen != at else run
                ahead = accumulate(cycle(period if len(sizes) >= AHEAD else sizes), initial=at)
                places = list(islice(ahead, (run if len(sizes) >= AHEAD else AHEAD) + 1))
                foreseen = places.pop() if len(places) > 1 else 0
                run = min(2 * run, AT_ONCE)
            spans = [Span(probe.url, place, min(place + length, size), pin=pin) for place in places if place < size]
            answers = yield tuple(Load(span, Raw()) for span in spans)
            read = {span.start: answer for span, answer in zip(spans, answers, strict=True)}
            length *= 4
            continue
        headers.append(header)
        if len(headers) > MOST_HDUS:
            raise ManifestError(f"{probe.url}: it has {len(headers)} HDUs or more: expected at most {MOST_HDUS}")
        at, length = header.end, max(GUESS, header.stop - header.start + BLOCK)
    if at > size:
        reason = f"expected padding up to byte {at}, found the end of the file, byte {size}: later HDUs may be missing"
        return headers, {f"{len(headers)}": reason}
    return headers, {}


def _find_wrong_sum(file: FileBytes, header: Header) -> Steps[str | None]:
    """Read an HDU, and return how its sums differ from its cards CHECKSUM and DATASUM; None if they do not differ.

    Both sums are of 32-bit integers, in ones' complement. The sum of an HDU with the card CHECKSUM has only ones.
    """
    expected = str(header.cards.get("DATASUM", ""))
    has_checksum = bool(str(header.cards.get("CHECKSUM", "")).strip("0 "))
    if not has_checksum and not expected.isdecimal():
        return None
    sums = []
    for start, stop in ((header.start, header.stop), (header.stop, min(header.end, file.size))):
        total = 0
        for at in range(start, stop, SUMMED):
            [data] = yield from file.load([(at, min(SUMMED, stop - at))])
            total += int(np.frombuffer(data.ljust(-(-len(data) // 4) * 4, b"\0"), ">u4").sum(dtype=np.uint64))
        sums.append(total)
    data_sum, whole = sums[1] % ONES, sum(sums) % ONES
    if expected.isdecimal() and data_sum != int(expected) % ONES:
        return f"its data have the sum {data_sum}: expected {expected}, its DATASUM. It is damaged, or was edited"
    if has_checksum and whole:
        return (
            f"its header and data have the sum {whole}: expected 0, as its CHECKSUM says. It is damaged, or was edited"
        )
    return None


def _name_array(header: Header, number: int, taken: set[str]) -> str:
    """Name the array of an HDU: EXTNAME, with EXTVER unless it is 1; without EXTNAME, PRIMARY or the HDU's number.

    The number is appended to a name that is in ``taken``.
    """
    name = make_name(header.cards.get("EXTNAME"))
    if name and header.cards.get("EXTVER", 1) != 1:
        name = f"{name}_{header.cards['EXTVER']}"
    if not name:
        name = str(number) if number else "PRIMARY"
    while name in taken:
        name = f"{name}_{number}"
    return name


def _explain_unsupported_hdu(header: Header) -> str | None:
    """Return the reason why an HDU cannot be shown; None if it is an image or a table."""
    kind = header.cards.get("XTENSION", "IMAGE")
    if kind not in ("IMAGE", "IUEIMAGE", *_TABLES):
        return f"its XTENSION is {kind!r}: expected an image or a table"
    if header.cards.get("GROUPS") is True and header.get_axes()[-1:] == (0,):
        return "it has random groups, which are not supported: expected an image or a table"
    return None
