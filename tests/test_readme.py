"""The README keeps its word: two commands for a fresh machine, extras that exist, links that lead somewhere.

Its blocks are run in `test_documents.py`.
"""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path

import pytest

import refshard_fs
from refshard_fs import errors

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
SHELL = [text for language, text in BLOCKS if language == "sh"]


@pytest.mark.parametrize(("number", "last_words"), [(0, "examples/quickstart.py"), (1, "-m pytest")])
def test_the_first_two_shell_blocks_are_one_line_each_with_an_environment_of_their_own(
    number: int, last_words: str
) -> None:
    (command,) = SHELL[number].splitlines()
    create, install, run = (shlex.split(step) for step in command.split(" && "))
    assert create[:3] == ["python3", "-m", "venv"]
    environment = create[3]
    assert environment.startswith(".venv")
    assert {words[0] for words in (install, run)} == {f"{environment}/bin/python"}
    assert " ".join(run).endswith(last_words)


def test_the_commands_install_extras_that_exist() -> None:
    config = configparser.RawConfigParser()
    config.read(ROOT / "setup.cfg")
    named = set(re.findall(r"\[([\w,-]+)\]\"", README))
    assert {"examples", "test"} <= named
    for extras in named:
        assert set(extras.split(",")) <= set(config["options.extras_require"])


@pytest.mark.parametrize(
    "document", [*ROOT.glob("*.md"), *(ROOT / "docs" / "pages").glob("*.md")], ids=lambda path: path.name
)
def test_links_to_files_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_the_reference_has_every_public_name() -> None:
    page = (ROOT / "docs" / "pages" / "api.md").read_text()
    assert "::: refshard_fs.errors\n" in page
    missing = [name for name in refshard_fs.__all__ if f"::: refshard_fs.{name}\n" not in page]
    assert [name for name in missing if not hasattr(errors, name)] == []
