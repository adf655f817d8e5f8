"""What a trainer's progress lines say."""

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from pasta.tracking import Tracker
from pasta.training.callbacks import ProgressReporter


@pytest.fixture
def lines(tmp_path, capsys):
    """The lines of steps after which so many tokens have been seen."""
    arguments = TrainingArguments(output_dir=str(tmp_path), report_to=[])
    reporter, control = ProgressReporter(Tracker(), rank=0), TrainerControl()

    def of(*seen: int) -> list[str]:
        state = TrainerState(max_steps=len(seen))
        reporter.on_train_begin(arguments, state, control)
        capsys.readouterr()
        for state.global_step, state.num_input_tokens_seen in enumerate(seen, 1):
            reporter.on_log(arguments, state, control, {"loss": 1.0})
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
