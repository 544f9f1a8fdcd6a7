"""bcolz and bloscpack samples that the real libraries wrote: those in tests/data, and more if the real data exist."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve()
SHIPPED = HERE.parents[1] / "data" / "bcolz"


class Sample(NamedTuple):
    """One source, and its expected content, as its writer recorded it."""

    name: str
    path: Path
    expected: dict[str, Any]

    @property
    def is_refused(self) -> bool:
        return self.expected["kind"] == "refuse"

    @property
    def is_file(self) -> bool:
        return self.path.suffix == ".blp"

    @property
    def arrays(self) -> dict[str, dict[str, Any]]:
        """The expected content of each array, by its path."""
        columns: dict[str, dict[str, Any]] | None = self.expected.get("columns")
        return {"data": self.expected} if columns is None else columns

    def chunks(self, array: str) -> list[tuple[str, dict[str, int]]]:
        """Return for each chunk its file (relative to the source; "" for the source) and the fields of its frame."""
        expected = self.arrays[array]
        if self.is_file:
            return [("", chunk) for chunk in expected["header"]["chunks"]]
        folder = "" if "columns" not in self.expected else f"{array}/"
        by_number = sorted(expected["chunks"].items(), key=lambda item: int(item[0].split("__")[1][:-4]))
        return [(folder + name, chunk) for name, chunk in by_number]


def _find_folder() -> Path:
    shared = os.environ.get("REFSHARD_SHARED")
    every = (Path(shared) if shared else HERE.parents[3] / "shared") / "data" / "bcolz-samples"
    return every if every.is_dir() else SHIPPED


def find_samples(root: Path | None = None) -> list[Sample]:
    """Return all samples below ``root``, by default in the folder with the most samples."""
    root = _find_folder() if root is None else root
    expected = json.loads((root / "expected.json").read_text())
    return [Sample(name, root / name, found) for name, found in expected.items()]


def read_sample(name: str) -> Sample:
    """Return the sample ``name`` of tests/data."""
    return next(s for s in find_samples(SHIPPED) if s.name.rpartition("/")[2] == name)
