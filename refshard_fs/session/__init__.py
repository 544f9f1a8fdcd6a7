"""Names of modules that pickles of earlier versions have; everything in them lies in `refshard_fs.source`."""
