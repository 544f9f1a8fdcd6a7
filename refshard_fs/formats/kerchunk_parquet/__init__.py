"""The format kerchunk_parquet. No I/O here."""
