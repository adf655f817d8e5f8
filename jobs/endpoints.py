"""Endpoints that jobs ask: their keys, from the environment and into no file, and whether they answer."""

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import replace

from pasta.data.annotate.teacher import NO_KEYS, Keys, TeacherSection
from pasta.data.endpoint import Endpoint, EndpointSection
from pasta.errors import UserError
from pasta.evaluation.config import MethodSection
from pasta.judges.config import JudgeSection

_LONGEST_WAIT_S = 30.0


def read_key(endpoint: EndpointSection, where: str) -> str | None:
    """The endpoint's key, None if it needs none. Raises UserError, saying ``where``, if its variable is not set or
    holds what cannot be sent."""
    name = endpoint.api_key_env
    if name is None:
        return None
    if not (key := os.environ.get(name)):
        raise UserError(f"{where}.api_key_env: {name} is not set; export it, or say null if no key is needed")
    # The message must not repeat it. A request with it fails as if the endpoint could not be reached.
    if not (key.isascii() and key.isprintable()) or key != key.strip():
        raise UserError(
            f"{where}.api_key_env: {name} holds what no key has: a line break, a space at an end, or a character "
            "beyond ASCII; export the key alone"
        )
    return key


def judge_key(judge: JudgeSection | None) -> str | None:
    """The key of a judge's endpoint, None if it has none. Raises UserError if its variable is not set."""
    if judge is None or judge.teacher is None:
        return None
    return read_key(judge.teacher.endpoint, "judge.teacher.endpoint")


def teacher_keys(teacher: TeacherSection | None) -> Keys:
    """The keys of an annotation's teacher and of its judge of independence. Raises UserError for one that is not
    set."""
    if teacher is None:
        return NO_KEYS
    judge = teacher.independence_judge
    where = "data.teacher.independence_judge.endpoint"
    return Keys(
        read_key(teacher.endpoint, "data.teacher.endpoint"),
        read_key(judge.endpoint, where) if judge else None,
    )


def method_keys(methods: Mapping[str, MethodSection]) -> dict[str, str | None]:
    """The keys of an evaluation's methods that ask an endpoint, by name. Raises UserError for one that is not set."""
    return {
        name: read_key(section.endpoint, f"methods.{name}.endpoint")
        for name, section in methods.items()
        if section.endpoint is not None
    }


class Questions:
    """Asks endpoints a trivial question, each once, before the work begins that needs their answers.

    Prints a line that begins with the stage's name if there is no answer: the endpoint may be started until then.
    Raises EndpointError if one refuses the key, the model or the question.
    """

    def __init__(self, needed: str) -> None:
        #: When they must answer, as the line says it.
        self._needed = needed
        self._asked: list[tuple[EndpointSection, float]] = []

    def judge(self, judge: JudgeSection | None, key: str | None, name: str) -> None:
        """Ask a judge's endpoint, if it has one."""
        if judge is not None and judge.teacher is not None:
            teacher = judge.teacher
            self._ask(teacher.endpoint, key, teacher.temperature, f"{name}: judge.teacher.endpoint")

    def teacher(self, teacher: TeacherSection | None, keys: Keys, name: str) -> None:
        """Ask the endpoints of an annotation's teacher and of its judge of independence, if it has them."""
        if teacher is None:
            return
        where = f"{name}: data.teacher"
        self._ask(teacher.endpoint, keys.teacher, teacher.temperature, f"{where}.endpoint")
        if (judge := teacher.independence_judge) is not None:
            self._ask(judge.endpoint, keys.judge, 0.0, f"{where}.independence_judge.endpoint")

    def methods(
        self, methods: Mapping[str, MethodSection], keys: Mapping[str, str | None], name: str
    ) -> None:
        """Ask the endpoints of those methods of an evaluation that have one."""
        for method, section in methods.items():
            if section.endpoint is not None:
                self._ask(section.endpoint, keys[method], 0.0, f"{name}: methods.{method}.endpoint")

    def _ask(self, section: EndpointSection, key: str | None, temperature: float, where: str) -> None:
        if (section, temperature) in self._asked:
            return
        self._asked.append((section, temperature))

        async def ask() -> str | None:
            endpoint = Endpoint(replace(section, timeout_s=min(section.timeout_s, _LONGEST_WAIT_S)), key)
            try:
                return await endpoint.why_silent(temperature=temperature)
            finally:
                await endpoint.close()

        if reason := asyncio.run(ask()):
            line = f"{where}.base_url {section.base_url}: {reason}; it must answer {self._needed}"
            print(line, file=sys.stderr, flush=True)
