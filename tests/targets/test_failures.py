"""Temporary failures are retried after a growing wait; permanent failures are raised at once."""

from __future__ import annotations

import pickle

import aiohttp
import pytest

from refshard_fs.targets import Retry, failures
from refshard_fs.targets.failures import (
    ConnectionLost,
    Denial,
    HttpStatus,
    Incomplete,
    Unfit,
    Unreadable,
    convert_error,
    is_transient,
)

FIRST = failures._FIRST  # in tests it is replaced by nearly 0, so that they need not wait


@pytest.mark.parametrize(
    "failure",
    [
        *(HttpStatus(status) for status in (408, 425, 429, 500, 502, 503, 504)),
        HttpStatus(400, "RequestTimeout"),
        HttpStatus(400, "SlowDown"),
        Incomplete("short"),
        ConnectionLost("reset"),
        ConnectionResetError(),
        TimeoutError(),
    ],
)
def test_temporary_failures_are_transient(failure: OSError) -> None:
    assert is_transient(failure)


@pytest.mark.parametrize(
    "failure",
    [
        *(HttpStatus(status) for status in (300, 400, 404, 405, 412, 416, 501, 505)),
        Denial(403, "AccessDenied"),
        Unfit("other bytes"),
        Unreadable("odd"),
        FileNotFoundError(),
        IsADirectoryError(),
        PermissionError(),
        OSError("anything"),
    ],
)
def test_permanent_failures_are_not_transient(failure: OSError) -> None:
    assert not is_transient(failure)


def test_waits_between_retries_grow_vary_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "_FIRST", FIRST)
    retry = Retry(retries=4)
    lost = ConnectionLost("reset")
    waits = [[retry.pause(lost, tried) for _ in range(50)] for tried in range(1, 5)]
    for tried, samples in enumerate(waits, start=1):
        assert all(wait is not None and 0.05 * 2 ** (tried - 1) <= wait <= 0.1 * 2 ** (tried - 1) for wait in samples)
        assert len(set(samples)) > 10
    assert retry.pause(lost, 5) is None
    assert Retry(retries=0).pause(lost, 1) is None
    assert all((Retry(retries=99).pause(lost, 60) or 0) <= 20 for _ in range(20))


def test_retry_after_is_respected_within_bounds() -> None:
    retry = Retry(longest=60)
    assert 5 <= (retry.pause(HttpStatus(429, "", 5), 1) or 0) <= 6
    assert retry.pause(HttpStatus(429, "", 61), 1) is None


def test_retries_are_reduced_to_the_limit_of_a_layer() -> None:
    assert Retry(5, 10).limit_to(2) == Retry(2, 10)
    assert Retry(1).limit_to(2) == Retry(1)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (aiohttp.ServerDisconnectedError(), ConnectionLost),
        (aiohttp.ServerTimeoutError(), ConnectionLost),
        (aiohttp.ClientPayloadError("short"), Incomplete),
        (aiohttp.InvalidURL("x"), Unreadable),
        (ValueError("odd"), Unreadable),
        (OSError(22, "The requested range is not satisfiable"), Unreadable),
    ],
)
def test_errors_of_clients_are_not_a_missing_object(error: Exception, kind: type[OSError]) -> None:
    failure = convert_error(error)
    assert type(failure) is kind
    assert failure.__cause__ is error
    assert "not satisfiable" not in str(failure)


def test_http_errors_survive_pickling() -> None:
    for status in (HttpStatus(503, "SlowDown", 2.0), Denial(403, "AccessDenied")):
        again = pickle.loads(pickle.dumps(status))
        assert (type(again), str(again), again.retry_after) == (type(status), str(status), status.retry_after)
