"""The examples in docstrings pass."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

PACKAGE = Path(__file__).parents[1] / "refshard_fs"
MODULES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Undo the changes that examples make to the process."""
    reference = fsspec.get_filesystem_class("reference")
    store = fsspec.filesystem("memory").store
    before = dict(store)  # objects of other test modules
    yield
    fsspec.register_implementation("reference", reference, clobber=True)
    store.clear()
    store.update(before)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_pass(name: str) -> None:
    if name.endswith((".tuning", ".zarr_store")) and not hasattr(pytest.importorskip("zarr"), "config"):
        pytest.skip("this is for zarr 3")
    if name.endswith(".serving"):
        pytest.importorskip("starlette")
    if name.endswith(".virtualizarr"):
        pytest.importorskip("virtualizarr")
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried
    assert not failed
