"""``refshard completion``, tested with the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from refshard_fs.cli import main
from refshard_fs.cli.program import COMMANDS


def complete(script: str, tmp_path: Path, *words: str) -> list[str]:
    """Return the completions of bash for the last of ``words``."""
    (tmp_path / "refshard.bash").write_text(script)
    line = " ".join(f"'{word}'" for word in words)
    asked = f"""
        eval "$(cat refshard.bash)"
        COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}
        _shtab_refshard
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_options_values_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    (tmp_path / "refs.json").touch()
    assert set(complete(script, tmp_path, "refshard", "")) == {c.name for c in COMMANDS}
    assert set(complete(script, tmp_path, "refshard", "con")) == {"convert", "concat"}
    assert {"--help", "--version"} <= set(complete(script, tmp_path, "refshard", "-"))
    assert complete(script, tmp_path, "refshard", "info", "--j") == ["--json"]
    assert "--record-size" in complete(script, tmp_path, "refshard", "convert", "-")
    assert complete(script, tmp_path, "refshard", "convert", "--format", "p") == ["parquet"]
    assert complete(script, tmp_path, "refshard", "completion", "") == ["bash", "zsh", "fish"]
    assert complete(script, tmp_path, "refshard", "info", "re") == ["refshard.bash", "refs.json"] or complete(
        script, tmp_path, "refshard", "info", "re"
    ) == ["refs.json", "refshard.bash"]


TYPED = {
    "conv": "convert",
    "info --js": "info --json",
    "convert --format pa": "convert --format parquet",
    "completion zs": "completion zsh",
    "info ref": "info refs.json",
}


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed: its script was not run")
def test_zsh_completes_words_at_its_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "refs.json").touch()
    keys = "\n".join(f"zpty -w -n typed 'refshard {line}'$'\\t\\n'" for line in TYPED)
    prompt = f"""
        zmodload zsh/zpty
        zpty typed zsh -f -i
        zpty -w typed 'autoload -U compinit && compinit -D; eval "$(cat script)"'
        zpty -w typed 'refshard() {{ print -r -- "$@" >>said }}'
        {keys}
        zpty -w typed exit
        while zpty -r typed line; do :; done
    """
    subprocess.run(["zsh", "-f", "-c", prompt], cwd=tmp_path, capture_output=True, check=True, timeout=60)
    assert (tmp_path / "said").read_text().splitlines() == list(TYPED.values())


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed: its script was not run")
def test_fish_shows_completions_with_descriptions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "refs.json").touch()
    lines = ["", *TYPED]
    asked = "source script\n" + "echo =\n".join(f"complete -C 'refshard {line}'\n" for line in lines)
    done = subprocess.run(
        ["fish", "--no-config", "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    offered = [
        [line.partition("\t")[::2] for line in answer.strip().splitlines()] for answer in done.stdout.split("=\n")
    ]
    assert {name for name, _ in offered[0]} >= {command.name for command in COMMANDS}
    assert dict(offered[0])["check"] == "Find faults in metadata, ranges, targets and data."
    assert [[name for name, _ in answer] for answer in offered[1:]] == [[line.split()[-1]] for line in TYPED.values()]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_scripts_name_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert [command.name for command in COMMANDS if command.name not in script] == []


def test_error_without_shtab_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert 'pip install "refshard_fs[cli]"' in capsys.readouterr().err


def test_unknown_shell_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["completion", "tcsh"])
    assert stopped.value.code == 2
    assert "'fish'" in capsys.readouterr().err
