"""FITS files as a group with an array for each image, and a group of columns for each table. No I/O here.

Each header gives the position of the next HDU. Several headers are read at a time, because HDUs often repeat in size.
Images are cut into pieces of about four MiB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from refshard_fs.core.array_group import ArrayDescription, ArrayGroup, Chunks, Contiguous, choose_chunks
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
AHEAD: Final = 4  # headers that are read together, at positions predicted from the sizes of earlier HDUs

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
        name = _name(header, number, taken)
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
            places = [at, *_predict_headers(found, size)]
            spans = [Span(probe.url, place, min(place + length, size), pin=pin) for place in places]
            answers = yield tuple(Load(span, Raw()) for span in spans)
            read = dict(zip(places, answers, strict=True))
            length *= 4
            continue
        found.append(header)
        if len(found) > MOST_HDUS:
            raise ManifestError(f"{probe.url}: it has more than {MOST_HDUS} HDUs")
        at, length = header.end, GUESS
    return found, {}


def _predict_headers(found: list[Header], size: int) -> Iterator[int]:
    """Predict positions of headers from the sizes of the HDUs so far, in turn: science, error, quality, ..."""
    sizes = [header.end - header.start for header in found[1:AHEAD]]
    if sizes:
        place = found[-1].end
        for number in range(1, AHEAD):
            place += sizes[(number - 1) % len(sizes)]
            if place < size:
                yield place


def _name(header: Header, number: int, taken: set[str]) -> str:
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
