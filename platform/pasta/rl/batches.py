"""The batches of a run: the prompts of each, its answers and their rewards. All workers get the same.

One worker, rank 0, samples answers and judges them, and sends the results to the others. With ``staleness`` 1 it does
so in a thread of its own, while all of them train.
"""

import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any

import torch
import torch.distributed as dist

from pasta.data.prompts import Prompt
from pasta.judges import judge_records
from pasta.judges.judge import Judge
from pasta.lang import TagGrammar
from pasta.rl.batch import is_chosen
from pasta.rl.clock import StepClock
from pasta.rl.config import RlConfig
from pasta.rl.rewards import rewarded
from pasta.rl.rollouts import Group, Rollout, Rollouts
from pasta.rl.weights import whole_weights
from pasta.stages.records import Record

#: Figures of answers that the trainer averages over a batch and logs under these names (TRL's ``log_metric``).
ANSWER_FIGURES = ("quality", "speedup", "threads", "wrong", "cut")


@dataclass(frozen=True, slots=True)
class Source:
    """What only rank 0 has: the source of answers, and their judge."""

    rollouts: Rollouts
    judge: Judge


@dataclass(slots=True)
class AnsweredBatch:
    """A batch with its answers, those to one prompt beside each other, and figures of the batch as a whole."""

    answers: list[Record]
    figures: dict[str, float] = field(default_factory=dict)


def prompts_by_batch(config: RlConfig, num_prompts: int) -> list[list[int]]:
    """The numbers of the prompts of each batch: all prompts in a new order, again and again."""
    order: list[int] = []
    needed, epoch = config.num_batches * config.rollout.prompts, 0
    while len(order) < needed:
        numbers = list(range(num_prompts))
        random.Random(f"rl:{config.prompts.seed}:{epoch}").shuffle(numbers)
        order += numbers
        epoch += 1
    size = config.rollout.prompts
    return [order[at : at + size] for at in range(0, needed, size)]


