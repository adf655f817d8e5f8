"""An answer as an evaluation records it, the same for every way to decode: text, tokens by kind, threads, seconds."""

from dataclasses import asdict, dataclass
from typing import Any, Protocol

from pasta.data.prompts import Prompt
from pasta.engine import Result
from pasta.interpreter import ThreadTrace, token_budget
from pasta.lang import Codec, to_text


@dataclass(frozen=True, slots=True)
class AnswerThread:
    """One thread over the steps of the critical path: forked at ``start``, its last own token at ``end``.

    ``waits`` are (since, to) steps spent at syncs. ``parent`` is its place in the answer's threads and ``topic`` what
    it writes about; the main thread has neither.
    """

    start: int
    end: int
    waits: tuple[tuple[int, int], ...] = ()
    parent: int | None = None
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a method made of a prompt.

    ``text`` is what a user sees, ``annotated`` the text form of the document (None where there is none). ``tokens`` are
    all that were decoded, over all calls, tags and end-of-text included; ``budget`` is the same by kind of token.
    ``critical_path`` and ``steps`` (forwards from the first token to the last) are None for an endpoint. ``ttft_s`` and
    ``seconds`` run from the submission, to the first token and to the end; ``seconds`` holds one number for each timed
    run; ``Method.answer`` times one. ``fallback`` says why a method had to decode sequentially instead
    (Skeleton-of-Thought without a usable skeleton).
    """

    text: str
    annotated: str | None
    tokens: int
    budget: dict[str, int]
    critical_path: int | None
    steps: int | None
    threads: tuple[AnswerThread, ...]
    ttft_s: float | None
    seconds: tuple[float, ...]
    finish_reason: str
    fallback: str | None = None

    @classmethod
    def from_result(cls, result: Result, codec: Codec) -> "Answer":
        """The answer of one engine request, timed by the engine."""
        return cls(
            text=result.text,
            annotated=None if result.document is None else to_text(result.document),
            tokens=result.num_tokens,
            budget=token_budget(codec.grammar, result.response_ids),
            critical_path=result.critical_path,
            steps=result.steps,
            threads=tuple(_thread(thread, codec) for thread in result.trace.threads),
            ttft_s=result.ttft_s,
            seconds=(result.total_s,),
            finish_reason=result.finish_reason,
        )

    def to_record(self) -> dict[str, Any]:
        """The fields as JSON-able values, under their names."""
        record = asdict(self)
        record["seconds"] = list(self.seconds)
        record["threads"] = [
            {**asdict(thread), "waits": [list(wait) for wait in thread.waits]} for thread in self.threads
        ]
        return record


class Method(Protocol):
    """A way to answer a prompt: batch 1, greedy."""

    def answer(self, prompt: Prompt) -> Answer:
        """Answer once, timed. Raises UserError if this prompt does not fit, EndpointError if the endpoint is gone for
        good."""


def _thread(thread: ThreadTrace, codec: Codec) -> AnswerThread:
    return AnswerThread(
        start=thread.forked_at,
        end=thread.steps[-1] if thread.steps else thread.forked_at,
        waits=thread.waits,
        parent=thread.parent,
        topic=None if thread.parent is None else codec.decode_text(thread.topic_ids),
    )
