"""Errors of failed reads name the key, the URL, the cause and the remedy."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem
from refshard_fs.core.array_group import ArrayGroup
from refshard_fs.errors import ReferenceNotReachable, SourceNotReachable, UnknownSource
from refshard_fs.reading.failures import explain
from refshard_fs.targets import answer
from refshard_fs.targets.failures import WITHOUT, ConnectionLost, Denial, HttpStatus, Incomplete, Unfit, Unreadable
from refshard_fs.tools.info import summarise
from tests.servers.http import RangeServer
from tests.support.set_files import write_day_files

QUICK: dict[str, Any] = {"retries": 0, "timeout": 10}


def failure(target: str, start: int, length: int) -> str:
    fs = RefShardFileSystem({"a/0": [target, start, length]}, **QUICK)
    with pytest.raises(ReferenceNotReachable) as raised:
        fs.cat_file("a/0")
    text = str(raised.value)
    assert "'a/0'" in text
    assert target in text
    assert "\n" not in text
    return text


def test_error_of_a_missing_target_has_a_remedy(http_server: RangeServer, tmp_path: Path) -> None:
    for target in (f"{http_server.url}/gone", str(tmp_path / "gone")):
        assert "`refshard rebase` changes references to objects that have moved" in failure(target, 0, 3)


def test_error_of_a_short_target_has_a_remedy(http_server: RangeServer, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"0123456789")
    for target in (http_server.put("x", b"0123456789"), str(tmp_path / "x")):
        text = failure(target, 5, 30)
        assert "expected bytes [5, 35), got 5 of 30 (the object has 10 bytes)" in text
        assert "`refshard check` compares all" in text
        assert "Unfit" not in text


def test_error_of_an_unreachable_host_has_a_remedy() -> None:
    assert "Check that the host name is right, and that the host is running" in failure("http://127.0.0.1:9/x", 0, 3)


def test_error_of_an_unknown_protocol_has_a_remedy() -> None:
    assert "Install the package that adds this protocol" in failure("nosuch://bucket/x", 0, 3)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Denial(403, "AccessDenied"), "HTTP 403 Forbidden (AccessDenied). Credentials go into options="),
        (Unreadable("NoCredentialsError: Unable to locate credentials"), "'anon': True"),
        (PermissionError("no"), "PermissionError: no. Credentials"),
        (ValueError("its bytes are damaged"), "damaged. The object is damaged, or has changed since it was opened"),
        (ValueError("2 cannot be stored exactly as int8"), "int8. The encoding that the cube has from its first set"),
        (ConnectionLost("it is down."), "it is down. Check that the host name is right"),
        (HttpStatus(503, "SlowDown"), "HTTP 503 Service Unavailable (SlowDown). The server may be overloaded"),
        (HttpStatus(416), "the range lies outside the object. The object is damaged, or has changed"),
        (Incomplete("the answer ended early"), "ended early. The server may be overloaded"),
        (TimeoutError("no answer after 9.0 s"), "no answer after 9.0 s. The server may be overloaded"),
        (
            Unfit("expected 5 bytes, got more"),
            "got more. The server, or a proxy before it, answers requests for ranges wrongly",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_explain_adds_the_remedy_to_an_error(error: Exception, words: str) -> None:
    assert words in explain(error)


def test_error_without_a_remedy_has_only_the_reason() -> None:
    assert explain(HttpStatus(418)) == "HTTP 418 I'm a Teapot"
    assert explain(KeyError("x")) == "KeyError: 'x'"


def test_errors_of_source_and_target_suggest_the_same_option() -> None:
    assert explain(Denial(403), "s3://b/x", of_source=True) == explain(Denial(403), "s3://b/x")


def test_error_of_an_unusable_source_has_the_reason(http_server: RangeServer, tmp_path: Path) -> None:
    (tmp_path / "empty.json").touch()
    page = http_server.put("refs.json", b"\n<!DOCTYPE html><title>Log in</title>")
    with pytest.raises(UnknownSource, match=r"an empty document.*written to the end\?"):
        RefShardFileSystem(str(tmp_path / "empty.json")).ls("")
    with pytest.raises(UnknownSource, match="login"):
        RefShardFileSystem(page, **QUICK).ls("")
    with pytest.raises(SourceNotReachable, match=r"no such object.*Check the path"):
        RefShardFileSystem(str(tmp_path / "gone.json")).ls("")


def test_error_names_key_of_a_reference_without_url() -> None:
    with pytest.raises(ValueError, match=r"'a/0' of the references in memory: .* pass target="):
        RefShardFileSystem({"a/0": [None, 0, 3]}).cat("a/0")


def test_error_in_the_code_of_a_format_names_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is not ours has no place: it could be in a plug-in."""
    file = str(write_day_files(tmp_path, "scipy", 1)[0])

    def fail(*_: Any) -> Any:
        yield from ()
        raise TypeError("not an int")

    monkeypatch.setattr(ArrayGroup, "contents", fail)
    monkeypatch.setattr(ArrayGroup, "contents_to_join", fail)
    expected = re.escape(f"{file} cannot be read: TypeError: not an int")
    for read in (lambda: summarise(RefShardFileSystem(file)), lambda: refshard_fs.concat([file, file], "time")):
        with pytest.raises(ReferenceNotReachable, match=expected):
            read()


