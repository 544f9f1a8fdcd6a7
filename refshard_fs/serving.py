"""A source as plain zarr over HTTP, for any client: `asgi` makes an application, which ``refshard serve`` runs.

Keys are objects with ETags, ranges and conditional requests (RFC 9110). Metadata are consolidated, and compressed for
clients that accept gzip. There are no listings: clients compute the keys of chunks from the metadata. Answers never
contain URLs of targets, which may be private; the log of the server has them.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import html
import io
import logging
import math
import re
import secrets
import time
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from refshard_fs.core import zarrmeta
from refshard_fs.core.consolidated import ROOT, reconsolidate
from refshard_fs.core.keys import parent
from refshard_fs.core.lru import LRU
from refshard_fs.core.model import Span
from refshard_fs.core.stats import format_bytes
from refshard_fs.core.zarrmeta import CONSOLIDATED
from refshard_fs.errors import RefShardError, sanitize
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.security.admission import WEB, is_private
from refshard_fs.security.policy import protocol_of
from refshard_fs.tools.filesystem_view import render_arrays
from refshard_fs.tools.map import make_array_map
from refshard_fs.tools.map_picture import draw_map
from refshard_fs.tools.survey import survey
from refshard_fs.tools.views import render_view

MAX_AGE: Final = 3600  # seconds that clients may keep chunks; they may keep metadata for a minute
_RANGE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
_GZIP: Final = re.compile(r"\b(gzip|\*)\s*(?!;\s*q=0(\.0*)?\s*(,|$))(;|,|$)")
_SMALL: Final = 256  # metadata of at most this many bytes are sent uncompressed
_SPECIAL: Final = frozenset([b"range", b"if-none-match", b"origin"])  # headers that change the usual answer for a chunk
_NAME: Final = re.compile(r"[^/{}?#]+")  # the name of a source, a segment of the URL's path
CACHE_BYTES: Final = 64 << 20  # bytes of chunks in the cache: several clients often read the same chunks
PICTURES: Final = 32  # pictures in the cache
SIDE: Final = 1024  # elements of an array that a picture shows along each side
DECODED: Final = 64 << 20  # the most bytes of decoded chunks that one picture may need

logger = logging.getLogger(__package__)


def asgi(
    source: Any,
    *,
    token: str | None = None,
    redirect: bool = False,
    max_age: int = MAX_AGE,
    bytes_per_second: float | None = None,
    **options: Any,
) -> Starlette:
    """Return an ASGI application that serves a source as a zarr store: run it with uvicorn, or mount it in another one.

    Parameters
    ----------
    source:
        The argument ``fo`` of `RefShardFileSystem`, or a `RefShardFileSystem`; or a mapping of names to filesystems,
        each of which is served below its name. Clients see the source as it is now; later changes are not shown.
    token:
        The token that each request must have, as ``Authorization: Bearer TOKEN``; by default, none.
    redirect:
        Whether to redirect (status 307) a request for a chunk that is a whole object on a public web server to the URL
        of the object. Chunks with a pinned version are never redirected, since the client would not check the version.
    max_age:
        Seconds that clients may keep chunks. With ``token``, shared caches keep nothing.
    bytes_per_second:
        The most bytes per second for all clients together; by default, there is no limit.
    options:
        Other arguments of `RefShardFileSystem`, such as ``max_memory``, the most memory that reading takes.

    Raises
    ------
    RefShardError
        If a source cannot be opened.
    ValueError
        If a name cannot be a segment of a URL's path, or if ``token``, ``max_age`` or ``bytes_per_second`` is invalid.

    Examples
    --------
    >>> import asyncio, httpx, json, refshard_fs
    >>> meta = {"zarr_format": 2, "shape": [3], "chunks": [3], "dtype": "|u1", "order": "C",
    ...         "fill_value": None, "filters": None, "compressor": None}
    >>> refs = {".zgroup": '{"zarr_format": 2}', "a/.zarray": json.dumps(meta), "a/0": "abc"}
    >>> async def get(key):
    ...     transport = httpx.ASGITransport(refshard_fs.asgi(refs))
    ...     async with httpx.AsyncClient(transport=transport, base_url="http://served") as client:
    ...         return await client.get(key)
    >>> asyncio.run(get("/a/0")).content, asyncio.run(get("/a/1")).status_code
    (b'abc', 404)

    """
    if token is not None and (type(token) is not str or not token):
        raise ValueError(f"invalid token={token!r}: expected a text that is not empty")
    if max_age < 0:
        raise ValueError(f"invalid max_age={max_age}: expected at least 0 seconds")
    if bytes_per_second is not None and bytes_per_second <= 0:
        raise ValueError(f"invalid bytes_per_second={bytes_per_second}: expected a number above 0")
    sources = source if _is_mapping_of_filesystems(source) else {"": source}
    rate_limit = _RateLimit(bytes_per_second)
    servers: dict[str, _SourceServer] = {}
    routes: list[Route | Mount] = []
    for name, fo in sources.items():
        if name and not _NAME.fullmatch(name):
            raise ValueError(
                f"invalid name of a source: {name!r}: expected a name without '/', '?', '#', '{{' and '}}'"
            )
        fs = fo if isinstance(fo, RefShardFileSystem) else RefShardFileSystem(fo, **options)
        server = servers[name] = _SourceServer(fs, token, max_age, rate_limit, redirects=redirect)
        own = [Route("/", server.answer_page), Route("/{key:path}", server.answer_key)]
        routes += own if not name else [Mount(f"/{name}", routes=own)]
    if "" not in sources:
        links = "".join(f'<li><a href="{quote(name)}/">{html.escape(name)}</a></li>' for name in sources)
        routes.append(Route("/", _make_page_endpoint("Sources", f"<ul>{links}</ul>", token)))
    cors = Middleware(
        CORSMiddleware,
        allow_origins=["*"],
        allow_methods=["GET", "HEAD"],
        allow_headers=["Authorization", "Range", "If-None-Match"],
        expose_headers=["Content-Length", "Content-Range", "ETag"],
    )
    is_plain = token is None and not redirect and bytes_per_second is None
    return _Application(servers if is_plain else {}, routes=routes, middleware=[cors])


class _Application(Starlette):
    """Answer usual requests for cached chunks without routes and middleware, which take half of the processor's time.

    ``servers`` are the servers of sources by name; if it is empty, routes and middleware answer all requests.
    """

    def __init__(self, servers: Mapping[str, _SourceServer], **options: Any) -> None:
        super().__init__(**options)
        self._servers = servers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        answer = None
        if scope["type"] == "http" and scope["method"] == "GET" and not scope.get("root_path"):
            name, key = "", scope["path"][1:]
            if "" not in self._servers:
                name, _, key = key.partition("/")
            server = self._servers.get(name)
            if server is not None and _SPECIAL.isdisjoint([header for header, _ in scope["headers"]]):
                answer = server.find_cached(key)
        if answer is None:
            await super().__call__(scope, receive, send)
            return
        data, headers = answer
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": data})


def _is_mapping_of_filesystems(source: Any) -> bool:
    """Return whether ``source`` maps names to filesystems; a dict of references is a source itself."""
    if not isinstance(source, Mapping):
        return False
    others = [name for name, fo in source.items() if not isinstance(fo, RefShardFileSystem)]
    if others and len(others) < len(source):
        raise TypeError(
            f"expected a RefShardFileSystem for each name, got {type(source[others[0]]).__name__} for {others[0]!r}"
        )
    return len(source) > 0 and not others


class _RateLimit:
    """Delay answers so that all of them together have at most ``bytes_per_second``; None does not delay them."""

    def __init__(self, bytes_per_second: float | None) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0

    async def wait_for(self, size: int) -> None:
        if self._rate is None:
            return
        now = time.monotonic()
        start = max(now, self._free_at)
        self._free_at = start + size / self._rate
        await asyncio.sleep(start - now)


class _Range(NamedTuple):
    """The byte range of a request."""

    start: int
    stop: int

    @classmethod
    def of(cls, header: str | None, size: int) -> _Range | None:
        """Parse the header ``Range`` of a request for an object of ``size`` bytes; return None for the whole object.

        The server sends the whole object, too, if a request has several ranges or another unit, as RFC 9110 permits.
        Raise HTTPException (416) if the range lies outside of the object.
        """
        match = None if header is None else _RANGE.fullmatch(header.strip())
        if match is None or match.groups() == ("", ""):
            return None
        first, last = match.groups()
        start = max(size - int(last), 0) if not first else int(first)
        stop = size if not first or not last else min(int(last) + 1, size)
        if start >= size or start >= stop:
            raise HTTPException(416, headers={"Content-Range": f"bytes */{size}"})
        return cls(start, stop)


class _SourceServer:
    """Answer the requests for one source."""

    def __init__(
        self, fs: RefShardFileSystem, token: str | None, max_age: int, rate_limit: _RateLimit, *, redirects: bool
    ) -> None:
        self._fs, self._token, self._max_age, self._redirects = fs, token, max_age, redirects
        self._rate_limit = rate_limit
        self._sharing = "public" if token is None else "private"
        keyspace = self._keyspace = fs.source.open()
        documents = fs.source.run("", partial(keyspace.documents, ""))
        self._consolidated = consolidate(documents)
        self._version = 3 if any(parent(key)[1] == "zarr.json" for key in documents) else 2
        self._compress = lru_cache(len(self._consolidated) or 1)(partial(gzip.compress, compresslevel=6))
        self._arrays = [path for key in documents for path, name in (parent(key),) if _is_array(documents[key], name)]
        self._title = fs.fo.rstrip("/").rpartition("/")[2].partition("?")[0] if isinstance(fs.fo, str) else "A source"
        self._pictures: LRU[tuple[str, str], Response] = LRU(PICTURES)
        self._drawing = asyncio.Lock()
        self._chunk_headers = [
            (b"accept-ranges", b"bytes"),
            (b"vary", b"Origin"),
            (b"cache-control", f"{self._sharing}, max-age={max_age}".encode()),
        ]
        self._cache: LRU[str, tuple[bytes, str]] = LRU(CACHE_BYTES)  # bytes and ETag, by key

    async def answer_page(self, request: Request) -> Response:
        """Return a page about the source, or a picture.

        ``?map=ARRAY`` draws in which files the bytes of the array lie, ``?slice=ARRAY`` its first elements.
        """
        _check_token(request, self._token)
        for name, draw in (("map", self._draw_map), ("slice", self._draw_slice)):
            array = request.query_params.get(name)
            if array is not None:
                return await self._answer_picture(name, array, draw)
        url = html.escape(str(request.url.replace(query="")))
        path = max(self._arrays, key=lambda path: (len(path.split("/")) == 1, self._find_size(path)), default="")
        lines = {
            "Python (xarray)": f'xr.open_dataset("{url}", engine="zarr", chunks={{}})',
            "Python (zarr)": f'zarr.open_group("{url}", mode="r")',
            "JavaScript (zarrita)": f'await zarr.open(new zarr.FetchStore("{url}"))',
            "GDAL": f"gdalinfo 'ZARR:\"/vsicurl/{url}\":/{html.escape(path)}'",
            "R (terra)": f"terra::rast('ZARR:\"/vsicurl/{url}\":/{html.escape(path)}')",
            "Neuroglancer, tensorstore": f"{url}{html.escape(path)}/|zarr{self._version}:",
        }
        code = "".join(f"<dt>{name}</dt><dd><code>{text}</code></dd>" for name, text in lines.items())
        pictures = "".join(
            f'<li>{html.escape(path)}: <a href="?map={name}">map</a>, <a href="?slice={name}">slice</a></li>'
            for path, name in ((path, quote(path)) for path in self._arrays)
        )
        shown = f'<p><img alt="{html.escape(path)}" src="?slice={quote(path)}"></p>' if path else ""
        arrays = render_view("Arrays", self._keyspace.format or "", render_arrays(self._keyspace))
        body = f"{arrays}{shown}<h2>Read it</h2><dl>{code}</dl><h2>Pictures</h2><ul>{pictures}</ul>"
        return _render_page(self._title, body)

    def _find_size(self, path: str) -> int:
        return self._keyspace.grids[path].size if path in self._keyspace.grids else 0

    async def _answer_picture(self, kind: str, array: str, draw: Callable[[str], Response]) -> Response:
        """Return a picture of an array. One picture is drawn at a time, since drawing takes memory."""
        if array not in self._arrays:
            raise HTTPException(404)
        async with self._drawing:
            picture = self._pictures.get((kind, array))
            if picture is None:
                try:
                    picture = await asyncio.to_thread(draw, array)
                except (RefShardError, ValueError, OSError) as e:
                    raise _make_bad_gateway(f"cannot draw the {kind} of {array!r}", e) from e
                self._pictures.put((kind, array), picture)
            return picture

    def _draw_map(self, array: str) -> Response:
        locations = survey(self._fs, array)
        files = [f"file {number + 1}" for number in range(len(locations.urls))]  # URLs of targets may be private
        picture = draw_map(make_array_map(self._title, locations.arrays[array], files))
        return Response(picture.encode(".svg"), media_type="image/svg+xml", headers=_SAFE)

    def _draw_slice(self, array: str) -> Response:
        return Response(draw_slice(self._fs, array), media_type="image/png", headers=_SAFE)

    async def answer_key(self, request: Request) -> Response:
        """Return the bytes of a key, or a redirect to a public server that has them."""
        _check_token(request, self._token)
        key = request.path_params["key"]
        is_metadata = zarrmeta.is_metadata(key)
        try:
            if self._redirects and not is_metadata and (url := await self._find_public_url(key)) is not None:
                return RedirectResponse(url, 307)
            data, etag = await self._read(key)
        except (FileNotFoundError, IsADirectoryError):
            raise HTTPException(404) from None
        except (RefShardError, OSError, ValueError) as e:
            raise _make_bad_gateway(f"{key!r} exists, but its bytes cannot be read", e) from e
        headers = {
            "ETag": etag,
            "Accept-Ranges": "bytes",
            "Cache-Control": f"{self._sharing}, max-age={min(self._max_age, 60) if is_metadata else self._max_age}",
            **({"Vary": "Accept-Encoding"} if is_metadata else {}),
        }
        known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
        if not known.isdisjoint((etag, "*")):
            return Response(status_code=304, headers=headers)
        is_stale = request.headers.get("if-range", etag) != etag
        header = None if is_stale or request.method == "HEAD" else request.headers.get("range")
        part = _Range.of(header, len(data))
        if part is not None:
            headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{len(data)}"
            data = data[part.start : part.stop]
        elif is_metadata and len(data) > _SMALL and _GZIP.search(request.headers.get("accept-encoding", "")):
            is_cached = key in self._consolidated
            data = await asyncio.to_thread(self._compress, data) if is_cached else gzip.compress(data, 6)
            headers |= {"Content-Encoding": "gzip", "ETag": f"W/{etag}"}
        if request.method != "HEAD":
            await self._rate_limit.wait_for(len(data))
        kind = "application/json" if is_metadata else "application/octet-stream"
        return Response(data, 200 if part is None else 206, headers, kind)

    def find_cached(self, key: str) -> tuple[bytes, list[tuple[bytes, bytes]]] | None:
        """Return the bytes of a chunk and the headers of the answer, if the chunk is in the cache; otherwise None.

        Also return None for metadata, and if the source takes writes.
        """
        cached = self._cache.get(key)
        if cached is None or zarrmeta.is_metadata(key) or self._fs.source.transaction is not None:
            return None
        data, etag = cached
        kind = (b"content-type", b"application/octet-stream")
        return data, [(b"etag", etag.encode()), *self._chunk_headers, (b"content-length", b"%d" % len(data)), kind]

    async def _read(self, key: str) -> tuple[bytes, str]:
        """Return the bytes of a key, and their ETag: from the cache, unless the source takes writes."""
        cached = self._cache.get(key)
        if cached is not None and self._fs.source.transaction is None:
            return cached
        data = self._consolidated.get(key)
        if data is None:
            data = await self._fs._cat_file(key)
            if zarrmeta.is_metadata(key):
                data = zarrmeta.make_strict(data)
        answer = data, f'"{hashlib.blake2b(data, digest_size=16).hexdigest()}"'
        self._cache.put(key, answer, len(data))
        return answer

    async def _find_public_url(self, key: str) -> str | None:
        """Return the URL of a chunk that is a whole object on a public web server; None for any other chunk."""
        keyspace = await self._fs.source.keyspace()
        entry = await self._fs.source.look_up(key, keyspace.lookup(key))
        if not isinstance(entry, Span) or (entry.start, entry.stop) != (0, None) or protocol_of(entry.url) not in WEB:
            return None
        if entry.pin is not None:
            return None
        host = entry.url.partition("://")[2].partition("/")[0]
        is_open = not is_private(host.rpartition(":")[0] or host) and "@" not in host and "?" not in entry.url
        return entry.url if is_open and not self._fs.source.options.pool.find_options(entry.url) else None


def _check_token(request: Request, token: str | None) -> None:
    if token is None:
        return
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secrets.compare_digest(credentials.strip().encode(), token.encode()):
        raise HTTPException(401, headers={"WWW-Authenticate": "Bearer"})


def consolidate(documents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the root group's document with all ``documents`` consolidated, by its key; empty if there is none."""
    for key, data in documents.items():
        zarrmeta.object_in(data, key)  # raises an error if the document is damaged
    if ROOT in documents:
        key, empty = ROOT, zarrmeta.loads(documents[ROOT])
        if empty.get("node_type") != "group":
            return {}
        empty["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": {}}
    elif ".zgroup" in documents:
        key, empty = CONSOLIDATED, {"zarr_consolidated_format": 1, "metadata": {}}
    else:
        return {}
    return {key: zarrmeta.dumps(zarrmeta.replace_non_finite(reconsolidate(key, empty, documents, lambda _: False)))}


