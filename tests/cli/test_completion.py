"""``refshard completion``: what a shell offers, asked of the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from refshard_fs.cli import main
from refshard_fs.cli.program import COMMANDS


def completed(script: str, tmp_path: Path, *words: str) -> list[str]:
    """Return what bash offers for the last of ``words``."""
    (tmp_path / "refshard.bash").write_text(script)
    line = " ".join(f"'{word}'" for word in words)
    asked = f"""
        source refshard.bash
        COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}
        _refshard
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
    assert completed(script, tmp_path, "refshard", "") == [*(c.name for c in COMMANDS), "--help", "--version"]
    assert completed(script, tmp_path, "refshard", "con") == ["convert", "concat"]
    assert completed(script, tmp_path, "refshard", "info", "--j") == ["--json"]
    assert "--record-size" in completed(script, tmp_path, "refshard", "convert", "-")
    assert completed(script, tmp_path, "refshard", "convert", "--format", "p") == ["parquet"]
    assert completed(script, tmp_path, "refshard", "completion", "") == ["bash", "zsh", "fish"]
    assert completed(script, tmp_path, "refshard", "info", "re") == ["refshard.bash", "refs.json"] or completed(
        script, tmp_path, "refshard", "info", "re"
    ) == ["refs.json", "refshard.bash"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_take_their_script(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for command in COMMANDS:
        assert command.name in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: its script was not run")
    path = tmp_path / "script"
    path.write_text(script)
    flags = ["-f", "-c"] if shell == "zsh" else ["--no-config", "-c"]
    subprocess.run([shell, *flags, f"source {path}"], check=True, capture_output=True)


def test_an_unknown_shell_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["completion", "tcsh"])
    assert stopped.value.code == 2
    assert "'fish'" in capsys.readouterr().err
