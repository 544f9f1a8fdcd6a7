"""Reference sets made from others, without copying a chunk."""
