"""Conversations beside a peer: each question comes with those before it and the answers to them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pasta.benchmark.load.client import Ask, TimedReply
from pasta.benchmark.load.report import clients_label
from pasta.benchmark.load.scenarios import Bench, check_whole
from pasta.benchmark.metrics import Found, Metric
from pasta.markdown import markdown
from pasta.stages.records import Record
from pasta.statistics import bootstrap, percentile

#: Asks for the usage of a stream: what was found of a prompt is part of it.
USAGE: Mapping[str, Any] = {"stream_options": {"include_usage": True}}
T = TypeVar("T")


async def held(bench: Bench, asks: Sequence[Ask], clients: int) -> Record:
    """Hold conversations of ``turns`` questions each, after some requests to warm up that no conversation begins with;
    returns seconds and the answers."""
    turns = bench.settings.turns
    await bench.whole(asks[turns - 1 :: turns][:clients], clients)
    told = [replace(ask, more={**USAGE, **ask.more}) for ask in asks]
    answers, seconds = await bench.service.hold(
        _by_conversation(told, turns), clients, bench.settings.think_s
    )
    check_whole(answers)
    return {"seconds": seconds, "answers": [_record(answer) for answer in answers]}


def _record(answer: TimedReply) -> Record:
    found = (answer.usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return {**answer.record(), "prompt": answer.usage.get("prompt_tokens"), "cached": found}


def conversations_report(blocks: Mapping[int, Sequence[Record]], sides: Sequence[str], turns: int) -> Found:
    """How much sooner a conversation ends than the peer's of the same questions; first tokens turn by turn."""
    metrics, rows = [], []
    for clients, rounds in blocks.items():
        seconds = {side: [sum(each) for each in _turns(rounds, side, turns, "total_s")] for side in sides}
        for side in sides:
            first = zip(*_turns(rounds, side, turns, "ttft_s"), strict=True)
            shown = " / ".join(f"{1e3 * percentile(each, 0.5):.0f}" for each in first)
            spans = " / ".join(f"{1e3 * percentile(seconds[side], share):.0f}" for share in (0.5, 0.9))
            took = sum(each[side]["seconds"] for each in rounds)
            rate = f"{len(seconds[side]) / took:.2f}"
            tokens = sum(map(sum, _turns(rounds, side, turns, "tokens"))) / len(seconds[side])
            rows.append([clients, side, shown, spans, rate, f"{tokens:.0f}", _found(rounds, side)])
        for way in sides[1:]:
            sooner = bootstrap(
                [theirs / ours for theirs, ours in zip(seconds[sides[0]], seconds[way], strict=True)]
            )
            label = f"a conversation of {turns} turns, peer ÷ {way}, {clients_label(clients)}"
            metrics.append(Metric.of(f"serve.peer.turns.{way}.{clients}", label, sooner))
    header = ["clients", "server", "first token by turn, p50, ms", "a conversation, p50 / p90, ms"]
    header += ["conversations a second", "tokens each", "prompt tokens found"]
    return metrics, {"Conversations beside a peer": markdown(header, rows)}


def _turns(rounds: Sequence[Record], side: str, turns: int, name: str) -> list[Sequence[float]]:
    """A value of each turn, conversation by conversation. An answer without text has its first token at its end."""
    answers = [answer for each in rounds for answer in each[side]["answers"]]
    return _by_conversation(
        [answer["total_s"] if answer[name] is None else answer[name] for answer in answers], turns
    )


def _by_conversation(each: Sequence[T], turns: int) -> list[Sequence[T]]:
    return [each[at : at + turns] for at in range(0, len(each), turns)]


def _found(rounds: Sequence[Record], side: str) -> str:
    answers = [answer for each in rounds for answer in each[side]["answers"]]
    if any(answer["cached"] is None for answer in answers):
        return "not told"
    return f"{sum(answer['cached'] for answer in answers) / sum(answer['prompt'] for answer in answers):.2f}"
