"""Metrics and tables of a service under load, from records alone."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from pasta.benchmark.load.hostile import HEALTH_MS, HELD_MS, memory_of
from pasta.benchmark.load.memory import growing, memory_table
from pasta.benchmark.load.scenarios import block_of
from pasta.benchmark.load.ways import Name
from pasta.benchmark.metrics import Found, Metric, rate_of
from pasta.markdown import markdown
from pasta.stages.records import Record
from pasta.statistics import bootstrap, bootstrap_mean, grouped, percentile

#: Targets: of the bare engine's throughput and speedup, of refusing, and of stopping what a client has left.
THROUGHPUT, SPEEDUP, REFUSED_S, STOPPED_S = 0.85, 0.95, 0.05, 0.1
_SHARES = (50, 90, 99)
_BUSY = (
    "processor time of its thread between two timers 10 ms apart; a late timer may be waiting for a processor"
)


def by_block(records: Iterable[Record]) -> dict[tuple[int, Name], list[Record]]:
    """Records by clients and way, rounds in their order."""
    return grouped(records, lambda record: block_of(record["key"]))


def latency_report(records: Sequence[Record]) -> Found:
    """Percentiles over all answers of a block's rounds, and how much sooner parallel answers end. An answer without
    text has no first token."""
    blocks, rows = by_block(records), []
    metrics: list[Metric] = []
    for (clients, way), rounds in blocks.items():
        answers = [answer for each in rounds for answer in each["answers"]]
        first, total = (
            [a["ttft_s"] for a in answers if a["ttft_s"] is not None],
            [a["total_s"] for a in answers],
        )
        seconds = sum(each["seconds"] for each in rounds)
        rate = sum(answer["tokens"] for answer in answers) / seconds
        spans = [f"{percentile(first, share / 100) * 1e3:.0f}" if first else "none" for share in _SHARES]
        spans += [f"{percentile(total, share / 100) * 1e3:.0f}" for share in _SHARES]
        rows.append([clients, way, *spans, f"{rate:.0f}", f"{len(answers) / seconds:.2f}", len(answers)])
        metrics += [
            Metric(
                f"serve.{key}.{way}.{clients}",
                f"{label}, ms, median, {way}, {clients_label(clients)}",
                percentile(values, 0.5) * 1e3,
                count=len(values),
            )
            for key, label, values in (("ttft", "time to first token", first), ("e2e", "end to end", total))
            if values
        ]
    for clients in dict.fromkeys(clients for clients, _ in blocks):
        sequential, parallel = (
            seconds_by_prompt(blocks.get((clients, way), [])) for way in ("sequential", "parallel")
        )
        if sequential and parallel:
            ratios = bootstrap([slow / fast for slow, fast in zip(sequential, parallel, strict=True)])
            label = f"end to end, sequential ÷ parallel, {clients_label(clients)}"
            metrics.append(
                Metric.of(f"serve.e2e.ratio.{clients}", label, ratios, note=f"{ratios.count} prompts")
            )
    spans = [f"{name}, p{share}, ms" for name in ("first token", "end to end") for share in _SHARES]
    header = ["clients", "way", *spans, "tokens a second", "requests a second", "answers"]
    return metrics, {"Latency by clients": markdown(header, rows)}


def seconds_by_prompt(rounds: Sequence[Record]) -> list[float]:
    """Median seconds of each prompt over the rounds."""
    times = [[answer["total_s"] for answer in each["answers"]] for each in rounds]
    return [statistics.median(each) for each in zip(*times, strict=True)]


def throughput_report(records: Sequence[Record]) -> Found:
    """Tokens a second of the service over the bare engine's, round by round."""
    metrics, rows = [], []
    for (clients, way), rounds in by_block(records).items():
        ratios = bootstrap([rate_of(each["service"]) / rate_of(each["bare"]) for each in rounds])
        label = f"service of one decoder ÷ bare engine, tokens a second, {way}, {clients_label(clients)}"
        metrics.append(
            Metric.of(
                f"serve.throughput.{way}.{clients}", label, ratios, target=THROUGHPUT, note=_rounds(rounds)
            )
        )
        totals = [[sum(each[side][i] for each in rounds) for i in (0, 1)] for side in ("service", "bare")]
        rows.append([clients, way, *(f"{rate_of(total):.0f}" for total in totals)])
    table = markdown(["at once", "way", "service, tokens a second", "bare engine"], rows)
    return metrics, {"Throughput": table}


