"""The simulation is seeded, and bounded by the store's rate, CPU and bandwidth."""

from __future__ import annotations

import pytest

pytest.importorskip("zarr.storage", reason="zarr")
simulation = pytest.importorskip("benchmarks.engine.simulation", reason="zarr 3", exc_type=ImportError)

SMALL = simulation.SETTING._replace(references=200_000, workers=10, requests_a_second=1e9)
CHEAP = simulation.Client(in_flight=10, cpu=1e-6, requests=1.0, amplification=1.0, open_seconds=0.0, open_bytes=5.0)


def test_same_seed_gives_the_same_outcome() -> None:
    first, again, other = (simulation.simulate(CHEAP, SMALL, seed) for seed in (1, 1, 2))
    assert first == again
    assert first.requests == other.requests == 200_000
    assert first.seconds != other.seconds
    assert first.memory == 1_000_000.0


def test_rate_of_the_store_bounds_all_workers_together() -> None:
    out = simulation.simulate(CHEAP, SMALL._replace(requests_a_second=1000.0), 0)
    assert out.seconds >= 200.0
    fewer = simulation.simulate(CHEAP._replace(requests=0.1), SMALL._replace(requests_a_second=1000.0), 0)
    assert fewer.requests == 20_000
    assert 20.0 <= fewer.seconds < out.seconds


def test_task_time_depends_on_cpu_and_bytes() -> None:
    assert simulation.simulate(CHEAP._replace(cpu=0.1), SMALL, 0).seconds == pytest.approx(200_000 / 10 * 0.1)
    slow = SMALL._replace(worker=1e6)
    assert simulation.simulate(CHEAP, slow, 0).seconds == pytest.approx(200_000 / 10 * SMALL.chunk / 1e6)


def test_opening_time_and_cost_are_counted() -> None:
    opened = simulation.simulate(CHEAP._replace(open_seconds=1e-3), SMALL, 0)
    plain = simulation.simulate(CHEAP, SMALL, 0)
    assert opened.seconds == pytest.approx(plain.seconds + 200.0)
    hours = SMALL.workers * plain.seconds / 3600
    assert plain.dollars == pytest.approx(0.2 * SMALL.dollars_a_million + hours * SMALL.dollars_an_hour)
