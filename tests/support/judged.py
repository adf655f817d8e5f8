"""Summaries of a few prompts whose figures can be worked out by hand."""

from typing import Any

from pasta.evaluation.config import MethodSection
from pasta.evaluation.results.summary import Summary, summarise_evaluation
from tests.support.evaluations import answer, prompt

#: By method, for each prompt in turn: (seconds, quality), or None for a prompt that it skipped.
Table = dict[str, list[tuple[float, float | None] | None]]


def section(kind: str = "pasta", **values: Any) -> MethodSection:
    return MethodSection(kind, model="models/any", **values)  # type: ignore[arg-type]


def evaluation(table: Table) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Records and verdicts. Answers are of 100 tokens."""
    records, verdicts = [], []
    for n in range(len(next(iter(table.values())))):
        rows = {name: rows[n] for name, rows in table.items()}
        records.append(
            prompt(
                str(n),
                {
                    name: {"skipped": "too long"} if row is None else answer(seconds=[row[0]])
                    for name, row in rows.items()
                },
            )
        )
        said = {name: {"quality": row[1], "note": "graded"} for name, row in rows.items() if row is not None}
        verdicts.append({"key": str(n), "verdicts": said})
    return records, verdicts


def summary_of(table: Table, **sections: MethodSection) -> Summary:
    """``twin`` is the baseline; methods are of kind pasta unless they have a section."""
    records, verdicts = evaluation(table)
    methods = {
        name: sections.get(name) or section("sequential" if name == "twin" else "pasta") for name in table
    }
    return summarise_evaluation(records, verdicts, baseline="twin", methods=methods)
