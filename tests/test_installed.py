"""The version of zarr for which metadata are shown."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError

import pytest

from refshard_fs.core import zarrmeta as installed


def test_imported_zarr_decides_the_version() -> None:
    zarr = pytest.importorskip("zarr")
    assert installed.zarr_major() == int(zarr.__version__.partition(".")[0])


def test_installed_zarr_decides_without_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "zarr", raising=False)
    monkeypatch.setattr(installed, "version", lambda name: "2.18.7")
    assert installed.zarr_major() == 2


def test_zarr_may_be_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.delitem(sys.modules, "zarr", raising=False)
    monkeypatch.setattr(installed, "version", version)
    assert installed.zarr_major() is None
