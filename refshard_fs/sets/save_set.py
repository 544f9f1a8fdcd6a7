"""Save the references of a source, or the document of a cube, in the format of ``format=`` or of the file's suffix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fsspec.callbacks import Callback

from refshard_fs.errors import ManifestError, RefShardError, sanitize
from refshard_fs.source.settings import check_set_name, format_by_suffix
from refshard_fs.source.source import Source
from refshard_fs.tools.progress import show_progress
from refshard_fs.writing.cube_document import REMARK, make_cube_document, save_document
from refshard_fs.writing.save import save
from refshard_fs.writing.shards import make_stored_keyspace
from refshard_fs.writing.writer import Writer


def save_set(
    source: Source,
    writer: Writer | None,
    url: str,
    format: str | None,
    record_size: int,
    overwrite: bool,
    callback: Callback,
    storage_options: Mapping[str, Any],
) -> str | None:
    """Write the references of ``source``, with the uncommitted writes of ``writer``, to ``url``.

    The parameters and the errors are those of `RefShardFileSystem.save`.
    """
    if format is None:
        check_set_name(url)
    if format is None and url.endswith(".refshard"):
        document = make_cube_document(source)
        if document is None:
            raise ManifestError(
                f"{url}: expected a source that joins sets, for its document, got {source.options.source}. To save the "
                f"references of this source, give another name, such as {url.removesuffix('.refshard')}.json"
            )
        with advise_refused_writer(url):
            save_document(document, url, storage_options, source.open().cube.resolve)
        return REMARK
    with advise_refused_writer(url), show_progress("save", callback) as shown:
        keyspace = make_stored_keyspace(source, writer)
        format = format or format_by_suffix(url)
        return save(keyspace, source, url, format, record_size, overwrite, storage_options, shown)


@contextmanager
def advise_refused_writer(url: str) -> Iterator[None]:
    """Raise PermissionError with advice if the ``with`` block has no credentials with which it can write ``url``."""
    try:
        yield
    except OSError as e:
        is_refused = isinstance(e, PermissionError) and e.filename is None  # errors of local files have names
        if isinstance(e, RefShardError) or not (is_refused or "NoCredentialsError" in str(e)):
            raise
        reason = str(e).rstrip(".")
        raise PermissionError(
            f"{sanitize(url)} cannot be written: {reason}. Pass the options of its filesystem, such as key= and "
            "secret=, as keywords of save (on the command line: --to-option)"
        ) from e
