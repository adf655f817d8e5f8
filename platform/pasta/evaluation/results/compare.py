"""Compares two methods, of two evaluations or of one: changes with intervals, and the prompts that changed most.

Prompts are paired by their id. Differences (quality, threads) are of arithmetic means, ratios (speedups, tokens,
critical path) of geometric ones; every interval is a 95% percentile bootstrap over the pairs
(``pasta.statistics``).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from pasta.errors import UserError
from pasta.evaluation.results.evaluations import Evaluation, last_user_message, read_evaluation
from pasta.evaluation.results.outcomes import Outcome, outcomes_of
from pasta.rows import by_dotted_key
from pasta.stages.machines import read_machines
from pasta.statistics import bootstrap, bootstrap_mean, geometric_mean, grouped

if TYPE_CHECKING:
    from pasta.candidates.scoring import Speed

Kind = Literal["difference", "ratio"]
#: Keys of the configuration that are not compared: names, how a figure is drawn, a digest of the prompts.
_IGNORED = {"line", "label", "prompt_ids"}


@dataclass(frozen=True, slots=True)
class Side:
    """One method of one evaluation, with its outcomes by prompt."""

    evaluation: Evaluation
    method: str
    baseline: str
    outcomes: dict[str, Outcome]

    @property
    def counts(self) -> dict[str, int]:
        """The number of prompts, and of those without a usable value: ``cut`` at a limit, ``skipped``, ``invalid``
        verdicts."""
        outcomes = self.outcomes.values()
        return {
            "prompts": len(outcomes),
            "cut": sum(outcome.cut for outcome in outcomes),
            "skipped": sum(outcome.skipped is not None for outcome in outcomes),
            "invalid": sum(outcome.invalid for outcome in outcomes),
        }


@dataclass(frozen=True, slots=True)
class Measure:
    """A metric of one answer, and how two values of it are compared."""

    name: str
    kind: Kind
    of: Callable[[Outcome], float | None]


def _of_answer(key: str) -> Callable[[Outcome], float | None]:
    return lambda outcome: outcome.answer[key] if outcome.answer is not None else None


QUALITY = Measure("quality", "difference", lambda outcome: outcome.quality)
REALISED = Measure("realised speedup", "ratio", lambda outcome: outcome.realised)
THEORETICAL = Measure("theoretical speedup", "ratio", lambda outcome: outcome.theoretical)
MEASURES = (
    QUALITY,
    REALISED,
    THEORETICAL,
    Measure("tokens", "ratio", _of_answer("tokens")),
    Measure("critical path", "ratio", _of_answer("critical_path")),
    Measure("threads", "difference", lambda outcome: outcome.num_threads),
)


def score_measure(weight: float, speed: "Speed" = "speedup") -> Measure:
    """The score of ``pasta.candidates.scoring`` for λ = ``weight``, by ``speed``."""
    from pasta.candidates.scoring import counted_tokens, score_of  # it imports what nothing else here needs

    def score(outcome: Outcome) -> float | None:
        answer, twin = outcome.answer, outcome.length
        if answer is None or twin is None or outcome.theoretical is None or outcome.quality is None:
            return None
        counted = counted_tokens(speed, twin, answer["tokens"], answer.get("budget", {}).get("text", 0))
        return score_of(counted / answer["critical_path"], outcome.quality, weight)

    by = "" if speed == "speedup" else f", {speed}"
    return Measure(f"score, λ = {weight:g}{by}", "difference", score)


@dataclass(frozen=True, slots=True)
class Change:
    """A measure over ``count`` pairs: means ``a`` and ``b``, and ``change``, which is b − a or b ÷ a by ``kind``.

    ``is_change`` says whether the interval excludes no change and six pairs or more differ: None of fewer pairs than
    six. A single pair has no interval.
    """

    name: str
    kind: Kind
    count: int
    a: float
    b: float
    change: float
    low: float | None
    high: float | None
    is_change: bool | None


@dataclass(frozen=True, slots=True)
class Moved:
    """A prompt whose value went from ``a`` to ``b``; ``prompt`` is the last user message."""

    key: str
    prompt: str
    a: float
    b: float


@dataclass(frozen=True, slots=True)
class Difference:
    """A key of the configuration (dotted) with both values, None where it is not set."""

    key: str
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class Prompts:
    """Ids of prompts: how many both have, those that one has alone, and those of one id with other messages."""

    common: int
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    altered: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of ``compare``. ``families`` maps a task family to its quality and speed; ``moved`` has the lists
    ``quality down``, ``quality up``, ``speed down`` and ``speed up``, the largest change first; ``speed`` is the name
    of the measure behind the latter two."""

    a: dict[str, Any]
    b: dict[str, Any]
    configuration: tuple[Difference, ...]
    prompts: Prompts
    changes: tuple[Change, ...]
    families: dict[str, tuple[Change, ...]]
    speed: str
    moved: dict[str, tuple[Moved, ...]]
    notes: tuple[str, ...]