def speedup_report(records: Sequence[Record]) -> Found:
    """Speedup over HTTP, by the bare engine, and the ratio of the two, prompt by prompt."""
    over_http, bare = (
        [record[side]["sequential"] / record[side]["parallel"] for record in records]
        for side in ("http", "bare")
    )
    ratio = bootstrap([service / engine for service, engine in zip(over_http, bare, strict=True)])
    note = f"{len(records)} prompts with independent parts, one at a time"
    return [
        Metric.of("serve.speedup.http", "realised speedup over HTTP", bootstrap(over_http), note=note),
        Metric.of("serve.speedup.bare", "realised speedup, bare engine", bootstrap(bare), note=note),
        Metric.of("serve.speedup.ratio", "speedup over HTTP ÷ bare engine", ratio, target=SPEEDUP, note=note),
    ], {}


def spread_report(records: Sequence[Record]) -> Found:
    """Compares chunks on other decoders with chunks at home, for an answer that has the service to itself."""
    metrics = []
    for placement in ("spread", "auto"):
        gains = bootstrap([record["local"]["total_s"] / record[placement]["total_s"] for record in records])
        spills = sum(record[placement].get("spills", 0) for record in records)
        same = sum(record["local"]["text"] == record[placement]["text"] for record in records)
        metrics.append(
            Metric.of(
                f"serve.{placement}",
                f"end to end, local ÷ {placement}, one request at a time",
                gains,
                note=f"{len(records)} prompts, {spills} chunks away from home, {same} texts the same",
            )
        )
    return metrics, {}


def kill_report(records: Sequence[Record]) -> Found:
    """End to end of the requests in flight when a decoder is killed, against the same ones undisturbed."""
    pairs = [pair for each in records for pair in zip(each["undisturbed"], each["disturbed"], strict=True)]
    survived = [(before, after) for before, after in pairs if after["ending"] == "whole"]
    lost, note = len(pairs) - len(survived), f"{len(pairs)} requests in flight, {len(records)} kills"
    metrics = [
        Metric("serve.kill.lost", "requests lost when a decoder is killed", lost, 0, "at most", note=note)
    ]
    if survived:
        added = bootstrap_mean([after["total_s"] - before["total_s"] for before, after in survived])
        ratio = bootstrap([after["total_s"] / before["total_s"] for before, after in survived])
        same = sum(before["text"] == after["text"] for before, after in survived)
        again = sum(after.get("redispatches", 0) for _, after in survived)
        texts = f"{same} of {len(survived)} texts the same; {again} threads went on elsewhere"
        metrics += [
            Metric.of(
                "serve.kill.added_s", "seconds that a kill adds to a request in flight", added, note=texts
            ),
            Metric.of("serve.kill.ratio", "end to end, decoder killed ÷ undisturbed", ratio, note=note),
        ]
    back = statistics.median(each["back_s"] for each in records)
    metrics.append(
        Metric("serve.kill.back_s", "seconds until another decoder is ready, median", back, note=note)
    )
    return metrics, {}


def disconnect_report(records: Sequence[Record]) -> Found:
    """When everything that a client left has stopped: an upper bound, since it is asked over HTTP."""
    left = [record for record in records if "ended" not in record]
    if not left:
        why = (
            "not measured: every answer was there before its client left; ask for longer ones (--max-tokens)"
        )
        return [], {"Clients that leave": why}
    idle = [record["idle_s"] for record in left]
    busy_ms = max(record["busy_s"] for record in left) * 1e3
    note = (
        f"{len(idle)} clients; seen over HTTP, so at most this; last seen busy after at most {busy_ms:.0f} ms"
    )
    return [
        Metric(
            "serve.disconnect.p50", "ms until all threads have stopped, median", percentile(idle, 0.5) * 1e3
        ),
        Metric(
            "serve.disconnect.p95",
            "ms until all threads have stopped, 95th percentile",
            percentile(idle, 0.95) * 1e3,
            STOPPED_S * 1e3,
            "at most",
            count=len(idle),
            note=note,
        ),
    ], {}


def refuse_report(records: Sequence[Record]) -> Found:
    """How soon a request beyond the budget is told so."""
    times = [seconds for record in records for seconds in record["refused_s"]]
    silent = sum(record["without_retry_after"] for record in records)
    lost = sum(answer["ending"] != "whole" for record in records for answer in record["admitted"])
    label = "ms until a request is refused"
    return [
        Metric("serve.refuse.p50", f"{label}, median", percentile(times, 0.5) * 1e3, count=len(times)),
        Metric(
            "serve.refuse.p99",
            f"{label}, 99th percentile",
            percentile(times, 0.99) * 1e3,
            REFUSED_S * 1e3,
            "at most",
            count=len(times),
        ),
        Metric("serve.refuse.silent", "refusals without Retry-After", silent, 0, "at most", count=len(times)),
        Metric("serve.refuse.lost", "admitted requests that were lost", lost, 0, "at most"),
    ], {}


