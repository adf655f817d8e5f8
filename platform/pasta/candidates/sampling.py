"""Candidates for preference finetuning: N sampled answers a prompt, and the sequential twin's greedy one.

A record is JSON-able and depends on the prompt, the models and the seed alone, not on what was decoded beside it:

    {"id", "messages",
     "twin": {"text", "num_tokens", "finish_reason"},
     "candidates": [{"annotated", "response_ids", "finish_reason", "num_tokens", "text_tokens", "critical_path",
                     "num_threads"}]}

``annotated`` is the text form and ``response_ids`` the tokens in storage order, end-of-text last. ``num_tokens`` counts
every token of a response, tags and end-of-text included, ``text_tokens`` only text and end-of-text; ``critical_path``
is in steps of one token (design section 3). A prompt that leaves no room for an answer has ``"skipped": reason`` in
place of twin and candidates.
"""

from collections.abc import Sequence

from pasta.candidates.checks import check_vocabularies
from pasta.candidates.config import SampleConfig, SamplingSection
from pasta.data.prompts import Prompt
from pasta.engine import Engine, EngineConfig, Request, Result, load_model
from pasta.engine.ranks import Ranks
from pasta.errors import UserError
from pasta.interpreter import Limits, token_budget
from pasta.lang import Codec, encode_messages, to_text
from pasta.stages.records import Record


class Sampler:
    """Two engines over one vocabulary: ``pasta`` draws candidates, ``twin`` the baseline (they may be the same)."""

    def __init__(self, pasta: Engine, twin: Engine, sampling: SamplingSection, limits: Limits) -> None:
        self.pasta, self.twin = pasta, twin
        self.sampling, self.limits = sampling, limits

    def sample(self, prompts: Sequence[Prompt]) -> list[Record]:
        """Decode the answers of some prompts together; returns the record of each prompt."""
        numbers = range(self.sampling.candidates)
        records, requests = requests_of(prompts, Request(limits=self.limits), self.pasta, self.twin)
        baselines = [request.replace(parallel=False) for request in requests.values()]
        candidates = [
            request.replace(request_id=f"{key} {n}", sampling=self.sampling.params(key, n))
            for key, request in requests.items()
            for n in numbers
        ]
        greedy = {result.request_id: result for result in self.twin.decode(baselines)}
        drawn = {result.request_id: result for result in self.pasta.decode(candidates)}
        codec = self.pasta.codec
        for key in requests:
            records[key]["twin"] = baseline_entry(greedy[key])
            records[key]["candidates"] = [candidate_entry(drawn[f"{key} {n}"], codec) for n in numbers]
        return list(records.values())

    def number_formats(self) -> dict[str, str]:
        """The number format that each model computes in here, which ``dtype: auto`` leaves to the machine."""
        return {"model": self.pasta.loaded.format.name, "twin": self.twin.loaded.format.name}


def requests_of(
    prompts: Sequence[Prompt], base: Request, *engines: Engine
) -> tuple[dict[str, Record], dict[str, Request]]:
    """The record of each prompt so far, and ``base`` with the prompt, both by its id.

    A prompt that leaves no room for an answer in one of the engines has ``skipped`` in its record, and no request.
    """
    records: dict[str, Record] = {}
    requests: dict[str, Request] = {}
    for prompt in prompts:
        records[prompt.id] = {"id": prompt.id, "messages": prompt.messages}
        try:
            ids = encode_messages(engines[0].codec, prompt.messages)
            request = base.replace(prompt_ids=ids, request_id=prompt.id)
            for engine in engines:
                engine.fit(request)
        except UserError as error:
            records[prompt.id]["skipped"] = str(error)
        else:
            requests[prompt.id] = request
    return records, requests


def load_sampler(config: SampleConfig, ranks: Ranks | None = None) -> Sampler:
    """Load the configuration's models, or with ``ranks`` this process's parts of them, into a sampler.

    Raises UserError if one cannot be loaded or they do not fit together.
    """
    section = config.engine
    loaded = load_model(config.model, dtype=section.dtype, device=section.device, ranks=ranks)
    pasta = twin = Engine(loaded, EngineConfig.of(section))
    if config.twin is not None and config.twin != config.model:
        baseline = load_model(config.twin, dtype=section.dtype, device=section.device, ranks=ranks)
        check_vocabularies(loaded.tokenizer, config.model, baseline.tokenizer, config.twin)
        twin = Engine(baseline, EngineConfig.of(section))
    return Sampler(pasta, twin, config.sampling, config.limits)


def baseline_entry(result: Result) -> Record:
    """The twin's answer, as in a record."""
    return {"text": result.text, "num_tokens": result.num_tokens, "finish_reason": result.finish_reason}


def candidate_entry(result: Result, codec: Codec) -> Record:
    """One candidate, as in a record."""
    assert result.document is not None  # no stop strings
    return {
        "annotated": to_text(result.document),
        "response_ids": list(result.response_ids),
        "finish_reason": result.finish_reason,
        "num_tokens": result.num_tokens,
        "text_tokens": token_budget(codec.grammar, result.response_ids)["text"],
        "critical_path": result.critical_path,
        "num_threads": len(result.trace.threads),
    }
