"""Metrics and tables of a comparison with peers, from its records."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

from pasta.benchmark.metrics import Found, Metric
from pasta.benchmark.peers.settings import DRAFTS, FORMATS
from pasta.markdown import markdown
from pasta.stages.records import Record
from pasta.statistics import bootstrap

#: Targets by shape: the least ratio to llama.cpp's best format of no more bits, and the most that 8 lanes may cost
#: against one.
_SEQUENTIAL = {"llama-400m": 1.0, "shipped": 0.8}
_LANES = {"llama-400m": 1.35}
_REPLAY = {"llama-400m": 1.3}

_BITS = {f"ours {ours}": bits for ours, (bits, _) in FORMATS.items()}
_BITS |= {f"llama.cpp {theirs}": bits for bits, theirs in FORMATS.values()}


def check_report(shape: str, record: Record | None) -> Found:
    """How closely llama.cpp computes the engine's function."""
    if record is None:
        return [], {}
    share = record["same"] / record["tokens"]
    note = f"{record['tokens']} tokens; {record['build']}"
    label = f"{shape}, 32 bits, llama.cpp and ours"
    return [
        Metric(f"peers.check.same.{shape}", f"greedy tokens the same, {label}", share, 1.0, note=note),
        Metric(
            f"peers.check.difference.{shape}",
            f"largest difference of a log-probability, {label}",
            record["difference"],
            1e-3,
            "at most",
        ),
    ], {}


def decode_report(shape: str, rounds: Sequence[Record], setups: Mapping[str, Record]) -> Found:
    """Tokens a second of each decoder, and the ratio of each of our formats to llama.cpp's best of no more bits."""
    names = [name for name in rounds[0] if name != "key"]
    rates = {name: [1.0 / entry[name]["median_s"] for entry in rounds] for name in names}
    metrics = []
    ours = [name for name in names if name in _BITS and name.startswith("ours")]
    best = max(ours, key=lambda name: statistics.median(rates[name]))
    for name in ours:
        if peer := peer_of(name, rates):
            ratio = bootstrap([a / b for a, b in zip(rates[name], rates[peer], strict=True)])
            metrics.append(
                Metric.of(
                    f"peers.sequential.{shape}.{name.partition(' ')[2]}",
                    f"sequential, {name} ÷ {peer}, tokens a second, {shape}",
                    ratio,
                    target=_SEQUENTIAL.get(shape) if name == best else None,
                    note="llama.cpp's best format of no more bits",
                )
            )
    rows = []
    for name in sorted(names, key=lambda name: -statistics.median(rates[name])):
        ratio = bootstrap([a / b for a, b in zip(rates[best], rates[name], strict=True)])
        rate = statistics.median(rates[name])
        setup = setups.get(name, {})
        flash = (
            "" if "flash" not in setup else ", flash attention" if setup["flash"] else ", no flash attention"
        )
        shown = "" if name == best else f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
        least = min(entry[name]["least_s"] for entry in rounds)
        threads = f"{setup.get('threads', '')}{flash}"
        rows.append([name, threads, f"{rate:.1f}", f"{1e3 / rate:.2f}", f"{1e3 * least:.2f}", shown])
    header = ["decoder", "threads", "tokens a second", "ms a token", "least ms", f"{best} ÷ this (95%)"]
    return metrics, {f"Sequential decoding, {shape}": markdown(header, rows)}


def prefill_report(shape: str, records: Iterable[Record]) -> Found:
    """Milliseconds until the first token by the tokens of a prompt, and for each of our formats how many times as long
    llama.cpp's best of no more bits takes."""
    points = {int(record["key"]): record["rounds"] for record in records}
    metrics: list[Metric] = []
    rows = []
    for count in sorted(points):
        rates = {name: [1 / entry[name][0] for entry in points[count]] for name in points[count][0]}
        rows.append([count, *(f"{1 / statistics.median(each):.1f}" for each in rates.values())])
        peers = {name: peer for name in rates if name.startswith("ours") and (peer := peer_of(name, rates))}
        metrics += [
            Metric.of(
                f"peers.prefill.{shape}.{name.partition(' ')[2]}.{count}",
                f"first token after {count} tokens, {peer} ÷ {name}, {shape}",
                bootstrap([a / b for a, b in zip(rates[name], rates[peer], strict=True)]),
                note="llama.cpp's best format of no more bits",
            )
            for name, peer in peers.items()
        ]
    names = list(next(iter(points.values()))[0]) if points else []
    return metrics, {f"ms until the first token, {shape}": markdown(["tokens of the prompt", *names], rows)}


