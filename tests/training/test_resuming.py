"""A run that goes on from a checkpoint sees the rows that it would have seen, and ends with the same model."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, TrainerCallback

from pasta.config import parse_config
from pasta.data.dataset import TOKENIZER_DIR
from pasta.tracking import Tracker
from pasta.training.callbacks import ConfiguredSteps, EpochOrder
from pasta.training.config import SftConfig
from pasta.training.run import RunContext
from pasta.training.sft import make_trainer, prepare, train
from tests.training.ranks import no_report
from tests.training.runs import sft_dict

pytestmark = pytest.mark.slow


class Keep(TrainerCallback):
    """Copies each checkpoint, of which the trainer keeps the last one alone."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        made = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        shutil.copytree(made, Path(args.output_dir).parent / made.name)


def config_of(directory: Path, documents: int, save: int, **recipe: Any) -> SftConfig:
    """A run in which each document is a row."""
    values = sft_dict(directory, **recipe)
    if "max_steps" not in recipe:
        del values["optimisation"]["max_steps"]
    values["data"] |= {"eval_documents": 0, "documents": documents, "row_length": 1}
    values["schedule"] = {"log_steps": 1, "save_steps": save}
    return parse_config(values, SftConfig, "tiny.yaml")


def run(config: SftConfig, work: Path, resume: Path | None = None) -> tuple[Any, list[list[list[int]]]]:
    """The trainer after training, and the rows that each step saw."""
    data_dir = prepare(config, work.parent / "data").path
    tokenizer = AutoTokenizer.from_pretrained(data_dir / TOKENIZER_DIR)
    context = RunContext(data_dir, work, False, no_report)
    trainer = make_trainer(config, context, tokenizer, [EpochOrder(), ConfiguredSteps(), Keep()], Tracker())
    seen, collate = [], trainer.data_collator

    def watching(rows: list[dict[str, Any]]) -> Any:
        seen.append([row["input_ids"] for row in rows])
        return collate(rows)

    trainer.data_collator = watching
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    return trainer, seen


def test_the_rows_after_a_checkpoint_are_those_of_a_run_that_never_stopped(tmp_path: Path) -> None:
    config = config_of(tmp_path, documents=12, save=3, epochs=2.0)
    _, whole = run(config, tmp_path / "whole")
    assert len(whole) == 12
    for step in (6, 9):  # between both epochs, and within the second
        _, rest = run(config, tmp_path / f"from-{step}", tmp_path / f"whole/checkpoint-{step}")
        assert rest[step - len(whole) :] == whole[step:]


def test_going_on_from_the_last_checkpoint_changes_no_weight(tmp_path: Path) -> None:
    config = config_of(tmp_path, documents=8, save=2, decay="none", max_steps=2)
    finished, _ = run(config, tmp_path / "whole")
    again, _ = run(config, tmp_path / "again", tmp_path / "whole/checkpoint-2")
    expected = dict(finished.model.named_parameters())
    assert all(parameter.equal(expected[name]) for name, parameter in again.model.named_parameters())


def test_a_run_that_goes_on_is_saved_at_the_steps_that_are_configured_now(tmp_path: Path) -> None:
    before, now = (config_of(tmp_path, documents=16, save=save, max_steps=6) for save in (2, 3))
    run(before, tmp_path / "whole")
    run(now, tmp_path / "again", tmp_path / "whole/checkpoint-2")
    assert {path.name for path in (tmp_path / "again").glob("checkpoint-*")} == {
        "checkpoint-3",
        "checkpoint-6",
    }


def figures_of_both(tmp_path: Path, save: int, **recipe: Any) -> tuple[dict[str, float], dict[str, float]]:
    """The figures of a run, and of one that goes on from its checkpoint ``save``."""
    config = config_of(tmp_path, documents=8, save=save, **recipe)
    data_dir = prepare(config, tmp_path / "data").path

    def keep(metrics: dict[str, float], checkpoint: Path | None) -> None:
        assert checkpoint is not None
        shutil.copytree(checkpoint, tmp_path / f"step-{metrics['step']:.0f}", dirs_exist_ok=True)

    whole = train(config, RunContext(data_dir, tmp_path / "whole", False, keep))
    context = RunContext(data_dir, tmp_path / "rest", False, no_report, resume_from=tmp_path / f"step-{save}")
    return whole, train(config, context)


@pytest.mark.parametrize(
    ("save", "steps"),
    [(2, 2), (4, 4), (2, 3)],
    ids=["after the last step", "after the last step of an epoch", "in the middle"],
)
def test_the_figures_of_a_run_that_went_on_are_those_of_the_whole_run(
    tmp_path: Path, save: int, steps: int
) -> None:
    whole, rest = figures_of_both(tmp_path, save, max_steps=steps)
    assert rest["steps"] == whole["steps"] == steps
    assert rest["train_tokens"] == whole["train_tokens"]
    assert rest["train_loss"] == pytest.approx(whole["train_loss"], rel=1e-4)


def test_a_step_too_many_is_not_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures_of_both(tmp_path, 2, max_steps=2)
    assert "step 3/2" not in capsys.readouterr().out
