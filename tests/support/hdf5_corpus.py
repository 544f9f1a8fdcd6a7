"""Files that the HDF5 library and others that write HDF5 make: over layouts, filters, types, shapes and fill values.

`WRITERS` has a function for each file, by its name; a file is written when a test asks for it. Those of the NetCDF
library are in `netcdf4_files`: it brings an HDF5 library of its own, which must not share a process with h5py's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np

LIBVERS: dict[str, tuple[str, str]] = {
    "earliest": ("earliest", "latest"),
    "v108": ("v108", "v108"),
    "v110": ("v110", "v110"),
    "latest": ("latest", "latest"),
}
ENUM = h5py.enum_dtype({"low": -1, "none": 0, "very high": 3}, "<i2")
COMPOUND = np.dtype([("a", "<i4"), ("b", ">f8"), ("name", "S5")])
GAPS = np.dtype({"names": ["a", "b"], "formats": ["<i2", ">f4"], "offsets": [3, 8], "itemsize": 16})
NESTED = np.dtype([("x", "<i2"), ("in", [("y", "<f4"), ("z", "S2")])])
TEXT = h5py.string_dtype()

Writer = Callable[[Path], None]


def sample(dtype: Any, shape: tuple[int, ...], seed: int = 1) -> np.ndarray[Any, Any]:
    """Return values of any dtype."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype == TEXT:
        texts = ["", "a", "hé", "longer than eight"]
        return np.array([texts[i] for i in rng.integers(0, 4, int(np.prod(shape)))], object).reshape(shape)
    if dtype.names is not None:
        values = np.zeros(shape, dtype)
        for name in dtype.names:
            values[name] = sample(dtype[name].base, shape + dtype[name].shape, seed)
        return values
    if dtype.kind == "S":
        return rng.choice([b"", b"x", b"ab", b"abcde"], shape).astype(dtype)
    if dtype.kind == "V":
        return np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind == "c":
        return (rng.integers(-9, 9, shape) + 1j * rng.integers(-9, 9, shape)).astype(dtype)
    if dtype == ENUM:
        return rng.choice(np.array([-1, 0, 3], "<i2"), shape)
    if dtype.kind in "iu":
        return rng.integers(0, 100, shape).astype(dtype)
    return rng.normal(0, 10, shape).astype(dtype)


# h5py: layouts × filters × versions of the format, each file with many types, shapes and fill values.

SHAPES: list[tuple[int, ...]] = [(1,), (37,), (5, 7), (3, 4, 5), (2, 1, 2, 3)]
DTYPES: list[Any] = ["<i2", ">f8", "<u1", "<f4", "S5", "?", "<c8", ">u8", ENUM, "<f2", COMPOUND, "<i8"]
FILLS: dict[str, Any] = {"i": -7, "u": 200, "f": 1.5, "S": b"xy", "b": True, "c": 2 - 1j}

FILTERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gzip": {"compression": "gzip"},
    "shuffle gzip fletcher32": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf": {"compression": "lzf", "shuffle": True},
}
MORE_FILTERS: dict[str, dict[str, Any]] = {
    "shuffle": {"shuffle": True},
    "fletcher32": {"fletcher32": True},
    "gzip 0": {"compression": "gzip", "compression_opts": 0},
    "szip": {"compression": "szip", "compression_opts": ("nn", 2)},
    "zstd": dict(hdf5plugin.Zstd()),
    "blosc": dict(hdf5plugin.Blosc("lz4", 5, 1)),
    "blosc zstd": dict(hdf5plugin.Blosc("zstd", 5, 2)),
    "bzip2": dict(hdf5plugin.BZip2()),
    "lz4": dict(hdf5plugin.LZ4()),
    "bitshuffle": dict(hdf5plugin.Bitshuffle()),
    "scaleoffset": {"scaleoffset": 2},
    "scaleoffset gzip": {"scaleoffset": 0, "compression": "gzip"},
}