def growth_report(shape: str, part: str, records: Iterable[Record]) -> Found:
    """Milliseconds a step by point, with the ratio to the first point, both of the least steps: points are measured one
    after another, and other work on the machine only adds to a step."""
    points = growth_points(records)
    if not points:
        return [], {}
    first = min(points)
    names = list(points[first])
    rows = []
    for point in sorted(points):
        cells = []
        for name in names:
            ms = points[point][name]
            cells.append(f"{ms:.2f} ({ms / points[first][name]:.2f})")
        rows.append([point, *cells])
    metrics = []
    if part == "lanes" and 8 in points and 1 in points:
        for name in names:
            wanted = _LANES.get(shape) if name == "ours int8" else None
            metrics.append(
                Metric(
                    f"peers.lanes.{shape}.{name.replace(' ', '.')}",
                    f"a step with 8 lanes ÷ with 1, {name}, {shape}",
                    points[8][name] / points[1][name],
                    wanted,
                    "at most",
                )
            )
    title = {
        "lanes": "lanes of one request (llama.cpp: sequences that share its prompt)",
        "requests": "requests at once",
        "context": "tokens in the cache, one request",
    }[part]
    header = [part, *names]
    return metrics, {f"least ms a step (÷ the first row), {shape}: {title}": markdown(header, rows)}


def growth_points(records: Iterable[Record]) -> dict[int, dict[str, float]]:
    """The least milliseconds a step of each decoder, by point."""
    out: dict[int, dict[str, float]] = {}
    for record in records:
        rounds = record["rounds"]
        out[int(record["key"])] = {
            name: min(ms for entry in rounds for ms in entry[name]) for name in rounds[0]
        }
    return out


def replay_report(shape: str, records: Sequence[Record]) -> Found:
    """Tokens of the plain answer a second: ours as threads, ours one after another, llama.cpp one after another."""
    names = list(records[0]["seconds"])
    rates: dict[str, list[float]] = {
        name: [record["tokens"] / record["seconds"][name] for record in records] for name in names
    }
    metrics = []
    for name in names:
        plain = name.removesuffix(", threads")
        if plain == name or not (peer := peer_of(plain, rates)):
            continue
        for other, wanted in ((peer, _REPLAY.get(shape)), (plain, None)):
            ratio = bootstrap([a / b for a, b in zip(rates[name], rates[other], strict=True)])
            metrics.append(
                Metric.of(
                    f"peers.replay.{shape}.{name}.{other}".replace(" ", "-").replace(",", ""),
                    f"replay, {name} ÷ {other}, tokens a second, {shape}",
                    ratio,
                    target=wanted if plain == "ours int8" else None,
                    note=f"{len(records)} documents",
                )
            )
    rows = []
    for name in names:
        total = sum(record["seconds"][name] for record in records)
        rows.append([name, f"{sum(record['tokens'] for record in records) / total:.1f}"])
    return metrics, {f"Replay of documents, {shape}": markdown(["decoder", "tokens a second"], rows)}


def peer_of(ours: str, rates: Mapping[str, Sequence[float]], drafts: bool = False) -> str:
    """llama.cpp's fastest format of no more bits, with a draft model or without; empty if there is none."""
    peers = [
        name
        for name in rates
        if name.startswith("llama.cpp")
        and name.endswith(DRAFTS) is drafts
        and _BITS.get(name.removesuffix(DRAFTS), 99) <= _BITS.get(ours, 0)
    ]
    return max(peers, key=lambda name: statistics.median(rates[name]), default="")
