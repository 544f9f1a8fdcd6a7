"""Imports point downward, formats do no I/O, and only ``targets`` opens filesystems."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem

import refshard_fs
from refshard_fs.known_formats import BUILT_IN

pytestmark = pytest.mark.once

ROOT = Path(refshard_fs.__path__[0])
TESTS = ROOT.parent / "tests"

# Each line is a layer; a module imports from its own layer and those above it in this table. Folders count as one.
LAYERS = """
errors
security
core
references
sharding
formats
cubes
known_formats
targets
stores
reading
source
session
tuning
sinks
writing
tools
labels
sets
normalizing_meta
fs
group_metadata
direct_array
xarray_store
unpacking
serving
cli obspec_store universal_path virtualizarr xarray_backend zarr_pipeline zarr_store
url_pipeline
__main__
"""
PLACE = {module: depth for depth, line in enumerate(LAYERS.split("\n")) for module in line.split()}
LIBRARIES = {"templates"}  # folders in formats/ that are not formats: several formats may use them
BORROWED = {"jp2": {"tiff"}}  # a JP2 file contains a TIFF, which gives the position of its image
PURE = ("references", "formats", "cubes", "sharding")
IO = {"fsspec", "aiohttp", "s3fs", "asyncio", "socket", "urllib.request", "http.client", "tempfile", "shutil"}


@cache
def list_modules() -> list[Path]:
    return [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def list_nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(parse(path)))


@pytest.fixture(scope="module", autouse=True)
def _no_tree_is_kept() -> Iterator[None]:
    """Free the syntax trees, which take a hundred megabytes, after the tests of this file."""
    yield
    parse.cache_clear()
    list_nodes.cache_clear()


def make_relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def find_top_name(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def list_imports(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Return the modules that a module imports: ours by their top name, and others by their full name."""
    ours, others = set(), set()
    for node in list_nodes(path):
        match node:
            case ast.ImportFrom(module="refshard_fs", names=names):
                ours |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(module)) if module.startswith("refshard_fs."):
                ours.add(module.split(".")[1])
            case ast.ImportFrom(module=str(module)):
                others.add(module)
            case ast.Import(names=names):
                others |= {alias.name for alias in names}
    return frozenset(ours), frozenset(others)


def is_io(module: str) -> bool:
    return any(module == name or module.startswith(name + ".") for name in IO)


def test_every_module_has_a_layer() -> None:
    assert {find_top_name(path) for path in list_modules()} == set(PLACE)


def test_imports_point_downward() -> None:
    wrong = {}
    for path in list_modules():
        above = {name for name in list_imports(path)[0] if PLACE.get(name, 0) > PLACE[find_top_name(path)]}
        if above:
            wrong[make_relative(path)] = above
    assert not wrong, "these import from layers above their own"


