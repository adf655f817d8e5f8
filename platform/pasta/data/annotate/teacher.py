"""Annotation by a large language model behind any OpenAI-compatible endpoint.

``pasta.data.endpoint`` keeps the rate limits and retries transient failures. A record is given up only while the
endpoint answers others; when it answers nothing any more, or refuses the key or the model, the run stops, and what was
paid for by then, reply by reply, is in the shard's journal.

With several proposals a record the most parallel one is taken that passes all checks: form and exactness
(``validator``), then independence, which a judge model is asked for from the most parallel proposal down.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pasta.bounds import check_positive, check_within
from pasta.data.annotate.annotator import NO_USAGE, Deliver, Proposal, RefusedAnnotation, TeacherUsage
from pasta.data.annotate.independence import IndependenceJudge, IndependenceSection
from pasta.data.annotate.paid import PaidEndpoint
from pasta.data.annotate.prompt import ask_again, prompt_for
from pasta.data.annotate.repair import Unrepairable
from pasta.data.annotate.validator import Checked, Validator
from pasta.data.endpoint import (
    TEMPERATURES,
    Endpoint,
    EndpointError,
    EndpointSection,
    all_of,
    answers_identity,
)
from pasta.data.instructions import Instruction
from pasta.stages.records import RecordFile

# Statuses that a second proposal would get too.
_RECORDS_FAULT = ("refused", "no answer")


@dataclass(frozen=True, slots=True)
class TeacherSection:
    """The teacher, and how often it is asked.

    ``endpoint`` is address, model, key, limits and prices of the whole run. ``proposals`` are asked for, each up to
    ``attempts`` times, the fault named, if it is not valid. The most parallel one that is valid is taken; with an
    ``independence_judge``, the most parallel one whose parts need no other part that they do not see. Proposal k (from
    0) is sampled with ``seed`` + k; without a seed none is sent. ``max_tokens`` bounds one annotated answer.
    """

    endpoint: EndpointSection
    temperature: float = 0.0
    max_tokens: int = 4096
    attempts: int = 2
    proposals: int = 1
    seed: int | None = None
    independence_judge: IndependenceSection | None = None

    def __post_init__(self) -> None:
        check_positive(self, "max_tokens", "attempts", "proposals")
        check_within(self, temperature=TEMPERATURES)
        if self.proposals > 1 and self.temperature <= 0:
            raise ValueError(
                f"proposals {self.proposals}: expected a temperature above 0, or all proposals are alike"
            )

    def identity(self) -> dict[str, Any]:
        """What annotations depend on: without the endpoints' addresses, rate limits and prices."""
        judge = self.independence_judge
        return answers_identity(self) | {"independence_judge": judge.identity() if judge else None}


@dataclass(frozen=True, slots=True)
class Keys:
    """API keys: the teacher's, and that of its judge of independence."""

    teacher: str | None = None
    judge: str | None = None


NO_KEYS = Keys()


@dataclass(frozen=True, slots=True)
class _Valid:
    """A proposal that passed the validator, as the teacher wrote it and as it was read."""

    annotated: str
    checked: Checked


