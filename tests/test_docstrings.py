"""The examples in docstrings of what shows a source, as they stand there."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["amounts", "counters", "notebook", "picture.selecting", "selection"])
def test_examples_are_true(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(f"refshard_fs.{name}"))
    assert tried
    assert not failed
