"""The parts of the fsspec interface, one idea each: `refshard_fs.fs` puts them together."""
