"""In `SharedMembers`, the members of one set replace members that it shares with other sets."""

from __future__ import annotations

import pickle

import pytest

from refshard_fs.references.shared_members import SharedMembers


def test_own_members_replace_shared_ones() -> None:
    base = {"a": "1", "b/0": b"x", "c": "3"}
    members = SharedMembers(base, {"d": "4", "b/0": b"y"})
    assert list(members.items()) == [("a", "1"), ("b/0", b"y"), ("c", "3"), ("d", "4")]
    assert len(members) == 4
    assert base["b/0"] == b"x"
    with pytest.raises(KeyError):
        members["e"]


def test_shared_members_survive_pickling() -> None:
    members = SharedMembers({"a": "1"}, {"a": "2"})
    assert pickle.loads(pickle.dumps(members)) == {"a": "2"}


def test_sets_with_equal_own_keys_share_their_places() -> None:
    first, second = (SharedMembers({}, {"a": "1", "b": text}) for text in ("2", "3"))
    assert first._places is second._places
    assert (first["b"], second["b"]) == ("2", "3")
