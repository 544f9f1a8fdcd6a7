"""Open the metadata of a source, without its chunks, with zarr and xarray, to find arrays and groups that they refuse.

Trials with a package that is not installed are left out. Names and lengths of dimensions are compared without both.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

from refshard_fs.core import zarrmeta
from refshard_fs.core.keys import join, parent
from refshard_fs.core.zarrmeta import ARRAY_DOCUMENTS, CONSOLIDATED, ArrayMeta, find_safety_problem
from refshard_fs.tools.survey import Extents, Survey

LONGEST: Final = 1 << 20  # the most bytes of an element, values of a coordinate, or edges of a grid that are tried
MANY: Final = 1000  # the most chunks of a coordinate that are looked up
_NUMERIC: Final = tuple("iufmM")  # kinds of numbers and times in dtypes
_NUMBERS: Final = re.compile(r"\d+")


class Refusal(NamedTuple):
    """The reason why the reader ``by`` refuses to open the array or group with the document ``key``."""

    by: Literal["zarr", "xarray", "consolidated", "codec"]
    key: str
    text: str
    is_certain: bool = True  # False: the metadata may be valid for other readers


def find_refusals(source: Survey) -> tuple[list[Refusal], list[str]]:
    """Return the arrays and groups that zarr and xarray refuse, and notes about groups that are not for xarray."""
    found: list[Refusal] = []
    trial = _Trial(source.documents, source.arrays) if is_installed("zarr") else None
    if trial is not None:
        found += trial.find_refused_nodes(source.groups)
        found += trial.find_refused_consolidations()
    notes: list[str] = []
    refused = {parent(refusal.key)[0] for refusal in found}
    has_xarray = is_installed("xarray")
    if source.arrays and "" not in source.arrays and "" not in source.groups:
        text = "there is no group at the root (.zgroup or zarr.json): zarr and xarray open arrays by their paths alone"
        found.append(Refusal("zarr", "", text, is_certain=False))
    for group, arrays in _split_by_group(source.arrays).items():
        if group not in source.groups:
            continue
        named = [extents for extents in arrays if extents.dimensions]
        if not named:
            if any(extents.meta.shape for extents in arrays):
                notes.append(f"xarray does not open group '/{group}': its arrays name no dimensions")
            continue
        is_pyramid = _has_multiscales(source.documents, group)
        problems = list(_find_disagreements(arrays))
        if not problems and trial is not None and has_xarray and refused.isdisjoint({group, *(a.path for a in arrays)}):
            problems += trial.find_refused_dataset(group)
        found += [problem._replace(is_certain=not is_pyramid) for problem in problems]
    return found, notes


def is_installed(package: str) -> bool:
    """Return whether ``package`` can be imported."""
    with contextlib.suppress(ValueError):  # its entry in sys.modules has no __spec__
        return importlib.util.find_spec(package) is not None
    return False


def _split_by_group(arrays: Mapping[str, Extents]) -> dict[str, list[Extents]]:
    found: dict[str, list[Extents]] = {}
    for path, extents in arrays.items():
        if path:
            found.setdefault(parent(path)[0], []).append(extents)
    return found


def _find_disagreements(arrays: Sequence[Extents]) -> Iterator[Refusal]:
    """Yield a refusal for each array of a group that does not fit into one dataset with the arrays before it."""
    lengths: dict[str, tuple[int, str]] = {}
    for extents in arrays:
        shape, names, key = extents.meta.shape, extents.dimensions, _make_key(extents.path, extents.meta)
        if len(names) != len(shape):
            text = f"it has {len(shape)} dimensions, and {len(names) or 'no'} names: xarray does not open its group"
            yield Refusal("xarray", key, text)
            continue
        for name, length in zip(names, shape, strict=True):
            first, path = lengths.setdefault(name, (length, extents.path))
            if first != length:
                text = f"its dimension {name!r} has the length {length}, but in {path!r} it has the length {first}"
                yield Refusal("xarray", key, f"{text}: xarray does not open their group")
                break


def _lacks_codec(error: Exception) -> bool:
    """Return whether a codec is not installed; numcodecs before 0.15 raises a plain ValueError for that."""
    return type(error).__name__ == "UnknownCodecError" or str(error).startswith("codec not available")


def _has_multiscales(documents: Mapping[str, bytes], group: str) -> bool:
    """Return whether ``group`` is an image in several resolutions, whose arrays are opened one by one."""
    return any(b'"multiscales"' in documents.get(join(group, name), b"") for name in ("zarr.json", ".zattrs"))


def _make_key(path: str, meta: ArrayMeta) -> str:
    return join(path, ARRAY_DOCUMENTS[meta.zarr_format == 2])


class _Trial:
    """The metadata of a source as a store of zarr without chunks.

    It leaves out arrays that may do harm when they are opened, and arrays of a version that the installed zarr cannot
    read.
    """

    def __init__(self, documents: Mapping[str, bytes], arrays: Mapping[str, Extents]) -> None:
        self._zarr = importlib.import_module("zarr")
        self._is_zarr_2 = self._zarr.__version__.startswith("2.")
        self._arrays = arrays
        newest = 2 if self._is_zarr_2 else 3
        self._left_out = {p for p, a in arrays.items() if a.meta.zarr_format > newest or _is_harmful(a.meta)}
        known = {key: data for key, data in documents.items() if parent(key)[0] not in self._left_out}
        if self._left_out:  # consolidated metadata would contain these arrays
            known = {key: data for key, data in known.items() if not _is_consolidation(key, data)}
        self._documents = known
        # zarr 2 reads consolidated metadata that name their format. The document of a parquet set names none.
        named = b'"zarr_consolidated_format"' if self._is_zarr_2 else b""
        self._consolidated = [key for key, data in known.items() if _is_consolidation(key, data) and named in data]

    def find_refused_nodes(self, groups: Sequence[str]) -> Iterator[Refusal]:
        """Yield the arrays and groups that zarr does not open."""
        for path in groups:
            is_newer = self._is_zarr_2 and join(path, ".zgroup") not in self._documents
            error = None if is_newer else self._catch(self._open_group, path)
            if error is not None:
                yield Refusal("zarr", self._find_group_document(path), self._describe(error))
        known: dict[tuple[bytes | None, ...], Exception | None] = {}  # arrays of equal metadata are opened once
        for path, extents in self._arrays.items():
            if path in self._left_out:
                harm = find_safety_problem(extents.meta)
                if harm is not None:
                    yield Refusal("codec", _make_key(path, extents.meta), harm)
                continue
            texts = tuple(self._documents.get(join(path, name)) for name in (*ARRAY_DOCUMENTS, ".zattrs"))
            if texts not in known:
                known[texts] = self._catch(self._zarr.open_array, self._store, mode="r", path=path)
            error = known[texts]
            if error is not None:
                by: Literal["codec", "zarr"] = "codec" if _lacks_codec(error) else "zarr"
                yield Refusal(by, _make_key(path, extents.meta), self._describe(error))

    def find_refused_consolidations(self) -> Iterator[Refusal]:
        """Yield the consolidated metadata that zarr does not open."""
        for key in self._consolidated:
            error = self._catch(self._walk_consolidated, parent(key)[0])
            if error is not None:
                yield Refusal("consolidated", key, self._describe(error))

    def find_refused_dataset(self, group: str) -> Iterator[Refusal]:
        """Yield why xarray does not open ``group``, without or with consolidated metadata; nothing if it does."""
        version = importlib.import_module("xarray").__version__
        document = self._find_group_document(group)
        for consolidated in (False, None) if self._consolidated else (False,):
            error = self._catch(self._open_dataset, self._store, group, consolidated)
            # The store has no chunks, so xarray decodes fill values. It may refuse these although it accepts the real
            # values: try 0 as the fill value, too.
            if error is not None and self._catch(self._open_dataset, self._zero_store, group, consolidated) is not None:
                which = "with" if consolidated is None else "without"
                text = f"xarray {version} does not open its group {which} consolidated metadata: {_format_error(error)}"
                yield Refusal("xarray", document, text)
                return

    def _open_dataset(self, store: Any, group: str, consolidated: bool | None) -> None:
        xarray = importlib.import_module("xarray")
        dropped = [parent(path)[1] for path, extents in self._arrays.items() if _is_long_coordinate(extents)]
        xarray.open_dataset(
            store, engine="zarr", group="/" + group, consolidated=consolidated, drop_variables=dropped
        ).close()

    def _open_group(self, path: str) -> Any:
        return self._zarr.open_group(self._store, mode="r", path=path, **self._make_consolidated_option(use=False))

    def _walk_consolidated(self, path: str) -> None:
        if self._is_zarr_2:
            root = self._zarr.open_consolidated(self._store, mode="r", path=path)
            root.visitvalues(lambda _: None)
            return
        for _ in self._zarr.open_group(self._store, mode="r", path=path, use_consolidated=True).members(max_depth=None):
            pass

    def _make_consolidated_option(self, *, use: bool) -> dict[str, Any]:
        return {} if self._is_zarr_2 else {"use_consolidated": use}

    def _find_group_document(self, path: str) -> str:
        key = join(path, "zarr.json")
        return key if key in self._documents else join(path, ".zgroup")

    @cached_property
    def _store(self) -> Any:
        return self._make_store(self._documents)

    @cached_property
    def _zero_store(self) -> Any:
        """The store, with 0 as the fill value of all numbers."""
        return self._make_store({key: _zero_fill_values(key, data) for key, data in self._documents.items()})

    def _make_store(self, documents: Mapping[str, bytes]) -> Any:
        if self._is_zarr_2:
            return dict(documents)
        make = importlib.import_module("zarr.core.buffer").default_buffer_prototype().buffer.from_bytes
        return self._zarr.storage.MemoryStore({key: make(data) for key, data in documents.items()})

    def _describe(self, error: Exception) -> str:
        return f"zarr {self._zarr.__version__} does not open it: {_format_error(error)}"

    @staticmethod
    def _catch(function: Callable[..., object], *arguments: Any, **options: Any) -> Exception | None:
        """Call ``function``, and return the error that it raises; None if it raises none."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                function(*arguments, **options)
            except Exception as e:  # noqa: BLE001  # readers and extensions may raise anything, which is the result
                return e
        return None


