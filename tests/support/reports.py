"""Evaluations to draw: what a report must cope with, in a few prompts."""

from typing import Any

from pasta.data.atlas import heldout_prompts
from tests.support.evaluations import answer, prompt
from tests.support.judged import section

Records = list[dict[str, Any]]
METHODS = {
    "twin": section("sequential"),
    "sot": section("sot"),
    "pasta-1": section(line="round 1", label="λ=1"),
    "pasta-4": section(line="round 1", label="λ=4"),
}
WAITS = [[8, 30]]


def threaded(**values: Any) -> dict[str, Any]:
    """An answer of three threads of which the main one waits for the others."""
    threads = [
        {"start": 0, "end": 40, "waits": WAITS, "parent": None, "topic": None},
        {"start": 4, "end": 25, "waits": [], "parent": 0, "topic": "green tea"},
        {"start": 8, "end": 30, "waits": [], "parent": 0, "topic": "costs $5 to $9"},
    ]
    budget = {"text": 90, "promise": 8, "topic": 4, "estimate": 2, "async_end": 2, "sync": 1}
    return answer(critical_path=40, steps=40, threads=threads, budget=budget, tokens=107, **values)


def evaluation(count: int = 5) -> tuple[Records, Records]:
    """Answers and verdicts of METHODS: atlas prompts, of which sot skips one, cuts one, and falls back on one."""
    records, verdicts = [], []
    for n, task in enumerate(heldout_prompts(count)):
        sot: dict[str, Any] = threaded(seconds=[0.9 + 0.01 * n], finish_reason="length" if n == 1 else "stop")
        if n == 2:
            sot = {"skipped": "prompt of 4096 tokens, expected at most 2048"}
        elif n == 3:
            sot = answer(seconds=[1.1], fallback="a skeleton of one point")
        answers = {
            "twin": answer(task.answer, seconds=[1.0]),
            "sot": sot,
            "pasta-1": threaded(seconds=[0.4 + 0.02 * n]),
            "pasta-4": threaded(seconds=[0.5 + 0.02 * n]),
        }
        records.append(
            prompt(str(n), answers, text=task.prompt, family=task.family, independent=task.independent)
        )
        said = {"twin": 1.0, "sot": 0.5, "pasta-1": 0.9, "pasta-4": 0.97}
        judged: dict[str, Any] = {
            name: {"quality": quality, "right": round(100 * quality), "total": 100}
            for name, quality in said.items()
            if "skipped" not in answers[name]
        }
        if n == 4:
            judged["sot"] = {"quality": None, "invalid": "Both are *fine*."}
        verdicts.append({"key": str(n), "verdicts": judged})
    return records, verdicts
