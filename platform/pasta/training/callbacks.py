"""Reports a run: progress lines, tracked metrics, checkpoints."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler

from pasta.interpreter import TokenKind
from pasta.tracking import Tracker
from pasta.training.config import MOST_HEADS

#: The name of each kind of target in the name of its loss.
KIND_NAMES = {
    TokenKind.TEXT: "text",
    TokenKind.PROMISE: "promise",
    TokenKind.TOPIC: "topic",
    TokenKind.ESTIMATE: "estimate",
    TokenKind.CLOSE: "promise_end",
    TokenKind.ASYNC_CLOSE: "async_end",
    TokenKind.SYNC: "sync",
    TokenKind.EOS: "end",
}

#: The trainers' names of metrics → the names under which they are tracked. All losses are in nats.
LOGGED = {
    # Supervised and preference runs; token_accuracy and entropy where TRL's fused head reports them.
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "learning_rate": "train/learning_rate",
    "mean_token_accuracy": "train/token_accuracy",
    "entropy": "train/entropy",
    "eval_loss": "eval/loss",
    "eval_mean_token_accuracy": "eval/token_accuracy",
    # Supervised runs: held-out loss by kind of target.
    **{f"eval_loss_{kind}": f"eval/loss_{kind}" for kind in KIND_NAMES.values()},
    # Supervised runs with data.eval_answers: the share of generated answers that are well-formed, the geometric mean
    # of their tokens without tags over their critical path, and their mean number of threads. The answers themselves
    # are the table eval/examples.
    "eval_well_formed": "eval/well_formed",
    "eval_speedup": "eval/speedup",
    "eval_threads": "eval/threads",
    # Supervised runs of draft heads: the share of held-out tokens that each head gets right.
    **{f"eval_head_{depth}": f"eval/head_{depth}" for depth in range(1, MOST_HEADS + 1)},
    # Preference runs, means over pairs: β times the log-ratio that the better answer has over the worse (margin; 0.5
    # is what BoNBoN aims at), each one's own (reward), summed log-probabilities, and how often the margin is positive.
    **{
        f"{prefix}{key}": f"{prefix.removesuffix('_') or 'train'}/{name}"
        for prefix in ("", "eval_")
        for key, name in {
            "rewards/margins": "margin",
            "rewards/accuracies": "preference_accuracy",
            "rewards/chosen": "reward_chosen",
            "rewards/rejected": "reward_rejected",
            "logps/chosen": "logp_chosen",
            "logps/rejected": "logp_rejected",
        }.items()
    },
    # Reinforcement learning, of the batch that was learnt from: means over answers (the share of right statements or
    # of won comparisons, theoretical speedup, threads, wrong statements where a judge counts them, tokens, the share
    # that was cut) and over tokens (divergence from the reference in nats, the share whose ratio was clipped); how
    # many batches older the weights that sampled were; actors that died; tokens a second of sampling and of training;
    # the share of a step in which neither ran. The answers themselves are the table rl/examples.
    "reward": "rl/reward",
    "reward_spread": "rl/reward_spread",
    "quality": "rl/quality",
    "speedup": "rl/speedup",
    "threads": "rl/threads",
    "wrong": "rl/wrong",
    "completions/mean_length": "rl/answer_tokens",
    "cut": "rl/cut",
    "kl": "rl/kl",
    "clip_ratio/region_mean": "rl/clip_share",
    "staleness": "rl/staleness",
    "lost_actors": "rl/lost_actors",
    "rollout_tokens_per_second": "rl/rollout_tokens_per_second",
    "training_tokens_per_second": "rl/training_tokens_per_second",
    "idle_share": "rl/idle_share",
}

#: The figures of reinforcement learning in a progress line.
_PRINTED = ("reward", "quality", "speedup", "staleness")


class ProgressReporter(TrainerCallback):
    """Prints one line each time the trainer logs, after the last step too, and tracks the metrics in ``LOGGED`` and
    tokens a second. The seconds of evaluations and checkpoints are left out; a callback that reports checkpoints has to
    come before this one."""

    def __init__(self, tracker: Tracker, rank: int) -> None:
        self._tracker = tracker
        self._rank = rank
        self._started = 0.0
        self._first_step = 0
        self._last = (0.0, 0)
        self._trained = 0.0  # when the last step, evaluation or checkpoint ended

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._started = time.perf_counter()
        self._first_step = state.global_step
        self._last = (self._started, state.num_input_tokens_seen)
        self._trained = self._started
        if self._rank == 0:
            origin = f"resumed at step {state.global_step}" if state.global_step else "started"
            print(f"training {origin}; {state.max_steps} steps in all", flush=True)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._trained = time.perf_counter()
        if state.global_step == state.max_steps and args.logging_strategy != "no":
            control.should_log = True

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._leave_out()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._leave_out()

    def _leave_out(self) -> None:
        """Take the seconds since ``_trained`` for none of training."""
        now = time.perf_counter()
        self._last = (self._last[0] + now - self._trained, self._last[1])
        self._trained = now

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if self._rank != 0 or not logs:
            return
        figures = {name: float(logs[key]) for key, name in LOGGED.items() if logs.get(key) is not None}
        if any(name.startswith("eval/") for name in figures):  # answers are generated after on_evaluate
            self._leave_out()
        if not figures:
            return
        now = time.perf_counter()
        if "loss" in logs:
            seconds, tokens = now - self._last[0], state.num_input_tokens_seen - self._last[1]
            # In reinforcement learning a batch counts when it comes, though several steps may be taken on it.
            if tokens:
                self._last, self._trained = (now, state.num_input_tokens_seen), now
                figures["train/tokens_per_second"] = tokens / max(seconds, 1e-9)
            figures["train/tokens"] = float(state.num_input_tokens_seen)
        self._tracker.log(figures, step=state.global_step)
        print(self._line(figures, state, now), flush=True)

    def _line(self, figures: dict[str, float], state: TrainerState, now: float) -> str:
        parts = [f"step {state.global_step}/{state.max_steps}"]
        if "train/loss" in figures:
            done = max(state.global_step - self._first_step, 1)
            eta = (now - self._started) / done * (state.max_steps - state.global_step)
            parts += [
                f"loss {figures['train/loss']:.4f}",
                f"grad {figures.get('train/grad_norm', 0.0):.3g}",
                f"lr {figures.get('train/learning_rate', 0.0):.2e}",
            ]
            if "train/tokens_per_second" in figures:
                parts.append(f"{figures['train/tokens_per_second']:,.0f} tokens/s")
            parts.append(f"eta {eta / 60:.1f} min")
            if "train/margin" in figures:
                parts.append(f"margin {figures['train/margin']:+.4f}")
            parts += [f"{key} {figures[f'rl/{key}']:.3f}" for key in _PRINTED if f"rl/{key}" in figures]
        if "eval/loss" in figures:
            parts.append(f"held-out loss {figures['eval/loss']:.4f}")
        kinds = [name for name in figures if name.startswith("eval/loss_")]
        if kinds:
            parts.append("held-out loss by kind:")
            parts += [f"{name.removeprefix('eval/loss_')} {figures[name]:.4f}" for name in kinds]
        if "eval/speedup" in figures:
            parts.append(f"answers well-formed {figures['eval/well_formed']:.0%}")
            parts.append(f"speedup {figures['eval/speedup']:.2f}")
        return "  ".join(parts)


class EpochOrder(TrainerCallback):
    """Draws each epoch's order of rows from the seed and the epoch's number, so that all ranks and a resumed run have
    the same. Otherwise the sampler draws it from the process's random state, which differs between ranks with adapters,
    and which a run that resumes in the middle of an epoch has no longer."""

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        sampler = kwargs["train_dataloader"].batch_sampler
        while sampler is not None and not isinstance(sampler, LengthGroupedSampler):
            sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
        if sampler is not None:
            sampler.generator = torch.Generator().manual_seed(args.seed + int(state.epoch or 0))


class ConfiguredSteps(TrainerCallback):
    """Has a run take the steps of its configuration, also where it resumes.

    It logs and saves at the configured steps: a trainer that resumes takes those of the run that left the checkpoint.
    One that resumes from its last checkpoint in the middle of an epoch takes one step more, whose learning rate is set
    to 0, so that it changes nothing, and which is not counted, logged or saved. After the last step nothing is
    evaluated: the figures of the finished model are taken when training has ended, on the same data.
    """

    def __init__(self) -> None:
        #: The step and the tokens seen where this process's part of the run begins.
        self.first_step = self._tokens = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.first_step, self._tokens = state.global_step, state.num_input_tokens_seen
        state.compute_steps(args, state.max_steps)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step >= state.max_steps:
            for group in kwargs["optimizer"].param_groups:
                group["lr"] = 0.0

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step >= state.max_steps:
            control.should_evaluate = False
        if state.global_step > state.max_steps:
            state.global_step = state.max_steps
            # Only a run with nothing left to do takes such a step.
            state.num_input_tokens_seen = self._tokens
            control.should_log = control.should_save = False


class CheckpointReporter(TrainerCallback):
    """Reports each finished checkpoint: its directory on rank 0, None on the others."""

    def __init__(self, report: Callable[[dict[str, float], Path | None], None], rank: int) -> None:
        self._report = report
        self._rank = rank

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # Every worker writes its own optimizer shard and random state: rank 0 must wait for all of them.
        if dist.is_initialized():
            dist.barrier()
        losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
        metrics = {"step": float(state.global_step)} | ({"loss": float(losses[-1])} if losses else {})
        checkpoint = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        self._report(metrics, checkpoint if self._rank == 0 else None)
