"""Texts of a remote set are shown safely: without control characters for a terminal, and without secrets."""

from __future__ import annotations

import json
import logging
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import ManifestError, RefShardError, RefShardFileSystem, TargetNotAllowed, check
from refshard_fs.cli import main
from refshard_fs.errors import LONGEST, contains_credentials, redact, sanitize, sanitize_cause
from refshard_fs.tools.diff import compare
from refshard_fs.tools.info import make_tree, summarise
from tests.servers.http import RangeServer

pytestmark = pytest.mark.case(id="P22")

CONTROLS = [
    "\x1b[31mred",
    "\x1b]0;title\x07",
    "\x08",
    "\r",
    "\x7f",
    "\x9b31m",
    "\x85",
    "\u202egnp",
    "\u061cx",
    "\u2066x",
    "\u2028",
    "\u034f",
    "\u3164",
    "\uffa0",
]
STEERING = {
    *map(chr, [*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), 0x34F, 0x3164, 0xFFA0]),
    "\u2066",
} - {"\n"}
SECRET = "HUSH-0815"


def find_control_characters(text: str) -> set[str]:
    return STEERING.intersection(text)


@pytest.mark.parametrize("control", CONTROLS)
def test_errors_hold_no_control_characters(control: str) -> None:
    refs = {
        f"a{control}": [f"http://127.0.0.1:1/x{control}", 0, 1],
        "b": [f"xyz://{control}/x"],
        "c": [f"http://x{control}/"],
    }
    fs = RefShardFileSystem(refs, retries=0, timeout=5)
    for key in refs:
        with pytest.raises(RefShardError) as caught:
            fs.cat_file(key)
        for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
            assert not find_control_characters(str(error))
        assert not find_control_characters("".join(map(str, traceback.format_exception_only(caught.value))))
    assert not find_control_characters(str(ManifestError(f"{control} is wrong")))


@pytest.mark.parametrize("control", CONTROLS)
def test_values_that_are_shown_hold_no_control_characters(control: str) -> None:
    meta = json.dumps({"zarr_format": 2, "shape": [2], "chunks": [1], "dtype": "|u1", "order": "C", "fill_value": None})
    fs = RefShardFileSystem({f"a{control}/.zarray": meta, f"a{control}/9": "x", f"b{control}": [f"/x{control}", 0, 1]})
    values = [check(fs), compare(fs, RefShardFileSystem({})), summarise(fs), make_tree(fs)]
    assert not find_control_characters("".join(map(str, [*values, fs.tree()])))


def _texts(value: Any) -> list[str]:
    match value:
        case dict():
            return [text for item in value.items() for part in item for text in _texts(part)]
        case list():
            return [text for part in value for text in _texts(part)]
        case _:
            return [str(value)]


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("command", ["info", "ls", "tree", "check"])
def test_json_output_is_ascii_without_control_characters(
    command: str, control: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "refs.json").write_text(json.dumps({f"k{control}": "x", "a/.zarray": "{" + control}))
    main([command, str(tmp_path / "refs.json"), "--json"])
    out = capsys.readouterr().out
    assert out.isascii()
    assert not find_control_characters(out)
    if command == "ls":
        assert any(f"k{control}" in str(found) for found in _texts(json.loads(out)))


NAMES = [
    "token",
    "sig",
    "X-Amz-Signature",
    "X-Goog-Credential",
    "key",
    "api_key",
    "apikey",
    "auth",
    "jwt",
    "pwd",
    "sessionid",
    "sid",
    "code",
]


@pytest.mark.parametrize("name", NAMES)
def test_redact_removes_secret_parameters(name: str) -> None:
    url = f"https://host/x?a=1&{name}={SECRET}&b=2"
    assert SECRET not in redact(url)
    assert "a=1" in redact(url)
    assert "b=2" in redact(url)
    assert contains_credentials(url.encode())


@pytest.mark.parametrize(
    "name", ["keys", "width", "codes", "country_code", "zipcode", "assigned", "author", "authors", "x", "monkey"]
)
def test_parameters_without_secrets_are_shown(name: str) -> None:
    url = f"https://host/x?{name}=5"
    assert redact(url) == url
    assert not contains_credentials(url.encode())


def test_remedy_of_a_refusal_has_no_secret(http_server: RangeServer) -> None:
    urls = [f"ftp://me:{SECRET}@127.0.0.1:9/x", f"file:///x?token={SECRET}", f"http://127.0.0.2:9?token={SECRET}/x"]
    source = http_server.put("/refs.json", json.dumps({f"k{i}": [url] for i, url in enumerate(urls)}).encode())
    fs = RefShardFileSystem(source)
    for i in range(len(urls)):
        with pytest.raises(TargetNotAllowed) as caught:
            fs.cat_file(f"k{i}")
        assert SECRET not in str(caught.value) + repr(caught.value) + caught.value.remedy


def test_causes_of_errors_have_no_secret(http_server: RangeServer, caplog: pytest.LogCaptureFixture) -> None:
    urls = [
        f"http://me:{SECRET}@127.0.0.1:1/x",
        f"http://127.0.0.1:99999/x?token={SECRET}",
        f"http://[::1/x?token={SECRET}",
    ]
    urls += [f"ftp://127.0.0.1:1/x?token={SECRET}", f"{http_server.url}/none?token={SECRET}"]
    fs = RefShardFileSystem({f"k{i}": [url, 0, 4] for i, url in enumerate(urls)}, retries=0, timeout=5)
    with caplog.at_level(logging.DEBUG, logger="refshard_fs"):
        for i in range(len(urls)):
            with pytest.raises(RefShardError) as caught:
                fs.cat_file(f"k{i}")
            assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in caplog.text


def test_cause_changes_only_if_it_has_a_secret() -> None:
    plain = OSError(5, "disk")
    assert sanitize_cause(plain) is plain
    assert SECRET not in repr(sanitize_cause(ValueError(f"https://h/?token={SECRET}")))


def test_long_texts_are_cut() -> None:
    assert len(sanitize("\x1b" * 10_000_000)) < 5 * LONGEST
    assert len(str(ManifestError("x" * 10_000_000))) < 2 * LONGEST
