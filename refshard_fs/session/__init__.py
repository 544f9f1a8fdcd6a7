"""Modules whose names are in pickles of earlier versions; their contents lie in `refshard_fs.source`."""
