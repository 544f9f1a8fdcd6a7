"""Variables of a rule are derived from sample files; `tests/cli/test_rule.py` does this for whole archives."""

from __future__ import annotations

import json

import pytest

from refshard_fs.formats.grib2.rule import Rule, RuleVariable
from refshard_fs.formats.grib2.rule_samples import choose_samples


@pytest.mark.parametrize(
    ("covers", "step", "begin"),
    [("", 7, 7), ("run", 7, 0), ("last 1", 7, 6), ("last 3", 1, 0), ("bucket 6", 7, 6), ("bucket 6", 12, 6),
     ("bucket 6", 0, 0)],
)  # fmt: skip
def test_covers_determines_where_a_time_range_begins(covers: str, step: int, begin: int) -> None:
    variable = RuleVariable({}, None, covers=covers)  # type: ignore[arg-type]  # the message is not used
    assert variable.compute_begin(step) == begin


def test_chosen_samples_have_steps_of_their_run() -> None:
    document = {
        "refshard": "rule", "url": "{time:%H}{step}{number}", "sidecar": "", "dialect": "wgrib2",
        "time": {"start": "2026-11-01", "every": 6}, "step": {"values": [[0, 48, 1]], "last": {"06": 12}},
        "number": {"values": [0, 1]}, "grids": [], "variables": {},
    }  # fmt: skip
    rule = Rule.parse(json.dumps(document).encode(), "it")
    assert [sample.step for sample in choose_samples(rule, 0)] == [0, 16, 17, 18, 19]
    assert [(sample.step, sample.member) for sample in choose_samples(rule, 1)] == [
        (0, 1),
        (4, 1),
        (5, 1),
        (6, 1),
        (7, 1),
    ]
