"""Files by their places along dimensions. No I/O here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import numpy as np

from refshard_fs.errors import ManifestError
from refshard_fs.sets.expand import make_natural_key
from refshard_fs.sets.patterns import FileCoordinate, Pattern

NUMBER: Final = "number of the file"  # counts files whose fields have the same values; no dimension has this name


class FileGrid(NamedTuple):
    """Files by their places along ``dims``; a place may have no file."""

    dims: Sequence[str]
    places: Mapping[str, list[FileCoordinate]]  # ascending, by dimension
    files: Mapping[tuple[int, ...], str]

    @classmethod
    def by_names(
        cls, pattern: Pattern, urls: Sequence[str], dims: Sequence[str], *, is_numbered: bool = False
    ) -> tuple[FileGrid, list[str]]:
        """Return the grid of the files that match, and all others.

        Places are found as `of` does.
        """
        named = [(url, pattern.parse_places(url)) for url in urls]
        others = [url for url, places in named if places is None]
        files = [(url, places) for url, places in named if places is not None]
        return cls.of(files, dims, is_numbered=is_numbered), others

    @classmethod
    def of(
        cls,
        files: Iterable[tuple[str, Mapping[str, FileCoordinate]]],
        dims: Sequence[str],
        assets: Sequence[str] | None = None,
        *,
        is_numbered: bool = False,
    ) -> FileGrid:
        """Return the grid of ``files``, which come with their places; ManifestError if two have the same place.

        With ``is_numbered``, files with the same place are numbered in their order, along a last dimension `NUMBER`.
        Places are sorted, except those along ``asset`` if ``assets`` gives their order.
        """
        if is_numbered:
            counts: Counter[tuple[FileCoordinate, ...]] = Counter()
            numbered = []
            for url, places in files:
                key = tuple(places[dim] for dim in dims)
                numbered.append((url, {**places, NUMBER: counts[key]}))
                counts[key] += 1
            files, dims = numbered, [*dims, NUMBER]
        by_place: dict[tuple[FileCoordinate, ...], str] = {}
        for url, places in files:
            key = tuple(places[dim] for dim in dims)
            if key in by_place:
                raise ManifestError(
                    f"{by_place[key]} and {url} have the same place, {_format_place(dims, key)}: to tell them apart, "
                    "put a further field in place of '*' into the pattern, or a further column into the table"
                )
            by_place[key] = url
        along = {dim: sorted({key[axis] for key in by_place}, key=_make_sort_key) for axis, dim in enumerate(dims)}
        if assets is not None and "asset" in along and set(along["asset"]) <= set(assets):
            along["asset"] = [name for name in dict.fromkeys(assets) if name in along["asset"]]
        number = {dim: {place: i for i, place in enumerate(places)} for dim, places in along.items()}
        numbers = {key: tuple(number[d][p] for d, p in zip(dims, key, strict=True)) for key in by_place}
        return cls(dims, along, {numbers[key]: url for key, url in by_place.items()})

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(self.places[dim]) for dim in self.dims)

    @property
    def holes(self) -> list[tuple[int, ...]]:
        """The places that have no file."""
        return [at for at in np.ndindex(self.shape) if at not in self.files]

    def check_whole(self) -> None:
        """Raise ManifestError, which names the places, if there are places without a file."""
        if self.holes:
            shown = list_some(list(map(self.describe, self.holes)), "; ")
            several = len(self.dims) > 1 and NUMBER not in self.dims
            fewer = f". If only some of {', '.join(self.dims)} are dimensions, name these by dims=" if several else ""
            raise ManifestError(
                f"no file has {shown}: with join='outer', values without a file are shown as missing{fewer}"
            )

    def describe(self, at: Sequence[int]) -> str:
        """Return the text of a place for an error; ``at`` may have only the numbers along the first dimensions."""
        dims = self.dims[: len(at)]
        return _format_place(dims, [self.places[dim][number] for dim, number in zip(dims, at, strict=True)])

    def drop_empty(self, dims: Container[str | None] | None = None) -> FileGrid:
        """Return the grid without the places along ``dims`` (None: all dimensions) at which no file lies."""
        every = [range(len(self.places[dim])) for dim in self.dims]
        numbers = [
            sorted({at[axis] for at in self.files}) if dims is None or dim in dims else list(every[axis])
            for axis, dim in enumerate(self.dims)
        ]
        places = {dim: [self.places[dim][n] for n in kept] for dim, kept in zip(self.dims, numbers, strict=True)}
        moved = [{number: now for now, number in enumerate(kept)} for kept in numbers]
        files = {tuple(m[n] for m, n in zip(moved, at, strict=True)): url for at, url in self.files.items()}
        return FileGrid(self.dims, places, files)

    def is_of_times(self, dim: str) -> bool:
        """Return whether the places along ``dim`` are times."""
        return isinstance(self.places[dim][0], datetime)


def list_some(texts: Sequence[str], separator: str = ", ") -> str:
    """Return the first three of ``texts``, and the number of others."""
    return separator.join(texts[:3]) + (f" and {len(texts) - 3:,} others" if len(texts) > 3 else "")


def _make_sort_key(place: FileCoordinate) -> Any:
    return make_natural_key(place) if isinstance(place, str) else place


def _format_place(dims: Sequence[str], key: Sequence[FileCoordinate]) -> str:
    shown = [place.isoformat()[:19] if isinstance(place, datetime) else place for place in key]
    return ", ".join(f"{dim} = {place}" for dim, place in zip(dims, shown, strict=True))
