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
