import os
import re
import tempfile
from pathlib import Path

import pytest

import serve.__main__
from jobs import sft
from pasta.cli.commands import run
from pasta.entrypoint import CommandParser, run_main
from pasta.errors import UserError
from tests.support.paths import ROOT


def test_an_option_given_twice_is_refused():
    parser = CommandParser()
    parser.add_argument("files", nargs="*")
    parser.add_argument("--out", "-o", type=Path)
    parser.add_argument("--set", action="append")
    parser.add_argument("--restart", action="store_true")
    for twice in (["--out", "a", "--out", "b"], ["-o", "a", "x", "--out=b"]):
        with pytest.raises(UserError, match=r"^--out: given twice; expected once$"):
            parser.parse_known_args(twice)
    for _ in range(2):  # a parser that is used again has seen nothing
        found = parser.parse_args(
            ["x", "y", "--set", "a", "--set", "b", "--restart", "--restart", "--out", "a"]
        )
        assert (found.files, found.set, found.out) == (["x", "y"], ["a", "b"], Path("a"))


def test_an_option_of_a_subcommand_given_twice_is_refused():
    with pytest.raises(UserError, match=r"^--field: given twice; expected once$"):
        run(["check", "a.jsonl", "--field", "a", "--field", "b"])


@pytest.mark.parametrize("blank", ["", " "])
def test_an_option_s_text_that_is_blank_is_refused(blank):
    """A shell's variable that is not set: many options took it for none given."""
    with pytest.raises(UserError, match=rf"^--generator: '{blank}', expected text that is not blank$"):
        run(["alpaca", "export", "a", "pasta", "--out", "b", "--generator", blank])
    with pytest.raises(UserError, match=rf"^--address: '{blank}', expected text that is not blank$"):
        sft.parser().parse_args(["--config", "a.yaml", f"--address={blank}"])


@pytest.mark.parametrize("blank", ["", " "])
def test_a_path_that_is_blank_is_refused(blank):
    """A path of no characters is the current folder."""
    with pytest.raises(UserError, match=rf"^--out: '{blank}', expected text that is not blank$"):
        run(["alpaca", "export", "a", "pasta", "--out", blank])
    with pytest.raises(UserError, match=rf"^DIR: '{blank}', expected text that is not blank$"):
        run(["alpaca", "export", blank, "pasta", "--out", "b"])
    with pytest.raises(UserError, match=rf"^MODEL: '{blank}', expected text that is not blank$"):
        serve.__main__.parser().parse_args([blank])


@pytest.mark.parametrize("number", ["x" * 4300, "9" * 4300, "9" * 4301])
@pytest.mark.parametrize("command", [["show", "a.jsonl", "--width"], ["stand-in", "--port"]])
def test_a_value_is_not_repeated_whole(command, number, capsys):
    """Python turns at most 4,300 digits into a number."""
    with pytest.raises(SystemExit, match="2"):
        run([*command, number])
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"argument {command[-1]}: '{number[:50]}" in error
    assert "expected" in error or "positive integer" in error
    assert len(error) < 500


def test_a_path_is_what_was_typed():
    parser = CommandParser()
    parser.add_argument("file", nargs="?", type=Path, default=Path("-"))
    parser.add_argument("--out", type=Path, default=Path("a"))
    found = parser.parse_args([])
    assert (found.file, found.out) == (Path("-"), Path("a"))
    found = parser.parse_args([".", "--out", " b"])
    assert (found.file, found.out) == (Path(), Path(" b"))


def test_a_user_without_a_home_is_told_to_name_one(monkeypatch, capsys):
    """A container whose user has no entry in /etc/passwd: it was a stack trace."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    with pytest.raises(SystemExit, match="2"):
        run_main(lambda: len(Path.home().parts))
    error = (
        f"error: HOME: is not set, and user {os.getuid()} has no home; expected a directory: export HOME=…\n"
    )
    assert capsys.readouterr().err == error


def test_a_current_directory_that_is_gone_is_one_line(monkeypatch, capsys, tmp_path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SystemExit, match="2"):
        run_main(lambda: len(Path("src").resolve().parts))
    error = "error: the current directory is gone; expected one that is there: cd …\n"
    assert capsys.readouterr().err == error


def test_a_system_without_a_place_for_temporary_files_is_told_to_name_one(monkeypatch, capsys):
    """A container whose file system is read-only."""
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: ["/proc/none"])
    with pytest.raises(SystemExit) as end:
        run_main(tempfile.gettempdir)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "error: TMPDIR: No usable temporary directory found in ['/proc/none']; expected one to write in"
    )


def test_another_error_while_it_runs_keeps_its_stack_trace():
    def broken():
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        run_main(broken)


@pytest.mark.parametrize("path", ["/no/home/.ray", "/no/home"])
def test_a_home_that_cannot_be_written_is_named(monkeypatch, capsys, path):
    monkeypatch.setenv("HOME", "/no/home")

    def refused():
        raise PermissionError(13, "Permission denied", path)

    with pytest.raises(SystemExit, match="2"):
        run_main(refused)
    error = f"error: '{path}': Permission denied; expected a home that can be written: export HOME=…\n"
    assert capsys.readouterr().err == error


def test_every_command_line_is_read_by_it():
    for top in ("platform", "jobs", "serve"):
        for file in (ROOT / top).rglob("*.py"):
            if file != ROOT / "platform/pasta/entrypoint.py":
                made = re.search(r"(?<!\w)(argparse\.)?ArgumentParser\(", file.read_text(encoding="utf-8"))
                assert made is None, f"{file}: expected pasta.entrypoint.CommandParser"