class Batches:
    """TRL's ``rollout_func``, and the reward function that goes with it.

    ``records`` are the prompts with the twin's answers (``pasta.rl.train.prepare``); ``source`` is None on all ranks
    but the first. ``close`` stops sampling ahead.
    """

    def __init__(
        self, config: RlConfig, records: Sequence[Record], grammar: TagGrammar, source: Source | None
    ) -> None:
        self._config, self._records, self._grammar, self._source = config, records, grammar, source
        self.schedule = prompts_by_batch(config, len(records))
        self._ahead: tuple[int, Future[tuple[Rollout, list[Record]]]] | None = None
        self._pool = ThreadPoolExecutor(1) if source is not None else None
        self._clock = StepClock()
        self._dtype = getattr(torch, config.engine.dtype)
        #: The last batch, on rank 0: for the table of examples.
        self.last: tuple[list[Record], list[Record]] | None = None
        self._figures: dict[str, float] = {}

    def close(self) -> None:
        """Stop sampling ahead, without waiting for it."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """This rank's share of the next batch, one answer for each of ``prompts``."""
        number = trainer.state.global_step // self._config.objective.updates
        self._clock.training_ended()
        answered = self._shared(self._answers(number, trainer.model))
        rank, count = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        share = len(answered.answers) // count
        mine = answered.answers[rank * share : (rank + 1) * share]
        assert [answer["id"] for answer in mine] == [Prompt(messages).id for messages in prompts]
        self._figures = answered.figures
        self._clock.training_began(
            sum(len(a["prompt_ids"]) + len(a["response_ids"]) for a in answered.answers)
        )
        return {
            "prompt_ids": [answer["prompt_ids"] for answer in mine],
            "completion_ids": [answer["response_ids"] for answer in mine],
            "logprobs": [answer["logprobs"] for answer in mine] if "logprobs" in mine[0] else None,
            "env_mask": [self._learned(answer["response_ids"], cut=bool(answer["cut"])) for answer in mine],
            "answer": mine,
        }

    def _learned(self, response_ids: Sequence[int], *, cut: bool) -> list[int]:
        """1 for each token of an answer that is learned from."""
        if cut and self._config.objective.mask_cut:
            return [0] * len(response_ids)
        return is_chosen(self._grammar, response_ids, cut=cut)

    def rewards(
        self, completions: Sequence[Any], answer: Sequence[Record], log_metric: Any, **_: Any
    ) -> list[Any]:
        """TRL's reward function: the rewards found already; None for an answer without a verdict."""
        for entry in answer:
            for name in ANSWER_FIGURES:
                if entry.get(name) is not None:
                    log_metric(name, entry[name])
        for name, value in self._figures.items():
            log_metric(name, value)
        return [entry["reward"] for entry in answer]

    # -- rank 0 ----------------------------------------------------------------------------------------

    def _answers(self, number: int, model: Any) -> AnsweredBatch | None:
        """The answers of batch ``number``, and the next one asked for if it may be sampled ahead; None except on
        rank 0."""
        ahead, self._ahead = self._ahead, None
        found = ahead[1].result() if ahead is not None and ahead[0] == number else None
        # Old weights may be freed only when nothing samples from them any more.
        weights = whole_weights(model, self._dtype, keep=self._source is not None)
        if self._source is None or self._pool is None:
            return None
        self._source.rollouts.publish(weights, number)
        del weights
        if found is None:
            found = self._pool.submit(self._roll, number).result()
        if self._config.rollout.staleness and number + 1 < len(self.schedule):
            self._ahead = (number + 1, self._pool.submit(self._roll, number + 1))
        rollout, records = found
        self.last = records, [self._records[n] for n in self.schedule[number]]
        figures = {
            "staleness": float(number - rollout.version),
            "lost_actors": float(rollout.lost),
            **_spread(records, self._config.sampling.candidates),
            **self._clock.figures(rollout.began, rollout.ended, sum(r["num_tokens"] for r in records)),
        }
        return AnsweredBatch(records, figures)

    def _roll(self, number: int) -> tuple[Rollout, list[Record]]:
        """Sample and judge a batch. The answers come in the order of its prompts."""
        assert self._source is not None
        prompts = [self._records[n] for n in self.schedule[number]]
        groups, before = [], Counter[str]()
        for prompt in prompts:
            # A prompt that a batch has twice gets other answers the second time.
            again = f" {n}" if (n := before[prompt["id"]]) else ""
            groups.append(Group(prompt["id"] + again, prompt["prompt_ids"]))
            before[prompt["id"]] += 1
        rollout = self._source.rollouts.sample(number, groups)
        samples = [
            {**prompt, "candidates": candidates}
            for prompt, candidates in zip(prompts, rollout.candidates, strict=True)
        ]
        verdicts = judge_records(self._source.judge, samples)
        answers: list[Record] = []
        for sample, judged in zip(samples, verdicts, strict=True):
            asked = {"id": sample["id"], "prompt_ids": sample["prompt_ids"]}
            answers += [
                {
                    **answer,
                    **asked,
                    "threads": answer["num_threads"],
                    "cut": float(answer["finish_reason"] != "stop"),
                }
                for answer in rewarded(sample, judged["verdicts"], self._config.reward)
            ]
        return rollout, answers

    @staticmethod
    def _shared(found: AnsweredBatch | None) -> AnsweredBatch:
        """Rank 0's results, on every rank."""
        if dist.is_initialized() and dist.get_world_size() > 1:
            box = [found]
            dist.broadcast_object_list(box, src=0)
            found = box[0]
        assert found is not None
        return found


def _spread(answers: Sequence[Record], size: int) -> dict[str, float]:
    """``reward_spread``: the standard deviation of rewards within a prompt, a mean over prompts."""
    groups = [
        [answer["reward"] for answer in answers[at : at + size] if answer["reward"] is not None]
        for at in range(0, len(answers), size)
    ]
    spreads = [pstdev(rewards) for rewards in groups if rewards]
    return {"reward_spread": fmean(spreads)} if spreads else {}
