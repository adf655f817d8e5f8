"""What best of ten can teach a model that errs as its imperfect teacher: the front of λ, before any training.

Candidates are the teacher's own annotations, so that only structure differs. Forked steps are taken to be as good as
those of the model that was trained to fork by layout (0.71 of their statements, BENCHMARKS.md).
"""

import math
from functools import cache
from typing import Any

import pytest

from pasta.candidates.scoring import choose_pair, scored
from pasta.data.annotate.imperfect import ImperfectSection, guessed
from pasta.data.atlas import AtlasTask, heldout_prompts, with_estimates
from pasta.data.atlas.plan import to_document
from pasta.data.measures import measure_document
from pasta.lang import Document, to_text
from pasta.statistics import geometric_mean
from tests.support.tokenizers import codec

CODEC = codec()
FORKED_STEPS = 0.71
WEIGHTS = [1.0, 4.0, 8.0, math.inf]


@cache
def groups() -> list[tuple[dict[str, Any], list[dict[str, float]]]]:
    """A sample record and verdicts of each task; the twin writes the answer sequentially."""
    return [group(number, task) for number, task in enumerate(heldout_prompts(16))]


def group(number: int, task: AtlasTask) -> tuple[dict[str, Any], list[dict[str, float]]]:
    candidates: list[dict[str, Any]] = []
    verdicts = []
    for draw in range(8):
        plain = to_document(guessed(task, f"{number} {draw}", ImperfectSection()))
        document = with_estimates(plain, lambda items: len(CODEC.encode(Document(items))))
        figures = measure_document(document, CODEC)
        threads = figures.num_threads
        candidates.append(
            {
                "annotated": to_text(document),
                "response_ids": [],
                "finish_reason": "stop",
                "num_tokens": figures.plain_tokens,
                "critical_path": figures.trace.critical_path,
                "num_threads": threads,
            }
        )
        verdicts.append({"quality": FORKED_STEPS if threads > 1 and not task.independent else 1.0})
    twin = {"text": task.answer, "num_tokens": figures.plain_tokens, "finish_reason": "stop"}
    return {"id": str(number), "messages": task.messages, "twin": twin, "candidates": candidates}, verdicts


def chosen(weight: float) -> tuple[float, float]:
    """Mean speedup and quality of the answers that a weight would choose; a prompt without a pair gives its first."""
    taken = []
    for record, verdicts in groups():
        scores = scored(record, verdicts, weight)
        pair, _ = choose_pair(record, scores, 1e-6, weight)
        first = scores["candidates"][0]
        taken.append(
            (pair["chosen_speedup"], pair["chosen_quality"]) if pair else (first["speedup"], first["quality"])
        )
    return geometric_mean([speed for speed, _ in taken]), sum(quality for _, quality in taken) / len(taken)


def everything() -> tuple[float, float]:
    entries = [entry for record, said in groups() for entry in scored(record, said, 1.0)["candidates"]]
    return (
        geometric_mean([entry["speedup"] for entry in entries]),
        sum(entry["quality"] for entry in entries) / len(entries),
    )


@pytest.mark.slow
def test_quality_before_speed_is_faster_than_the_teacher_and_no_worse() -> None:
    speed, quality = chosen(math.inf)
    assert speed > 1.2 * everything()[0]
    assert quality == 1.0 > everything()[1]


def test_a_smaller_weight_is_faster_and_worse_step_by_step() -> None:
    points = [chosen(weight) for weight in WEIGHTS]
    assert [speed for speed, _ in points] == sorted((speed for speed, _ in points), reverse=True)
    assert [quality for _, quality in points] == sorted(quality for _, quality in points)
    assert points[0][0] > 1.1 * points[-1][0]
    assert points[0][1] < points[-1][1] - 0.05


@pytest.mark.parametrize("weight", WEIGHTS)
def test_what_is_chosen_is_faster_than_the_teacher_at_every_weight(weight: float) -> None:
    assert chosen(weight)[0] > everything()[0]
