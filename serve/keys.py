"""Reads and makes API keys, in a YAML file of names and hashes. This command adds one:

    python -m serve.keys new NAME --file keys.yaml

It prints the key once; the file has only its SHA-256. A key is 256 random bits, so nobody can guess it from its hash. A
running service reads a changed file at the next request.
"""

import hashlib
import hmac
import json
import logging
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from pasta.config import parse_config, read_yaml
from pasta.core_yaml import parse_yaml
from pasta.entrypoint import CommandParser, run_main
from pasta.errors import UserError
from pasta.files import read_text, write_whole

logger = logging.getLogger("ray.serve")
_PREFIX = "sk-pasta-"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# What a message says that it got: where somebody has put a key itself into the file, that is the key.
_GOT = re.compile(r", got .*?(?=( \(and \d+ more\))?$)")


class KeyEntry(BaseModel):
    """An entry of the file. The configuration's limits apply where it has none."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    requests_per_minute: PositiveInt | None = None
    max_concurrent: PositiveInt | None = None


def read_keys(path: Path, *, may_be_empty: bool = False) -> dict[str, KeyEntry]:
    """Read a file of keys; returns them by name. Raises ``UserError`` in one line, without a value: it is logged."""
    try:
        return _entries(read_yaml(path, may_be_empty=may_be_empty), path)
    except UserError as error:
        raise UserError(_GOT.sub("", str(error))) from None


def _entries(value: Mapping[str, Any], path: Path) -> dict[str, KeyEntry]:
    entries = parse_config(value, dict[str, KeyEntry], str(path))
    names: dict[str, str] = {}
    for name, entry in entries.items():
        if (other := names.setdefault(entry.sha256, name)) != name:
            raise UserError(
                f"{path}: {other} and {name} have the same sha256; expected a key of its own for each name"
            )
    return entries


def new_key(path: Path, name: str, key: str | None = None, **limits: int | None) -> str:
    """Make a key, or take ``key``, add its entry to the file (created if missing), and return it. Raises
    ``UserError``."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is not a valid name of a key; expected 1 to 64 letters, digits, '.', '_' or '-'"
        )
    text = read_text(path) if path.exists() else ""
    known = read_keys(path, may_be_empty=True) if text else {}
    if name in known:
        raise UserError(f"{path} already has a key {name!r}; delete its entry first, or choose another name")
    if key is not None and not (key and key.strip() == key and key.isascii() and key.isprintable()):
        raise UserError(
            "the API key: it is empty, has spaces around it, or characters that are not ASCII; expected text that a "
            "header can hold"
        )
    key = _PREFIX + secrets.token_urlsafe(32) if key is None else key
    entry = {"sha256": _digest(key), **{limit: value for limit, value in limits.items() if value is not None}}
    if not known:
        # No entry can follow ``{}``.
        text = "\n".join(line for line in text.splitlines() if line.strip().startswith("#"))
    text = text.rstrip() + "\n" if text.strip() else ""
    # YAML would read 1e3 and 08 as numbers; JSON is YAML.
    label = name if name[0].isalpha() and name.lower() not in ("null", "true", "false") else json.dumps(name)
    lines = [f"  {limit}: {value}" for limit, value in entry.items()]
    text = "\n".join([f"{text}{label}:", *lines, ""])
    _entries(parse_yaml(text, str(path)), path)  # before the file is touched
    write_whole(path, text, private=True)
    return key


class KeyRing:
    """Finds keys in a file, and reads it again when it changes. An unreadable file leaves the keys as they were."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._stamp()
        #: ``None`` if the file could not be read yet: a Gateway that comes in the place of a lost one starts all the
        #: same, to say so. ``serve.checks`` refuses such a file, and an empty one, before a service starts.
        self._keys: Mapping[str, KeyEntry] | None = None
        self._read()

    def find(self, key: str) -> tuple[str, KeyEntry] | None:
        """The name and entry of a key, or ``None``. Compares in constant time: timing reveals nothing of a hash.

        Raises ``UserError`` if the file could not be read since this process started.
        """
        self._refresh()
        if self._keys is None:
            raise UserError("The service cannot read its API keys; its log says why.")
        digest, found = _digest(key), None
        for name, entry in self._keys.items():
            if hmac.compare_digest(entry.sha256, digest):
                found = (name, entry)
        return found

    def _refresh(self) -> None:
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        if self._read():
            logger.info("%s has changed; keys in it: %d", self._path, len(self._keys or ()))

    def _read(self) -> bool:
        try:
            # Whoever deletes the last entry wants nobody in.
            self._keys = read_keys(self._path, may_be_empty=True)
        except UserError as error:
            kept = "all requests are refused" if self._keys is None else "keeping the old ones"
            logger.error("cannot read the API keys, %s: %s", kept, error)
            return False
        return True

    def _stamp(self) -> tuple[int, ...] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        # A file that this process may not read can become readable without a change of its content.
        return (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino, stat.st_mode)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def main() -> int:
    """Entry point."""
    parser = CommandParser(prog="python -m serve.keys", description="Make API keys.")
    commands = parser.add_subparsers(required=True)
    new = commands.add_parser("new", help="make a key, print it once, and add its hash to the file")
    new.add_argument("name", help="the key's name, which logs show")
    new.add_argument(
        "--file", type=Path, required=True, help="the file of keys (keys.file in the configuration)"
    )
    new.add_argument("--requests-per-minute", type=int, default=None)
    new.add_argument("--max-concurrent", type=int, default=None)
    arguments = parser.parse_args()
    limits = {
        "requests_per_minute": arguments.requests_per_minute,
        "max_concurrent": arguments.max_concurrent,
    }
    for name, value in limits.items():
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')}: {value}, expected a positive integer")
    print(new_key(arguments.file, arguments.name, **limits))
    return 0


if __name__ == "__main__":
    run_main(main)
