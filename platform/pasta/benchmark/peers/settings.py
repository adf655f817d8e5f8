"""The settings of a comparison with peers. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path

from pasta.benchmark.options import check_answers, check_interval, check_least, check_names, option_of
from pasta.errors import UserError

SHIPPED = "shipped"
#: What is measured of each shape, in this order.
PARTS = ("check", "decode", "prefill", "lanes", "requests", "context", "answers", "replay")
#: Our formats, the most bits first, with the bits of a weight and the format of llama.cpp that has as many.
FORMATS = {"float32": (32, "f32"), "bfloat16": (16, "bf16"), "int8": (8, "q8_0"), "int4": (4, "q4_0")}
#: Single steps that are timed in a round, after one that is not counted.
STEPS = 8
#: Ends the name of a llama.cpp that has a draft model.
DRAFTS = ", drafts"


@dataclass(frozen=True)
class PeerSettings:
    """What to compare, checked on construction. Raises ``UserError`` naming the option that is wrong.

    ``shapes`` are ``shipped`` (the models in ``models``) or files of a transformers configuration: the shipped models
    widened to it where they can be, else made with random weights. ``formats`` are ours; llama.cpp's follow from them.
    Each decoder gets up to ``threads`` threads. ``rounds`` of ``tokens`` tokens after ``prompt_tokens`` are decoded by
    each in turn. Prompts of ``prefills`` tokens are prefilled. ``lanes``, ``requests`` and ``contexts`` are the points
    at which single steps are timed. ``answer_prompts`` held-out prompts are answered by the shipped models, widened or
    not, with ``answer_tokens`` at most, by the engine without helps, with all and, if ``each_help``, with each alone;
    llama.cpp also drafts, each of its drafts being right with probability ``draft_acceptance`` if those before it are,
    and does not if this is 0. ``documents`` are replayed: ``replay_prompts`` of them, drawn with ``replay_seed``,
    without those of ``longest`` tokens or more. ``wait_policy`` is the OMP_WAIT_POLICY of this process (torch and
    llama.cpp both use OpenMP): it is recorded, not set.
    """

    models: Path
    shapes: tuple[str, ...]
    out: Path
    weights: Path
    parts: tuple[str, ...] = PARTS
    formats: tuple[str, ...] = tuple(FORMATS)
    threads: int = 1
    rounds: int = 6
    tokens: int = 64
    prompt_tokens: int = 128
    prefills: tuple[int, ...] = (64, 256, 1024, 4096)
    lanes: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    requests: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    contexts: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192)
    answer_prompts: int = 24
    answer_tokens: int = 1024
    draft_acceptance: float = 0.8
    each_help: bool = False
    documents: Path | None = None
    replay_prompts: int = 12
    replay_seed: int = 0
    longest: int = 1024
    compiled: bool = False
    wait_policy: str = ""
    fresh: bool = False

    def __post_init__(self) -> None:
        check_names(self, "formats", FORMATS)
        check_names(self, "parts", PARTS)
        if not self.shapes:
            raise UserError("--shapes: '', expected at least one")
        by_name: dict[str, str] = {}
        for shape in self.shapes:
            # Records and tables are named after it.
            if (other := by_name.setdefault(shape_name(shape), shape)) != shape:
                raise UserError(
                    f"--shapes: {other} and {shape} are both called {shape_name(shape)!r}; expected other file names"
                )
        check_interval(self, "rounds", "replay_prompts", "answer_prompts", "answer_tokens")
        check_answers(self, "answer_tokens")
        if not 0 <= self.draft_acceptance <= 1:
            raise UserError(f"--draft-acceptance: {self.draft_acceptance}, expected a number from 0 to 1")
        check_least(self, 1, "threads", "longest")
        check_least(self, 2, "tokens", "prompt_tokens")
        for name in ("lanes", "requests"):
            numbers = getattr(self, name)
            if 1 not in numbers or min(numbers) < 1 or max(numbers) > 64:
                raise UserError(
                    f"{option_of(name)}: {','.join(map(str, numbers))}, expected integers from 1 to 64, 1 among them"
                )
        for name, least in (("prefills", 2), ("contexts", 64)):
            numbers = getattr(self, name)
            if min(numbers) < least:
                raise UserError(
                    f"{option_of(name)}: {','.join(map(str, numbers))}, expected integers of at least {least}"
                )
        # Before a point are half of its steps, and a prompt.
        if "context" in self.parts and min(self.contexts) <= (before := self.steps // 2):
            raise UserError(
                f"--contexts: {min(self.contexts)}, expected at least {before + 1} with --rounds {self.rounds}"
            )

    @property
    def steps(self) -> int:
        """The steps of each session over all rounds, those that are not counted too."""
        return self.rounds * (STEPS + 1)

    @property
    def longest_text(self) -> int:
        """Tokens that every decoder of a shape has room for, whatever the part."""
        return max(*self.prefills, *self.contexts) + 512


def shape_name(shape: str) -> str:
    """A shape's name: its configuration file's, without the prefix."""
    return shape if shape == SHIPPED else Path(shape).stem.removeprefix("replay-")
