"""Summaries of a few prompts whose figures can be worked out by hand."""

from typing import Any

from pasta.evaluation.evaluate_config import MethodSection
from pasta.evaluation.summary import Summary, summarise
from tests.support.evaluations import answer, prompt

Table = dict[str, list[tuple[float, float | None]]]


def section(kind: str = "pasta", **values: Any) -> MethodSection:
    return MethodSection(kind, model="models/any", **values)  # type: ignore[arg-type]


def evaluation(table: Table) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Records and verdicts: by method, for each prompt in turn (seconds, quality). Answers are of 100 tokens."""
    count = len(next(iter(table.values())))
    records = [
        prompt(str(n), {name: answer(seconds=[rows[n][0]]) for name, rows in table.items()})
        for n in range(count)
    ]
    verdicts = [
        {
            "key": str(n),
            "verdicts": {name: {"quality": rows[n][1], "note": ""} for name, rows in table.items()},
        }
        for n in range(count)
    ]
    return records, verdicts


def summary_of(table: Table, **sections: MethodSection) -> Summary:
    """``twin`` is the baseline; methods are of kind pasta unless they have a section."""
    records, verdicts = evaluation(table)
    methods = {
        name: sections.get(name) or section("sequential" if name == "twin" else "pasta") for name in table
    }
    return summarise(records, verdicts, baseline="twin", methods=methods)
