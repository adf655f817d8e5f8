"""Decodes one prompt with every method in turn, and times them.

All methods are decoded in one process, prompt by prompt, so that the machine's drift cancels: each once to warm up,
then ``repeats`` timed rounds. The order is drawn anew for each round, so that none always follows the same one.
"""

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pasta.data.endpoint import EndpointError
from pasta.data.prompts import Prompt
from pasta.errors import UserError
from pasta.evaluation.methods.answers import Answer, Method
from pasta.evaluation.prompts import EvalPrompt
from pasta.stages.records import Record


def decode_prompt(methods: Mapping[str, Method], entry: EvalPrompt, repeats: int) -> Record:
    """The record of a prompt, but for its key (``methods/answers.py`` has the format of an answer).

    A method that cannot take the prompt, whichever time it is asked, has ``{"skipped": reason}``. With ``repeats`` 0
    nothing is timed. Raises EndpointError if an endpoint does not answer any more.
    """
    answers: dict[str, Any] = {}
    found: dict[str, list[Answer]] = {}

    def ask(name: str) -> None:
        try:
            found.setdefault(name, []).append(methods[name].answer(entry.prompt))
        except EndpointError:
            raise
        except UserError as error:
            answers[name] = {"skipped": str(error)}
            del found[name]

    for name in methods:
        ask(name)
    for number in range(repeats):
        for name in turns([*found], entry.prompt, number):
            ask(name)
    answers |= {name: _merged(runs).to_record() for name, runs in found.items()}
    return {
        "messages": entry.prompt.messages,
        "family": entry.family,
        "independent": entry.independent,
        "answers": {name: answers[name] for name in methods},
    }


def turns(names: Sequence[str], prompt: Prompt, number: int) -> list[str]:
    """The order of the methods in round ``number`` of a prompt: random, and always the same for that round."""
    return random.Random(f"turns:{prompt.id}:{number}").sample(names, len(names))


def _merged(runs: Sequence[Answer]) -> Answer:
    """The last run's answer (an endpoint's may differ each time) with the times of all runs but the first."""
    timed = runs[1:]
    first = [run.ttft_s for run in timed if run.ttft_s is not None]
    return replace(
        runs[-1],
        ttft_s=statistics.median(first) if first else None,
        seconds=tuple(second for run in timed for second in run.seconds),
    )