class Teacher:
    """Asks the endpoint for annotations; ``share`` of all its limits is this worker's."""

    is_costly = True

    def __init__(
        self, options: TeacherSection, validator: Validator, *, share: float = 1.0, keys: Keys = NO_KEYS
    ) -> None:
        self._options = options
        self._validator = validator
        self._share = share
        self._keys = keys

    def annotate(
        self, records: Sequence[Instruction], deliver: Deliver, journal: RecordFile | None = None
    ) -> None:
        """Ask for every record. Raises UserError when an endpoint gives nothing any more."""
        asyncio.run(self._annotate_all(records, deliver, journal))

    async def _annotate_all(
        self, records: Sequence[Instruction], deliver: Deliver, journal: RecordFile | None
    ) -> None:
        options = self._options
        endpoint = Endpoint(options.endpoint.share(self._share), self._keys.teacher)
        teacher = PaidEndpoint(endpoint, journal)
        judge = None
        if options.independence_judge is not None:
            asked = Endpoint(options.independence_judge.endpoint.share(self._share), self._keys.judge)
            judge = IndependenceJudge(
                options.independence_judge, self._validator.codec, PaidEndpoint(asked, journal)
            )
        queue = iter(records)

        async def work() -> None:
            # Only as many records are under way as the endpoint takes at once: each is delivered when it is there.
            for record in queue:
                deliver(record, await self._best_proposal(record, teacher, judge))

        try:
            await all_of(work() for _ in range(min(endpoint.section.concurrency, len(records))))
        finally:
            await endpoint.close()
            if judge is not None:
                await asked.close()

    async def _best_proposal(
        self, record: Instruction, teacher: PaidEndpoint, judge: IndependenceJudge | None
    ) -> Proposal:
        """The most parallel proposal that passes all checks, or why there is none. Raises EndpointError."""
        usage, judged = NO_USAGE, NO_USAGE
        valid: list[_Valid] = []
        refused: list[RefusedAnnotation] = []
        for number in range(self._options.proposals):
            found, cost = await self._propose(record, number, teacher)
            usage = usage + cost
            if isinstance(found, RefusedAnnotation):
                refused.append(found)
                if found.reason in _RECORDS_FAULT:
                    break
            elif all(found.checked.text != other.checked.text for other in valid):
                valid.append(found)
        for candidate in sorted(valid, key=lambda each: -each.checked.measures.speedup):
            fault, cost = (None, NO_USAGE) if judge is None else await _fault(judge, record, candidate)
            judged = judged + cost
            if fault is None:
                return Proposal(candidate.annotated, usage=usage, refused=tuple(refused), judged=judged)
            refused.append(fault)
        return Proposal(None, refused[-1].reason, refused[-1].detail, usage, tuple(refused), judged)

    async def _propose(
        self, record: Instruction, number: int, teacher: PaidEndpoint
    ) -> tuple[_Valid | RefusedAnnotation, TeacherUsage]:
        """Proposal ``number`` of a record."""
        options = self._options
        seed = {} if options.seed is None else {"seed": options.seed + number}
        messages = asked = prompt_for(record)
        usage, refused = NO_USAGE, RefusedAnnotation(None, "", "")
        for _ in range(options.attempts):
            try:
                reply = await teacher.chat(
                    f"{record.place} {number}",
                    messages,
                    max_tokens=options.max_tokens,
                    temperature=options.temperature,
                    **seed,
                )
            except EndpointError as error:
                refused, cost = await _given_up(teacher.endpoint, error, options.temperature)
                return refused, usage + cost
            usage = usage + TeacherUsage.of(reply)
            if reply.finish_reason == "length":
                # A second answer would be as long.
                detail = "the annotation is longer than teacher.max_tokens"
                return RefusedAnnotation(None, "cut off", detail), usage
            try:
                return _Valid(reply.text, self._validator.check(reply.text, record.answer)), usage
            except Unrepairable as error:
                refused = RefusedAnnotation(reply.text, error.code, str(error))
                messages = ask_again(asked, reply.text, str(error))
        return refused, usage


async def _fault(
    judge: IndependenceJudge, record: Instruction, candidate: _Valid
) -> tuple[RefusedAnnotation | None, TeacherUsage]:
    """Why a proposal's parts are not independent, by the judge."""
    fault, usage = await judge.fault(record.place, record.messages, candidate.checked.document)
    return (None if fault is None else RefusedAnnotation(candidate.annotated, *fault)), usage


async def _given_up(
    endpoint: Endpoint, error: EndpointError, temperature: float
) -> tuple[RefusedAnnotation, TeacherUsage]:
    """Turn a request that failed at ``temperature`` into a proposal that rejects its record. Raises the error again if
    the record is not at fault."""
    reply = await endpoint.blame_request(error, temperature=temperature)
    usage = TeacherUsage.of(reply)
    reason = "refused" if error.status is not None else "no answer"
    return RefusedAnnotation(None, reason, str(error)), usage
