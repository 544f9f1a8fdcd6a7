"""Keep the pins of a set's targets in columns: size, ETag, and time of the last modification. No I/O here.

These pins are exact: an object with another size, ETag or time is another version of the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from posixpath import commonprefix
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.columns import WHOLE, Texts, UInt64s
from refshard_fs.core.model import Pin
from refshard_fs.errors import ManifestError

_NOTHING: Final = Pin(exact=True)


class _PinColumns(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Pins as in JSON: all columns have the same length; ``base`` comes before each URL; a column may be left out."""

    url: list[str]
    base: str = ""
    size: list[int | None] | None = None
    etag: list[str | None] | None = None
    last_modified: list[str | None] | None = None


class Pins(msgspec.Struct, frozen=True, eq=False):
    """A pin for each URL of a set, in the order of the URLs."""

    etags: Texts
    times: Texts
    sizes: UInt64s  # WHOLE: unknown

    @classmethod
    def of(cls, pins: Iterable[Pin | None]) -> Pins:
        """Convert ``pins`` to columns."""
        all_pins = [pin or _NOTHING for pin in pins]
        sizes = (WHOLE if pin.size is None else pin.size for pin in all_pins)
        return cls(
            Texts.of(pin.etag for pin in all_pins),
            Texts.of(pin.last_modified for pin in all_pins),
            np.fromiter(sizes, np.uint64, len(all_pins)),
        )

    @classmethod
    def join(cls, parts: Sequence[tuple[Pins | None, int]]) -> Pins | None:
        """Join the pins of several sets, each with its number of URLs; None if no set has pins."""
        if all(pins is None for pins, _ in parts):
            return None
        full = [cls.of([None] * count) if pins is None else pins for pins, count in parts]
        return cls(
            Texts.concatenate([pins.etags for pins in full]),
            Texts.concatenate([pins.times for pins in full]),
            np.concatenate([pins.sizes for pins in full]),
        )

    def __len__(self) -> int:
        """Return the number of URLs."""
        return len(self.sizes)

    @property
    def nbytes(self) -> int:
        """The size of the columns in bytes."""
        return self.etags.nbytes + self.times.nbytes + self.sizes.nbytes

    def get_pin(self, target: int) -> Pin | None:
        """Return the pin of ``target``, an index into the URLs; None if it has no pin."""
        size = int(self.sizes[target])
        pin = Pin(self.etags[target], self.times[target], None if size == WHOLE else size, exact=True)
        return None if pin == _NOTHING else pin

    def take(self, targets: npt.NDArray[np.int64]) -> list[Pin | None]:
        """Return the pins of ``targets``, as `get_pin` does."""
        sizes = [None if size == WHOLE else size for size in self.sizes[targets].tolist()]
        found: list[Pin | None] = list(
            map(Pin, self.etags.take(targets), self.times.take(targets), sizes, repeat(True))
        )
        has_none = self.etags.list_none(targets) & self.times.list_none(targets) & (self.sizes[targets] == WHOLE)
        for place in np.flatnonzero(has_none).tolist():
            found[place] = None
        return found

    def map_by_url(self, urls: Iterable[str | None]) -> dict[str | None, Pin]:
        """Return the pins that exist, by URL; ``urls`` are the URLs of the set."""
        found = ((url, self.get_pin(target)) for target, url in enumerate(urls))
        return {url: pin for url, pin in found if pin is not None}

    def keep_sizes(self, moved: Sequence[bool]) -> Pins:
        """Return the pins, with only sizes for targets that were ``moved``: copies have other ETags and times."""
        pins = [self.get_pin(target) for target in range(len(self))]
        return self.of(
            Pin(size=pin.size) if pin is not None and is_moved else pin
            for pin, is_moved in zip(pins, moved, strict=True)
        )

    def to_json(self, urls: Iterable[str | None]) -> dict[str, Any]:
        """Convert the pins to JSON; ``urls`` are the URLs as written in the set."""
        found = [(url, pin) for url, pin in self.map_by_url(urls).items() if url is not None]
        names = [url for url, _ in found]
        base = commonprefix(names) if len(names) > 1 else ""
        columns_in_json = _PinColumns([name[len(base) :] for name in names], base)
        for name in ("size", "etag", "last_modified"):
            values = [getattr(pin, name) for _, pin in found]
            if any(value is not None for value in values):
                setattr(columns_in_json, name, values)
        value: dict[str, Any] = msgspec.to_builtins(columns_in_json)
        return value

    @classmethod
    def read(cls, value: object, urls: Texts, where: str) -> Pins | None:
        """Parse the JSON ``value`` to the pins of ``urls``; ManifestError if it is malformed."""
        try:
            columns_in_json = msgspec.convert(value, _PinColumns)
        except (msgspec.ValidationError, UnicodeEncodeError) as e:  # UnicodeEncodeError: a lone surrogate
            raise ManifestError(f"the pins of {where} are malformed: {e}") from e
        count = len(columns_in_json.url)
        columns: list[list[Any]] = []
        for name in ("etag", "last_modified", "size"):
            column = getattr(columns_in_json, name)
            if column is not None and len(column) != count:
                raise ManifestError(
                    f"the pins of {where} are malformed: expected {count} values of {name}, one for each URL, "
                    f"got {len(column)}"
                )
            columns.append(column or [None] * count)
        wrong = next((size for size in columns[2] if size is not None and not 0 <= size < WHOLE), None)
        if wrong is not None:
            raise ManifestError(f"the pins of {where} are malformed: expected sizes from 0 to 2**64-2, got {wrong}")
        urls_in_json = [columns_in_json.base + url for url in columns_in_json.url]
        known = {url: Pin(*facts) for url, *facts in zip(urls_in_json, *columns, strict=True)}
        return cls.match(known, urls)

    @classmethod
    def match(cls, known: Mapping[str | None, Pin] | Mapping[str, Pin], urls: Texts) -> Pins | None:
        """Return the pins of ``urls``, taken from ``known``; None if no URL has a pin."""
        found: list[Pin | None] = [known.get(url) for url in urls]  # type: ignore[arg-type]  # keys of either type
        return cls.of(found) if any(pin is not None for pin in found) else None
