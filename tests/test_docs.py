"""The guides: their commands run, or say what they need; what they name is there."""

import re
import shlex
from pathlib import Path

import pytest

from jobs import submit

ROOT = Path(__file__).resolve().parent.parent
GUIDES = sorted((ROOT / "docs").glob("*.md"))
SUBMIT = ["python", "-m", "jobs.submit"]


def blocks(guide: Path) -> list[str]:
    """The shell commands of a guide, block by block."""
    return re.findall(r"^```sh\n(.*?)^```", guide.read_text(), re.MULTILINE | re.DOTALL)


def commands(guide: Path) -> list[str]:
    """Commands that are not marked as needing something that tests do not have."""
    lines = [block.replace("\\\n", " ").splitlines() for block in blocks(guide)]
    return [line for block in lines if not block[0].startswith("# needs ") for line in block]


COMMANDS = [
    pytest.param(line, id=f"{guide.stem}: {line[:60]}") for guide in GUIDES for line in commands(guide)
]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_runs(line, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = shlex.split(line, comments=True)
    # The only ones that need nothing are those that look before they leap.
    assert words[:3] == SUBMIT
    assert words[-1] == "--check"
    assert submit.main(words[3:], {}) == 0
    assert "command    python -m jobs." in capsys.readouterr().out


def test_there_are_commands_to_run():
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_files_that_a_guide_names_are_there(guide):
    text = guide.read_text()
    named = re.findall(r"\b((?:configs|docker|docs|jobs|platform|serve|tests)/[\w./-]*\w)", text)
    assert named
    for path in named:
        # Secrets are made by whoever follows the guide.
        assert (ROOT / path).exists() or path.startswith("docker/secrets"), path
    for link in re.findall(r"\]\(([\w.-]+\.md)\)", text):
        assert (guide.parent / link).exists(), link


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_modules_that_a_guide_runs_are_there(guide):
    for module in re.findall(r"python -m ([\w.]+)", guide.read_text()):
        if module.startswith(("jobs.", "serve.")):
            assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module
