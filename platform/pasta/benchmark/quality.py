"""Checks that outputs are well-formed, and grades atlas answers exactly.

Statement accuracy is pooled: right statements ÷ all statements, counted over all answers together. An evaluation's
quality is a mean over answers instead (``pasta.judges.grader``), in which a short answer weighs as much as a long one.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from pasta.benchmark.metrics import Metric
from pasta.benchmark.speed import both_ended
from pasta.data.atlas import AtlasTask, grade, grade_structure
from pasta.data.linearise import fault_in
from pasta.engine import Result
from pasta.lang import Codec, Document
from pasta.markdown import markdown
from pasta.stages.records import Record
from pasta.statistics import geometric_mean, grouped, ratio_of_sums


def fault_of(codec: Codec, result: Result) -> str:
    """Say why an output is not well-formed, or not what the engine reports; empty if it is."""
    if fault := fault_in(codec, result.response_ids):
        return fault
    document = codec.decode(result.response_ids[:-1])
    return "" if document == result.document else "is not the document that the engine reports"


def grades(task: AtlasTask, twin_text: str, text: str, document: Document) -> dict[str, Any]:
    """Grade the statements of both answers, and compare PASTA's structure with the task's."""
    twin, pasta = grade(task, twin_text), grade(task, text)
    structure = grade_structure(task, document)
    return {
        "twin_right": twin.right,
        "twin_total": twin.total,
        "pasta_right": pasta.right,
        "pasta_total": pasta.total,
        "wrong": [[said, why] for said, ok, why in pasta.statements if not ok],
        "twin_wrong": [[said, why] for said, ok, why in twin.statements if not ok],
        "independent_parts": structure.independent_parts,
        "annotated_parts": structure.annotated_parts,
        "dependent_left_alone": structure.dependent_left_alone,
        "superfluous_parts": structure.superfluous_parts,
        "sync_right": structure.sync_right,
    }


def quality_metrics(records: Sequence[Record]) -> list[Metric]:
    """The metrics on annotation and on statements, over all records."""
    graded = [record["grades"] for record in records]
    twin, pasta = _right(graded, "twin"), _right(graded, "pasta")
    ratio = pasta / twin if twin else 0.0
    count = len(graded)
    length = sum(record["pasta"]["finish_reason"] != "stop" for record in records)
    return [
        Metric(
            "well_formed.shipped",
            "well-formed outputs, shipped model",
            _share(not record["pasta"]["fault"] for record in records),
            1.0,
            count=count,
            note=f"{length} cut at the length limit" if length else "all ended by themselves",
        ),
        Metric("structure.annotated", "independent parts annotated", _annotated(graded), 0.97, count=count),
        Metric(
            "structure.left_alone",
            "dependent parts left alone",
            _share(grade["dependent_left_alone"] for grade in graded),
            0.99,
            count=count,
            note="share of answers with no dependent step and no conclusion in a chunk",
        ),
        Metric(
            "structure.superfluous",
            "answers without a superfluous chunk",
            _share(not grade["superfluous_parts"] for grade in graded),
            count=count,
            note="a chunk on something not asked for, or asked for once and told twice, is one",
        ),
        Metric(
            "structure.sync",
            "syncs right",
            _share(grade["sync_right"] for grade in graded),
            count=count,
            note="share of answers",
        ),
        Metric("statements.twin", "statement accuracy, sequential twin", twin, 0.98, count=count),
        Metric("statements.pasta", "statement accuracy, PASTA", pasta, count=count),
        Metric("statements.ratio", "statement accuracy, PASTA ÷ twin", ratio, 0.98, count=count),
    ]


def family_table(records: Sequence[Record]) -> str:
    """Quality by task family, and speedups where they were measured of answers that ended by themselves."""
    families = grouped(records, lambda record: str(record["family"]))
    rows = []
    for family in sorted(families, key=lambda name: (not families[name][0]["independent"], name)):
        members = families[family]
        graded = [record["grades"] for record in members]
        parts = sum(grade["independent_parts"] for grade in graded)
        row = [
            family,
            len(members),
            f"{_right(graded, 'twin'):.3f}",
            f"{_right(graded, 'pasta'):.3f}",
            f"{_annotated(graded):.3f}" if parts else "none to mark",
            f"{_share(grade['dependent_left_alone'] for grade in graded):.3f}",
            f"{_share(grade['sync_right'] for grade in graded):.3f}",
            _speedup(members, "theoretical"),
        ]
        if "realised" in members[0]:
            row.append(_speedup(members, "realised"))
        rows.append(row)
    header = [
        "family",
        "prompts",
        "twin accuracy",
        "PASTA accuracy",
        "parts annotated",
        "left alone",
        "syncs right",
        "theoretical",
        "realised",
    ]
    return markdown(header[: len(rows[0])], rows)


def _speedup(records: Iterable[Record], kind: str) -> str:
    values = [record[kind] for record in records if both_ended(record)]
    return f"{geometric_mean(values):.2f}" if values else "all cut"


def _right(graded: Iterable[dict[str, Any]], who: str) -> float:
    return ratio_of_sums([(grade[f"{who}_right"], grade[f"{who}_total"]) for grade in graded])


def _annotated(graded: Iterable[dict[str, Any]]) -> float:
    return ratio_of_sums([(grade["annotated_parts"], grade["independent_parts"]) for grade in graded])


def _share(flags: Iterable[bool]) -> float:
    return ratio_of_sums([(float(flag), 1.0) for flag in flags])