@pytest.mark.case(id="P23")
def test_log_lines_and_errors_have_no_token(http_server: RangeServer, caplog: pytest.LogCaptureFixture) -> None:
    http_server.put("x", b"0123456789")
    http_server.put("refs.json", json.dumps({"version": 1, "refs": {"a": ["u", 1]}}).encode())
    fs = RefShardFileSystem(
        {"a": [f"{http_server.url}/x?token=hush", 0, 3], "b": [f"{http_server.url}/y?token=hush", 0, 3]}, **QUICK
    )
    with caplog.at_level(logging.DEBUG, "refshard_fs"):
        fs.cat("a")
        with pytest.raises(ReferenceNotReachable) as raised:
            fs.cat("b")
    assert "x?token=..." in caplog.text
    assert "hush" not in caplog.text + str(raised.value)
    with pytest.raises(ValueError, match="'a'") as broken:
        RefShardFileSystem(f"{http_server.url}/refs.json?token=hush", **QUICK).ls("")
    assert "hush" not in str(broken.value)


def test_error_of_refused_access_has_an_option_to_paste() -> None:
    assert "options={'s3://pub/': {'anon': True}}" in explain(Denial(403, "AccessDenied"), "s3://pub/a/x [0:1]")
    assert "options={'https://h:8/': {'headers': {...}}}" in explain(Denial(401), "https://h:8/a/x")
    assert "options={'s3://b/': {'anon': True}}" in explain(Denial(403), "zip://a::s3://b/x.zip")
    assert "options={'s3://pub/': {'anon': True}}" in explain(Denial(403), "s3://pub/refs.json", of_source=True)
    assert "`ls -l`" in explain(PermissionError("no"), "/data/x [0:1]")


def test_error_of_anonymous_access_does_not_suggest_anon() -> None:
    error = Denial(403, "AccessDenied")
    error.add_note(f"it was asked for {WITHOUT}, as its options say")
    assert "'anon'" not in explain(error, "s3://pub/a/x")


def test_remedy_for_public_data_fits_the_protocol() -> None:
    assert "options={'gs://b/': {'token': 'anon'}}" in explain(Denial(403), "gs://b/x")
    assert explain(Denial(403), "ftp://h/x").endswith("Credentials go into options={'ftp://h/': {...}}")


def test_error_says_that_a_signature_has_expired() -> None:
    text = b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"
    assert "The signature of the URL has expired" in explain(answer._make_error(403, {}, text), "https://h/x")


def test_misspelled_protocol_is_corrected() -> None:
    assert explain(ValueError("Protocol not known: htps")).endswith("Did you mean https://?")
    assert explain(ValueError("Protocol not known: quux")).endswith("adds this protocol to fsspec")
