"""The service beside another OpenAI-compatible server on this machine that has the sequential model's weights.

Both get the same prompts from as many clients, in turn; the service is stopped while the peer answers. The peer is
asked for as many tokens as the service's sequential model has written: a server of another making, or of another number
format, would end elsewhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx

from pasta.benchmark.load.client import Ask, connect
from pasta.benchmark.load.conversations import USAGE, conversations_report, held
from pasta.benchmark.load.report import clients_label, seconds_by_prompt
from pasta.benchmark.load.scenarios import Bench, timed
from pasta.benchmark.load.service import Service
from pasta.benchmark.load.settings import LoadSettings
from pasta.benchmark.metrics import Found, Metric
from pasta.errors import UserError
from pasta.markdown import markdown
from pasta.stages.records import Record
from pasta.statistics import bootstrap, grouped, percentile

SIDES = ("peer", "sequential", "parallel")
#: What vLLM, SGLang and llama.cpp understand: write on to ``max_tokens``, and say how many tokens there were.
_WHOLE: Mapping[str, Any] = {"ignore_eos": True, **USAGE}


def peer_keys(settings: LoadSettings) -> list[str]:
    """Round and clients of each block."""
    return [f"{number} {clients}" for number in range(settings.rounds) for clients in settings.clients]


async def beside_peer(bench: Bench, key: str) -> Record:
    """Every prompt by so many clients, alone or in conversations: by the service both ways, then by the peer.

    Raises ``UserError`` if the peer does not answer as OpenAI's API does, or writes another number of tokens.
    """
    clients, count, turns = int(key.split()[1]), bench.settings.prompts, bench.settings.turns
    number = peer_keys(bench.settings).index(key) if turns > 1 else 0
    prompts = bench.prompts[number * count : (number + 1) * count]
    measure = held if turns > 1 else timed
    record: Record = {"turns": turns} if turns > 1 else {}
    for way in bench.ways:
        record[way] = await measure(bench, bench.asks(way, prompts), clients)
    wanted = [answer["tokens"] for answer in record["sequential"]["answers"]]
    url = bench.settings.peer
    assert url is not None, "the scenario is measured only with a peer"
    # A server may close a connection while a request is on its way over it: llama.cpp's does.
    async with connect(url, reuse=False) as client:
        model = bench.settings.peer_model or await first_model(client.http, url)
        asks = [
            Ask(prompt, model, max_tokens=count, more=_WHOLE)
            for prompt, count in zip(prompts, wanted, strict=True)
        ]
        peer = replace(bench, service=Service(client, bench.settings.timeout_s))
        with bench.paused():
            try:
                record["peer"] = await measure(peer, asks, clients)
            except UserError as error:
                raise UserError(f"--peer: {url}: {error}") from None
    for answer, count in zip(record["peer"]["answers"], wanted, strict=True):
        if answer["tokens"] != count:
            raise UserError(
                f"--peer: {url}: an answer of {answer['tokens']} tokens by its usage, expected {count}: it has to obey "
                "max_tokens and ignore_eos, and to report usage in streams"
            )
    return record


async def first_model(http: httpx.AsyncClient, url: str) -> str:
    """The first model that the server at ``url`` lists. Raises ``UserError`` if it lists none as OpenAI's API does."""
    try:
        response = await http.get("/v1/models", timeout=60.0)
        return str(response.raise_for_status().json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"--peer: {url}: /v1/models does not answer as OpenAI's API does ({error})") from None


def peer_report(records: Sequence[Record]) -> Found:
    """How much sooner an answer ends than the peer's to the same prompt, and how many more answers end a second."""
    blocks = grouped(records, lambda record: int(record["key"].split()[1]))
    if (turns := records[0].get("turns", 1)) > 1:
        return conversations_report(blocks, SIDES, turns)
    metrics, rows = [], []
    for clients, rounds in blocks.items():
        rows += [_row(clients, side, [each[side] for each in rounds]) for side in SIDES]
        peer = seconds_by_prompt([each["peer"] for each in rounds])
        for way in SIDES[1:]:
            own = seconds_by_prompt([each[way] for each in rounds])
            sooner = bootstrap([theirs / ours for theirs, ours in zip(peer, own, strict=True)])
            # The same prompts on both sides, so answers a second are to each other as the blocks' seconds.
            more = bootstrap([each["peer"]["seconds"] / each[way]["seconds"] for each in rounds])
            at = f"{way}, {clients_label(clients)}"
            metrics += [
                Metric.of(f"serve.peer.e2e.{way}.{clients}", f"end to end, peer ÷ {at}", sooner),
                Metric.of(f"serve.peer.rate.{way}.{clients}", f"answers a second ÷ the peer's, {at}", more),
            ]
    header = ["clients", "server", "first token, p50 / p90, ms", "end to end, p50 / p90, ms"]
    header += ["tokens a second", "answers a second"]
    return metrics, {"Beside a peer": markdown(header, rows)}


def _row(clients: int, side: str, blocks: Sequence[Record]) -> list[Any]:
    answers = [answer for block in blocks for answer in block["answers"]]
    seconds = sum(block["seconds"] for block in blocks)
    spans = [
        " / ".join(f"{1e3 * percentile(values, share):.0f}" for share in (0.5, 0.9))
        for values in (
            [answer["ttft_s"] for answer in answers if answer["ttft_s"] is not None] or [float("nan")],
            [answer["total_s"] for answer in answers],
        )
    ]
    tokens = sum(answer["tokens"] for answer in answers)
    return [clients, side, *spans, f"{tokens / seconds:.0f}", f"{len(answers) / seconds:.2f}"]
