"""Tests of sets write many equal files."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.support.written_once import keep_written_files


@pytest.fixture(scope="module", autouse=True)
def _equal_files_are_written_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if "xarray" in sys.modules:  # the module of the tests has imported it
            keep_written_files(patch, sys.modules["xarray"])
        yield