# Limits of shapes (maxshape), each of which gives a chunked dataset another kind of index in newer formats.
INDEXES: dict[str, Callable[[tuple[int, ...]], dict[str, Any]]] = {
    "fixed": lambda shape: {"chunks": cut(shape)},
    "single": lambda shape: {"chunks": shape},
    "extensible": lambda shape: {"chunks": cut(shape), "maxshape": (None, *shape[1:])},
    "growing in all": lambda shape: {"chunks": cut(shape), "maxshape": (None,) * len(shape)},
    "limited": lambda shape: {"chunks": cut(shape), "maxshape": tuple(n + 4 for n in shape)},
    "early": lambda shape: {"chunks": cut(shape), "dcpl": created(alloc=h5py.h5d.ALLOC_TIME_EARLY)},
}


def cut(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a chunk shape that does not divide ``shape``, so that the last chunks are partial."""
    return tuple(max(1, n // 2 - (n % 2 == 0 and n > 4)) for n in shape)


def created(alloc: int | None = None, layout: int | None = None) -> h5py.h5p.PropDCID:
    """Return properties for creating a dataset for which h5py has no keyword."""
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if alloc is not None:
        made.set_alloc_time(alloc)
    if layout is not None:
        made.set_layout(layout)
    return made


def fill_of(dtype: Any) -> Any:
    return FILLS.get(np.dtype(dtype).kind) if np.dtype(dtype).names is None and dtype is not ENUM else None


def chunked(path: Path, libver: str, index: str, options: dict[str, Any], dtypes: list[Any]) -> None:
    """Write chunked datasets: with all chunks, with some, with none, and resized."""
    with h5py.File(path, "w", libver=LIBVERS[libver]) as file:
        kinds = itertools.cycle(dtypes)
        for number, shape in enumerate(SHAPES):
            for state in ("whole", "part", "never"):
                dtype = next(kinds)
                fill = fill_of(dtype) if number % 2 or state == "never" else None
                name = f"{state}{number}"
                dataset = file.create_dataset(name, shape, dtype, fillvalue=fill, **INDEXES[index](shape), **options)
                values = sample(dtype, shape, number)
                if state == "whole":
                    dataset[...] = values
                elif state == "part":
                    where = tuple(slice(0, max(1, n // 3)) for n in shape)
                    dataset[where] = values[where]
        if None in (INDEXES[index]((4,)).get("maxshape") or ()):
            grown = file.create_dataset("grown", (0, 3), "<i4", chunks=(2, 2), maxshape=(None, 3), fillvalue=5)
            for step in range(9):
                grown.resize((step + 1, 3))
                grown[step] = step
            shrunk = file.create_dataset("shrunk", data=sample("<f4", (9, 9)), chunks=(2, 4), maxshape=(None, None))
            shrunk.resize((5, 5))
            empty = file.create_dataset("empty", (0,), "<i4", chunks=(3,), maxshape=(None,))
            empty.attrs["note"] = "nothing yet"


def unchunked(path: Path, libver: str, layout: str, fills: bool) -> None:
    """Write contiguous or compact datasets of all types and shapes."""
    alloc = {"early": h5py.h5d.ALLOC_TIME_EARLY, "incremental": h5py.h5d.ALLOC_TIME_INCR}.get(layout)
    with h5py.File(path, "w", libver=LIBVERS[libver]) as file:
        for number, (dtype, shape) in enumerate(zip(DTYPES, itertools.cycle([*SHAPES, (), (0,), (2, 0, 3)]))):
            compact = h5py.h5d.COMPACT if layout == "compact" else None
            fill = fill_of(dtype) if fills else None
            for state in ("whole", "never"):
                options: dict[str, Any] = {"dcpl": created(alloc, compact)}
                dataset = file.create_dataset(f"{state}{number}", shape, dtype, fillvalue=fill, **options)
                if state == "whole":
                    dataset[...] = sample(dtype, shape, number)


def typed(path: Path, libver: str, options: dict[str, Any]) -> None:
    """Write datasets of types other than numbers."""
    with h5py.File(path, "w", libver=LIBVERS[libver]) as file:
        group = file.create_group("types")
        for name, dtype in {"enum": ENUM, "gaps": GAPS, "nested": NESTED, "compound": COMPOUND, "opaque": "V3"}.items():
            group.create_dataset(name, data=sample(dtype, (7,)), dtype=dtype, **options)
        arrays = group.create_dataset("array", (4,), np.dtype(("<i2", (2, 3))), **options)
        arrays[...] = np.arange(24, dtype="<i2").reshape(4, 2, 3)
        group.create_dataset("times", data=np.arange(7).astype("<M8[s]").astype(h5py.opaque_dtype("<M8[s]")), **options)
        group.create_dataset("char", data=np.array(list("abcdefg"), "S1"), **options)
        group.create_dataset("utf8", data=np.array(["é".encode(), b"b"] * 3, h5py.string_dtype("utf-8", 4)), **options)
        if "fletcher32" in options:  # the library refuses fletcher32 for texts
            return
        group.create_dataset("text", data=sample(TEXT, (7,)), dtype=TEXT, **options)
        group.create_dataset("texts", data=sample(TEXT, (3, 5)), dtype=TEXT, **options)
        unwritten = group.create_dataset("unwritten", (8,), TEXT, **options)
        unwritten[2] = "two"
        group["texts"].attrs["names"] = ["a", "hé"]


def refused(path: Path) -> None:
    """Write datasets that cannot be shown, beside a dataset that can."""
    with h5py.File(path, "w") as file:
        file["seen"] = np.arange(5)
        file.create_dataset("sequences", (2,), h5py.vlen_dtype(h5py.string_dtype()))
        file.create_dataset("long", (3,), "g")
        file["elsewhere"] = h5py.ExternalLink("other.h5", "/a")
        file["type"] = np.dtype("<f4")
        file.create_dataset("external", (4,), "<i4", external=[(str(path.with_suffix(".raw")), 0, 16)])
        file.create_dataset("sz3", data=np.zeros((8, 8), "<f4"), chunks=(4, 4), **hdf5plugin.SZ3())


REFUSED = {
    "sequences": "variable-length sequence", "external": "external", "elsewhere": "external", "sz3": "sz3",
    "long": "80 bits",
}  # fmt: skip


# h5py: groups, links, attributes.


def grouped(path: Path, libver: str, track: bool, count: int) -> None:
    """Write nested groups, one of them with ``count`` members, and links of all kinds."""
    with h5py.File(path, "w", libver=LIBVERS[libver], track_order=track) as file:
        many = file.create_group("many", track_order=track)
        for number in range(count):
            many.create_dataset(f"member_{number}", data=np.full(3, number, "<i4"))
        deep = file.create_group("a/b/c/d", track_order=track)
        deep["x"] = np.arange(4.0)
        deep.attrs["where"] = "deep"
        file["hard"] = deep["x"]
        file["soft"] = h5py.SoftLink("/a/b/c/d/x")
        file["group"] = h5py.SoftLink("/a/b")
        file["gone"] = h5py.SoftLink("/nothing")
        file["a/loop"] = file["a"]
        file["a/ring"] = h5py.SoftLink("/a/ring")
        file["a name with blanks, ünïcode"] = np.arange(3)
        file.create_group("empty")
        if count:
            del many["member_1"]


def attributed(path: Path, libver: str, count: int, track: bool) -> None:
    """Write attributes of all types, and ``count`` more: HDF5 stores many attributes outside of the object's header."""
    with h5py.File(path, "w", libver=LIBVERS[libver], track_order=track) as file:
        dataset = file.create_dataset("a", data=np.arange(3.0), track_order=track)
        for target in (file, dataset, file.create_group("g", track_order=track)):
            attributes = target.attrs
            attributes["text"] = "hé"
            attributes["empty"] = ""
            attributes["texts"] = ["a", "bc", ""]
            attributes["fixed"] = np.bytes_("fixed")
            attributes["fixed many"] = np.array([b"a", b"bcd"])
            attributes["int"] = 3
            attributes["float32"] = np.float32(0.1)
            attributes["array"] = np.arange(6, dtype=">i2").reshape(2, 3)
            attributes["one"] = np.array([2.5])
            attributes["nan"] = np.nan
            attributes["infinite"] = [np.inf, -np.inf]
            attributes["bool"] = True
            ragged = np.array([np.arange(2), np.arange(3)], object)
            attributes.create("ragged", ragged, dtype=h5py.vlen_dtype(np.int32))
            attributes["bools"] = [True, False]
            attributes["large"] = np.arange(2000)
            attributes["unsigned"] = np.uint64(2**64 - 1)
            attributes["none"] = h5py.Empty("f4")
            attributes.create("enum", 3, dtype=ENUM)
            for number in range(count):
                attributes[f"more_{number}"] = f"value {number}"


# Dimension scales that h5py attaches, and files with the layouts of other software.


def scaled(path: Path, libver: str, kind: str) -> None:
    """Write dimension scales as h5py makes them."""
    with h5py.File(path, "w", libver=LIBVERS[libver]) as file:
        for name, size in (("y", 3), ("x", 4)):
            file[name] = np.arange(size) * 1.5
            file[name].make_scale(name)
        file["v"] = sample("<i2", (3, 4))
        file["v"].dims[0].attach_scale(file["y"])
        file["v"].dims[1].attach_scale(file["x"])
        if kind == "two scales":
            file["other"] = np.arange(4)
            file["other"].make_scale("other")
            file["v"].dims[1].attach_scale(file["other"])
        if kind == "phony":
            file["w"] = sample("<f4", (4, 4, 3))
            file["u"] = sample("<f4", (3, 7))
            file.create_dataset("g/p", data=sample("<f4", (7, 3)))
        if kind == "in a group":
            below = file.create_group("g")
            below["q"] = sample("<f4", (4, 3))
            below["q"].dims[0].attach_scale(file["x"])
            below["q"].dims[1].attach_scale(file["y"])
        if kind == "masked":
            for number, fill in enumerate([-9, 0, 7]):
                v = file.create_dataset(f"f{number}", (3, 4), "<i4", chunks=(2, 2), fillvalue=fill)
                v[0] = [1, fill, 3, 7]
                v.attrs["_FillValue"] = np.int32(-9)
                v.dims[0].attach_scale(file["y"])
                v.dims[1].attach_scale(file["x"])


def matlab(path: Path) -> None:
    """Write a file like MATLAB 7.3: 512 bytes before the HDF5 file, groups of the old kind, classes as attributes."""
    with h5py.File(path, "w", userblock_size=512, libver=LIBVERS["earliest"]) as file:
        for name, values in {
            "matrix": sample("<f8", (4, 3)),
            "scalar": np.array([[2.0]]),
            "big": sample("<f8", (300, 200)),
        }.items():
            options = {"chunks": (50, 70), "compression": "gzip", "compression_opts": 3} if name == "big" else {}
            dataset = file.create_dataset(name, data=values, **options)
            dataset.attrs["MATLAB_class"] = np.bytes_("double")
        text = file.create_dataset("text", data=np.array([[104], [233]], "<u2"))
        text.attrs["MATLAB_class"] = np.bytes_("char")
        text.attrs.create("MATLAB_int_decode", 2, dtype="<i4")
        flag = file.create_dataset("flag", data=np.ones((1, 1), "u1"))
        flag.attrs["MATLAB_class"] = np.bytes_("logical")
        struct = file.create_group("struct")
        struct.attrs["MATLAB_class"] = np.bytes_("struct")
        struct["field"] = np.arange(3.0).reshape(1, 3)
        refs = file.create_group("#refs#")
        refs["a"] = np.zeros((1, 2), "<u8")
        file.create_dataset("cell", data=np.array([[refs["a"].ref]]), dtype=h5py.ref_dtype)
    with path.open("r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(116) + bytes(8) + b"\0\2IM")


def pandas_table(path: Path) -> None:
    """Write a file like pandas' HDFStore: tables of compounds, with pickles in attributes."""
    with h5py.File(path, "w") as file:
        file.attrs["CLASS"], file.attrs["VERSION"] = np.bytes_("GROUP"), np.bytes_("1.0")
        group = file.create_group("df")
        group.attrs["pandas_type"] = np.bytes_("frame_table")
        group.attrs["info"] = np.bytes_(b"(dp1\nI1\ns.")
        dtype = np.dtype([("index", "<i8"), ("values_block_0", "<f8", (2,)), ("values_block_1", "S7", (1,))])
        table = group.create_dataset("table", (5,), dtype, chunks=(1024,), maxshape=(None,))
        table[:] = sample(dtype, (5,))
        table.attrs["FIELD_0_NAME"] = np.bytes_("index")
        fixed = file.create_group("fixed")
        fixed["axis0"] = np.array([b"a", b"bb"])
        fixed["block0_values"] = sample("<f8", (5, 2))


def anndata(path: Path) -> None:
    """Write a file like AnnData: sparse matrices in groups, data frames of columns, texts."""
    with h5py.File(path, "w") as file:
        file.attrs["encoding-type"] = "anndata"
        x = file.create_group("X")
        x.attrs["shape"] = [4, 5]
        x.attrs["encoding-type"] = "csr_matrix"
        x["data"], x["indices"], x["indptr"] = sample("<f4", (6,)), np.arange(6, dtype="<i4"), np.arange(5, dtype="<i4")
        obs = file.create_group("obs")
        obs.attrs["column-order"] = np.array(["n", "kind"], object)
        obs.attrs["_index"] = "_index"
        obs.create_dataset("_index", data=sample(TEXT, (4,)), dtype=TEXT)
        obs.create_dataset("n", data=np.arange(4), chunks=(4,), compression="gzip")
        obs.create_dataset("is_good", data=np.array([True, False, True, True]))
        kind = obs.create_group("kind")
        kind["codes"] = np.array([0, 1, -1, 0], "i1")
        kind.create_dataset("categories", data=sample(TEXT, (2,)), dtype=TEXT)
        kind.attrs["ordered"] = False
        file.create_group("uns").attrs["encoding-version"] = "0.1.0"


def nexus(path: Path) -> None:
    """Write a file like NeXus: classes, units and default plots as attributes, images in chunks."""
    with h5py.File(path, "w", libver=LIBVERS["latest"]) as file:
        file.attrs["default"] = "entry"
        entry = file.create_group("entry")
        entry.attrs["NX_class"] = "NXentry"
        data = entry.create_group("data")
        data.attrs["NX_class"], data.attrs["signal"] = "NXdata", "counts"
        data.attrs["axes"] = ["frame", "y", "x"]
        counts = data.create_dataset(
            "counts", (0, 6, 8), "<u2", chunks=(1, 6, 8), maxshape=(None, 6, 8), **hdf5plugin.Bitshuffle()
        )
        for frame in range(5):
            counts.resize((frame + 1, 6, 8))
            counts[frame] = sample("<u2", (6, 8), frame)
        data["x"] = np.arange(8) * 0.1
        data["x"].attrs["units"] = "mm"
        entry["title"] = "a scan"
        entry["start_time"] = np.bytes_("2026-01-01T00:00:00")
        entry["alias"] = h5py.SoftLink("/entry/data/counts")


def keras(path: Path) -> None:
    """Write a file like Keras: weights in groups of the same name, names as attributes."""
    with h5py.File(path, "w") as file:
        weights = file.create_group("model_weights")
        weights.attrs["layer_names"] = np.array([b"dense", b"dense_1"])
        weights.attrs["backend"] = "tensorflow"
        for layer in ("dense", "dense_1"):
            group = weights.create_group(f"{layer}/{layer}")
            weights[layer].attrs["weight_names"] = np.array([f"{layer}/kernel:0".encode()])
            group["kernel:0"] = sample("<f4", (4, 3))
            group["bias:0"] = np.zeros(3, "<f4")
        file.attrs["model_config"] = '{"class_name": "Sequential"}' + " " * 5000


def _writers() -> Iterator[tuple[str, Writer]]:
    numbers = [
        d
        for d in DTYPES
        if isinstance(d, str) and np.dtype(d).kind in "iuf" and np.dtype(d).itemsize > 1 and d != "<f2"
    ]
    for libver in LIBVERS:
        for index, name in itertools.product(INDEXES, FILTERS):
            if index != "early" or libver in ("earliest", "latest"):
                yield (
                    f"chunked {libver} {index} {name}",
                    partial(chunked, libver=libver, index=index, options=FILTERS[name], dtypes=DTYPES),
                )
        for layout, fills in itertools.product(("contiguous", "early", "incremental", "compact"), (False, True)):
            if layout != "incremental" or libver != "v108":
                yield (
                    f"unchunked {libver} {layout} {fills}",
                    partial(unchunked, libver=libver, layout=layout, fills=fills),
                )
        for name, options in {
            "plain": {},
            "chunked": {"chunks": True},
            "gzip": {"compression": "gzip"},
            "fletcher32": {"fletcher32": True},
            "lzf": {"compression": "lzf"},
        }.items():
            yield f"typed {libver} {name}", partial(typed, libver=libver, options=options)
        for track, count in itertools.product((False, True), (0, 5, 40) if libver != "earliest" else (5, 300)):
            yield f"grouped {libver} {track} {count}", partial(grouped, libver=libver, track=track, count=count)
        for track, count in itertools.product((False, True), (0, 7, 200)):
            yield f"attributed {libver} {track} {count}", partial(attributed, libver=libver, track=track, count=count)
        for kind in ("plain", "two scales", "phony", "in a group", "masked"):
            yield f"scaled {libver} {kind}", partial(scaled, libver=libver, kind=kind)
        for name, options in MORE_FILTERS.items():
            for index in ("fixed", "extensible") if libver in ("earliest", "latest") else ("growing in all",):
                dtypes = numbers if name.startswith(("scaleoffset", "szip")) else ["<i4", ">f8", "S5", "<u2"]
                if not name.startswith("szip"):
                    yield (
                        f"filtered {libver} {index} {name}",
                        partial(chunked, libver=libver, index=index, options=options, dtypes=dtypes),
                    )
    for writer in (matlab, pandas_table, anndata, nexus, keras, refused):
        yield writer.__name__, writer


WRITERS: dict[str, Writer] = dict(_writers())


def kinds() -> list[str]:
    """Return the kinds of files: the first words of their names."""
    return list(dict.fromkeys(name.split(" ")[0] for name in WRITERS))


def of_kind(kind: str) -> list[str]:
    """Return the names of all files of a kind: each version of the format with each index, filter..."""
    return [name for name in WRITERS if name.split(" ")[0] == kind]


def choose(names: list[str]) -> list[str]:
    """Return some of the names: each version of the format with each index, layout or order, and each other word."""
    seen: set[tuple[str, ...]] = set()
    chosen = []
    for name in reversed(names):  # the last ones have the most members and attributes
        words = name.split(" ")
        here = {tuple(words[:3]), *((word,) for word in words)}
        if not here <= seen:
            seen |= here
            chosen.append(name)
    return chosen


def written(writers: dict[str, Any], name: str, folder: Path, suffix: str = "h5") -> Path:
    path = folder / f"{name}.{suffix}"
    writers[name](path)
    return path
