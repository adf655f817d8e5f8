"""Compares a load measured by ``python -m jobs.benchmark serve`` with its simulation, block by block.

A block is a closed loop: a number of clients send the same prompts, in one mode, until all are answered. The service's
cost outside its engines is fitted, not calibrated: on sequential decoding with the fewest clients and with the next
larger number of them. Every other block is predicted.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pasta.errors import UserError
from pasta.rows import read_rows
from pasta.simulation.cluster import Cluster, ClusterSection
from pasta.simulation.compare import Deviation, Measured, deviations
from pasta.simulation.config import Mode
from pasta.simulation.load import Users
from pasta.simulation.metrics import Distribution, RunMetrics, metrics_of
from pasta.simulation.study import Study
from pasta.simulation.trace import Messages, Traced

#: Bisection steps of a fit.
_HALVINGS = 20
#: Upper ends of the searches: the factor on a step's cost, seconds a token, spread of the requests.
_MOST_FACTOR, _MOST_TOKEN_S, _MOST_SPREAD = 64.0, 0.1, 2.0
#: Relative tolerance of a fit. Earlier fits reach no closer one, and later parameters would compensate for the rest.
_ENOUGH = 1e-4
#: Rounds in which parameters that depend on each other are fitted in turn.
_TURNS = 3


@dataclass(frozen=True, slots=True)
class Block:
    """What a number of clients measured in one mode, over all rounds."""

    clients: int
    way: Mode
    measured: Measured

    @property
    def name(self) -> str:
        """The block's name in reports."""
        return f"{self.clients} {self.way}"


@dataclass(frozen=True, slots=True)
class Load:
    """A measured load: its blocks, and the prompts of each block in the order in which they were sent."""

    prompts: list[Messages]
    blocks: list[Block]


def read_blocks(path: Path) -> Load | None:
    """Read the latency records of a benchmark of the service; ``None`` if the file is something else.

    Raises ``UserError`` if its records are incomplete, or if its service was configured otherwise.
    """
    lines = _lines(path)
    config = lines[0].get("config") if lines else None
    settings = config.get("settings") if isinstance(config, dict) else None
    if not isinstance(config, dict) or not isinstance(settings, dict) or "prompts" not in settings:
        return None
    try:
        found: dict[tuple[int, Mode], list[dict[str, Any]]] = {}
        for record in lines[1:]:
            _, clients, way = record["key"].split()
            found.setdefault((int(clients), "parallel" if way == "parallel" else "sequential"), []).append(
                record
            )
        prompts = config["prompts"][0][: settings["prompts"]]
        blocks = [Block(clients, way, _measured(rounds)) for (clients, way), rounds in sorted(found.items())]
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise UserError(
            f"{path}: expected the latency records of python -m jobs.benchmark serve ({type(error).__name__}: {error})"
        ) from None
    if not blocks:
        raise UserError(f"{path}: no records yet, expected those of a finished benchmark")
    return Load(prompts, blocks)


def pick_prompts(traced: Sequence[Traced], prompts: Sequence[Messages]) -> list[Traced]:
    """The answers of exactly these prompts, in their order. Raises ``UserError`` if one is missing."""
    known = {_key(line.messages): line for line in traced}
    missing = [prompt for prompt in prompts if _key(prompt) not in known]
    if missing:
        raise UserError(
            f"--measured: {len(missing)} of {len(prompts)} prompts have no answer in trace.source, such as "
            f"{missing[0][-1]['content']!r}"
        )
    return [known[_key(prompt)] for prompt in prompts]


