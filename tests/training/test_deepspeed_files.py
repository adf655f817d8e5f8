"""DeepSpeed files of one's own: what contradicts the recipe, or fails at the end of a run, is said before it begins."""

import json
from pathlib import Path
from typing import Any

import pytest

from pasta.config import parse_config
from pasta.errors import UserError
from pasta.rl.train import check_config
from pasta.training import preference, sft
from pasta.training.config import OptimisationSection, SftConfig
from pasta.training.run import check_deepspeed
from tests.rl.runs import rl_config, rl_dict
from tests.support.paths import ROOT
from tests.training.pair_runs import preference_config, preference_dict
from tests.training.runs import sft_dict

SHIPPED = sorted((ROOT / "configs/deepspeed").glob("*.json"))
GATHERS = "stage3_gather_16bit_weights_on_model_save"


def _file(directory: Path, stage: int = 2, **changes: Any) -> Path:
    """A shipped file with some keys changed; None leaves one out."""
    values = json.loads((ROOT / f"configs/deepspeed/zero{stage}.json").read_text()) | changes
    path = directory / "own.json"
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    return path


def _recipe(path: Path, **keys: Any) -> OptimisationSection:
    values = {"rows": 4, "accumulate": 2, "max_grad_norm": 0.5, "precision": "fp32", **keys}
    return OptimisationSection(learning_rate=1e-3, deepspeed=path, **values)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_shipped_files_are_for_every_recipe(path: Path) -> None:
    assert check_deepspeed(_recipe(path)) == int(path.stem[4])


def test_a_file_may_say_what_the_recipe_says(tmp_path: Path) -> None:
    same = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5,
    }
    assert check_deepspeed(_recipe(_file(tmp_path, **same))) == 2
    assert check_deepspeed(_recipe(_file(tmp_path, **same)), accumulate=2) == 2
    bf16 = _file(tmp_path, bf16={"enabled": True}, fp16={"enabled": False})
    assert (
        check_deepspeed(_recipe(bf16, precision="bf16"))
        == check_deepspeed(_recipe(bf16, precision="auto"))
        == 2
    )
    # DeepSpeed's own value, and the recipe's default.
    assert check_deepspeed(_recipe(_file(tmp_path, gradient_clipping=None), max_grad_norm=1.0)) == 2
    batch = {"train_micro_batch_size_per_gpu": None, "train_batch_size": "auto"}
    assert check_deepspeed(_recipe(_file(tmp_path, gradient_accumulation_steps=None, **batch))) == 2


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"gradient_clipping": 1.0}, 'gradient_clipping 1.0: expected "auto", which is .*max_grad_norm .0.5'),
        ({"gradient_clipping": None}, 'gradient_clipping: expected "auto", which is .*max_grad_norm'),
        (
            {"gradient_accumulation_steps": 8},
            'gradient_accumulation_steps 8: expected "auto", which is .*acc',
        ),
        ({"train_micro_batch_size_per_gpu": 1}, 'train_micro_batch_size_per_gpu 1: expected "auto"'),
        ({"train_micro_batch_size_per_gpu": None}, 'train_micro_batch_size_per_gpu: expected "auto"'),
        ({"fp16": {"enabled": True}}, 'fp16.enabled True: expected "auto", which .*precision .fp32'),
        ({"bf16": {"enabled": True}}, 'bf16.enabled True: expected "auto", which .*precision .fp32'),
        ({"zero_optimization": None}, "zero_optimization: expected a mapping with stage 0 to 3"),
        ({"zero_optimization": {"stage": 3}}, f"zero_optimization.{GATHERS}: expected true"),
        ({"zero_optimization": {"stage": 3, GATHERS: "auto"}}, f"zero_optimization.{GATHERS}: expected true"),
    ],
)
def test_what_contradicts_the_recipe_is_named(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=rf"optimisation\.deepspeed: .*own\.json: {expected}"):
        check_deepspeed(_recipe(_file(tmp_path, **changes)))


def test_every_training_job_looks_before_it_makes_its_data(tmp_path: Path) -> None:
    path = str(_file(tmp_path, stage=3, zero_optimization={"stage": 3}))
    supervised = parse_config(sft_dict(tmp_path, deepspeed=path), SftConfig, "tiny.yaml")
    with pytest.raises(UserError, match=GATHERS):
        sft.prepare(supervised, tmp_path / "data")
    with pytest.raises(UserError, match=GATHERS):
        preference.prepare(preference_config(preference_dict(tmp_path, deepspeed=path)), tmp_path / "data")
    values = rl_dict(tmp_path)
    values["optimisation"]["deepspeed"] = path
    with pytest.raises(UserError, match=GATHERS):
        check_config(rl_config(values))
