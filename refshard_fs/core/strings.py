"""Many texts in two arrays: a sequence that costs its bytes and eight more for each. No I/O here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

_NONE = np.uint64(1 << 63)  # set in the end of a text that is None


class Texts(Sequence[str | None]):
    """An immutable sequence of texts, or None; ``data`` holds them in a row, ``ends`` where each one ends."""

    __slots__ = ("data", "ends")

    def __init__(self, data: npt.NDArray[np.uint8], ends: npt.NDArray[np.uint64]) -> None:
        self.data = data
        self.ends = ends

    @classmethod
    def of(cls, texts: Iterable[str | bytes | None]) -> Texts:
        """Return the sequence of ``texts``; bytes are in UTF-8 (half surrogate pairs allowed)."""
        given = [text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text for text in texts]
        parts = [text or b"" for text in given]
        ends = np.cumsum(np.fromiter(map(len, parts), np.uint64, len(parts)), dtype=np.uint64)
        if None in given:
            for i, text in enumerate(given):
                if text is None:
                    ends[i] |= _NONE
        return cls(np.frombuffer(b"".join(parts), np.uint8), ends)

    @classmethod
    def of_sizes(cls, data: bytes, sizes: npt.NDArray[np.int64]) -> Texts:
        """Return the texts of so many bytes each that ``data`` has in a row."""
        return cls(np.frombuffer(data, np.uint8), sizes.cumsum().view(np.uint64))

    @classmethod
    def joined(cls, parts: Sequence[Texts]) -> Texts:
        """Return the texts of all ``parts``, in a row."""
        shift = 0
        ends = [np.zeros(0, np.uint64)]
        for part in parts:
            ends.append(part.ends + np.uint64(shift))  # which leaves the mark of None where it is
            shift += len(part.data)
        return cls(np.concatenate([np.zeros(0, np.uint8), *(part.data for part in parts)]), np.concatenate(ends))

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the arrays take."""
        return self.data.nbytes + self.ends.nbytes

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> str | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[str | None]: ...
    def __getitem__(self, index: int | slice) -> str | list[str | None] | None:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self.ends))[index]
        stop = int(self.ends[place])
        if stop & int(_NONE):
            return None
        start = int(self.ends[place - 1]) & ~int(_NONE) if place else 0
        return self.data[start:stop].tobytes().decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str | None]:
        return map(self.__getitem__, range(len(self.ends)))

    def __repr__(self) -> str:
        return f"<{len(self)} texts>"
