"""The findings of an evaluation in sentences, made from the numbers alone."""

from collections.abc import Callable, Sequence

from pasta.evaluation.results.pareto import Domination
from pasta.evaluation.results.summary import MethodSummary, Summary
from pasta.statistics import LEAST_PAIRS, Estimate, grouped

_EQUAL = 1e-9
_UNCLEAR = "†"


def times(estimate: Estimate | None) -> str:
    """A ratio with its interval."""
    return _shown(estimate, lambda value: f"{value:.2f}", "×", "–")


def share(estimate: Estimate | None) -> str:
    """A quality with its interval."""
    return _shown(estimate, lambda value: f"{value:.3f}", "", "–")


def signed(estimate: Estimate | None) -> str:
    """A difference with its interval."""
    return _shown(estimate, with_sign, "", " to ")


def findings(summary: Summary) -> list[str]:
    """One sentence or two a finding, as Markdown."""
    out = [*_untimed(summary), *_fastest(summary), *_without_loss(summary), *_front(summary)]
    out += _dominated(summary)
    out += _lines(summary)
    out += _realised(summary)
    return out or ["Nothing was measured that could be compared."]


def _untimed(summary: Summary) -> list[str]:
    has_speed = any(method.speed(summary.speed_name) is not None for method in summary.candidates)
    if summary.speed_name == "realised" or not has_speed:
        return []
    return ["Nothing was timed: all speeds here are theoretical."]


def _fastest(summary: Summary) -> list[str]:
    compared = [m for m in summary.candidates if m.speed(summary.speed_name) is not None]
    if not compared:
        return []
    best = max(compared, key=lambda m: _speed(summary, m))
    speed = times(best.speed(summary.speed_name))
    if _speed(summary, best) <= 1.0:
        return [f"No method is faster than {_base(summary)}: the fastest, **{best.title}**, reaches {speed}."]
    if best.quality_difference is None:
        return [f"The fastest is **{best.title}**: {speed}."]
    return [f"The fastest is **{best.title}**: {speed}, difference in quality {_told(best)}."]


def _without_loss(summary: Summary) -> list[str]:
    """The fastest method that is as good as the baseline, unless it is the fastest of all."""
    judged = [m for m in summary.placed if m.quality_difference is not None and _speed(summary, m) > 1.0]
    held = [m for m in judged if _value(m.quality_difference) >= -_EQUAL]
    if not judged:
        return []
    if not held:
        return [f"No faster method has on average the quality of {_base(summary)} or a better one."]
    best = max(held, key=lambda m: _speed(summary, m))
    if best is max(judged, key=lambda m: _speed(summary, m)):
        return []
    return [
        f"The fastest whose mean quality is at least {_base(summary)}’s is **{best.title}**: "
        f"{times(best.speed(summary.speed_name))}, difference {_told(best)}."
    ]


def _told(method: MethodSummary) -> str:
    """A difference in quality, and whether it is significant."""
    difference = method.quality_difference
    assert difference is not None
    if abs(difference.value) < _EQUAL and difference.low == difference.high:
        return "0"
    if not difference.has_enough_pairs:
        return f"{signed(difference)}, of too few prompts to be told from none"
    return f"{signed(difference)}{'' if difference.excludes(0.0) else ', which cannot be told from none'}"


def _front(summary: Summary) -> list[str]:
    if len(summary.placed) < 2:
        return []
    names = [f"*{summary.methods[name].title}*" for name in summary.front]
    return [
        f"On the Pareto front (none is at least as fast and as good as they are): {in_a_sentence(names)}."
    ]


def _dominated(summary: Summary) -> list[str]:
    """For each dominated method: which methods dominate it, and the strongest evidence."""
    out = []
    for method in summary.placed:
        by = [entry for entry in summary.dominations if entry.worse == method.name]
        if not by:
            continue
        best = max(by, key=lambda entry: (entry.is_clear, _value(entry.speed_ratio)))
        out.append(
            f"**{method.title}** is dominated by {in_a_sentence(_dominators(summary, by))}. {_evidence(summary, best)}"
        )
    if any(not entry.is_clear for entry in summary.dominations):
        out.append(
            f"{_UNCLEAR}: in the means only. On the prompts that both have, the 95% intervals do not exclude that it "
            f"is slower, worse or the same, or fewer than {LEAST_PAIRS} of them differ."
        )
    return out


