"""Generates answers to held-out prompts during training, and measures whether they are well-formed and parallel."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from pasta.data.linearise import fault_in, prompt_length, without_tags
from pasta.engine import Engine, EngineConfig, LoadedModel, Request, Result
from pasta.engine.formats import NumberFormat
from pasta.errors import UserError
from pasta.interpreter import Limits
from pasta.lang import Codec, to_text
from pasta.stages.progress import Progress
from pasta.statistics import geometric_mean


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One held-out document: token ids of its prompt, and of its answer in storage order with end-of-text."""

    prompt_ids: list[int]
    response_ids: list[int]


@dataclass(frozen=True, slots=True)
class HeldOutAnswer:
    """One generated answer, as a row of ``COLUMNS``.

    ``speedup`` is the number of tokens of the answer's own text (tags left out, end-of-text counted) over its
    critical path: the gain over decoding the same text sequentially.
    """

    prompt: str
    answer: str
    expected: str
    well_formed: bool
    threads: int
    tokens: int
    critical_path: int
    speedup: float


#: Columns of the table of examples, in order.
COLUMNS = tuple(each.name for each in fields(HeldOutAnswer))


def documents_of(rows: Sequence[Mapping[str, Any]], count: int, codec: Codec) -> list[HeldOut]:
    """The first ``count`` documents of packed rows, taken apart again. Of an answer that is there in both forms the one
    with threads counts, as one document."""
    found: dict[tuple[int, ...], HeldOut] = {}
    for document in (document for row in rows for document in _unpacked(row)):
        known = (*document.prompt_ids, *without_tags(codec, document.response_ids))
        found[known] = max(found.get(known, document), document, key=lambda each: len(each.response_ids))
    return list(islice(found.values(), count))


def generate_answers(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    documents: Sequence[HeldOut],
    *,
    max_tokens: int,
    parallel: bool,
    progress: Progress | None = None,
) -> list[HeldOutAnswer]:
    """Greedy answers to the documents' prompts, four at a time, from a model in memory, in its weights' format.

    Leaves the model in the mode (training or evaluation) in which it was. ``progress`` is told of each answer.
    """
    if not documents:
        return []
    codec = Codec(tokenizer)
    longest = max(len(document.prompt_ids) for document in documents)
    # Nothing is captured or traced: that takes longer than a few answers, and memory that training needs.
    config = EngineConfig(
        num_slots=min(4, len(documents)),
        slot_tokens=longest + max_tokens + 8,
        trace_forward=False,
        cuda_graphs="off",
    )
    limits = Limits(max_tokens=max_tokens, max_chunk_tokens=max_tokens)
    was_training = model.training
    model.eval()
    # What training wraps around the class's own forward. Under autocast keys and values differ from the cache's format.
    wrapped = vars(model).pop("forward", None)
    try:
        number_format = NumberFormat(str(model.dtype).removeprefix("torch."))
        loaded = LoadedModel(model, tokenizer, codec, "in training", num_parameters=0, format=number_format)
        engine = Engine(loaded, config)
        requests = [
            Request(prompt_ids=document.prompt_ids, limits=limits, parallel=parallel, request_id=str(number))
            for number, document in enumerate(documents)
        ]
        results = {}
        with torch.no_grad():
            for result in engine.decode(requests):
                results[result.request_id] = result
                if progress is not None:
                    progress.add()
    finally:
        if wrapped is not None:
            model.forward = wrapped
        model.train(was_training)
    return [_answer(codec, document, results[str(number)]) for number, document in enumerate(documents)]


def figures_of(answers: Sequence[HeldOutAnswer]) -> dict[str, float]:
    """``well_formed`` (share), ``speedup`` (geometric mean) and ``threads`` (mean) of generated answers."""
    if not answers:
        return {}
    return {
        "well_formed": sum(answer.well_formed for answer in answers) / len(answers),
        "speedup": geometric_mean([answer.speedup for answer in answers]),
        "threads": sum(answer.threads for answer in answers) / len(answers),
    }


def _unpacked(row: Mapping[str, Any]) -> Iterator[HeldOut]:
    first = 0
    for count in row["num_segments"]:
        places = [i for i, segment in enumerate(row["segment_ids"]) if first <= segment < first + count]
        first += count
        ids = [row["input_ids"][i] for i in places]
        given = prompt_length([row["shift_labels"][i] for i in places])
        yield HeldOut(ids[:given], ids[given:])


def _answer(codec: Codec, document: HeldOut, result: Result) -> HeldOutAnswer:
    ids = list(result.response_ids)
    plain = [token for token in without_tags(codec, ids) if token not in codec.eos_ids]
    # A model at the start of its training may write nothing but tags.
    speedup = (len(plain) + 1) / max(result.critical_path, 1)
    return HeldOutAnswer(
        prompt=codec.decode_text([i for i in document.prompt_ids if i not in codec.special_ids]),
        answer=_text(codec, ids),
        expected=_text(codec, document.response_ids),
        well_formed=not fault_in(codec, ids),
        threads=len(result.trace.threads),
        tokens=len(ids),
        critical_path=result.critical_path,
        speedup=speedup,
    )


def _text(codec: Codec, response_ids: Sequence[int]) -> str:
    """The answer in text form; as far as it can be read if it was cut off."""
    ids = [token for token in response_ids if token not in codec.eos_ids]
    try:
        return to_text(codec.decode(ids))
    except UserError:
        return codec.decode_text(without_tags(codec, ids))
