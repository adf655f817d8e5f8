"""Skeleton-of-Thought (Ning et al., ICLR 2024, arXiv 2307.15337): a skeleton, then all of its points at once.

    request for a skeleton  →  points read from it  →  a request for each, decoded together  →  texts in order

A point sees the prompt and the skeleton, never another point's text. If a model writes no skeleton of two points or
more, or one that is cut at its limit, the prompt is answered sequentially instead: the skeleton's tokens and time
count all the same, and ``Answer.fallback`` says why.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pasta.data.endpoint import EndpointError, EndpointSection, Reply, all_of
from pasta.data.prompts import Prompt
from pasta.data.skeletons import MIN_POINTS, SkeletonPrompts
from pasta.engine import Engine, Request, Result
from pasta.errors import UserError
from pasta.evaluation.config import SotSection
from pasta.evaluation.methods.answers import Answer, AnswerThread
from pasta.evaluation.methods.endpoint import Asker, remote_answer
from pasta.interpreter import Limits
from pasta.lang import encode_messages

_SKELETON = "skeleton"
_NO_ROOM = "no room for the requests of the points"


class SotMethod:
    """Both stages on one engine: a skeleton's points are requests that decode in parallel in its slots.

    In steps the critical path is the skeleton and then the longest point, prompts not counted; the seconds hold the
    prefill of every point's prompt, as far as the points do not share it. The first token that a user sees is the
    first one of the first point. The engine has as many slots as a skeleton may have points (``check_methods``).
    """

    def __init__(self, engine: Engine, limits: Limits, section: SotSection) -> None:
        self.engine, self._section, self._words = engine, section, section.words
        self._plain = Request(limits=limits, parallel=False)

    def answer(self, prompt: Prompt) -> Answer:
        """Answer once, timed. Raises UserError if the prompt or the request for its skeleton does not fit."""
        section = self._section
        sequential = self._request(prompt.messages)
        first = self._request(self._words.skeleton_messages(prompt.messages), section.max_skeleton_tokens)
        self.engine.fit(sequential)
        self.engine.prefixes.forget()  # else the first run alone would pay for the prefill
        begun = time.perf_counter()
        skeleton = self._decode([first])[0]
        steps_before = self.engine.num_steps - skeleton.steps
        points, fallback = read_points(self._words, skeleton.text, skeleton.finish_reason)
        requests = [
            self._request(
                self._words.point_messages(prompt.messages, points, number), section.max_point_tokens
            )
            for number in range(1, len(points) + 1)
        ]
        if not fallback and not all(map(self._fits, requests)):
            fallback = _NO_ROOM
        if fallback:
            points, requests = [], [sequential]
        asked_after = time.perf_counter() - begun
        results = self._decode(requests)
        texts = [result.text for result in results]
        text = texts[0] if fallback else self._words.join(points, texts)
        seconds = time.perf_counter() - begun
        return Answer(
            text=text,
            annotated=None,
            tokens=skeleton.num_tokens + sum(result.num_tokens for result in results),
            budget={_SKELETON: skeleton.num_tokens, "text": sum(result.num_tokens for result in results)},
            critical_path=skeleton.critical_path + max(result.critical_path for result in results),
            steps=self.engine.num_steps - steps_before,
            threads=_threads(skeleton, results, points),
            ttft_s=asked_after + results[0].ttft_s,
            seconds=(seconds,),
            finish_reason=_finish_reason([result.finish_reason for result in results]),
            fallback=fallback,
        )

    def _request(self, messages: Sequence[Mapping[str, str]], max_tokens: int | None = None) -> Request:
        limits = self._plain.limits
        if max_tokens is not None:
            limits = replace(limits, max_tokens=min(limits.max_tokens, max_tokens))
        return self._plain.replace(prompt_ids=encode_messages(self.engine.codec, messages), limits=limits)

    def _fits(self, request: Request) -> bool:
        try:
            self.engine.fit(request)
        except UserError:
            return False
        return True

    def _decode(self, requests: Sequence[Request]) -> list[Result]:
        named = [request.replace(request_id=f"sot-{number}") for number, request in enumerate(requests)]
        results = {result.request_id: result for result in self.engine.decode(named)}
        return [results[request.request_id] for request in named]


class SotEndpointMethod:
    """Both stages through an OpenAI-compatible endpoint: a skeleton's points are as many requests at the same time.

    Tokens are what the endpoint counts, over all requests. It takes as many requests at once as a skeleton may have
    points (``check_methods``).
    """

    def __init__(
        self, endpoint: EndpointSection, api_key: str | None, limits: Limits, section: SotSection
    ) -> None:
        self._asker = Asker(endpoint, api_key)
        self._limits, self._section, self._words = limits, section, section.words

    def answer(self, prompt: Prompt) -> Answer:
        """Answer once, timed. Raises UserError if the endpoint does not take the prompt, EndpointError if it is gone
        for good."""
        return self._asker.run(self._answer(prompt))

    async def _answer(self, prompt: Prompt) -> Answer:
        section, words = self._section, self._words
        begun = time.perf_counter()
        skeleton = await self._ask(words.skeleton_messages(prompt.messages), section.max_skeleton_tokens)
        points, fallback = read_points(words, skeleton.text, skeleton.finish_reason)
        if not fallback:
            try:
                replies = await all_of(
                    self._ask(words.point_messages(prompt.messages, points, number), section.max_point_tokens)
                    for number in range(1, len(points) + 1)
                )
                text = words.join(points, [reply.text for reply in replies])
            except EndpointError:
                raise
            except UserError:
                fallback = _NO_ROOM
        if fallback:
            replies = [await self._ask(prompt.messages, self._limits.max_tokens)]
            text = replies[0].text
        written = sum(reply.completion_tokens for reply in replies)
        return remote_answer(
            text,
            {_SKELETON: skeleton.completion_tokens, "text": written},
            time.perf_counter() - begun,
            finish_reason=_finish_reason([reply.finish_reason for reply in replies]),
            fallback=fallback,
        )

    async def _ask(self, messages: Sequence[Mapping[str, str]], max_tokens: int) -> Reply:
        return await self._asker.ask(messages, min(max_tokens, self._limits.max_tokens))


def read_points(words: SkeletonPrompts, skeleton: str, finish_reason: str) -> tuple[list[str], str | None]:
    """The points of a skeleton, or none and why the prompt has to be answered sequentially."""
    if finish_reason == "length":
        return [], "skeleton cut at its limit"
    if finish_reason == "repetition":
        return [], "skeleton repeats itself"
    points = words.read(skeleton)
    if len(points) < MIN_POINTS:
        return [], "skeleton of one point" if points else "no skeleton"
    return points, None


def _threads(skeleton: Result, results: Sequence[Result], points: Sequence[str]) -> tuple[AnswerThread, ...]:
    """The skeleton, then the texts decoded after it, each with its point (or none)."""
    start = skeleton.critical_path
    topics: Sequence[str | None] = points or [None]
    return (
        AnswerThread(0, start),
        *(
            AnswerThread(start, start + result.critical_path, parent=0, topic=topic)
            for result, topic in zip(results, topics, strict=True)
        ),
    )


def _finish_reason(reasons: Sequence[str]) -> str:
    """The finish reason of the first text that did not end by itself, else ``stop``."""
    return next((reason for reason in reasons if reason != "stop"), "stop")
