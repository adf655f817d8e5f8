"""Samples groups of answers from the policy as it learns, and the twin's answers that they are measured by."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from pasta.candidates.sampling import baseline_entry, candidate_entry, requests_of
from pasta.data.prompts import Prompt
from pasta.engine import Engine, EngineConfig, Request, load_model
from pasta.engine.sampling import ConstraintTable
from pasta.engine.updating import update_weights
from pasta.rl.batch import thread_batch
from pasta.rl.config import RlConfig
from pasta.rl.rollouts import Group, Weights
from pasta.stages.records import Record
from pasta.training.masks import thread_mask


class Roller:
    """One engine that samples from the policy."""

    def __init__(self, config: RlConfig) -> None:
        self._config = config
        section = config.engine
        loaded = load_model(str(config.model.init_from), dtype=section.dtype, device=section.device)
        # Drafts change no token, since they are verified; but they cost time where many requests share a forward.
        settings = replace(EngineConfig.of(section), prefill_ahead=False, drafts=0, draft_heads=False)
        self.engine = Engine(loaded, settings)
        vocab_size = loaded.model.config.get_text_config().vocab_size
        self._constraints = ConstraintTable(loaded.codec.grammar, vocab_size, loaded.model.device)

    def load(self, weights: Weights) -> None:
        """Sample with these weights from now on."""
        update_weights(self.engine, weights)

    def sample(self, batch: int, groups: Sequence[Group], *, score: bool) -> list[list[Record]]:
        """The candidates of each group (``pasta.candidates.sampling``).

        With ``score`` each has ``logprobs`` too: of its tokens in storage order, by these weights at the sampling
        temperature, as a trainer under thread masks would find them; 0 for given ones.
        """
        sampling, requests = self._config.sampling, []
        for number, group in enumerate(groups):
            for n in range(sampling.candidates):
                params = sampling.params(f"{batch} {group.id}", n)
                requests.append(
                    Request(
                        prompt_ids=group.prompt_ids,
                        sampling=params,
                        limits=self._config.limits,
                        drafts=False,
                        request_id=f"{number} {n}",
                    )
                )
        codec = self.engine.codec
        drawn = {result.request_id: candidate_entry(result, codec) for result in self.engine.decode(requests)}
        found = [
            [drawn[f"{number} {n}"] for n in range(sampling.candidates)] for number in range(len(groups))
        ]
        if score:
            for group, candidates in zip(groups, found, strict=True):
                self._score(group, candidates)
        return found

    @torch.no_grad()
    def _score(self, group: Group, candidates: Sequence[Record]) -> None:
        loaded, config = self.engine.loaded, self._config
        model, rows = loaded.model, config.optimisation.rows
        for at in range(0, len(candidates), rows):
            chosen = candidates[at : at + rows]
            batch = thread_batch(
                self._constraints,
                config.limits,
                [(group.prompt_ids, candidate["response_ids"]) for candidate in chosen],
                int(loaded.codec.eos_id),
            ).to(model.device)
            inputs = batch.inputs
            mask = thread_mask(
                model.config, inputs["segment_ids"], inputs["sees"], inputs["position_ids"], model.dtype
            )
            logits = model(
                input_ids=inputs["input_ids"],
                position_ids=inputs["position_ids"],
                attention_mask=mask,
                logits_to_keep=batch.columns,
                use_cache=False,
            ).logits
            own, _ = batch.log_probs(logits, self._constraints.forbidden, config.sampling.temperature)
            lengths = [len(candidate["response_ids"]) for candidate in chosen]
            by_token = batch.by_token(own, max(lengths)).tolist()
            for candidate, values, length in zip(chosen, by_token, lengths, strict=True):
                candidate["logprobs"] = values[:length]


class Baselines:
    """The twin: answers each prompt once, sequentially and greedily."""

    def __init__(self, config: RlConfig) -> None:
        section = config.engine
        loaded = load_model(
            config.twin or str(config.model.init_from), dtype=section.dtype, device=section.device
        )
        self._engine, self._limits = Engine(loaded, EngineConfig.of(section)), config.limits

    def answer(self, prompts: Sequence[Prompt]) -> list[Record]:
        """``{"id", "messages", "prompt_ids", "twin"}`` of each prompt; ``skipped`` in place of the last two, and why,
        for one that leaves no room for an answer."""
        base = Request(limits=self._limits, parallel=False)
        records, requests = requests_of(prompts, base, self._engine)
        for key, request in requests.items():
            records[key]["prompt_ids"] = list(request.prompt_ids)
        for result in self._engine.decode([*requests.values()]):
            records[result.request_id]["twin"] = baseline_entry(result)
        return list(records.values())
