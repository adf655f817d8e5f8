"""Annotation by a large language model behind any OpenAI-compatible endpoint.

``pasta.data.endpoint`` keeps the rate limits and retries transient failures. A record is given up only while the
endpoint answers others; when it answers nothing any more, or refuses the key or the model, the run stops, and what was
paid for by then is in the shard's journal.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pasta.bounds import check_positive
from pasta.data.annotate.annotator import NO_USAGE, Deliver, Proposal, TeacherUsage
from pasta.data.annotate.prompt import ask_again, prompt_for
from pasta.data.annotate.repair import Unrepairable
from pasta.data.annotate.validator import Validator
from pasta.data.endpoint import Endpoint, EndpointError, EndpointSection
from pasta.data.instructions import Instruction

# Statuses that may concern one record only: it is too long, or its content is refused.
_REFUSED_RECORD = (400, 413, 422)
_PROBE = [{"role": "user", "content": "Answer with the word yes."}]


@dataclass(frozen=True, slots=True)
class TeacherSection:
    """The teacher, and how often it is asked.

    ``endpoint`` is address, model, key, limits and prices of the whole run. A record is asked for up to ``attempts``
    times, the fault named, if its annotation is not valid. ``max_tokens`` bounds one annotated answer.
    """

    endpoint: EndpointSection
    temperature: float = 0.0
    max_tokens: int = 4096
    attempts: int = 2

    def __post_init__(self) -> None:
        check_positive(self, "max_tokens", "attempts")

    def identity(self) -> dict[str, Any]:
        """What annotations depend on: without the endpoint's address, rate limits and prices."""
        return {
            "model": self.endpoint.model,
            "extra_body": self.endpoint.extra_body,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "attempts": self.attempts,
        }


class Teacher:
    """Asks the endpoint for annotations; ``share`` of all its limits is this worker's."""

    is_costly = True

    def __init__(
        self, options: TeacherSection, validator: Validator, *, share: float = 1.0, api_key: str | None = None
    ) -> None:
        whole = options.endpoint
        self._options = options
        self._endpoint = replace(
            whole,
            concurrency=max(1, round(whole.concurrency * share)),
            requests_per_minute=whole.requests_per_minute and whole.requests_per_minute * share,
            tokens_per_minute=whole.tokens_per_minute and whole.tokens_per_minute * share,
        )
        self._validator = validator
        self._api_key = api_key

    def annotate(self, records: Sequence[Instruction], deliver: Deliver) -> None:
        """Ask for every record. Raises UserError when the endpoint gives nothing any more."""
        asyncio.run(self._annotate_all(records, deliver))

    async def _annotate_all(self, records: Sequence[Instruction], deliver: Deliver) -> None:
        lesson = _Lesson(self._options, self._validator, Endpoint(self._endpoint, self._api_key))
        queue = iter(records)

        async def work() -> None:
            # Only as many records are under way as the endpoint takes at once: each is delivered when it is there.
            for record in queue:
                deliver(record, await lesson.annotate(record))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._endpoint.concurrency, len(records))):
                    group.create_task(work())
        except* EndpointError as errors:
            raise _first(errors) from None
        finally:
            await lesson.endpoint.close()


class _Lesson:
    """One shard's conversation with the endpoint."""

    def __init__(self, options: TeacherSection, validator: Validator, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._options = options
        self._validator = validator

    async def annotate(self, record: Instruction) -> Proposal:
        """A valid annotation, or the last invalid one, or why there is none. Raises EndpointError."""
        messages = asked = prompt_for(record)
        usage, proposal = NO_USAGE, Proposal(None)
        for _ in range(self._options.attempts):
            try:
                reply = await self.endpoint.chat(
                    messages, max_tokens=self._options.max_tokens, temperature=self._options.temperature
                )
            except EndpointError as error:
                return await self._given_up(error, usage)
            usage = usage + TeacherUsage(1, reply.prompt_tokens, reply.completion_tokens)
            if reply.finish_reason == "length":
                # A second answer would be as long.
                return Proposal(None, "cut off", "the annotation is longer than teacher.max_tokens", usage)
            proposal = Proposal(reply.text, usage=usage)
            try:
                self._validator.check(reply.text, record.answer)
            except Unrepairable as error:
                messages = ask_again(asked, reply.text, str(error))
            else:
                break
        return proposal

    async def _given_up(self, error: EndpointError, usage: TeacherUsage) -> Proposal:
        """What becomes of a record without an answer. Raises the error again if it is not the record's own fault."""
        if error.status is not None and error.status not in _REFUSED_RECORD:
            raise error
        try:
            # If the endpoint answers a trivial question it is up, so the record is at fault.
            reply = await self.endpoint.chat(_PROBE, max_tokens=16, temperature=self._options.temperature)
        except EndpointError:
            raise error from None
        usage = usage + TeacherUsage(1, reply.prompt_tokens, reply.completion_tokens)
        return Proposal(None, "refused" if error.status is not None else "no answer", str(error), usage)


def _first(errors: BaseExceptionGroup[EndpointError]) -> EndpointError:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