def split_side(given: str) -> tuple[str, str]:
    """The directory of ``DIR`` or ``DIR:METHOD``, and the method: maybe empty."""
    directory, separator, named = given.rpartition(":")
    return (given, "") if not separator or Path(given).is_dir() else (directory, named)


def read_side(given: str, method: str | None = None) -> Side:
    """``DIR`` or ``DIR:METHOD`` (which goes before ``method``); without a method, the only one beside the baseline.

    Raises UserError for a directory that is no evaluation, an unknown method, or one that has to be named.
    """
    directory, named = split_side(given)
    evaluation = read_evaluation(Path(directory))
    baseline = evaluation.baseline
    if baseline is None:
        raise UserError(f"{directory}: its records do not say which method is the baseline")
    others = [name for name in evaluation.methods if name != baseline]
    chosen = named or method or (others[0] if len(others) == 1 else "")
    if not chosen:
        raise UserError(
            f"{directory}: which method? It has {', '.join(evaluation.methods)}; say {directory}:METHOD or "
            "--method METHOD"
        )
    evaluation.require(chosen)
    outcomes = outcomes_of(evaluation.answers, evaluation.verdicts, baseline=baseline, methods=[chosen])
    return Side(evaluation, chosen, baseline, {outcome.key: outcome for outcome in outcomes[chosen]})


def compare_sides(a: Side, b: Side, top: int = 5, scores: Sequence[Measure] = ()) -> Comparison:
    """Compare ``b`` with ``a``, by ``scores`` too; each list of changed prompts has up to ``top`` entries.

    Raises UserError if they have no prompt in common.
    """
    shared = [key for key in a.outcomes if key in b.outcomes]
    altered = [key for key in shared if a.outcomes[key].messages != b.outcomes[key].messages]
    pairs = [(a.outcomes[key], b.outcomes[key]) for key in shared if key not in {*altered}]
    if not pairs:
        raise UserError(
            f"{a.evaluation.directory} and {b.evaluation.directory}: no prompt in common; compare evaluations of the "
            "same prompts"
        )
    speed = REALISED if any(_values(REALISED, pair) for pair in pairs) else THEORETICAL
    configuration = differences(a, b)
    changes = _changes(pairs, (*MEASURES, *scores))
    return Comparison(
        a=_described(a),
        b=_described(b),
        configuration=configuration,
        prompts=Prompts(
            common=len(pairs),
            only_a=tuple(key for key in a.outcomes if key not in b.outcomes),
            only_b=tuple(key for key in b.outcomes if key not in a.outcomes),
            altered=tuple(altered),
        ),
        changes=changes,
        families=_families(pairs, (QUALITY, speed)),
        speed=speed.name,
        moved=_moved(pairs, QUALITY, "quality", top) | _moved(pairs, speed, "speed", top),
        notes=(*_notes(a, b, configuration), *_missing(scores, changes)),
    )


def differences(a: Side, b: Side) -> tuple[Difference, ...]:
    """Keys of the configuration that differ, with both methods' sections as ``method`` and both baselines' as
    ``baseline``; ``content of …`` where what was read differs."""
    ours, theirs = _settings(a), _settings(b)
    keys = [*dict.fromkeys([*ours, *theirs])]
    return tuple(
        Difference(key, ours.get(key), theirs.get(key)) for key in keys if ours.get(key) != theirs.get(key)
    )


def _settings(side: Side) -> dict[str, Any]:
    evaluation = side.evaluation
    config = {key: value for key, value in evaluation.config.items() if key not in ("methods", "baseline")}
    methods = evaluation.config.get("methods", {})
    sections = {"method": methods.get(side.method), "baseline": methods.get(side.baseline)}
    settings = by_dotted_key({**sections, **config})
    settings = {key: value for key, value in settings.items() if key.rpartition(".")[2] not in _IGNORED}
    names = {"method.": f"methods.{side.method}.", "baseline.": f"methods.{side.baseline}."}
    for name, fingerprint in evaluation.inputs.items():
        if name.startswith("methods."):
            for shown, prefix in names.items():
                if name.startswith(prefix):
                    settings[f"content of {shown}{name.removeprefix(prefix)}"] = fingerprint
        else:
            settings[f"content of {name}"] = fingerprint
    if evaluation.code_version:
        settings["code version"] = evaluation.code_version
    return settings


def _described(side: Side) -> dict[str, Any]:
    evaluation = side.evaluation
    return {
        "directory": str(evaluation.directory),
        "method": side.method,
        "baseline": side.baseline,
        **side.counts,
    }


