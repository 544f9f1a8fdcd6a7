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
from tests.servers.http import RangeServer

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
        kind = TABLE[name].kind
        value: Any = {} if kind.startswith("Mapping") else 5000 if kind in ("int", "float") else "text"
        value = {"shards": "whole", "mode": "a", "zarr_format": 3, "as_of": "2026-01-31"}.get(name, value)
        options = Options.parse(**{"fo": "refs.json", name: value})
        groups = [getattr(options, group) for group in options.__struct_fields__]
        found = [getattr(group, name) for group in groups if name in group.__struct_fields__]
        assert found == [value], parameter


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("concurrency", 0, "invalid concurrency=0: expected at least 1"),
        ("concurrency", None, "invalid concurrency=None: expected a number"),
        ("max_gap", "1MB", "invalid max_gap='1MB': expected a number"),
        ("block_cache", "1GB", "invalid block_cache='1GB': expected a number"),
        ("timeout", "5s", "invalid timeout='5s': expected a number"),
        ("retries", -1, "invalid retries=-1: expected at least 0"),
        ("head", 5, "invalid head=5: expected at least 4096"),
        ("record_size", 0, "invalid record_size=0: expected at least 1"),
        ("group", 1, "invalid group=1: expected a path as text, got int"),
        ("cache_dir", 1, "invalid cache_dir=1: expected a directory"),
        ("target_options", "anon", "invalid target_options=.anon.: expected a mapping"),
        ("options", ["a"], r"invalid options=\['a'\]: expected a mapping"),
        ("options", {"s3://b/": 1}, r"invalid options={'s3://b/': 1}: expected a mapping of options for each URL"),
        ("allow", 5, "invalid allow=5: expected 'any' or a list of URL prefixes"),
        ("allow", [None], "invalid URL prefix None: expected one such as"),
    ],
)
def test_values_of_another_type_or_range_are_refused(name: str, value: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        RefShardFileSystem({"k": "v"}, **{name: value})


@pytest.mark.parametrize(
    "limit", [{"max_gap": -5}, {"max_block": None}, {"max_block": -1}, {"cache_size": None}, {"cache_size": -1}]
)
def test_limits_that_fsspec_accepts_are_accepted(http_server: RangeServer, limit: dict[str, Any]) -> None:
    url = http_server.put("data", bytes(range(200)))
    fs = RefShardFileSystem({f"a/{i}": [url, 9 * i, 9] for i in range(20)}, **limit)
    assert fs.cat(["a/1", "a/2"]) == {"a/1": bytes(range(9, 18)), "a/2": bytes(range(18, 27))}


def test_options_are_frozen_and_equal_by_value() -> None:
    one, other = (RefShardFileSystem({"k": "v"}, max_gap=7, remote_options={"a": 1})._options for _ in range(2))
    assert one == other
    assert one != msgspec.structs.replace(one, reading=msgspec.structs.replace(one.reading, max_gap=8))
    with pytest.raises(AttributeError):
        one.reading.max_gap = 9  # type: ignore[misc]


def test_unknown_keywords_are_errors_or_protocol_options() -> None:
    with pytest.raises(TypeError, match="headers=: put options of targets into options={'https://host/': {"):
        Options.parse("/here/refs.json", headers={"a": "b"})
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