def soak_report(records: Sequence[Record]) -> Found:
    """Counts of what must not happen in a soak, and of what happened."""
    (record,) = records
    wrong, ended = record["wrong"], record["endings"]
    lost = sum(each["ending"] == "lost" for each in wrong)
    stuck = len(wrong) - lost + (record["idle_s"] is None)
    killed = ", ".join(
        f"{count} {kind}s" for kind, count in Counter(kind for _, kind in record["kills"]).items()
    )
    note = (
        f"{record['requests']} requests in {record['seconds']:.0f} s, killed: {killed or 'none'} "
        f"({ended.get('spared', 0)} times spared), {ended.get('refused', 0)} refusals, "
        f"{ended.get('left', 0)} clients left, {record['redispatches']} threads went on elsewhere"
    )
    grown = growing(record["memory_mib"])
    metrics = [
        Metric("soak.lost", "soak: requests lost", lost, 0, "at most", note=note),
        Metric(
            "soak.cut", "soak: requests cut by the death of their Interpreter or Gateway", ended.get("cut", 0)
        ),
        Metric("soak.stuck", "soak: requests stuck, decoders that stay busy", stuck, 0, "at most"),
        Metric(
            "soak.memory",
            "soak: processes whose memory grows",
            len(grown),
            0,
            "at most",
            note="; ".join(grown),
        ),
        Metric("soak.differing", "soak: greedy answers that differ from an earlier one", record["differing"]),
    ]
    if record["total_s"]:
        metrics += [
            Metric(
                f"soak.e2e.p{share}",
                f"soak: end to end, ms, p{share}",
                percentile(record["total_s"], share / 100) * 1e3,
            )
            for share in (50, 99)
        ]
    return metrics, {"Soak: memory": memory_table(record["memory_mib"])}


def hostile_report(records: Sequence[Record]) -> Found:
    """How hostile requests were answered, and how long they kept others waiting."""
    statuses: dict[str, Counter[str]] = {}
    for record in records:
        for kind, counts in record["statuses"].items():
            statuses.setdefault(kind, Counter()).update(counts)
    totals = sum(statuses.values(), Counter[str]())
    wrong = [each["why"] for record in records for each in record["wrong"]]
    dropped = totals["dropped"] + totals["stuck"]
    held = sum("event loop" in why for why in wrong)
    busy, late, health = (
        max(record[name] for record in records) for name in ("busy_ms", "late_ms", "health_ms")
    )
    memory = memory_of(records)
    gateways = [f"{each[0]:.0f} to {each[-1]:.0f} MiB" for name, each in memory.items() if ":Gateway" in name]
    grown = growing(memory)
    note = f"{totals.total()} requests in {sum(record['seconds'] for record in records):.0f} s"
    metrics = [
        Metric(
            "hostile.wrong",
            "hostile: answers with 5xx, or not as documented",
            len(wrong) - dropped - held,
            0,
            "at most",
            note=note,
        ),
        Metric("hostile.dropped", "hostile: connections dropped, requests stuck", dropped, 0, "at most"),
        Metric(
            "hostile.held", f"hostile: requests that hold the loop above {HELD_MS:g} ms", held, 0, "at most"
        ),
        Metric(
            "hostile.busy_ms", "hostile: longest time that the Gateway's loop was held, ms", busy, note=_BUSY
        ),
        Metric("hostile.late_ms", "hostile: latest timer of the Gateway's loop, ms", late),
        Metric(
            "hostile.health_ms", "hostile: slowest GET /health beside them, ms", health, HEALTH_MS, "at most"
        ),
        Metric(
            "hostile.memory",
            "hostile: processes whose memory grows",
            len(grown),
            0,
            "at most",
            note="; ".join([*(f"Gateway {each}" for each in gateways), *grown]),
        ),
    ]
    seen = sorted(totals)
    rows = [
        [kind, *(str(counts[status] or "") for status in seen)] for kind, counts in sorted(statuses.items())
    ]
    rows.append(["all", *(str(totals[status]) for status in seen)])
    return metrics, {"Hostile requests: answers by status": markdown(["kind", *seen], rows)}


def clients_label(number: int) -> str:
    return f"{number} client{'s' if number > 1 else ''}"


def _rounds(rounds: Sequence[Any]) -> str:
    return f"{len(rounds)} round{'s' if len(rounds) > 1 else ''}"
