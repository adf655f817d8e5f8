"""Runs a peer in a process of its own, and says which packages of peers are missing."""

import functools
import importlib.metadata
import importlib.util
import multiprocessing
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from pasta.errors import UserError
from pasta.stages.records import Record

INSTALL = "CMAKE_ARGS=-DGGML_NATIVE=ON pip install -e '.[peers]'"


def why_missing(packages: Mapping[str, str]) -> str:
    """Say in one line which of the packages, by module, are not installed, or why they cannot be imported; empty if
    all are there."""
    missing = [package for module, package in packages.items() if not _is_there(module)]
    if missing:
        return f"{' and '.join(missing)} not installed: {INSTALL}"
    why = _why_not_imported(*packages)
    return f"{' and '.join(packages.values())} cannot be imported ({why}): {INSTALL}" if why else ""


def _is_there(module: str) -> bool:
    """Whether there is such a module, and not only what an uninstalled package has left in its directory."""
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None


@functools.cache
def _why_not_imported(*modules: str) -> str:
    # Elsewhere, since a library of another machine's or version may end the process.
    done = run_python("-c", f"import {', '.join(modules)}")
    return last_words(done) if done.returncode else ""


def run_python(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Have another process of this Python run ``arguments``, with what it writes kept."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def last_words(failed: "subprocess.CompletedProcess[str]") -> str:
    """Why a process has failed: the last line of its standard error, or its exit code."""
    lines = [*filter(None, map(str.strip, failed.stderr.splitlines()))]
    return lines[-1] if lines else f"exit code {failed.returncode}"


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """The version of each package; empty for one that its installer has not recorded under this name."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = ""
    return found


class PeerProcess:
    """A process that ``make(*made)`` has made a decoder in, with the ``setups`` of a ``Peer``.

    In torch's process llama.cpp took twice as long on two cores, and it died of SIGILL where torch had given back the
    tiles of AMX that it had shaped.
    """

    def __init__(self, name: str, setups: Sequence[Record], make: Callable[..., Any], *made: Any) -> None:
        self.name, self.setups, self._setup = name, setups, setups[-1]
        self._made = make, *made
        # Ctrl-C is for the process that measures; it ends this one.
        ignore = signal.SIGINT, signal.SIG_IGN
        self._process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), signal.signal, ignore)

    def use(self, setup: Record) -> None:
        """Decode with these settings from now on."""
        self._setup = setup

    def call(self, what: Callable[..., Any], *arguments: Any) -> Any:
        """Have the process call ``what`` with its decoder and ``arguments``. Raises ``UserError`` if it has ended."""
        try:
            return self._process.submit(_call, self._made, what, *arguments).result()
        except BrokenProcessPool:
            raise UserError(
                f"{self.name}: its process has ended; see docs/commands.md for how to build it"
            ) from None

    def close(self) -> None:
        """End the process."""
        self._process.shutdown()


@functools.cache
def _decoder(make: Callable[..., Any], *made: Any) -> Any:
    return make(*made)


def _call(made: tuple[Any, ...], what: Callable[..., Any], *arguments: Any) -> Any:
    return what(_decoder(*made), *arguments)
