"""FITS files as a group with an array for each image. No I/O here.

HDUs follow one another, and each header tells where the next one begins. They are read some at a time, since many files
repeat HDUs of one size. Images are cut into pieces of about four MiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from refshard_fs.core.array_group import ArrayGroup, Chunks, Contiguous, pieces
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Load, Raw, Span, Steps
from refshard_fs.errors import ManifestError
from refshard_fs.formats.fits.header import BLOCK, MOST_HEADER, Header, Short, parse_header
from refshard_fs.formats.fits.images import Image, axis_names, image_of
from refshard_fs.formats.fits.tiles import TileChunks

GUESS: Final = 20 * BLOCK  # bytes that are read for a header
MOST_HDUS: Final = 1 << 16  # in a file; with more, opening would take minutes
AHEAD: Final = 4  # headers that are read together, where the sizes of earlier HDUs put them

_PLAIN: Final = re.compile(r"[^A-Za-z0-9._-]+")


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a FITS file."""
    source, size = probe.file("FITS")
    headers, reports = yield from _headers(probe, size)
    images: dict[str, Image] = {}
    cuts: dict[str, tuple[int, ...]] = {}
    chunks: dict[str, Chunks] = {}
    taken = set(reports)
    for number, header in enumerate(headers):
        name = _name(header, number, taken)
        reason = _unshown(header)
        if reason is None:
            try:
                is_compressed = header.cards.get("ZIMAGE") is True
                image = image_of(header, "Z" if is_compressed else "")
                if is_compressed:
                    chunks[name] = tiles = TileChunks(source, header, image, size)
                    cuts[name] = tiles.chunks
                else:
                    itemsize = image.stored.itemsize
                    cuts[name] = pieces(image.shape, itemsize)
                    how = image.shape, cuts[name], itemsize, image.where
                    chunks[name] = Contiguous(source, header.stop, *how)
                images[name] = image
            except ManifestError as e:
                reason = str(e)
        if reason is not None and (number or header.data_size):
            reports[name] = reason
        if name in images or name in reports:
            taken.add(name)
    if not images:
        why = "; ".join(f"{name}: {reason}" for name, reason in list(reports.items())[:10]) or "it has no data"
        raise ManifestError(f"{probe.url}: it has no image that can be shown ({why})")
    dimensions = axis_names(images)
    arrays = {name: image.described(cuts[name], dimensions[name]) for name, image in images.items()}
    keyspace = ArrayGroup(arrays, chunks, options.zarr_format, headers[0].attributes, reports)
    keyspace.attribute_dtypes = {name: image.attribute_dtypes for name, image in images.items()}
    return keyspace


def _headers(probe: Probe, size: int) -> Steps[tuple[list[Header], dict[str, str]]]:
    """Return the headers of all HDUs, and what is said of bytes behind the last one."""
    pin = None if probe.facts is None else probe.facts.pin
    read = {0: probe.head}  # pieces of the file, by where they begin
    found: list[Header] = []
    at, length = 0, GUESS
    while at < size:
        where = f"{probe.url}, HDU {len(found)}"
        start, data = next(((b, d) for b, d in read.items() if b <= at < b + len(d)), (at, b""))
        data = data[at - start :]
        try:
            if found and len(data) >= 8 and data[:8] != b"XTENSION":
                return found, {f"{len(found)}": f"the {size - at} bytes from {at} on begin like no HDU"}
            header = parse_header(data, at, size, where)
            end = header.stop + header.data_size
            if end > size:
                raise ManifestError(f"{where} is cut short: its data end at byte {end}, the file at {size}")
        except ManifestError as e:
            if not found:
                raise
            return found, {f"{len(found)}": f"{e}. HDUs behind it cannot be found"}
        except Short:
            if len(data) >= MOST_HEADER:
                raise ManifestError(f"{where}: its header has no end within {MOST_HEADER} bytes") from None
            places = [at, *_guesses(found, size)]
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


def _guesses(found: list[Header], size: int) -> Iterator[int]:
    """Yield where headers would be if the sizes of the HDUs so far came again, in turn: science, error, quality, ..."""
    sizes = [header.end - header.start for header in found[1:AHEAD]]
    if sizes:
        place = found[-1].end
        for number in range(1, AHEAD):
            place += sizes[(number - 1) % len(sizes)]
            if place < size:
                yield place


def _name(header: Header, number: int, taken: set[str]) -> str:
    """Return the name of an HDU's array: its EXTNAME, its EXTVER where that is not 1; else PRIMARY, or its number."""
    given = header.cards.get("EXTNAME")
    name = _PLAIN.sub("_", given).strip(".") if isinstance(given, str) else ""
    if name and header.cards.get("EXTVER", 1) != 1:
        name = f"{name}_{header.cards['EXTVER']}"
    if not name or name == "zarr.json":
        name = str(number) if number else "PRIMARY"
    return f"{name}_{number}" if name in taken else name


def _unshown(header: Header) -> str | None:
    """Return why an HDU is no image that can be shown; None if it is one."""
    kind = header.cards.get("XTENSION", "IMAGE")
    if header.cards.get("ZIMAGE") is True and kind == "BINTABLE":
        return None
    if kind not in ("IMAGE", "IUEIMAGE"):
        return f"it is a table or the like ({kind}): images alone are shown"
    if header.cards.get("GROUPS") is True and header.axes()[-1:] == (0,):
        return "it has random groups, a kind of table: images alone are shown"
    if not header.axes():
        return "it has no data"
    return None
