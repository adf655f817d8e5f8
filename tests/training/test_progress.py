"""What a trainer's progress lines say."""

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from pasta.config import parse_config
from pasta.errors import UserError
from pasta.tracking import Tracker
from pasta.training.callbacks import ProgressReporter
from pasta.training.config import SftConfig
from pasta.training.run import RunContext
from pasta.training.sft import prepare, train
from tests.training.runs import sft_dict


@pytest.fixture
def lines(tmp_path, capsys):
    """The lines of steps after which so many tokens have been seen."""
    arguments = TrainingArguments(output_dir=str(tmp_path), report_to=[])
    reporter, control = ProgressReporter(Tracker(), rank=0), TrainerControl()

    def of(*seen: int, **figures: float) -> list[str]:
        state = TrainerState(max_steps=len(seen))
        reporter.on_train_begin(arguments, state, control)
        capsys.readouterr()
        for state.global_step, state.num_input_tokens_seen in enumerate(seen, 1):
            reporter.on_log(arguments, state, control, {"loss": 1.0, **figures})
        return capsys.readouterr().out.splitlines()

    return of


def test_a_line_tells_tokens_a_second(lines):
    first, second = lines(100, 200)
    assert "tokens/s" in first
    assert "tokens/s" in second


def test_steps_on_the_rest_of_a_batch_of_answers_tell_no_tokens_a_second(lines):
    first, *rest, next_batch = lines(100, 100, 100, 200)
    assert "tokens/s" in first
    assert "tokens/s" in next_batch
    assert not any("tokens/s" in line for line in rest)


@pytest.mark.parametrize(
    ("norm", "shown"), [(0.00416, "grad 0.00416"), (1.25, "grad 1.25"), (8839.4, "grad 8.84e+03")]
)
def test_a_norm_of_gradients_is_told_whatever_its_size(lines, norm, shown):
    (line,) = lines(100, grad_norm=norm)
    assert shown in line


def test_tokens_a_second_leave_out_evaluations_and_checkpoints(tmp_path, capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("pasta.training.callbacks.time.perf_counter", lambda: now[0])
    arguments = TrainingArguments(output_dir=str(tmp_path), report_to=[])
    reporter, state, control = (
        ProgressReporter(Tracker(), rank=0),
        TrainerState(max_steps=9),
        TrainerControl(),
    )
    reporter.on_train_begin(arguments, state, control)

    def step(*, logs):
        now[0] += 2.0
        state.global_step += 1
        state.num_input_tokens_seen += 100
        reporter.on_step_end(arguments, state, control)
        if logs:
            reporter.on_log(arguments, state, control, {"loss": 1.0})

    step(logs=True)
    now[0] += 30.0
    reporter.on_log(arguments, state, control, {"eval_loss": 1.0})
    reporter.on_evaluate(arguments, state, control)
    now[0] += 50.0  # answers to held-out prompts
    reporter.on_log(arguments, state, control, {"eval_well_formed": 1.0, "eval_speedup": 1.0})
    step(logs=False)
    now[0] += 70.0
    reporter.on_save(arguments, state, control)
    now[0] += 1.0  # fetching rows is part of training
    step(logs=True)
    told = [line for line in capsys.readouterr().out.splitlines() if "tokens/s" in line]
    assert [line.split("  ")[4] for line in told] == ["50 tokens/s", "40 tokens/s"]


@pytest.mark.slow
def test_an_evaluation_that_is_due_at_the_last_step_runs_once(tmp_path, capsys):
    values = sft_dict(tmp_path)
    values["schedule"] = {"log_steps": 2, "save_steps": 0, "eval_steps": 3}
    values["data"] |= {"eval_answers": 1, "max_length": 64, "row_length": 64, "eval_documents": 20}
    config = parse_config(values, SftConfig, "tiny.yaml")
    data_dir = prepare(config, tmp_path / "data").path
    figures = train(config, RunContext(data_dir, tmp_path / "work", False, lambda metrics, _: None))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if "held-out loss by" in line] == ["3/6", "6/6"]
    assert [line.split()[1] for line in lines if "well-formed" in line] == ["3/6", "6/6"]
    assert figures["eval_loss"] > 0


@pytest.mark.slow
def test_a_run_that_ends_before_its_steps_of_logging_tells_its_loss(tmp_path, capsys):
    values = sft_dict(tmp_path, max_steps=3)
    values["schedule"] = {"log_steps": 25, "save_steps": 2}
    values["data"] |= {"eval_documents": 0}
    config = parse_config(values, SftConfig, "tiny.yaml")
    data_dir = prepare(config, tmp_path / "data").path
    reported = []
    figures = train(
        config, RunContext(data_dir, tmp_path / "work", False, lambda metrics, _: reported.append(metrics))
    )
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert line.startswith(f"step 3/3  loss {figures['train_loss']:.4f}")
    # At the first checkpoint nobody knows a loss yet.
    assert reported == [{"step": 2.0}, {"step": 3.0, "loss": pytest.approx(figures["train_loss"], abs=1e-4)}]


@pytest.mark.slow
def test_a_loss_that_is_no_number_is_told(tmp_path, capsys):
    """0 in its place would hide that the model has diverged."""
    values = sft_dict(tmp_path, learning_rate=1e38, max_steps=3)
    values["schedule"] = {"log_steps": 1, "save_steps": 0}
    values["tracking"] = {"mode": "disabled"}
    config = parse_config(values, SftConfig, "tiny.yaml")
    data_dir = prepare(config, tmp_path / "data").path
    with pytest.raises(UserError, match="expected finite numbers"):
        train(config, RunContext(data_dir, tmp_path / "work", False, lambda metrics, checkpoint: None))
    assert "step 3/3  loss nan" in capsys.readouterr().out
