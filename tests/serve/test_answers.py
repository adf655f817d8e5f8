"""Asking an Interpreter while a service is updated."""

import asyncio

from serve.answers import taken
from serve.wire import Accepted, Refused

ELSEWHERE = Refused("not here", status=503, elsewhere=True)
FULL = Refused("full", status=429)


def updates_of(*answers, within_s=10.0):
    """What comes of ``answers``, one a call; and the number of calls."""
    calls = []

    async def ask():
        calls.append(None)
        for update in answers[min(len(calls), len(answers)) - 1]:
            yield update

    async def collect():
        return [update async for update in taken(ask, within_s)]

    return asyncio.run(collect()), len(calls)


def test_a_request_that_another_interpreter_takes_is_asked_once_more():
    assert updates_of([ELSEWHERE], [ELSEWHERE], [Accepted(3)]) == ([Accepted(3)], 3)


def test_a_request_that_no_interpreter_takes_is_refused_in_the_end():
    assert updates_of([ELSEWHERE], within_s=0.0) == ([ELSEWHERE], 1)


def test_any_other_refusal_stands():
    assert updates_of([FULL], [Accepted(3)]) == ([FULL], 1)
