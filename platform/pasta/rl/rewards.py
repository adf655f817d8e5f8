r"""The reward of an answer, by quality and speed.

reward(y) = (speed(y) + λ · quality(y)) / (1 + λ)      speed(y) = 0 where quality(y) < min_quality

Speed, quality and λ are those of ``pasta.candidates.scoring``: a larger reward is a larger score, but for the
threshold. The divisor keeps rewards of one size for every λ, so that λ does not act as a learning rate. With λ = inf
the reward is quality alone; in a group of answers of equal quality it is speed, as in ``choose_pair``. Advantages are
the trainer's: a reward minus the mean of its group.

An answer that was cut at the length limit, or is empty, has reward 0. An answer without a valid verdict has no reward,
and is left out of training.
"""

from collections.abc import Sequence
from typing import Literal

from pasta.candidates.scoring import scored
from pasta.rl.config import RewardSection
from pasta.stages.records import Record

#: Qualities that differ by less are equal.
_EQUAL = 1e-9


def reward_of(speed: float, quality: float, section: RewardSection) -> float:
    """The reward of one answer; for λ = inf its quality."""
    if section.speed_alone_decides:
        return quality
    return (_counted(speed, quality, section) + section.weight * quality) / (1.0 + section.weight)


def group_rewards(entries: Sequence[Record], section: RewardSection) -> list[float | None]:
    """The rewards of the answers to one prompt, None for those without a valid verdict.

    ``entries`` are ``candidates`` of ``scored``: with ``speed`` and ``quality``, or ``unscored`` and why.
    """
    qualities = [_quality(entry) for entry in entries]
    known = [quality for quality in qualities if quality is not None]
    tied = section.speed_alone_decides and known and max(known) - min(known) < _EQUAL
    return [
        None
        if quality is None
        else _counted(_of_answer(entry, "speed"), quality, section)
        if tied
        else reward_of(_of_answer(entry, "speed"), quality, section)
        for entry, quality in zip(entries, qualities, strict=True)
    ]


def rewarded(record: Record, verdicts: Sequence[Record | None], section: RewardSection) -> list[Record]:
    """The answers of a sample record with ``speedup``, ``quality`` (None without a verdict) and ``reward``; where the
    judge counts statements, with ``wrong``, those that are not right."""
    entries = scored(record, verdicts, section.weight, section.speed)["candidates"]
    rewards = group_rewards(entries, section)
    return [
        {
            **candidate,
            "speedup": _of_answer(entry, "speedup"),
            "quality": _quality(entry),
            "reward": reward,
            "wrong": entry["total"] - entry["right"] if "total" in entry else None,
        }
        for candidate, entry, reward in zip(record["candidates"], entries, rewards, strict=True)
    ]


def _counted(speed: float, quality: float, section: RewardSection) -> float:
    return speed if quality >= section.min_quality else 0.0


def _quality(entry: Record) -> float | None:
    if "unscored" not in entry:
        return float(entry["quality"])
    return None if entry["unscored"] == "invalid" else 0.0


def _of_answer(entry: Record, key: Literal["speed", "speedup"]) -> float:
    """The value of an entry; 0 if it is no answer."""
    return float(entry[key]) if "unscored" not in entry else 0.0
