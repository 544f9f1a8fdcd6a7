"""A mark for tests that need the package's entry points."""

from __future__ import annotations

from importlib import metadata

import pytest

ENTRIES = {
    (group, point.name)
    for group in ("fsspec.specs", "universal_pathlib.implementations")
    for point in metadata.entry_points(group=group)
}


not_installed = pytest.mark.skipif(
    ("fsspec.specs", "refshard") not in ENTRIES, reason="found by its entry point: install the package"
)
