"""The README is true: its two commands, its extras and its links exist.

Its blocks are run in `test_documents.py`.
"""

from __future__ import annotations

import argparse
import configparser
import importlib.util
import inspect
import re
import runpy
import shlex
from pathlib import Path

import fsspec
import pytest

import refshard_fs
import refshard_fs.sets.concat
import refshard_fs.sets.made_set
from refshard_fs import RefShardFileSystem, errors
from refshard_fs.cli.program import make_parser
from refshard_fs.known_formats import load_formats
from refshard_fs.source.options import list_keywords

ROOT = Path(__file__).parents[1]
DOCUMENTED = [page.read_text() for page in [*ROOT.glob("*.md"), *(ROOT / "docs" / "pages").glob("*.md")]]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
SHELL = [text for language, text in BLOCKS if language == "sh"]


@pytest.mark.parametrize(("number", "last_words"), [(0, "examples/quickstart.py"), (1, "-m pytest -n 3")])
def test_first_two_shell_blocks_are_one_line_each(number: int, last_words: str) -> None:
    (command,) = SHELL[number].splitlines()
    create, install, run = (shlex.split(step) for step in command.split(" && "))
    assert create[:3] == ["python3", "-m", "venv"]
    environment = create[3]
    assert environment.startswith(".venv")
    assert {words[0] for words in (install, run)} == {f"{environment}/bin/python"}
    assert " ".join(run).endswith(last_words)


def test_commands_install_extras_that_exist() -> None:
    config = configparser.RawConfigParser()
    config.read(ROOT / "setup.cfg")
    named = set(re.findall(r"\[([\w,-]+)\]\"", README))
    assert {"examples", "test"} <= named
    for extras in named:
        assert set(extras.split(",")) <= set(config["options.extras_require"])


@pytest.mark.parametrize(
    "document", [*ROOT.glob("*.md"), *(ROOT / "docs" / "pages").glob("*.md")], ids=lambda path: path.name
)
def test_links_to_files_resolve(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_links_to_headings_resolve() -> None:
    slug = runpy.run_path(str(ROOT / "docs" / "formats.py"))["make_slug"]
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs" / "pages").glob("*.md")]:
        for target, anchor in re.findall(r"\]\((?!https?://)([^)#\s]*)#([\w-]+)\)", document.read_text()):
            there = (document.parent / target if target else document).read_text()
            headings = map(slug, re.findall(r"^#+ (.+)$", there, re.MULTILINE))
            assert anchor in headings, f"{document.name}: {target}#{anchor}"


def test_page_of_commands_is_current() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "commands.py"))
    assert (ROOT / "docs" / "pages" / "commands.md").read_text() == made["make_page"](), made["__doc__"]


def test_every_command_and_option_has_a_help_text() -> None:
    (commands,) = (action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
    assert [choice.dest for choice in commands._choices_actions if not choice.help] == []
    silent = [
        (name, option.dest)
        for name, command in commands.choices.items()
        for option in command._actions
        if not option.help or option.help == argparse.SUPPRESS
    ]
    assert silent == []


def test_limits_name_the_oldest_versions_of_setup_cfg() -> None:
    page = (ROOT / "docs" / "pages" / "limits.md").read_text()
    named = re.findall(r"^\| ([\w]+) \| ([\d.]+) \|", page.partition("## Versions")[2], re.MULTILINE)
    floors = dict(
        re.findall(
            r"^    (\w+)(?:\[[\w,]+\])?>=([\d.]+)",
            (ROOT / "setup.cfg").read_text().partition("\nexamples =")[0],
            re.MULTILINE,
        )
    )
    assert len(named) > 10
    assert {name: floors[name] for name, _ in named} == dict(named)


def test_limits_name_the_extras_that_bring_a_package() -> None:
    page = (ROOT / "docs" / "pages" / "limits.md").read_text().partition("## Versions")[2]
    config = configparser.RawConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = dict(config["options.extras_require"])
    for name, text in re.findall(r"^\| (\w+) \| [\d.]+ \| (`.*) \|", page, re.MULTILINE):
        for extra in re.findall(r"`(\w+)`", text):
            needs = [extras[extra], *(extras[other] for other in re.findall(r"refshard_fs\[(\w+)\]", extras[extra]))]
            assert re.search(rf"^{name}\b", "\n".join(needs), re.MULTILINE), (name, extra)


def test_page_of_options_is_current() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "options.py"))
    assert (ROOT / "docs" / "pages" / "options.md").read_text() == made["make_page"](), made["__doc__"]


