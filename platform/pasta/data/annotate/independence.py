"""Asks a judge model whether the parts of an annotation can be written at the same time.

An annotated answer falls into stretches: the segments that the interpreter cuts it into. The judge is asked for each
stretch that cannot see an earlier one whether it needs it. So it finds chunks that read other chunks, and text that
reads chunks without a sync before it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pasta.bounds import check_not_negative, check_positive
from pasta.data.annotate.annotator import NO_USAGE, TeacherUsage
from pasta.data.annotate.paid import PaidEndpoint
from pasta.data.annotate.prompt import task_text
from pasta.data.endpoint import EndpointError, EndpointSection, answers_identity
from pasta.interpreter import linearise
from pasta.lang import Codec, Document, annotated_ids

SYSTEM = (
    "Several writers wrote an answer at the same time, each of them one stretch of it. Every writer had read the "
    "conversation and knew the subject of his stretch, but some stretches were hidden from him. For each stretch that "
    "you are asked about, decide whether it needs a stretch that was hidden: it uses a result of it, refers back to "
    "it, sums it up, compares it, counts it, or goes on where it ends. Stretches that only stand in one list, share a "
    "subject or are laid out alike do not need each other. Reply with one line for each question and nothing else: the "
    "number of the stretch, a colon, and yes if it needs a hidden stretch, otherwise no."
)
_AGAIN = "That cannot be read. Reply with one line for each question, such as: 3: no"
_BARE = re.compile(r"\s*(?:[-*•]|\d+[.)])?\s*")
_LINE = re.compile(r"^\W*(?:stretch\s+)?(\d+)\W+(yes|no)\b", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class IndependenceSection:
    """The judge of independence: ``endpoint`` is its address, model, key, limits and prices. ``max_tokens`` bounds
    one verdict; one that cannot be read is asked for again ``format_retries`` times."""

    endpoint: EndpointSection
    max_tokens: int = 512
    format_retries: int = 1

    def __post_init__(self) -> None:
        check_positive(self, "max_tokens")
        check_not_negative(self, "format_retries")

    def identity(self) -> dict[str, Any]:
        """What verdicts depend on: without the endpoint's address, rate limits and prices."""
        return answers_identity(self)


@dataclass(frozen=True, slots=True)
class Stretch:
    """The text of one segment. ``hidden`` are the indices of earlier stretches that it does not see. Stretches without
    words (list markers) are left out of both."""

    text: str
    hidden: tuple[int, ...]


def stretches_of(document: Document, codec: Codec) -> list[Stretch]:
    """The stretches of a document in storage order; together their texts are the rendered answer."""
    rows = linearise(codec.grammar, (), annotated_ids(codec, document))
    control = codec.control
    tags = {control.async_open, control.async_close, control.sync, codec.eos_id}
    tokens: dict[int, list[int]] = {}
    is_promise = False
    for token, segment in zip(rows.token_ids, rows.segments, strict=True):
        if token == control.promise or is_promise:
            is_promise = token != control.close
        elif token not in tags:
            tokens.setdefault(segment, []).append(token)
    texts = [(segment, codec.decode_text(ids)) for segment, ids in tokens.items()]
    out: list[Stretch] = []
    for number, (segment, text) in enumerate(texts):
        seen = rows.sees[segment]
        hidden = tuple(
            index
            for index, (earlier, said) in enumerate(texts[:number])
            if not seen >> earlier & 1 and says_something(said)
        )
        out.append(Stretch(text, hidden if says_something(text) else ()))
    return out


def says_something(text: str) -> bool:
    """Whether a text is more than white space and the mark of a list's item."""
    return _BARE.fullmatch(text) is None


def questions_for(
    messages: Sequence[Mapping[str, str]], stretches: Sequence[Stretch]
) -> list[dict[str, str]]:
    """The chat messages that ask about every stretch with hidden ones before it; numbers count from 1."""
    written = "\n".join(
        f'<stretch number="{number}">{stretch.text}</stretch>'
        for number, stretch in enumerate(stretches, start=1)
    )
    asked = "\n".join(
        f"{number}: hidden from it: {', '.join(str(index + 1) for index in stretch.hidden)}"
        for number, stretch in enumerate(stretches, start=1)
        if stretch.hidden
    )
    content = task_text(messages, f"{written}\n\nQUESTIONS\n\n{asked}")
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}]


class IndependenceJudge:
    """Asks ``endpoint`` about annotations; ``codec`` reads them as the run's model will."""

    def __init__(self, options: IndependenceSection, codec: Codec, judge: PaidEndpoint) -> None:
        self._judge = judge
        self._options = options
        self._codec = codec

    async def fault(
        self, place: str, messages: Sequence[Mapping[str, str]], document: Document
    ) -> tuple[tuple[str, str] | None, TeacherUsage]:
        """Why the parts of the document of the record at ``place`` are not independent, as a reason and its detail, or
        None; and what that cost.

        Reasons are ``dependent`` and ``not judged`` (no verdict that can be read, or a request that the endpoint does
        not take). Raises EndpointError.
        """
        stretches = stretches_of(document, self._codec)
        asked = {number for number, stretch in enumerate(stretches, start=1) if stretch.hidden}
        usage, said = NO_USAGE, ""
        if not asked:
            return None, usage
        chat = questions_for(messages, stretches)
        for attempt in range(self._options.format_retries + 1):
            again = [{"role": "assistant", "content": said}, {"role": "user", "content": _AGAIN}]
            try:
                asking = [*chat, *again] if attempt else chat
                reply = await self._judge.chat(
                    place, asking, max_tokens=self._options.max_tokens, temperature=0.0
                )
            except EndpointError as error:
                # Raises the error again if the request itself was not at fault.
                blamed = await self._judge.endpoint.blame_request(error)
                return ("not judged", str(error)), usage + TeacherUsage.of(blamed)
            said = reply.text
            usage = usage + TeacherUsage.of(reply)
            verdicts = {int(number): word.lower() == "yes" for number, word in _LINE.findall(said)}
            if asked <= verdicts.keys():
                needy = next((number for number in sorted(asked) if verdicts[number]), None)
                if needy is None:
                    return None, usage
                stretch = stretches[needy - 1]
                detail = f"{_short(stretch.text)} needs a part that it does not see"
                return ("dependent", detail), usage
        return ("not judged", f"the judge of independence said {_short(said)}"), usage


def _short(text: str) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= 80 else f"{text[:80]}…")