def _dominators(summary: Summary, by: Sequence[Domination]) -> list[str]:
    """The dominating methods; those of one line are named together."""
    marks = {entry.better: "" if entry.is_clear else _UNCLEAR for entry in by}
    lines = grouped(summary.placed, lambda method: method.line)
    out = [
        f"*{summary.methods[name].title}*{mark}"
        for name, mark in marks.items()
        if summary.methods[name].line is None
    ]
    for line, members in lines.items():
        found = [m for m in members if m.name in marks]
        if not found:
            continue
        if len(found) == len(members) > 1 and not any(marks[m.name] for m in found):
            out.append(f"all {len(found)} of *{line}*")
        else:
            out.append(f"*{line}* ({', '.join((m.label or m.name) + marks[m.name] for m in found)})")
    return out


def _evidence(summary: Summary, entry: Domination) -> str:
    """The evidence from the prompts that both methods have."""
    title = summary.methods[entry.better].title
    if entry.speed_ratio is None or entry.quality_difference is None:
        return f"There is no prompt of which both it and *{title}* have a speed or a quality."
    difference = entry.quality_difference
    same = max(abs(difference.value), abs(difference.low), abs(difference.high)) < _EQUAL
    doubts = [
        name for name, sure in (("speed", entry.is_no_slower), ("quality", entry.is_no_worse)) if not sure
    ]
    return (
        f"*{title}* is {times(entry.speed_ratio)} as fast, "
        f"{'and as good' if same else f'with a difference in quality of {signed(difference)}'}"
        f"{f' ({in_a_sentence(doubts)} not told from the same)' if doubts else ''}."
    )


def _lines(summary: Summary) -> list[str]:
    out = []
    pairs = {(entry.line, entry.other): entry for entry in summary.lines}
    for (line, other), entry in pairs.items():
        back = pairs[other, line]
        if line > other:
            continue  # each pair once
        out.append(
            f"Of *{line}*’s {back.num_points} points, {len(back.dominated)} are dominated by a point of *{other}*; of "
            f"*{other}*’s {entry.num_points}, {len(entry.dominated)} by a point of *{line}*."
        )
    return out


def _realised(summary: Summary) -> list[str]:
    ratios = [m for m in summary.candidates if m.ratio is not None]
    if not ratios:
        return []
    low, high = (pick(ratios, key=lambda m: _value(m.ratio)) for pick in (min, max))
    if low is high:
        return [f"{low.title} realises {_value(low.ratio):.0%} of its theoretical speedup."]
    return [
        f"Between {_value(low.ratio):.0%} ({low.title}) and {_value(high.ratio):.0%} ({high.title}) of the theoretical "
        "speedup is realised."
    ]


def _shown(estimate: Estimate | None, number: Callable[[float], str], unit: str, between: str) -> str:
    if estimate is None:
        return "–"
    if estimate.low == estimate.high:
        return f"{number(estimate.value)}{unit}"
    return f"{number(estimate.value)}{unit} ({number(estimate.low)}{between}{number(estimate.high)})"


def with_sign(value: float) -> str:
    """Format a difference; one that rounds to zero has no sign."""
    return f"{0.0 if abs(value) < 5e-4 else value:+.3f}".replace("-", "−")


def _speed(summary: Summary, method: MethodSummary) -> float:
    return _value(method.speed(summary.speed_name))


def _value(estimate: Estimate | None) -> float:
    return estimate.value if estimate is not None else 0.0


def _base(summary: Summary) -> str:
    return summary.methods[summary.baseline].title


def in_a_sentence(words: Sequence[str]) -> str:
    """Words one after another: "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