def test_page_of_the_api_is_current() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "api.py"))
    assert (ROOT / "docs" / "pages" / "api.md").read_text() == made["make_page"](), made["__doc__"]


def test_docstring_of_the_filesystem_has_every_option() -> None:
    text = inspect.getdoc(RefShardFileSystem) or ""
    described = set(re.findall(r"^([a-z0-9_, ]+):$", text, re.MULTILINE))
    names = {name.strip() for line in described for name in line.split(",")}
    assert [name for name in list_keywords() if name not in names] == []


def test_every_public_name_has_a_docstring() -> None:
    needed = {"RefShardPath": "upath", "Store": "zarr.abc", "asgi": "starlette"}
    lacking = {name for name, package in needed.items() if importlib.util.find_spec(package) is None}
    public = [getattr(refshard_fs, name) for name in refshard_fs.__all__ if name not in lacking]
    assert [thing for thing in public if not isinstance(thing, str) and not inspect.getdoc(thing)] == []
    methods = {
        **vars(RefShardFileSystem),
        **vars(refshard_fs.sets.made_set.MadeSet),
        **vars(refshard_fs.sets.lazy_set.LazySet),
    }
    silent = [
        name
        for name, method in methods.items()
        if not name.startswith("_")
        and (inspect.isfunction(method) or isinstance(method, property))
        and not (method.__doc__ or getattr(getattr(fsspec.asyn.AsyncFileSystem, name, None), "__doc__", None))
    ]
    assert silent == []


def test_reference_lists_the_public_names_which_exist() -> None:
    named = re.findall(r"^::: refshard_fs\.(.+)$", (ROOT / "docs" / "pages" / "api.md").read_text(), re.MULTILINE)
    of_modules = [name for name in named if "." in name]  # adapters for packages that need not be there
    named = [name for name in named if name not in of_modules]
    assert sorted(named) == sorted(refshard_fs.__all__)
    for module, _, name in (name.rpartition(".") for name in of_modules):
        assert f"class {name}" in (ROOT / "refshard_fs" / f"{module}.py").read_text()
    pytest.importorskip("upath", reason="universal_pathlib is not installed")
    assert [name for name in named if not hasattr(refshard_fs, name)] == []


def test_methods_in_the_reference_exist_and_main_ones_are_there() -> None:
    page = (ROOT / "docs" / "pages" / "api.md").read_text()
    table = set(re.findall(r"`(\w+)`", page.partition("| purpose | methods |")[2].partition("\n\n")[0]))
    assert [name for name in table if not hasattr(RefShardFileSystem, name)] == []
    own = {name for name, method in vars(RefShardFileSystem).items() if getattr(method, "__doc__", None)}
    needed = {
        "commit",
        "save",
        "plan",
        "prefetch",
        "resolve",
        "stats",
        "visualize",
        "refer",
        "discard",
        "cat",
        "ls",
        "info",
    }
    assert needed <= table | own


def test_troubleshooting_has_every_error() -> None:
    page = (ROOT / "docs" / "pages" / "troubleshooting.md").read_text()
    kinds = [
        name for name, kind in vars(errors).items() if inspect.isclass(kind) and kind.__module__ == errors.__name__
    ]
    assert len(kinds) > 12
    assert [name for name in kinds if f"`{name}`" not in page] == []
    assert [name for name in kinds if name not in refshard_fs.__all__] == []


def test_search_finds_every_name_and_command_by_a_title() -> None:
    missing = runpy.run_path(str(ROOT / "docs" / "searched.py"))["find_missing"]
    pages = "\n".join(path.read_text() for path in (ROOT / "docs" / "pages").glob("*.md"))
    assert missing(re.findall(r"^(?:#+|:::) (.+)$", pages, re.MULTILINE)) == []  # the site makes titles of them
    assert {"CostlyPattern", "tune_zarr", "refshard check"} <= set(missing(["RefShardError", "refshard checks"]))


def test_each_format_has_a_page_of_the_site() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "formats.py"))
    pages = made["make_pages"]()
    assert set(made["OF"]) == set(load_formats())
    assert [name for name in made["OF"].values() if name not in pages] == []
    assert [name for name, (_, text) in pages.items() if len(text) < 200] == []
    linked = [anchor for text in DOCUMENTED for anchor in re.findall(r"FORMATS\.md#([\w-]+)", text)]
    assert [anchor for anchor in linked if anchor not in made["make_links"](pages)] == []
