r"""Win rates of a method against the baseline, from verdicts on pairs of answers: raw, and at equal length.

The raw win rate is AlpacaEval's: the mean over prompts of the probability p that the candidate's answer is preferred.

Judges prefer long answers. The length-controlled win rate asks what the rate would be if both answers were of equal
length. Dubois et al. 2024 (arXiv 2404.04475) regress the verdicts on three terms: who answered, how the
lengths differ, and how hard the prompt is for whom. Here the third one is left out, because its values are fitted to
AlpacaEval's own 805 prompts and cannot be had for any others:

    logit p = θ + φ · tanh(Δ / std(Δ)),   Δ = length of the candidate's answer − length of the baseline's, in characters

and the win rate at equal length, where tanh(0) = 0, is sigmoid(θ). That is another quantity than AlpacaEval's, whose
fit is also regularised, so it is called ``length_controlled_without_difficulty`` wherever it appears; the official
rate is ``pasta.evaluation.results.alpaca.official_win_rate``'s. θ and φ are of maximum likelihood for a binomial
model whose outcomes may be fractions. Intervals are 95% percentile bootstrap over prompts, with θ and φ found anew
in each resample; std(Δ) is a unit, that of all prompts.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pasta.errors import UserError
from pasta.statistics import bootstrap_mean

Array = npt.NDArray[np.float64]

_RESAMPLES = 2000
#: Resamples that are fitted together: bounds the memory.
_BATCH = 250
#: Resamples that may have no fit before there is no interval.
_MOST_UNFIT = 0.05
_MOST_STEPS = 60
_MOST_HALVINGS = 20

NO_LENGTHS = (
    "every answer differs from the baseline's by the same length: what length does cannot be told apart"
)
ONE_SIDED = "every verdict is the same, all won or all lost: the model has no finite solution"
ONE_VERDICT = "a single verdict, which resamples to itself"
SEPARABLE = "differences in length alone decide every verdict: the model has no finite solution"


@dataclass(frozen=True, slots=True)
class Preference:
    """One prompt's verdict: the probability, both orders averaged, that the candidate's answer is preferred to the
    baseline's, or None if the judge gave no valid one; and the length of both answers in characters.

    Raises ValueError for a probability outside [0, 1].
    """

    preference: float | None
    length: int
    baseline_length: int

    def __post_init__(self) -> None:
        if self.preference is not None and not 0.0 <= self.preference <= 1.0:
            raise ValueError(f"preference {self.preference}: expected a probability from 0 to 1")


@dataclass(frozen=True, slots=True)
class WinRate:
    """A win rate in percent with the ends of its 95% interval; ``reason`` says why one of them is missing."""

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WinRates:
    """Win rates over ``count`` valid verdicts; ``invalid`` ones are left out of everything.

    ``standard_error`` is the raw rate's, in percent, None for a single verdict. ``length_effect`` is φ, None where it
    cannot be told. Lengths are means in characters.
    """

    count: int
    invalid: int
    raw: WinRate
    standard_error: float | None
    length_controlled_without_difficulty: WinRate
    length_effect: float | None
    mean_length: float
    mean_baseline_length: float

    def to_record(self) -> dict[str, Any]:
        """As JSON-able values."""
        controlled = self.length_controlled_without_difficulty
        return {
            "count": self.count,
            "invalid": self.invalid,
            "win_rate": self.raw.value,
            "win_rate_interval": [self.raw.low, self.raw.high],
            "standard_error": self.standard_error,
            "length_controlled_without_difficulty": controlled.value,
            "length_controlled_without_difficulty_interval": [controlled.low, controlled.high],
            "length_controlled_without_difficulty_reason": controlled.reason,
            "length_effect": self.length_effect,
            "mean_length": self.mean_length,
            "mean_baseline_length": self.mean_baseline_length,
        }


def win_rates(verdicts: Sequence[Preference]) -> WinRates:
    """Raw and length-controlled win rates. Raises UserError if not one verdict is valid."""
    valid = [verdict for verdict in verdicts if verdict.preference is not None]
    if not valid:
        raise UserError(f"win rate: none of {len(verdicts)} verdicts is valid, so there is no win rate")
    preferences = [float(verdict.preference) for verdict in valid if verdict.preference is not None]
    mean = bootstrap_mean(preferences)
    if len(valid) > 1:
        raw = WinRate(100 * mean.value, 100 * mean.low, 100 * mean.high)
    else:
        raw = WinRate(100 * mean.value, reason=ONE_VERDICT)
    error = 100 * statistics.stdev(preferences) / math.sqrt(len(valid)) if len(valid) > 1 else None
    delta = np.array([verdict.length - verdict.baseline_length for verdict in valid], dtype=np.float64)
    if delta.any():
        controlled, effect = _controlled(np.array(preferences), delta)
    else:
        controlled, effect = raw, None  # all at equal length already
    return WinRates(
        count=len(valid),
        invalid=len(verdicts) - len(valid),
        raw=raw,
        standard_error=error,
        length_controlled_without_difficulty=controlled,
        length_effect=effect,
        mean_length=statistics.fmean(verdict.length for verdict in valid),
        mean_baseline_length=statistics.fmean(verdict.baseline_length for verdict in valid),
    )


def preferences_of(
    records: Sequence[Mapping[str, Any]],
    verdicts: Mapping[str, Mapping[str, Any]],
    *,
    method: str,
    baseline: str,
) -> list[Preference]:
    """An evaluation's verdicts on ``method``, of a judge that compares answers with the baseline's.

    ``records`` are the answers', ``verdicts`` the verdicts' by key. Prompts that either one has not answered, or that
    have no verdict yet, are left out.
    """
    out = []
    for record in records:
        answer, other = (record["answers"].get(name, {}) for name in (method, baseline))
        if "text" in answer and "text" in other:
            verdict = verdicts.get(record["key"], {}).get("verdicts", {}).get(method)
            if verdict is not None:
                out.append(Preference(verdict["quality"], len(answer["text"]), len(other["text"])))
    return out


def _controlled(preferences: Array, delta: Array) -> tuple[WinRate, float | None]:
    """The rate at equal length and φ. ``preferences`` and ``delta`` are [prompts]."""
    if (delta == delta[0]).all():
        return WinRate(None, reason=NO_LENGTHS), None
    x = np.tanh(delta / delta.std(ddof=1))
    theta, phi = fit_likelihood(preferences, x, np.ones((1, len(x))))
    if not math.isfinite(theta[0]):
        is_one_sided = preferences[0] in (0, 1) and (preferences == preferences[0]).all()
        return WinRate(None, reason=ONE_SIDED if is_one_sided else SEPARABLE), None
    value = 100 * float(_sigmoid(theta)[0])
    draw = np.random.default_rng(0)
    shares = np.full(len(x), 1 / len(x))
    fits = []
    for _ in range(0, _RESAMPLES, _BATCH):
        counts = draw.multinomial(len(x), shares, size=_BATCH).astype(np.float64)
        fits.append(fit_likelihood(preferences, x, counts)[0])
    thetas = np.concatenate(fits)
    rates = 100 * np.sort(_sigmoid(thetas[np.isfinite(thetas)]))
    if len(rates) < (1 - _MOST_UNFIT) * _RESAMPLES:
        share = 1 - len(rates) / _RESAMPLES
        reason = f"{share:.0%} of the resamples have no finite solution, so there is no interval"
        return WinRate(value, reason=reason), float(phi[0])
    low, high = (float(rates[int(share * len(rates))]) for share in (0.025, 0.975))
    return WinRate(value, low, high), float(phi[0])


def fit_likelihood(preferences: Array, x: Array, counts: Array) -> tuple[Array, Array]:
    """θ and φ, each [resamples], of maximum likelihood; NaN where there is no finite solution.

    ``preferences`` and ``x`` (tanh of the standardised difference in length) are [prompts]; ``counts`` says how often
    each prompt is drawn: [resamples, prompts].
    """
    solvable = ~_is_separable(preferences, x, counts)
    theta, phi = np.full(len(counts), np.nan), np.full(len(counts), np.nan)
    if solvable.any():
        theta[solvable], phi[solvable] = _newton(preferences, x, counts[solvable])
    return theta, phi


def _is_separable(preferences: Array, x: Array, counts: Array) -> npt.NDArray[np.bool_]:
    """Where no finite θ, φ is best: [resamples].

    A fraction is a share of a win and of a loss at the same x. If all wins lie on one side of all losses (touching
    counts), the likelihood grows for ever along that direction; otherwise it has one maximum.
    """
    won, lost = (counts > 0) & (preferences > 0), (counts > 0) & (preferences < 1)

    def ends(chosen: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
        return np.where(chosen, x, np.inf).min(axis=1), np.where(chosen, x, -np.inf).max(axis=1)

    (won_low, won_high), (lost_low, lost_high) = ends(won), ends(lost)
    apart: npt.NDArray[np.bool_] = (lost_high <= won_low) | (won_high <= lost_low)
    return apart


def _newton(preferences: Array, x: Array, counts: Array) -> tuple[Array, Array]:
    """Newton's method with step halving, for each row of ``counts`` [resamples, prompts].

    NaN where it does not converge: the data are so nearly separable that the maximum is too far out to mean anything.
    """
    beta = np.zeros((2, len(counts)))  # θ and φ: [2, resamples]
    best = _likelihood(beta, preferences, x, counts)
    settled = np.zeros(len(counts), dtype=bool)
    for _ in range(_MOST_STEPS):
        p = _sigmoid(beta[0][:, None] + beta[1][:, None] * x)  # [resamples, prompts]
        rest, weight = counts * (preferences - p), counts * p * (1 - p)
        g0, g1 = rest.sum(axis=1), rest @ x
        h00, h01, h11 = weight.sum(axis=1), weight @ x, weight @ (x * x)
        determinant = np.maximum(h00 * h11 - h01 * h01, 1e-300)
        step = np.stack([h11 * g0 - h01 * g1, h00 * g1 - h01 * g0]) / determinant
        # The most that the step can gain: below rounding errors nothing is left to find.
        settled = g0 * step[0] + g1 * step[1] < 1e-13 * len(x)
        if settled.all():
            break
        scale = np.where(settled, 0.0, 1.0)
        for _ in range(_MOST_HALVINGS):
            found = _likelihood(beta + scale * step, preferences, x, counts)
            worse = ~(found >= best)
            if not worse.any():
                break
            scale[worse] /= 2
        scale[worse] = 0.0
        beta, best = beta + scale * step, np.where(worse, best, found)
    return np.where(settled, beta[0], np.nan), np.where(settled, beta[1], np.nan)


def _likelihood(beta: Array, preferences: Array, x: Array, counts: Array) -> Array:
    z = beta[0][:, None] + beta[1][:, None] * x
    value: Array = (counts * (preferences * z - np.logaddexp(0.0, z))).sum(axis=1)
    return value


def _sigmoid(z: Array) -> Array:
    value: Array = np.exp(-np.logaddexp(0.0, -z))
    return value
