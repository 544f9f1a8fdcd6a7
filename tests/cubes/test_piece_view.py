"""Steps and entries of a piece from another place have its origin."""

from __future__ import annotations

from refshard_fs import RefShardFileSystem
from refshard_fs.core.model import Span
from refshard_fs.cubes.piece_view import PieceView
from tests.support.arrays_in_memory import make_array, make_references
from tests.support.key_spaces import answer

BASE = make_references(a=make_array([3], ["x"]))


def test_entries_have_the_origin_of_the_piece() -> None:
    view = PieceView(RefShardFileSystem(BASE).source.open(), "https://host/set.json")
    entry = answer(view.lookup("a/1"))
    assert isinstance(entry, Span)
    assert entry.origin == ("https://host/set.json",)
    assert answer(view.chunks("a", range(2))).origins == [("https://host/set.json",)]


def test_nested_pieces_give_entries_both_origins() -> None:
    inner = PieceView(RefShardFileSystem(BASE).source.open(), "https://inner/set.json")
    outer = PieceView(inner, "https://outer/cube.refshard")
    assert set(answer(outer.lookup("a/1")).origin) == {"https://inner/set.json", "https://outer/cube.refshard"}
