"""Lets models answer what people type, and counts the answers that are right."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pasta.data.prompts import Prompt
from pasta.errors import UserError
from pasta.evaluation.methods.answers import Method
from pasta.evaluation.people.check import faults
from pasta.evaluation.people.prompts import KINDS, Conversation
from pasta.markdown import markdown
from pasta.rows import Messages


@dataclass(frozen=True, slots=True)
class Exchange:
    """One turn of a conversation: what the person typed, the model's answer, its threads, and its faults."""

    user: str
    answer: str
    threads: int
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GradedTalk:
    """A conversation with one model. It is ``right`` if every answer is."""

    number: int
    kind: str
    method: str
    exchanges: tuple[Exchange, ...]

    @property
    def right(self) -> bool:
        """Whether no answer has a fault."""
        return not any(exchange.faults for exchange in self.exchanges)


def talk(method: Method, conversation: Conversation) -> tuple[Exchange, ...]:
    """Hold a conversation up to the first wrong answer; the model sees its own earlier answers."""
    messages: Messages = []
    held = []
    for turn in conversation.turns:
        messages.append({"role": "user", "content": turn.user})
        try:
            answer = method.answer(Prompt(list(messages)))
        except UserError as error:
            held.append(Exchange(turn.user, "", 0, (str(error),)))
            break
        wrong = tuple(faults(turn, answer.text, answer.finish_reason, len(answer.threads)))
        held.append(Exchange(turn.user, answer.text, len(answer.threads), wrong))
        if wrong:
            break
        messages.append({"role": "assistant", "content": answer.text})
    return tuple(held)


def talks(methods: Mapping[str, Method], conversations: Sequence[Conversation]) -> Iterator[GradedTalk]:
    """Hold every conversation with every model."""
    for number, conversation in enumerate(conversations, start=1):
        for name, method in methods.items():
            yield GradedTalk(number, conversation.kind, name, talk(method, conversation))


def shares(held: Sequence[GradedTalk]) -> dict[str, dict[str, dict[str, int]]]:
    """``{method: {kind: {"right", "total"}}}``, ``all`` kinds together last."""
    out: dict[str, dict[str, dict[str, int]]] = {}
    for method in dict.fromkeys(each.method for each in held):
        mine = [each for each in held if each.method == method]
        groups = {kind: [each for each in mine if each.kind == kind] for kind in KINDS} | {"all": mine}
        out[method] = {
            kind: {"right": sum(each.right for each in group), "total": len(group)}
            for kind, group in groups.items()
            if group
        }
    return out


def report(held: Sequence[GradedTalk], *, wrong: bool = True) -> str:
    """A table of right answers by kind, then each ``wrong`` answer with what is wrong with it, as Markdown."""
    counted = shares(held)
    kinds = next(iter(counted.values()))
    table = markdown(
        ["answered right", *counted],
        [[kind, *(_share(**counted[method][kind]) for method in counted)] for kind in kinds],
    )
    listed = [line for each in held if wrong and not each.right for line in _wrong(each)]
    return "\n".join([table, *listed])


def to_record(held: GradedTalk) -> dict[str, Any]:
    """A conversation as JSON-able values."""
    return asdict(held) | {"right": held.right}


def _share(right: int, total: int) -> str:
    return f"{right} of {total} ({100 * right / total:.0f}%)"


def _wrong(held: GradedTalk) -> Iterator[str]:
    yield f"\n{held.number}. {held.kind}, {held.method}"
    for exchange in held.exchanges:
        yield f"   > {_line(exchange.user)}"
        yield f"   {_line(exchange.answer) or '(nothing)'}"
    yield f"   wrong: {'; '.join(held.exchanges[-1].faults)}"


def _line(text: str) -> str:
    return " / ".join(line.strip() for line in text.splitlines() if line.strip())
