"""Two ranks share an epoch's rows, and evaluate as one does."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch.distributed as dist
from transformers import AutoTokenizer

from pasta.config import parse_config
from pasta.data.dataset import TOKENIZER_DIR, prepare_data
from pasta.interpreter import IGNORE
from pasta.tracking import Tracker
from pasta.training.callbacks import EpochOrder
from pasta.training.config import SftConfig
from pasta.training.heads import head_figures
from pasta.training.model import make_tokenizer
from pasta.training.run import RunContext
from pasta.training.sft import make_trainer, prepare
from tests.training.pair_runs import save_tiny_model
from tests.training.ranks import no_report, run_ranks
from tests.training.runs import sft_dict

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def write_figures(config: SftConfig, data_dir: Path, directory: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(data_dir / TOKENIZER_DIR)
    context = RunContext(data_dir, directory / "work", False, no_report)
    figures = make_trainer(config, context, tokenizer, [], Tracker()).evaluate()
    if dist.get_rank() == 0:
        (directory / "figures.json").write_text(json.dumps(figures))


def test_held_out_figures_are_those_of_one_rank_where_rows_do_not_fill_the_last_batch(tmp_path: Path) -> None:
    values = sft_dict(tmp_path)
    values["data"] |= {"eval_documents": 5, "row_length": 1, "documents": 8}
    config = parse_config(values, SftConfig, "tiny.yaml")
    data_dir = prepare(config, tmp_path / "data").path
    found = []
    for count in (1, 2):
        directory = tmp_path / str(count)
        run_ranks(write_figures, directory, config, data_dir, directory, count=count)
        found.append(json.loads((directory / "figures.json").read_text()))
    alone, shared = found
    for name in ("eval_loss", "eval_loss_text", "eval_mean_token_accuracy"):
        assert shared[name] == pytest.approx(alone[name], rel=1e-4)


def write_head_figures(config: SftConfig, data_dir: Path, directory: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(data_dir / TOKENIZER_DIR)
    context = RunContext(data_dir, directory / "work", False, no_report)
    figures = head_figures(make_trainer(config, context, tokenizer, [], Tracker()))
    (directory / f"heads-{dist.get_rank()}.json").write_text(json.dumps(figures))


def heads_config(directory: Path, **schedule: int) -> SftConfig:
    """A run that makes draft heads, in which each document is a row."""
    values = sft_dict(directory)
    save_tiny_model(directory / "start")
    values |= {"output_dir": str(directory / "start"), "draft_heads": {"depth": 2, "width": 16}}
    values["model"] = {"init_from": str(directory / "start"), "attention": "eager"}
    values["data"] |= {"eval_documents": 5, "row_length": 1, "documents": 8}
    values["schedule"] |= schedule
    return parse_config(values, SftConfig, "tiny.yaml")


def test_held_out_loss_of_draft_heads_is_theirs(tmp_path: Path) -> None:
    """As training counts it: of a step of all held-out rows at once."""
    config = heads_config(tmp_path, eval_steps=3)
    data_dir = prepare_data(config.data, make_tokenizer(config.model), tmp_path / "data").path
    context = RunContext(data_dir, tmp_path / "work", False, no_report)
    trainer = make_trainer(
        config, context, AutoTokenizer.from_pretrained(data_dir / TOKENIZER_DIR), [], Tracker()
    )
    batch = trainer.data_collator(list(trainer.eval_dataset))
    targets = (batch["labels"] != IGNORE).sum()
    figures = trainer.evaluate()
    loss = trainer.model(**batch, num_items_in_batch=targets).loss
    assert figures["eval_loss"] == pytest.approx(float(loss), rel=1e-4)
    trainer.train()
    told = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert figures["eval_loss"] > told[0] > told[1]


def test_figures_of_draft_heads_are_those_of_one_rank_too(tmp_path: Path) -> None:
    config = heads_config(tmp_path)
    data_dir = prepare_data(config.data, make_tokenizer(config.model), tmp_path / "data").path
    for count in (1, 2):
        directory = tmp_path / str(count)
        run_ranks(write_head_figures, directory, config, data_dir, directory, count=count)
    alone, first, second = (
        json.loads((tmp_path / name).read_text())
        for name in ("1/heads-0.json", "2/heads-0.json", "2/heads-1.json")
    )
    assert min(alone.values()) > 0
    assert first == second == pytest.approx(alone)


def write_rows(config: SftConfig, data_dir: Path, directory: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(data_dir / TOKENIZER_DIR)
    context = RunContext(data_dir, directory / "work", False, no_report)
    trainer = make_trainer(config, context, tokenizer, [EpochOrder()], Tracker())
    numbers = {tuple(row): n for n, row in enumerate(trainer.train_dataset["input_ids"])}
    seen, collate = [], trainer.data_collator

    def watching(rows):
        seen.append([numbers[tuple(row["input_ids"])] for row in rows])
        return collate(rows)

    trainer.data_collator = watching
    trainer.train()
    (directory / f"seen-{dist.get_rank()}.json").write_text(json.dumps(seen))


def test_in_each_epoch_every_row_is_one_rank_s_though_adapters_draw_their_own_numbers(tmp_path: Path) -> None:
    """Dropout and adapters leave each rank another random state."""
    values = sft_dict(tmp_path, rows=2, epochs=2.0)
    del values["optimisation"]["max_steps"]
    save_tiny_model(tmp_path / "start")
    values["model"] = {"init_from": str(tmp_path / "start"), "attention": "eager"}
    values["lora"] = {"rank": 4, "dropout": 0.1}
    values["data"] |= {"eval_documents": 0, "row_length": 1, "documents": 16}
    values["schedule"] = {"log_steps": 1, "save_steps": 0}
    config = parse_config(values, SftConfig, "tiny.yaml")
    data_dir = prepare(config, tmp_path / "data").path
    run_ranks(write_rows, tmp_path / "ranks", config, data_dir, tmp_path / "ranks")
    ranks = [json.loads((tmp_path / f"ranks/seen-{rank}.json").read_text()) for rank in (0, 1)]
    half = len(ranks[0]) // 2
    for epoch in (slice(0, half), slice(half, None)):
        assert Counter(n for rank in ranks for batch in rank[epoch] for n in batch) == Counter(range(16))
