"""The examples in the docstrings of what makes sets, as they stand there."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import refshard_fs.sets

MODULES = [module.name for module in pkgutil.iter_modules(refshard_fs.sets.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(f"refshard_fs.sets.{name}"))
    assert not failed
