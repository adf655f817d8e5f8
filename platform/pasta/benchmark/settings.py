"""The settings of a benchmark run. Imports nothing heavy."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pasta.benchmark.options import check_answers, check_interval, check_least, option_of
from pasta.engine.section import check_device, check_format
from pasta.errors import UserError

SIZES = ("shipped", "large")
#: What one command runs. Speed decodes the same answers as accuracy, so ``all`` grades those.
COMMANDS: dict[str, tuple[str, ...]] = {
    "all": ("speed", "random", "step", "generate", "sampling", "replay"),
    "accuracy": ("accuracy", "random"),
    "speed": ("speed",),
    "step": ("step",),
    "generate": ("generate",),
    "replay": ("replay",),
    "sampling": ("sampling",),
    "calibrate": ("calibrate",),
    "formats": ("formats",),
    "prefix": ("prefix",),
    "help": ("help",),
}
_ANSWERED = {"prompts", "max_tokens", "threads"}
_DECODED = {*_ANSWERED, "dtype"}
_SIZED = {"only", "rounds", "threads", "large_threads", "model_config", "dtype"}
#: The options that stages read beside those of the models and the device.
_READ_BY: dict[str, set[str]] = {
    "accuracy": _DECODED,
    "random": _DECODED,
    "speed": _DECODED | {"repeats"},
    "step": _SIZED | {"lanes", "cache_tokens"},
    "calibrate": _SIZED | {"lanes", "cache_tokens", "requests", "fastest"},
    "generate": _SIZED | {"max_tokens"},
    "sampling": {"max_tokens", "threads", "dtype"},
    "formats": _ANSWERED,  # in every format that runs here
    "prefix": {"max_tokens", "threads", "rounds", "dtype"},
    "help": _DECODED,
    "replay": _DECODED
    | {"model_config", "large_threads", "repeats", "documents", "replay_prompts", "replay_seed"}
    | {"tokenizer", "longest"},
}


def check_read(what: str, given: Iterable[str]) -> None:
    """Raise ``UserError``, naming the option, for a given one that a command does not read."""
    for name in given:
        readers = [key for key, stages in COMMANDS.items() if any(name in _READ_BY[one] for one in stages)]
        if readers and what not in readers:
            raise UserError(
                f"{option_of(name)}: has no effect on {what}; expected it with {', '.join(readers)}"
            )


@dataclass(frozen=True)
class Settings:
    """The choices of a benchmark run, checked on construction. Raises ``UserError`` naming the option that is wrong.

    ``models`` holds the directories ``twin`` and ``pasta``, which are ``widened`` to a transformers configuration if
    one is given; ``model_config`` shapes the large random model. ``documents`` is a JSONL file of ``{"prompt",
    "annotated"}`` or the directory of an annotate stage: ``replay_prompts`` of them, drawn with ``replay_seed``, are
    replayed as ``tokenizer`` counts them (``words``, ``atlas``, a directory or a Hub name), without those that have
    ``longest`` tokens or more, prompt and tags included. Without ``documents`` the answers of the PASTA model are
    replayed.

    ``repeats`` are timed runs of each prompt, ``rounds`` those of single steps and of ``generate``. ``threads`` are
    torch's for the shipped models, ``large_threads`` for the large one. ``cache_tokens`` is the cache length at which
    steps are timed, with ``lanes`` and, to calibrate, ``requests`` at once; ``fastest`` calibrates by the fastest steps
    instead of the median ones.
    """

    models: Path
    model_config: Path
    out: Path
    widened: Path | None = None
    documents: Path | None = None
    prompts: int = 200
    max_tokens: int = 1024
    replay_prompts: int = 24
    replay_seed: int = 0
    tokenizer: str | None = None
    longest: int | None = None
    dtype: str = "auto"
    device: str = "auto"
    threads: int = 1
    large_threads: int = 1
    repeats: int = 1
    rounds: int = 10
    lanes: tuple[int, ...] = (1, 2, 4, 8)
    requests: tuple[int, ...] = (1, 2, 4, 8)
    cache_tokens: int = 256
    sizes: tuple[str, ...] = SIZES
    fastest: bool = False
    fresh: bool = False

    def __post_init__(self) -> None:
        check_format(self.dtype, "--dtype")
        check_device(self.device, "--device")
        check_interval(self, "prompts", "replay_prompts")
        for name in ("tokenizer", "longest"):
            if getattr(self, name) is not None and self.documents is None:
                raise UserError(f"--{name}: {getattr(self, name)}, expected with --documents only")
        if self.longest is not None:
            check_least(self, 1, "longest")
        check_least(self, 1, "threads", "large_threads", "repeats", "rounds", "max_tokens")
        check_answers(self, "max_tokens")
        for name in ("lanes", "requests"):
            numbers = getattr(self, name)
            if 1 not in numbers or min(numbers) < 1:
                raise UserError(
                    f"--{name}: {','.join(map(str, numbers))}, expected positive integers, 1 among them"
                )
        if self.cache_tokens < 32:
            raise UserError(f"--cache-tokens: {self.cache_tokens}, expected at least 32")

    @property
    def shipped_name(self) -> str:
        """The models' name, with the size that they are widened to."""
        return "shipped model" + (f", widened to {self.widened.stem}" if self.widened is not None else "")

    @property
    def large_name(self) -> str:
        """The large model's name: its configuration file's, without the prefix."""
        return self.model_config.stem.removeprefix("replay-")