class Fit:
    """Fits the service's cost outside its engines to two blocks, and simulates all of them."""

    def __init__(self, study: Study, blocks: Sequence[Block]) -> None:
        if study.trace.left_out:
            raise UserError(
                f"--measured: answers cannot be simulated: {next(iter(study.trace.left_out.items()))}"
            )
        self._study, self._blocks = study, blocks
        sequential = [block for block in blocks if block.way == "sequential"]
        if not sequential:
            raise UserError("--measured: no sequential block, expected one to fit the service's own costs to")
        self._fitted = sequential[: 2 if study.config.cluster.cores else 1]
        self.section = study.config.cluster

    def run(self, tell: Callable[[str], None] = lambda line: None) -> list[Deviation]:
        """Fit, then compare every block."""
        self.section = self._fit(tell)
        found: list[Deviation] = []
        for block in self._blocks:
            tell(f"block {block.name}")
            metrics = self._metrics(block, self.section)
            found += deviations(
                block.measured,
                metrics,
                of=f"{block.name}: ",
                fitted=any(block is each for each in self._fitted),
            )
        return found

    def fitted(self) -> dict[str, float]:
        """The fitted values by their keys in ``cluster``."""
        crowd = ["token_s", "crowding"] if len(self._fitted) > 1 else []
        names = ["step_factor", "request_s", "request_spread", *crowd]
        return {name: getattr(self.section, name) for name in names}

    def _fit(self, tell: Callable[[str], None]) -> ClusterSection:
        alone, *others = self._fitted
        section = replace(
            self._study.config.cluster,
            request_s=0.0,
            request_spread=0.0,
            step_factor=1.0,
            token_s=0.0,
            crowding=1.0,
        )
        tell(f"fitting cluster.step_factor, cluster.request_s and cluster.request_spread to {alone.name}")
        decoding_s = alone.measured.total_s.mean - alone.measured.ttft_s.mean

        def decodes(factor: float) -> float:
            metrics = self._metrics(alone, replace(section, step_factor=factor))
            return metrics.total_s.mean - metrics.ttft_s.mean

        section = replace(section, step_factor=_solve(decodes, decoding_s, 1 / _MOST_FACTOR, _MOST_FACTOR))
        for _ in range(_TURNS):
            section = self._fit_request(section, alone)
        for other in others:
            tell(f"fitting cluster.token_s and cluster.crowding to {other.name}")
            for _ in range(_TURNS):
                section = self._fit_crowd(section, other)
        return section

    def _fit_request(self, section: ClusterSection, block: Block) -> ClusterSection:
        """Fit ``request_s`` to the median time to first token, then ``request_spread`` to its 95th percentile."""
        measured = block.measured.ttft_s
        short_s = measured.p50 - self._metrics(block, section).ttft_s.p50
        found = replace(section, request_s=max(0.0, section.request_s + short_s))

        def late(spread: float) -> float:
            return self._metrics(block, replace(found, request_spread=spread)).ttft_s.p95

        return replace(found, request_spread=_solve(late, measured.p95, 0.0, _MOST_SPREAD))

    def _fit_crowd(self, section: ClusterSection, block: Block) -> ClusterSection:
        """Fit ``token_s`` to the mean end-to-end time, then ``crowding`` to the mean time to first token."""

        def ends(token_s: float) -> float:
            return self._metrics(block, replace(section, token_s=token_s)).total_s.mean

        found = replace(section, token_s=_solve(ends, block.measured.total_s.mean, 0.0, _MOST_TOKEN_S))

        def begins(crowding: float) -> float:
            return self._metrics(block, replace(found, crowding=crowding)).ttft_s.mean

        return replace(found, crowding=_solve(begins, block.measured.ttft_s.mean, 0.0, _MOST_FACTOR))

    def _metrics(self, block: Block, section: ClusterSection) -> RunMetrics:
        study, scripts = self._study, self._study.trace.scripts
        run = Cluster(
            section,
            study.config.engine,
            study.costs,
            [both.parallel if block.way == "parallel" else both.sequential for both in scripts],
            Users(block.clients, 0.0, study.config.seed, most=len(scripts)),
            placement=study.config.placements[0] if block.way == "parallel" else "local",
            overhead_s=study.overhead_s,
            schedules=study.schedules,
        ).run(len(scripts))
        # the last block ends the load, as a trace's end does
        return metrics_of(run, section.gpus_per_replica, "trace")


def _solve(rising: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Find by bisection where a rising function has a value; the nearest end if it does not."""
    if rising(low) >= wanted * (1 - _ENOUGH):
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) >= wanted else (middle, high)
    return (low + high) / 2


def _measured(rounds: Sequence[Mapping[str, Any]]) -> Measured:
    answers = [answer for each in rounds for answer in each["answers"]]
    return Measured(
        Distribution.of(float(answer["ttft_s"]) for answer in answers if answer["ttft_s"] is not None),
        Distribution.of(float(answer["total_s"]) for answer in answers),
        len(answers) / sum(float(each["seconds"]) for each in rounds),
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file; none if the file is of another kind (the next reader reports what is wrong with it)."""
    try:
        return [row for _, row in read_rows(path)]
    except UserError:
        return []


def _key(messages: Messages) -> str:
    return json.dumps([[turn["role"], turn["content"]] for turn in messages])