# Files that name a module above them, which is imported at its first use.
UPWARD = {
    ("targets/generic.py", "targets/s3_client.py"): "it compares the name, and imports nothing",
    ("tuning.py", "zarr_pipeline.py"): "zarr finds its pipeline by this name",
}


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports within functions and for types count, and texts that name a module, because they may be imported."""
    names = {path: ".".join(path.relative_to(ROOT.parent).with_suffix("").parts) for path in list_modules()}
    by_name = {name.removesuffix(".__init__"): path for path, name in names.items()}
    left = {path: list_imported_files(path, by_name) - {path} for path in list_modules()}
    for above, below in UPWARD:
        left[ROOT / above].remove(ROOT / below)
    while free := [path for path, below in left.items() if not below & left.keys()]:
        for path in free:
            del left[path]
    while unused := [path for path in left if not any(path in below for below in left.values())]:
        for path in unused:
            del left[path]
    assert not left, f"these import each other: {sorted(names[path] for path in left)}"


def list_imported_files(path: Path, by_name: dict[str, Path]) -> set[Path]:
    found: set[str] = set()
    # A `Format` names the module that opens it, which may use what is beside the `Format`.
    formats = [
        node for node in list_nodes(path) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Format"
    ]
    named_by_format = {argument for call in formats for argument in call.args}
    for node in list_nodes(path):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                found |= {known if (known := f"{module}.{alias.name}") in by_name else module for alias in names}
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.Constant(value=str(text)) if node not in named_by_format:
                found.add(text)
    return {by_name[name] for name in found if name in by_name}


def test_formats_know_no_io() -> None:
    wrong = {}
    for path in list_modules():
        if find_top_name(path) in PURE:
            used = {name for name in list_imports(path)[1] if is_io(name)}
            calls = [node.func for node in list_nodes(path) if isinstance(node, ast.Call)]
            used |= {call.id for call in calls if isinstance(call, ast.Name) and call.id == "open"}
            if used:
                wrong[make_relative(path)] = used
    assert not wrong


def test_formats_do_not_import_each_other() -> None:
    wrong = {}
    for path in sorted((ROOT / "formats").glob("*/*.py")):
        found = set()
        for node in list_nodes(path):
            match node:
                case ast.ImportFrom(module="refshard_fs.formats", names=names):
                    found |= {alias.name for alias in names}
                case ast.ImportFrom(module=str(module)) if module.startswith("refshard_fs.formats."):
                    found.add(module.split(".")[2])
        others = found - LIBRARIES - {path.parent.name} - BORROWED.get(path.parent.name, set())
        if others:
            wrong[make_relative(path)] = others
    assert not wrong


# Modules that may import a format: the table, modules that open and show sources, and the sink that writes the format.
KNOW_FORMATS = {
    "cli/rule.py": "makes rules, which are documents of a format",
    "known_formats.py": "the table of all formats",
    "source/recognition.py": "puts the view of chunk manifests over a source",
    "source/in_memory_source.py": "parses a dict",
    "sinks/": "each writes a format",
    "targets/zip.py": "reads members of archives",
}


def test_only_the_table_and_listed_modules_know_formats() -> None:
    users = set()
    for path in list_modules():
        text = path.read_text(encoding="utf-8")
        if find_top_name(path) != "formats" and "refshard_fs.formats" in text:
            users.add(make_relative(path))
    assert not {name for name in users if not name.startswith(tuple(KNOW_FORMATS))}
    assert not {known for known in KNOW_FORMATS if not any(name.startswith(known) for name in users)}


NAMES = {known.name for known in BUILT_IN}


def test_no_module_asks_for_the_format_of_a_source() -> None:
    """Key spaces and sources describe themselves; only their own folder may use `isinstance` with their class."""
    for path in list_modules():
        rooms = {f"refshard_fs.{room}" for room in ("formats", "cubes", "source") if room != find_top_name(path)}
        imported = set()
        for node in list_nodes(path):
            match node:
                case ast.ImportFrom(module=str(module), names=names) if ".".join(module.split(".")[:2]) in rooms:
                    found = {alias.asname or alias.name for alias in names}
                    imported |= {
                        name
                        for name in found
                        if name.endswith(("KeySpace", "View", "Hierarchy", "Partition", "Source"))
                    }
        asked = set()
        for node in list_nodes(path):
            match node:
                case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
                    asked |= {inner.id for inner in ast.walk(kinds) if isinstance(inner, ast.Name)}
                case ast.MatchClass(cls=ast.Name(id=name)):
                    asked.add(name)
                case ast.Compare(left=ast.Attribute(attr="format"), comparators=[ast.Constant(value=str(name))]):
                    assert name not in NAMES, f"{path} compares the name of a format"
        assert not asked & imported, path


# Modules that may use `isinstance` with the class of a key space in another folder.
ASK_FOR_CLASSES = {
    "source/recognition.py": "a plug-in may return anything in place of a KeySpace",
    "formats/chunk_manifest/prefix_map.py": "it mounts hierarchies itself, and opens one that cannot be listed anew",
}


def test_only_listed_modules_ask_for_classes_of_key_spaces() -> None:
    """Apart from the modules listed above, only the folder that defines the class of a key space uses it."""
    bases: dict[str, set[str]] = {}
    defined: dict[str, set[Path]] = {}
    for path in list_modules():
        for node in list_nodes(path):
            if isinstance(node, ast.ClassDef):
                names = {inner.id for base in node.bases for inner in ast.walk(base) if isinstance(inner, ast.Name)}
                bases.setdefault(node.name, set()).update(names)
                defined.setdefault(node.name, set()).add(path.parent)
    spaces = {"KeySpace"}
    while more := {name for name, known in bases.items() if known & spaces} - spaces:
        spaces |= more
    assert len(spaces) > 15
    found = set()
    for path in list_modules():
        for node in list_nodes(path):
            match node:
                case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
                    asked = {inner.id for inner in ast.walk(kinds) if isinstance(inner, ast.Name)}
                case ast.MatchClass(cls=ast.Name(id=name)):
                    asked = {name}
                case _:
                    continue
            if any(path.parent not in defined[name] for name in asked & spaces):
                found.add(make_relative(path))
    assert found == ASK_FOR_CLASSES.keys()


def test_every_format_is_in_the_table_of_formats() -> None:
    folders = {path.parent.name for path in (ROOT / "formats").glob("*/__init__.py")}
    of_formats = {known.module.split(".")[2] for known in BUILT_IN if known.module.startswith("refshard_fs.formats.")}
    assert folders - LIBRARIES == of_formats


def test_only_listed_modules_open_filesystems() -> None:
    """Reads and writes have the same rules and credentials: `stores` gets its filesystems from the pool, too."""
    openers = {"filesystem", "url_to_fs", "get_filesystem_class", "open_files", "get_fs_token_paths"}
    found = set()
    for path in list_modules():
        for node in list_nodes(path):
            match node:
                case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
                    if name in openers or (name.endswith("FileSystem") and name != "RefShardFileSystem"):
                        found.add(make_relative(path))
    ours = {"sets/preprocess.py", "xarray_backend.py"}
    users = {name for name in found if name.startswith("cli/") or name in ours}  # they open ours
    immediate = "targets/local.py"  # files and memory, which the pool hands out as they are
    assert found - users == {"targets/pool.py", "targets/generic.py", "targets/zip.py", immediate}
    stores = [path for path in list_modules() if find_top_name(path) == "stores"]
    assert not {name for path in stores for name in list_imports(path)[1] if name.split(".")[0] in ("aiohttp", "s3fs")}


# Private names of a filesystem that fsspec defines: asynchronous methods, and those for its own subclasses.
OF_FSSPEC = frozenset(vars(AsyncFileSystem)) | frozenset(vars(AbstractFileSystem)) | {"_intrans", "_transaction"}


def test_no_module_uses_private_members_of_a_filesystem() -> None:
    """Modules use `fs.source` and `fs.writer`, not names as texts: then a renamed option is an error of types."""
    for path in list_modules():
        text = path.read_text(encoding="utf-8")
        assert "locals()" not in text, path
        if find_top_name(path) not in ("fs.py", "targets", "stores"):
            private = set(re.findall(r"(?:\bfs|filesystem)\)?\.(_[a-z]\w*)", text)) - OF_FSSPEC
            assert not private, path


# Private names of other libraries that objects of theirs have, by the module that uses them: each has a test.
OF_OTHERS = {
    "source/virtual_dataset.py": {"_lengths", "_offsets", "_paths"},  # of VirtualiZarr's manifests
}


def list_private_names(path: Path) -> tuple[set[str], set[str]]:
    """Return the private names that a module defines, and the private names of other objects than ``self`` it uses."""
    defined, used = set(), set()
    for node in list_nodes(path):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                defined.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                if isinstance(node.ctx, ast.Store):
                    defined.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                defined.add(name)
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                pass
            case ast.Attribute(attr=name):
                used.add(name)
    return {name for name in defined if is_private(name)}, {name for name in used if is_private(name)}


def is_private(name: str) -> bool:
    of_tuples = {"_replace", "_fields", "_asdict", "_make"}
    return name.startswith("_") and not name.startswith("__") and name not in of_tuples | OF_FSSPEC


def test_no_module_uses_private_names_of_another() -> None:
    names = {path: list_private_names(path) for path in list_modules()}
    ours = set().union(*(defined for defined, _ in names.values()))
    for path, (defined, used) in names.items():
        assert not (used & ours) - defined - OF_OTHERS.get(make_relative(path), set()), path


def defines_nothing(path: Path) -> bool:
    """A table, or names that lead elsewhere: no function and no class."""
    body = parse(path).body
    return not any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for node in body)


def test_every_module_has_a_test_file_of_its_name() -> None:
    """`refshard_fs/X/Y.py` has tests in `tests/X/test_Y.py`; `__init__`, `__main__` and tables need none."""
    lacking = set()
    for path in list_modules():
        place = path.relative_to(ROOT)
        if place.name.startswith("__") or defines_nothing(path):
            continue
        if not (TESTS / place.parent / f"test_{place.name}").exists():
            lacking.add(str(place))
    assert not lacking


def test_architecture_page_names_existing_modules() -> None:
    page = (ROOT.parent / "docs/pages/architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:refshard_fs/)?([a-z_]+(?:/[a-z_0-9]+)*/[a-z_0-9]+\.py)`", page))
    named -= {name for name in named if name.startswith("tests/")}
    assert named
    assert not {name for name in named if not (ROOT / name).exists()}


def test_architecture_page_lists_all_layers_from_the_top() -> None:
    page = (ROOT.parent / "docs/pages/architecture.md").read_text(encoding="utf-8")
    table = page.partition("## The folders")[2].partition("\n## ")[0]
    listed = [
        name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`(\w+)(?:/|\.py)", row)
    ]
    assert set(listed) == set(PLACE)
    assert [PLACE[name] for name in listed] == sorted(PLACE.values(), reverse=True)


SUPPORT = ("support", "servers", "fuzz", "soak")  # helpers, and two programs; all other modules are tests
PROGRAMS = {"plugin/tiny_plugin.py", "typed/program.py"}  # another package, and a user's program


def test_helpers_of_tests_are_in_their_folders() -> None:
    found = {path.relative_to(TESTS) for path in TESTS.rglob("*.py")}
    helpers = {path for path in found if not path.name.startswith(("test_", "__init__", "conftest"))}
    assert not {str(path) for path in helpers if path.parts[0] not in SUPPORT} - PROGRAMS


# A module that is imported, and the names that are imported from it, if they are on one line.
IMPORT = re.compile(r"^ *(?:from (tests[.\w]*) import ([^(\n#]*)|import (tests[.\w]*))", re.MULTILINE)


def test_tests_import_only_helpers() -> None:
    for path in TESTS.rglob("*.py"):
        for module, names, plain in IMPORT.findall(path.read_text(encoding="utf-8")):
            target = ROOT.parent / (module or plain).replace(".", "/")
            assert target.is_dir() or target.with_suffix(".py").exists(), f"{path} imports {module or plain}"
            imported = {target.name, *names.replace(" ", "").split(",")}
            assert not any(name.startswith("test_") for name in imported), f"{path} imports {module} of tests"
