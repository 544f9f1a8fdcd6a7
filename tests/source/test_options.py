"""The keywords of the constructor become options, in groups, and the page of options lists them."""

from __future__ import annotations

import inspect
from typing import Any

import fsspec
import msgspec
import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.source.options import Options, list_keywords
from refshard_fs.source.settings import Settings

TABLE = {option.name: option for options in Options.table().values() for option in options}


def test_every_keyword_is_an_option_with_its_default() -> None:
    assert TABLE.keys() == list_keywords().keys()
    defaults = {name: "" if p.default is p.empty else repr(p.default) for name, p in list_keywords().items()}
    assert {name: option.default for name, option in TABLE.items()} == defaults


def test_every_option_has_a_type_and_one_sentence() -> None:
    for option in TABLE.values():
        assert option.kind
        assert option.effect.endswith(".")
        assert ". " not in option.effect
        assert bool(option.unit) == option.default.replace(".", "").isdigit() or option.name == "zarr_format"


def test_constructor_has_the_signature_of_parse() -> None:
    own, parsed = (inspect.signature(function).parameters for function in (RefShardFileSystem.__init__, Options.parse))
    assert list(own.items())[1:] == list(parsed.items())


def test_each_keyword_sets_its_field() -> None:
    for name, parameter in list_keywords().items():
        value: Any = object()
        if name in ("shards", "mode", "zarr_format", "head", "shard_options", "remote_options"):
            value = {"shards": "whole", "mode": "a", "zarr_format": 3, "head": 5000}.get(name, {})
        options = Options.parse(**{"fo": "refs.json", name: value})
        groups = [getattr(options, group) for group in options.__struct_fields__]
        found = [getattr(group, name) for group in groups if name in group.__struct_fields__]
        assert found == [value], parameter


def test_options_are_frozen_and_equal_by_value() -> None:
    one, other = (RefShardFileSystem({"k": "v"}, max_gap=7, remote_options={"a": 1})._options for _ in range(2))
    assert one == other
    assert one != msgspec.structs.replace(one, reading=msgspec.structs.replace(one.reading, max_gap=8))
    with pytest.raises(AttributeError):
        one.reading.max_gap = 9  # type: ignore[misc]


def test_unknown_keywords_are_errors_or_protocol_options() -> None:
    with pytest.raises(TypeError, match="did you mean max_gap="):
        Options.parse("refs.json", max_gab=1)
    options = Options.parse("s3://bucket/refs.json", anon=True, asynchronous=True)
    assert options.trust.of_source == {"anon": True}
    assert Settings.of(options).pool.find_options("s3://bucket/refs.json") == {"anon": True}


@pytest.mark.parametrize(
    ("name", "value"),
    [("shards", "inside"), ("zarr_format", 4), ("head", 100), ("mode", "q"), ("shard_options", {"x": 1})],
)
def test_invalid_option_values_are_refused(name: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        fsspec.filesystem("refshard", fo={"k": "v"}, **{name: value})