def _values(measure: Measure, pair: tuple[Outcome, Outcome]) -> tuple[float, float] | None:
    """Both values, if both answers have one (and, for a ratio, one that can be divided by)."""
    a, b = (measure.of(outcome) for outcome in pair)
    if a is None or b is None or (measure.kind == "ratio" and not (a > 0 and b > 0)):
        return None
    return float(a), float(b)


def _changes(pairs: Sequence[tuple[Outcome, Outcome]], measures: Sequence[Measure]) -> tuple[Change, ...]:
    """A change for each measure that any pair has."""
    changes = []
    for measure in measures:
        values = [value for pair in pairs if (value := _values(measure, pair)) is not None]
        if values:
            changes.append(_change(measure, values))
    return tuple(changes)


def _change(measure: Measure, values: Sequence[tuple[float, float]]) -> Change:
    first, second = [a for a, _ in values], [b for _, b in values]
    if measure.kind == "ratio":
        estimate, none = bootstrap([b / a for a, b in values]), 1.0
        a, b = geometric_mean(first), geometric_mean(second)
    else:
        estimate, none = bootstrap_mean([b - a for a, b in values]), 0.0
        a, b = fmean(first), fmean(second)
    known = len(values) > 1  # one pair resamples to itself
    return Change(
        name=measure.name,
        kind=measure.kind,
        count=len(values),
        a=a,
        b=b,
        change=estimate.value,
        low=estimate.low if known else None,
        high=estimate.high if known else None,
        is_change=estimate.excludes(none) if estimate.has_enough_pairs else None,
    )


def _families(
    pairs: Sequence[tuple[Outcome, Outcome]], measures: Sequence[Measure]
) -> dict[str, tuple[Change, ...]]:
    families = grouped(pairs, lambda pair: pair[0].family)
    changes = {name: _changes(families[name], measures) for name in sorted(families)}
    return {name: found for name, found in changes.items() if found}


def _moved(
    pairs: Sequence[tuple[Outcome, Outcome]], measure: Measure, name: str, top: int
) -> dict[str, tuple[Moved, ...]]:
    moved = []
    for pair in pairs:
        values = _values(measure, pair)
        if values is not None:
            a, b = values
            moved.append(
                (
                    b / a - 1 if measure.kind == "ratio" else b - a,
                    Moved(pair[0].key, last_user_message(pair[0].messages), a, b),
                )
            )
    moved.sort(key=lambda entry: entry[0])
    return {
        f"{name} down": tuple(entry for by, entry in moved[:top] if by < 0),
        f"{name} up": tuple(entry for by, entry in moved[::-1][:top] if by > 0),
    }


def _notes(a: Side, b: Side, configuration: Sequence[Difference]) -> tuple[str, ...]:
    """Warnings: reasons why the two cannot be compared, or why the comparison is weaker than it looks."""
    notes = []
    differing = [difference.key for difference in configuration]
    if any(key == "judge" or key.startswith(("judge.", "content of judge.")) for key in differing):
        notes.append("the judges differ: their qualities are not of one scale")
    if any(key.startswith(("baseline.", "content of baseline.")) for key in differing):
        notes.append(
            "the baselines differ: each speedup is against its own, and so is a quality found by comparing"
        )
    machines = [_machines(side) for side in (a, b)]
    if all(machines) and machines[0] != machines[1]:
        notes.append("the machines or number formats differ: their realised speedups are not of one scale")
    if "content of method.model" in differing and "method.model" not in differing:
        notes.append("the model has the same name and another content")
    notes += [
        f"{side.evaluation.directory}: {gap}; what is there is compared"
        for side in (a, b)
        for gap in side.evaluation.lacks(verdicts=True)
    ]
    return tuple(dict.fromkeys(notes))  # both sides may be one evaluation


def _missing(scores: Sequence[Measure], changes: Sequence[Change]) -> Iterator[str]:
    """The scores that were asked for and that no pair has."""
    there = {change.name for change in changes}
    for score in scores:
        if score.name not in there:
            yield (
                f"{score.name}: no prompt has one on both sides; it takes a quality and a theoretical speedup of each "
                "answer"
            )


def _machines(side: Side) -> set[tuple[str | None, ...]]:
    """Processor and GPU of the machines that decoded, and the number formats of method and baseline there; none if both
    are endpoints, which decode elsewhere."""
    methods = side.evaluation.config.get("methods") or {}
    if all((methods.get(name) or {}).get("endpoint") for name in (side.method, side.baseline)):
        return set()
    return {
        (
            machine.get("processor"),
            machine.get("gpu"),
            *(machine.get("formats", {}).get(name) for name in (side.method, side.baseline)),
        )
        for machine in read_machines(side.evaluation.directory)
    }
