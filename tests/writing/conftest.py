"""Fixtures of tests that write to sharded arrays."""

from __future__ import annotations

import pytest

from tests.support.written_arrays import KINDS


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The name of a kind of sharded array; tests run for each kind."""
    return str(request.param)
