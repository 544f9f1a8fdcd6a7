"""A set in memory is equal to a set of equal content, and survives saving and pickling."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import refshard_fs
from refshard_fs import MadeSet, RefShardFileSystem
from refshard_fs.sets import rebase
from refshard_fs.sets.made_set import make_set, restore_set

REFS: dict[str, Any] = {".zgroup": '{"zarr_format": 2}', "a/0": ["s3://b/x", 0, 4], "a/1": "inline"}


@pytest.fixture
def made() -> MadeSet:
    found = refshard_fs.rebase(REFS, {}, missing="ignore")
    assert isinstance(found, MadeSet)
    return found


def test_saved_set_has_the_same_references(made: MadeSet, tmp_path: Path) -> None:
    assert made.save(str(tmp_path / "refs.json")) == ""
    assert RefShardFileSystem(str(tmp_path / "refs.json")).references.copy() == dict(made.references)


def test_misspelled_argument_of_save_is_refused(made: MadeSet, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="did you mean overwrite="):
        made.save(str(tmp_path / "refs.json"), overwritte=True)


def test_pickle_keeps_content_and_arguments(made: MadeSet) -> None:
    opened = make_set(made.columns, {"remote_options": {"anon": True}})
    copy = pickle.loads(pickle.dumps(opened))
    assert copy == opened == made
    assert copy.get_arguments() == {"remote_options": {"anon": True}}


def test_earlier_name_of_a_pickled_function_is_kept(made: MadeSet) -> None:
    assert rebase._again is restore_set
    assert pickle.dumps(made).count(b"restore_set") == 1


def test_remark_says_that_only_refshard_reads_archive_targets() -> None:
    made = refshard_fs.rebase({"a/0": ["zip://x::s3://b/y.zip", 0, 4]}, {}, missing="ignore")
    assert made.remark.startswith("only refshard can read 1 target of 1")
