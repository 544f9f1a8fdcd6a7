"""Reference sets and cubes that are made from other sets, without copying a chunk."""
