"""The service as a user starts it: a process of its own, on models with random weights."""

import contextlib
import copy
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import psutil
import torch
import yaml

from tests.support.models import tiny
from tests.support.paths import ROOT
from tests.support.tokenizers import byte_level_without_tags
from tests.support.waiting import eventually

#: A service is up in half a minute on two idle cores; a busy machine takes its time.
START_S = 280.0
_MARK = "PASTA_TEST_MARK"


def save_tiny_model(folder: Path, *, seed: int = 0, endless: bool = False, **config: object) -> Path:
    """A model directory, as training leaves one behind; ``config`` overwrites keys of its config.json.

    An ``endless`` model never says by itself that an answer ends, if it is asked for greedy tokens.
    """
    loaded = copy.deepcopy(tiny(seed=seed))
    if endless:
        with torch.no_grad():  # its logit is 0 then, and some other token's is above
            loaded.model.get_output_embeddings().weight[list(loaded.codec.eos_ids)] = 0
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    if config:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return folder


def save_plain_model(folder: Path) -> Path:
    """A directory of a model that PASTA has not trained: its tokenizer has no control tokens."""
    loaded, tokenizer = copy.deepcopy(tiny()), byte_level_without_tags()
    loaded.model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    loaded.model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def service_config(folder: Path, model: Path, **args: object) -> Path:
    """configs/serve/local.yaml behind Ray Serve's proxy, with the tiny model in the place of both shipped ones."""
    config = yaml.safe_load((ROOT / "configs/serve/local.yaml").read_text())
    models = config["applications"][0]["args"]["models"]
    for served in models.values():
        served["path"] = str(model)
    del config["applications"][0]["args"]["limits"]  # random weights repeat themselves
    config["applications"][0]["args"] |= {
        "front": {"proxy": "ray"},
        "engine": {"num_slots": 3, "slot_tokens": 4096},
        **args,
    }
    file = folder / "service.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


def shipped_config(folder: Path, **args: object) -> Path:
    """configs/serve/local.yaml behind Ray Serve's proxy, and in float32, where greedy tokens do not depend on what else
    a forward decodes."""
    config = yaml.safe_load((ROOT / "configs/serve/local.yaml").read_text())
    served = config["applications"][0]["args"]
    models = {"pasta-atlas": {**served["models"]["pasta-atlas"], "dtype": "float32"}}
    served |= {"front": {"proxy": "ray"}, "models": models, **args}
    file = folder / "service.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


class Command:
    """A command in the repository's root, with its output as it comes and everything that it starts."""

    def __init__(self, *arguments: object, log: Path, **environment: str) -> None:
        self.mark = uuid.uuid4().hex
        self._log = log
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, _MARK: self.mark, "PYTHONUNBUFFERED": "1", **environment},
                # Ctrl-C must work in a shell's background job too, where it is ignored from birth.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )

    @property
    def output(self) -> str:
        """Everything printed so far."""
        return self._log.read_text(errors="replace")

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until a line matches."""

        def search() -> re.Match[str] | None:
            return re.search(pattern, self.output, re.MULTILINE)

        # Looks often: tests interrupt what goes on after that line.
        eventually(lambda: search() or self.process.poll() is not None, START_S, every_s=0.01)
        if found := search():
            return found
        raise AssertionError(
            f"no {pattern!r} in the output, exit code {self.process.poll()}:\n{self.output[-4000:]}"
        )

    def end(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 120.0) -> int:
        """Signal the process and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout_s)

    def descendants(self) -> list[psutil.Process]:
        """All living processes that this command, or what it started, has started.

        Ray's agent has written its name over its environment: it is found as a child, while its parent lives.
        """
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(_MARK) == self.mark:
                    family = [process, *process.children(recursive=True)]
                    found |= {each.pid: each for each in family if each.status() != psutil.STATUS_ZOMBIE}
        return list(found.values())

    def leaves_nothing(self, timeout_s: float = 60.0) -> bool:
        """Whether every process is gone, at once or in a while: a killed process takes a moment to vanish."""
        return bool(eventually(lambda: not self.descendants(), timeout_s))

    def kill(self) -> None:
        """Leave nothing behind, whatever happened."""
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            if self.process.poll() is None:
                self.end(timeout_s=30.0)
        for process in self.descendants():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait(10.0)


@contextlib.contextmanager
def command(*arguments: object, log: Path, **environment: str) -> Iterator[Command]:
    """Run a command of this Python; everything it started is gone afterwards."""
    running = Command(*arguments, log=log, **environment)
    try:
        yield running
    finally:
        running.kill()


class Service(Command):
    """``python -m serve.run`` on a free port."""

    @cached_property
    def url(self) -> str:
        """Where it serves, once it does."""
        return self.wait_for(r"^serving .* at (http://127\.0\.0\.1:\d+)/v1")[1]


@contextlib.contextmanager
def serving(config: Path | str, log: Path, **environment: str) -> Iterator[Service]:
    """The service of a configuration, once it serves; everything it started is gone afterwards."""
    service = Service("-m", "serve.run", config, "--port", 0, log=log, **environment)
    try:
        assert service.url
        yield service
    finally:
        service.kill()
