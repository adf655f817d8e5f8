"""What evaluation during training says: losses by kind of token, and answers that the model writes."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoTokenizer

from pasta.config import parse_config
from pasta.data.collate import ThreadCollator
from pasta.data.dataset import TOKENIZER_DIR
from pasta.data.linearise import FORMS, make_example
from pasta.engine import Engine, EngineConfig
from pasta.interpreter import TokenKind
from pasta.lang import Codec, to_text
from pasta.stages.progress import Progress
from pasta.tracking import Tracker
from pasta.training import held_out
from pasta.training.callbacks import KIND_NAMES
from pasta.training.config import SftConfig
from pasta.training.held_out import COLUMNS, HeldOut, documents_of, figures_of, generate_answers
from pasta.training.run import RunContext
from pasta.training.sft import make_trainer, prepare
from pasta.training.trainer import EXAMPLES
from tests.support.documents import random_document
from tests.support.models import tiny
from tests.support.packed import to_dataset
from tests.support.tokenizers import byte_level
from tests.training.runs import sft_dict

CODEC = Codec(byte_level())
MESSAGES = [{"role": "user", "content": "Hi"}]


class Tables(Tracker):
    """Keeps the tables that are recorded."""

    def __init__(self) -> None:
        self.tables: dict[str, Any] = {}

    def table(self, name: str, columns: Any, rows: Any) -> None:
        self.tables[name] = (list(columns), list(rows))


def _evaluate(
    directory: Path, tracker: Tracker, *, precision: str = "fp32", **data: Any
) -> tuple[Any, dict[str, float]]:
    values = sft_dict(directory, precision=precision)
    values["data"] |= data
    config = parse_config(values, SftConfig, "tiny.yaml")
    prepared = prepare(config, directory / "data")
    tokenizer = AutoTokenizer.from_pretrained(prepared.path / TOKENIZER_DIR)
    context = RunContext(prepared.path, directory / "work", False, lambda metrics, checkpoint: None)
    trainer = make_trainer(config, context, tokenizer, [], tracker)
    return trainer, trainer.evaluate()


def _losses_by_kind(trainer: Any) -> dict[TokenKind, list[float]]:
    batch = ThreadCollator(pad_id=0, with_kinds=True)(list(trainer.eval_dataset))
    kinds, targets = batch.pop("kinds"), batch.pop("shift_labels")
    del batch["labels"]
    with torch.no_grad():
        losses = F.cross_entropy(
            trainer.model(**batch).logits.flatten(0, 1), targets.flatten(), reduction="none"
        )
    by_kind = defaultdict(list)
    for loss, kind, target in zip(losses, kinds.flatten(), targets.flatten(), strict=True):
        if target != -100:
            by_kind[TokenKind(int(kind))].append(float(loss))
    return by_kind


def test_held_out_loss_is_split_by_kind_of_target(tmp_path: Path) -> None:
    trainer, figures = _evaluate(tmp_path, Tracker())
    by_kind = _losses_by_kind(trainer)
    assert set(by_kind) == set(KIND_NAMES)
    for kind, values in by_kind.items():
        mean = sum(values) / len(values)
        assert figures[f"eval_loss_{KIND_NAMES[kind]}"] == pytest.approx(mean, rel=1e-4)


def test_held_out_loss_is_a_mean_over_tokens_however_they_are_batched(tmp_path: Path) -> None:
    trainer, figures = _evaluate(tmp_path, Tracker(), eval_documents=5, row_length=1)
    losses = [loss for losses in _losses_by_kind(trainer).values() for loss in losses]
    assert figures["eval_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)


@pytest.mark.slow
def test_an_evaluation_tells_one_held_out_loss(tmp_path: Path) -> None:
    trainer, figures = _evaluate(tmp_path, Tracker(), eval_documents=5, eval_answers=1, row_length=1)
    told = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert told == [figures["eval_loss"]]


def test_answers_to_held_out_prompts_are_generated_and_tabled(tmp_path: Path) -> None:
    tracker = Tables()
    trainer, figures = _evaluate(tmp_path, tracker, eval_answers=3, max_length=300)
    columns, rows = tracker.tables[EXAMPLES]
    assert columns == list(COLUMNS)
    assert len(rows) == 3
    assert all("Question" in row[columns.index("prompt")] for row in rows)
    assert figures["eval_well_formed"] == sum(row[columns.index("well_formed")] for row in rows) / 3
    assert figures["eval_speedup"] > 0
    assert trainer.model.training == trainer.is_in_train


def test_answers_are_generated_in_float32_where_the_run_computes_in_bfloat16(tmp_path: Path) -> None:
    tracker = Tables()
    trainer, figures = _evaluate(tmp_path, tracker, precision="bf16", eval_answers=1, max_length=300)
    (row,) = tracker.tables[EXAMPLES][1]
    assert figures["eval_threads"] == row[COLUMNS.index("threads")]
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():  # the run's own forwards are as before
        products = trainer.model(input_ids=ids).logits, trainer.model._original_forward(input_ids=ids).logits
    assert not torch.equal(*products)


def test_documents_come_out_of_packed_rows_as_they_went_in() -> None:
    documents = [random_document(seed) for seed in range(6)]
    examples = [make_example(CODEC, MESSAGES, document, "pasta") for document in documents]
    found = documents_of(to_dataset(examples, row_length=400), 99, CODEC)
    responses = sorted(tuple(document.response_ids) for document in found)
    assert responses == sorted((*CODEC.encode(document), CODEC.eos_id) for document in documents)
    assert all(document.prompt_ids == CODEC.encode_prompt(MESSAGES) for document in found)


def test_an_answer_in_both_forms_is_one_document_with_threads() -> None:
    documents = [random_document(seed) for seed in range(8)]
    examples = [
        make_example(CODEC, [{"role": "user", "content": f"Question {number}?"}], document, form)
        for number, document in enumerate(documents)
        for form in FORMS["both"]
    ]
    found = documents_of(to_dataset(examples, row_length=256), 99, CODEC)
    responses = sorted(tuple(document.response_ids) for document in found)
    assert responses == sorted((*CODEC.encode(document), CODEC.eos_id) for document in documents)


def test_an_answer_s_speedup_is_its_text_over_its_critical_path() -> None:
    loaded = tiny()
    documents = documents_of(
        to_dataset([make_example(CODEC, MESSAGES, random_document(1), "pasta")], row_length=1), 1, CODEC
    )
    (answer,) = generate_answers(loaded.model, loaded.tokenizer, documents, max_tokens=40, parallel=False)
    assert answer.threads == 1
    assert answer.critical_path == answer.tokens
    assert answer.speedup == pytest.approx(1.0 if answer.well_formed else (answer.tokens + 1) / answer.tokens)
    assert answer.expected == to_text(random_document(1))


def test_no_steps_are_captured_for_a_few_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[EngineConfig] = []

    def engine(loaded: Any, config: EngineConfig) -> Engine:
        asked.append(config)
        return Engine(loaded, config)

    monkeypatch.setattr(held_out, "Engine", engine)
    loaded = tiny()
    document = HeldOut(CODEC.encode_prompt(MESSAGES), [])
    generate_answers(loaded.model, loaded.tokenizer, [document], max_tokens=2, parallel=True)
    assert [config.cuda_graphs for config in asked] == ["off"]


def test_each_answer_is_told_as_it_ends() -> None:
    loaded, told = tiny(), list[str]()
    documents = [HeldOut(CODEC.encode_prompt(MESSAGES), []) for _ in range(2)]
    progress = Progress("held-out answers", 2, "answers", say=told.append)
    generate_answers(
        loaded.model, loaded.tokenizer, documents, max_tokens=2, parallel=True, progress=progress
    )
    assert told == [
        "held-out answers: 2 answers",
        "held-out answers: 1/2 answers  eta 0.0 min",
        "held-out answers: 2/2 answers  eta 0.0 min",
    ]


def test_without_answers_there_are_no_figures() -> None:
    assert figures_of([]) == {}
