"""The stages of a pipeline as its file has them, and its ``matrix``: a table whose rows repeat the stages that name its
columns in braces."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from pasta.config import leaves

Job = Literal["annotate", "sft", "sample", "score", "preference", "rl", "evaluate"]
#: Keys of a stage's configuration that follow from the pipeline.
_OWN = ("name", "output_dir", "tracking.mode", "tracking.group")
Cell = int | float | str
Row = Mapping[str, Cell]
# All rows are read and checked before the first stage runs.
_MOST_ROWS = 100
_COLUMN = re.compile(r"\{([a-z][a-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class StageSection:
    """One stage: a job, its configuration file, and keys that are set otherwise here (dotted, as on a command line).
    A stage's names, directory and tracking follow from the pipeline and cannot be set here."""

    job: Job
    config: Path
    set: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, _ in leaves(self.set):
            if key in _OWN:
                raise ValueError(f"set.{key}: has no effect: it follows from the pipeline's name and keys")


def rows(matrix: Mapping[str, list[Cell]]) -> list[Row]:
    """The rows of the table: row n has the n-th value of every column. Raises ValueError if it is no table, or
    has more than 100 rows."""
    for name, values in matrix.items():
        if not _COLUMN.fullmatch(f"{{{name}}}"):
            raise ValueError(f"matrix: column {name!r}: expected a name of a-z, 0-9 and _")
        first, expected = next(iter(matrix.items()))
        if not values or len(values) != len(expected):
            raise ValueError(
                f"matrix.{name}: {len(values)} values; expected at least one, and as many as {first} has"
            )
        if len(values) > _MOST_ROWS:
            raise ValueError(f"matrix.{name}: {len(values):,} values; expected at most {_MOST_ROWS}")
    return [dict(zip(matrix, values, strict=True)) for values in zip(*matrix.values(), strict=True)]


def check_columns(matrix: Mapping[str, list[Cell]], *sections: Mapping[str, StageSection]) -> None:
    """Raise ValueError for a column that no stage names: it has no effect."""
    named = {
        column
        for stages in sections
        for name, stage in stages.items()
        for column in _named(name) | _named(stage.set)
    }
    for column in matrix:
        if column not in named:
            raise ValueError(f"matrix.{column}: has no effect: no stage contains {{{column}}}")


def expand_matrix(
    stages: Mapping[str, StageSection], table: list[Row]
) -> Iterator[tuple[str, str, StageSection]]:
    """Every stage as ``(name, name in the file, stage)``; without a table as they are.

    Neighbours whose names contain columns are repeated together, row by row. In a stage whose name has none, each
    ``set`` key that contains some is repeated. Raises ValueError for a column that is not in the table, for one where
    no row is meant, and for a name that two rows make.
    """
    made: set[str] = set()
    for is_repeated, group in groupby(stages.items(), key=lambda item: bool(table and _named(item[0]))):
        members = list(group)
        for row in table if is_repeated else [None]:
            for key, stage in members:
                name = key if row is None else str(_filled(key, row, f"stage {key!r}"))
                if name in made:
                    raise ValueError(f"stage {key!r}: two rows of matrix make {name!r}")
                made.add(name)
                yield name, key, replace(stage, set=_set(key, stage.set, row, table))


def _set(stage: str, values: Mapping[str, Any], row: Row | None, table: list[Row]) -> dict[str, Any]:
    """The ``set`` of one stage with the values of ``row``, or of every row where a key asks for it."""
    if not table:
        return dict(values)
    filled: dict[str, Any] = {}
    for key, value in values.items():
        where = f"stage {stage!r}: set.{key}"
        for each in [row] if row is not None else table if _named(key) else [{}]:
            name = str(_filled(key, each, where))
            if name in filled:
                raise ValueError(f"{where}: two rows of matrix make {name!r}")
            filled[name] = _filled(value, each, where)
    return filled


def _filled(value: Any, row: Row, where: str) -> Any:
    """``value`` with columns replaced; one that is nothing but a column becomes the row's value with its type."""
    if isinstance(value, list):
        return [_filled(each, row, where) for each in value]
    if isinstance(value, dict):
        return {_filled(key, row, where): _filled(each, row, where) for key, each in value.items()}
    if not isinstance(value, str):
        return value
    for column in _named(value):
        if column not in row:
            expected = ", ".join(f"{{{name}}}" for name in row) or "none where neither name nor key has one"
            raise ValueError(f"{where}: {{{column}}} in {value!r}: expected {expected}")
    whole = _COLUMN.fullmatch(value)
    return row[whole[1]] if whole else _COLUMN.sub(lambda match: str(row[match[1]]), value)


def _named(value: Any) -> set[str]:
    """The columns that a name, a key or a value contains."""
    if isinstance(value, str):
        return set(_COLUMN.findall(value))
    if isinstance(value, Mapping):
        return {column for item in value.items() for each in item for column in _named(each)}
    if isinstance(value, list):
        return {column for each in value for column in _named(each)}
    return set()
