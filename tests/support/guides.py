"""The guides: what is fenced in them, and what it says that it needs."""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
#: What a command sees of the repository, in a directory of its own: what it writes goes away with that.
_LINKED = ("configs", "docs", "jobs", "platform", "serve", ".gitignore", ".rayignore", "requirements.lock")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"# ((?:needs|takes) .*)\n")
_COMMENT = re.compile(r"(?:^|(?<=\s))#\s.*$", re.MULTILINE)
_HEREDOC = re.compile(r"^(.*)<<'END'\n.*?^END\n", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block. ``mark`` is its first line if that says what it needs, or how long it takes."""

    guide: Path
    line: int
    language: str
    text: str

    @property
    def mark(self) -> str:
        """``needs …``, ``takes …``, or nothing."""
        found = _MARK.match(self.text)
        return found[1] if found else ""

    @property
    def is_shell(self) -> bool:
        """Whether it holds commands."""
        return self.language == "sh"

    @property
    def place(self) -> str:
        """Where it stands."""
        return f"{self.guide.relative_to(ROOT)}:{self.line}"

    def commands(self) -> list[list[str]]:
        """The words of each command: without what it is fed, and where its output goes."""
        text = _COMMENT.sub("", _HEREDOC.sub(r"\1\n", self.text).replace("\\\n", " "))
        lexer = shlex.shlex(text, posix=True, punctuation_chars="&|;<>\n")
        lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
        found: list[list[str]] = [[]]
        for word in lexer:
            if set(word) <= set("&|;\n"):
                found.append([])
            else:
                found[-1].append(word)
        cut = (words[: next((n for n, w in enumerate(words) if w[0] in "<>"), None)] for words in found)
        return [words for words in cut if words]


def blocks(guide: Path) -> list[Block]:
    """The fenced blocks of a guide, in order."""
    text = guide.read_text(encoding="utf-8")
    return [
        Block(guide, text.count("\n", 0, match.start()) + 1, match[1], match[2])
        for match in _FENCE.finditer(text)
    ]


def prose(guide: Path) -> str:
    """The guide without its fenced blocks."""
    return _FENCE.sub("", guide.read_text(encoding="utf-8"))


def workplace(folder: Path) -> Path:
    """A directory to run commands in that looks like the repository's root."""
    for name in _LINKED:
        (folder / name).symlink_to(ROOT / name)
    return folder


def shell(text: str, cwd: Path, timeout_s: float = 280.0) -> str:
    """Run commands as a user in the repository's root would; returns what they print. Fails with their output."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=cwd,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{cwd}",
            "PATH": f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode} of\n{text}\n{done.stdout}"
    return done.stdout
