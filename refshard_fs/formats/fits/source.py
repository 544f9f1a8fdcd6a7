"""FITS files as a group with an array for each image, and a group of columns for each table. No I/O here.

Each header gives the position of the next HDU. Many headers are read at a time where the sizes of HDUs repeat (science,
error, quality, ...), and all bytes where HDUs are short.
Images are cut into pieces of about four MiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, cycle, islice
from typing import Any, Final

import msgspec

from refshard_fs.core.array_group import ArrayDescription, ArrayGroup, Chunks, Contiguous, choose_chunks
from refshard_fs.core.chain import EVEN, FIRST_BLOCK, LAST_BLOCK, UNEVEN, foresee
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Load, Raw, Span, Steps
from refshard_fs.errors import ManifestError
from refshard_fs.formats.fits.header import BLOCK, MOST_HEADER, Header, Short, make_name, parse_header
from refshard_fs.formats.fits.images import Image, name_axes, parse_image
from refshard_fs.formats.fits.tables import UNSIGNED, cut_unsigned, parse_table
from refshard_fs.formats.fits.tiles import TileChunks

GUESS: Final = 20 * BLOCK  # bytes that are read first for a header
MOST_HDUS: Final = 1 << 16  # in a file; more would take minutes to open
AHEAD: Final = 4  # headers that are read together where the sizes of the first HDUs may repeat, and
AT_ONCE: Final = 64  # the most where they do

_TABLES: Final = ("BINTABLE", "A3DTABLE", "TABLE")


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a FITS file."""
    source, size = probe.file("FITS")
    headers, reports = yield from _read_headers(probe, size)
    images: dict[str, Image] = {}
    cuts: dict[str, tuple[int, ...]] = {}
    arrays: dict[str, ArrayDescription] = {}
    chunks: dict[str, Chunks] = {}
    groups: dict[str, dict[str, Any]] = {}
    dtypes: dict[str, Mapping[str, str]] = {}
    taken = set(reports)
    for number, header in enumerate(headers):
        name = _name_array(header, number, taken)
        reason = _find_refusal(header)
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
            elif not header.axes():
                if number:
                    groups[name] = header.attributes
                    taken.add(name)
                continue
            else:
                is_compressed = header.cards.get("ZIMAGE") is True
                image = parse_image(header, "Z" if is_compressed else "")
                if is_compressed:
                    chunks[name] = tiles = TileChunks(source, header, image, size)
                    cuts[name] = tiles.chunks
                else:
                    itemsize = image.stored.itemsize
                    cuts[name] = choose_chunks(image.shape, itemsize)
                    how = image.shape, cuts[name], itemsize, image.where
                    chunks[name] = Contiguous(source, header.stop, *how)
                    if image.dtype == UNSIGNED:
                        cuts[name], chunks[name] = cut_unsigned(source, header.stop, image.shape, image.where)
                images[name], dtypes[name] = image, image.attribute_dtypes
        except ManifestError as e:
            reports[name] = str(e)
        taken.add(name)
    if not images and not arrays and (reports or not headers):
        why = "; ".join(f"{name}: {reason}" for name, reason in list(reports.items())[:10]) or "it is empty"
        raise ManifestError(f"{probe.url}: it has no image or table that can be shown ({why})")
    dimensions = name_axes(images)
    arrays |= {name: image.describe(cuts[name], dimensions[name]) for name, image in images.items()}
    for name, found in chunks.items():
        if isinstance(found, TileChunks):
            arrays[name] = msgspec.structs.replace(arrays[name], file_codecs=(found.codec,))
    attributes = headers[0].attributes
    keyspace = ArrayGroup(arrays, chunks, options.zarr_format, attributes, reports, groups=groups)
    keyspace.attribute_dtypes = dtypes
    return keyspace


def _read_headers(probe: Probe, size: int) -> Steps[tuple[list[Header], dict[str, str]]]:
    """Read the headers of all HDUs. Return them, and a report of bytes after the last HDU."""
    pin = None if probe.facts is None else probe.facts.pin
    read = {0: probe.head}  # pieces of the file by position
    found: list[Header] = []
    at, length = 0, GUESS
    block, run, foreseen = FIRST_BLOCK, 1, 0  # the header behind all that were predicted last begins at ``foreseen``
    while at < size:
        where = f"{probe.url}, HDU {len(found)}"
        start, data = next(((b, d) for b, d in read.items() if b <= at < b + len(d)), (at, b""))
        data = data[at - start :]
        try:
            if found and len(data) >= 8 and data[:8] != b"XTENSION":
                return found, {f"{len(found)}": f"the {size - at} bytes at {at} are not an HDU"}
            header = parse_header(data, at, size, where)
            end = header.stop + header.data_size
            if end > size:
                raise ManifestError(f"{where} is cut short: its data end at byte {end}, the file at byte {size}")
        except ManifestError as e:
            if not found:
                raise
            return found, {f"{len(found)}": f"{e}. Later HDUs cannot be found"}
        except Short:
            if len(data) >= MOST_HEADER:
                raise ManifestError(f"{where}: its header does not end within {MOST_HEADER} bytes") from None
            sizes = [header.end - header.start for header in found[1:]]  # the first HDU has no data mostly
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
        found.append(header)
        if len(found) > MOST_HDUS:
            raise ManifestError(f"{probe.url}: it has more than {MOST_HDUS} HDUs")
        at, length = header.end, max(GUESS, header.stop - header.start + BLOCK)
    return found, {}


def _name_array(header: Header, number: int, taken: set[str]) -> str:
    """Name the array of an HDU: EXTNAME, with EXTVER unless it is 1; without EXTNAME, PRIMARY or the HDU's number."""
    given = header.cards.get("EXTNAME")
    name = make_name(given)
    if name and header.cards.get("EXTVER", 1) != 1:
        name = f"{name}_{header.cards['EXTVER']}"
    if not name:
        name = str(number) if number else "PRIMARY"
    while name in taken:
        name = f"{name}_{number}"
    return name


def _find_refusal(header: Header) -> str | None:
    """Return the reason why an HDU cannot be shown; None if it is an image or a table."""
    kind = header.cards.get("XTENSION", "IMAGE")
    if kind not in ("IMAGE", "IUEIMAGE", *_TABLES):
        return f"it is not an image or a table but {kind}"
    if header.cards.get("GROUPS") is True and header.axes()[-1:] == (0,):
        return "it has random groups, which are not supported"
    return None
