"""Plain sequential answers from any OpenAI-compatible endpoint, one prompt at a time."""

import asyncio
import re
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from pasta.data.endpoint import REFUSED_REQUEST, Endpoint, EndpointError, EndpointSection, Reply
from pasta.data.prompts import Prompt
from pasta.errors import UserError
from pasta.evaluation.methods.answers import Answer
from pasta.interpreter import Limits

T = TypeVar("T")
# What servers say when a prompt leaves no room for an answer: OpenAI, vLLM, SGLang, llama.cpp, this project.
_TOO_LONG = re.compile(r"context|too (?:long|large|many tokens)|maximum.*(?:length|tokens)", re.IGNORECASE)


class Asker:
    """Requests greedy chat completions of one endpoint. Pauses for rate limits and retries count as time."""

    def __init__(self, section: EndpointSection, api_key: str | None) -> None:
        self._runner = asyncio.Runner()
        self._endpoint = Endpoint(section, api_key)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work``, which may send several requests at once; returns its result."""
        return self._runner.run(work)

    async def ask(self, messages: Sequence[Mapping[str, str]], max_tokens: int) -> Reply:
        """Request one completion. Raises UserError if the prompt is too long, or refused by an endpoint that answers
        others, EndpointError if there is no answer."""
        try:
            return await self._endpoint.chat(messages, max_tokens=max_tokens)
        except EndpointError as error:
            too_long = error.status == 413 or (error.status in (400, 422) and _TOO_LONG.search(str(error)))
            if too_long:
                raise UserError(f"prompt: the endpoint has no room for it ({error})") from None
            if error.status not in REFUSED_REQUEST:
                raise
            await self._endpoint.blame_request(error)
            raise UserError(f"prompt: the endpoint does not take it ({error})") from None


class EndpointMethod:
    """Sends the prompt as it is. Tokens are what the endpoint counts (0 if it does not); steps are unknown."""

    def __init__(self, endpoint: EndpointSection, api_key: str | None, limits: Limits) -> None:
        self._asker = Asker(endpoint, api_key)
        self._max_tokens = limits.max_tokens

    def answer(self, prompt: Prompt) -> Answer:
        """Answer once, timed. Raises UserError if the endpoint does not take the prompt, EndpointError if it is gone
        for good."""
        begun = time.perf_counter()
        reply = self._asker.run(self._asker.ask(prompt.messages, self._max_tokens))
        return remote_answer(
            reply.text,
            {"text": reply.completion_tokens},
            time.perf_counter() - begun,
            finish_reason=reply.finish_reason,
        )


def remote_answer(
    text: str, budget: dict[str, int], seconds: float, *, finish_reason: str, fallback: str | None = None
) -> Answer:
    """An answer of which only text, tokens by kind and seconds are known."""
    return Answer(
        text=text,
        annotated=None,
        tokens=sum(budget.values()),
        budget=budget,
        critical_path=None,
        steps=None,
        threads=(),
        ttft_s=None,
        seconds=(seconds,),
        finish_reason=finish_reason,
        fallback=fallback,
    )