def _format_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _is_consolidation(key: str, data: bytes) -> bool:
    name = parent(key)[1]
    return name == CONSOLIDATED or (name == "zarr.json" and b'"consolidated_metadata"' in data)


def _is_harmful(meta: ArrayMeta) -> bool:
    """Return whether opening an array might run code, end the process or fill its memory."""
    edges = 0 if meta.grid is None or meta.chunks is not None else sum(meta.grid.counts)  # zarr makes a list of them
    is_wide = any(len(digits) > 7 or int(digits) > LONGEST for digits in _NUMBERS.findall(meta.dtype))
    return find_safety_problem(meta) is not None or edges > LONGEST or is_wide


def _is_long_coordinate(extents: Extents) -> bool:
    """Return whether xarray would load many values, or look for many chunks, to make an index of the array."""
    name = parent(extents.path)[1]
    return extents.dimensions == (name,) and (extents.meta.shape[0] > LONGEST or (extents.possible or 0) > MANY)


def _zero_fill_values(key: str, data: bytes) -> bytes:
    """Return a metadata document with 0 as the fill value of numbers."""
    if parent(key)[1] == ".zattrs":
        return data
    with contextlib.suppress(ValueError):
        return zarrmeta.dumps(_replace_fill_values(zarrmeta.loads(data)))
    return data


def _replace_fill_values(document: Any) -> Any:
    match document:
        case {**members}:
            shown = {
                name: value if name == "attributes" else _replace_fill_values(value) for name, value in members.items()
            }
            match shown.get("fill_value", ""):
                case bool():
                    pass
                case None if str(shown.get("dtype"))[1:2] in _NUMERIC:  # zarr 2 would show uninitialised memory
                    shown["fill_value"] = 0
                case int() | float() | "NaN" | "Infinity" | "-Infinity":
                    shown["fill_value"] = 0
            return shown
    return document
