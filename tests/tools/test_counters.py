"""Counts that print as a table."""

from __future__ import annotations

import json
import pickle

from refshard_fs import RefShardFileSystem
from refshard_fs.tools.counters import Counters
from tests.support.notebook_views import check_html


def test_counters_are_a_dict_that_prints_as_a_table() -> None:
    fs = RefShardFileSystem({"a": "text"})
    fs.cat("a")
    counters = fs.stats()
    assert counters == dict(counters)
    assert pickle.loads(pickle.dumps(counters)) == counters
    assert json.loads(json.dumps(counters)) == counters
    assert repr(Counters(keys=1234, bytes_fetched=2048)) == "keys           1,234\nbytes_fetched  2,048  (2.0 KiB)"
    assert "1,234</td>" in check_html(Counters(keys=1234)._repr_html_())
