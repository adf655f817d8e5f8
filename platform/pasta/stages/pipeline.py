"""Pipelines: the stages of a recipe in order, each with what it reads from earlier ones, for one or more rounds.

A YAML file names the stages; this module reads it and says, without running anything, which instances follow from it.
In the ``set`` of a stage a value ``@NAME`` stands for the output directory of the stage NAME: of the same round if it
has one, else of the stages before the rounds; also within mappings and lists. ``@model`` is the model that was trained
last. A ``matrix`` repeats the stages that name its columns (``pasta.stages.matrix``).
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pasta.bounds import check_at_most
from pasta.config import ConfigError, leaves
from pasta.stages.matrix import Cell, Job, StageSection, check_columns, expand_matrix, rows

#: Jobs whose output is a model, for ``@model``.
TRAINERS: tuple[Job, ...] = ("sft", "preference", "rl")
MODEL = "@model"
#: The last part of keys that name a model, and the jobs whose output other keys can read.
_MODELS = ("model", "twin", "init_from", "reference")
_READ: dict[tuple[Job, str], tuple[Job, ...]] = {
    ("annotate", "data.source.path"): ("annotate",),
    ("sft", "data.source"): ("annotate",),
    ("score", "samples"): ("sample",),
    ("preference", "data.source"): ("score",),
}
# Every stage of every round is read and checked before the first one runs.
_MOST_ROUNDS = 100
_MOST_STAGES = 1000
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """A recipe. ``stages`` run once, then those of ``round`` as many times as ``rounds`` says.

    ``matrix`` is a table by column: ``{weight: [1, 2], label: [one, two]}`` has two rows. Stages whose names contain
    ``{weight}`` run for every row, with the row's values in names and ``set``; in other stages a ``set`` key that
    contains it is repeated.

    Outputs lie in ``output_dir`` as ``NAME-IDENTITY`` and ``round-N-NAME-IDENTITY``. W&B groups the stages' runs by
    ``name``; ``tracking`` is passed to every stage. With ``storage``, every path that begins with runs/, here
    and in the stages' configurations, begins with ``storage``/runs/ instead: on a cluster, whose nodes share it.
    """

    name: str
    output_dir: Path
    stages: dict[str, StageSection]
    round: dict[str, StageSection] = field(default_factory=dict)
    rounds: int = 0
    tracking: Literal["offline", "online", "disabled"] = "offline"
    storage: Path | None = None
    matrix: dict[str, list[Cell]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        table = rows(self.matrix)
        check_columns(self.matrix, self.stages, self.round)
        stages, round_ = (
            {name for name, _, _ in expand_matrix(section, table)} for section in (self.stages, self.round)
        )
        for name in sorted(stages | round_):
            if not _NAME.fullmatch(name) or f"@{name}" == MODEL:
                raise ValueError(f"stage {name!r}: expected a name of a-z, 0-9, - and _ that is not 'model'")
        if not self.stages:
            raise ValueError("stages: expected at least one stage")
        if repeated := stages & round_:
            raise ValueError(f"stage {min(repeated)!r}: is both in stages and in round; expected one of them")
        if self.rounds < 0 or bool(self.rounds) != bool(self.round):
            raise ValueError(
                f"rounds {self.rounds}: expected a positive number with a round, and 0 without one"
            )
        check_at_most(self, rounds=_MOST_ROUNDS)
        if (total := len(stages) + self.rounds * len(round_)) > _MOST_STAGES:
            raise ValueError(
                f"{total:,} stages, with those of every round and row of matrix; expected at most {_MOST_STAGES:,}"
            )
        if self.storage is not None and not self.storage.is_absolute():
            raise ValueError(f"storage {str(self.storage)!r}: expected an absolute path")


@dataclass(frozen=True, slots=True)
class Instance:
    """One stage to be run: ``reads`` maps a key of its configuration to the name of the instance it reads."""

    name: str
    section: StageSection
    reads: dict[str, str]

    def overrides(self, outputs: Mapping[str, Path]) -> list[str]:
        """``KEY=VALUE`` for the job's configuration, with ``outputs`` of the instances it reads put in."""
        values = {**self.section.set, **{key: str(outputs[name]) for key, name in self.reads.items()}}
        # JSON is YAML in which a string never looks like something else; escapes keep it on one line, U+2028 included.
        return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def _makers(job: Job, key: str) -> tuple[Job, ...]:
    """The jobs whose output this key of a job's configuration can read; empty if it may be any."""
    return TRAINERS if key.rpartition(".")[2] in _MODELS else _READ.get((job, key), ())


def instances(config: PipelineConfig, source: Path) -> Iterator[Instance]:
    """All stages in the order they run. Raises ConfigError for a reference to a stage that does not come before, or
    whose output the key cannot read."""
    known: dict[str, str] = {}
    jobs: dict[str, Job] = {}

    def instance(prefix: str, name: str, key: str, section: StageSection) -> Instance:
        reads = {}
        for option, value in leaves(section.set):
            if isinstance(value, str) and value.startswith("@"):
                if value[1:] not in known:
                    expected = ", ".join(f"@{each}" for each in known) or "no reference in the first stage"
                    raise ConfigError(
                        f"{source}: {key}.set.{option}: {value!r} is no stage before this one; expected {expected}"
                    )
                reads[option] = known[value[1:]]
                made_by, makers = jobs[reads[option]], _makers(section.job, option)
                if makers and made_by not in makers:
                    raise ConfigError(
                        f"{source}: {key}.set.{option}: {value!r} is a stage of job {made_by!r}; expected one of job "
                        + " or ".join(makers)
                    )
        known[name] = f"{prefix}{name}"
        jobs[known[name]] = section.job
        if section.job in TRAINERS:
            known[MODEL[1:]] = f"{prefix}{name}"
        return Instance(f"{prefix}{name}", section, reads)

    table = rows(config.matrix)
    for name, key, section in expand_matrix(config.stages, table):
        yield instance("", name, f"stages.{key}", section)
    for number in range(1, config.rounds + 1):
        for name, _, _ in expand_matrix(config.round, table):
            known.pop(name, None)
        for name, key, section in expand_matrix(config.round, table):
            yield instance(f"round-{number}-", name, f"round.{key}", section)