def _is_array(document: bytes, name: str) -> bool:
    return name == ".zarray" or (name == "zarr.json" and zarrmeta.loads(document).get("node_type") == "array")


def _make_bad_gateway(message: str, error: Exception) -> HTTPException:
    """Return an answer with status 502 and log the error, which may contain URLs of targets.

    The status is not 403 or 404: many clients fill a chunk with NaN if they get one of these.
    """
    logger.warning("%s: %s", message, sanitize(str(error)))
    return HTTPException(502, f"{message}: {type(error).__name__}: see the log of the server")


def draw_slice(fs: RefShardFileSystem, array: str) -> bytes:
    """Draw the first elements of an array, along its last two dimensions, as PNG.

    Raise ValueError if the array has no dimension, no elements, no numbers, or too large chunks, or if matplotlib or
    zarr is missing.
    """
    try:
        import matplotlib.image
        import zarr
    except ImportError as e:
        raise ValueError(f"pictures of slices need {e.name}: install it where the server runs") from e
    import numpy as np

    opened = zarr.open_array(fs.get_mapper(array), mode="r")
    shape, ndim = opened.shape, len(opened.shape)
    if opened.dtype.kind not in "iufb" or not math.prod(shape) or not ndim:
        raise ValueError(
            f"expected an array of numbers with a dimension and at least one element, got {array!r} of shape {shape} "
            f"and dtype {opened.dtype}"
        )
    sides = [1 if axis < ndim - 2 else min(length, SIDE) for axis, length in enumerate(shape)]
    chunks = [-(-side // size) * size for side, size in zip(sides, opened.chunks, strict=True)]
    if math.prod(chunks) * opened.dtype.itemsize > DECODED:
        raise ValueError(
            f"the first chunks of {array!r} are too large for a picture: expected at most {format_bytes(DECODED)} "
            f"after decoding, got {format_bytes(math.prod(chunks) * opened.dtype.itemsize)}"
        )
    values = np.asarray(opened[tuple(map(slice, sides))], float).reshape(sides[-2:] if ndim > 1 else (1, -1))
    fill = opened.fill_value
    if fill is not None:
        values[values == float(fill)] = np.nan
    if ndim == 1:
        values = np.repeat(values, 32, axis=0)
    file = io.BytesIO()
    with np.errstate(all="ignore"):
        known = values[np.isfinite(values)]
        low, high = np.percentile(known, (2, 98)) if known.size else (0, 1)
        matplotlib.image.imsave(file, values, vmin=low, vmax=high, cmap="viridis", format="png")
    return file.getvalue()


def _make_page_endpoint(title: str, body: str, token: str | None) -> Any:
    """Return an endpoint of Starlette that answers with one page."""

    async def answer(request: Request) -> Response:
        _check_token(request, token)
        return _render_page(title, body)

    return answer


# Names and attributes of a source may contain HTML: browsers must not run scripts or load anything from elsewhere.
_SAFE: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src 'self'",
    "X-Content-Type-Options": "nosniff",
}


def _render_page(title: str, body: str) -> Response:
    style = (
        "body{font:16px sans-serif;margin:2em auto;max-width:60em;padding:0 1em}code{background:#8882;"
        "padding:.1em .3em;overflow-wrap:anywhere}dt{margin-top:.5em}img{max-width:100%}:root{color-scheme:light dark}"
    )
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head += f"<title>{html.escape(title)}</title><style>{style}</style>"
    text = f"<!doctype html><html lang=en><head>{head}</head><body><h1>{html.escape(title)}</h1>{body}</body></html>"
    return HTMLResponse(text, headers=_SAFE)
