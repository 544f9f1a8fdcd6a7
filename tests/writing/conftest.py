"""What several modules write to."""

from __future__ import annotations

import pytest

from tests.support.written_arrays import KINDS


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of sharded array."""
    return str(request.param)
