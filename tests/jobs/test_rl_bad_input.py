"""A user's mistake is told before a twin answers prompts or a worker trains."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from jobs import rl
from pasta.errors import UserError
from pasta.stages.lock import sole_writer
from tests.rl.runs import rl_config, rl_dict


def test_the_grader_refuses_prompts_of_one_s_own_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rl, "ray_cluster", lambda *_, **__: pytest.fail("Ray was started"))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"messages": [{"role": "user", "content": "What is love?"}]}))
    config = rl_config(rl_dict(tmp_path, prompts={"source": str(prompts)}))
    with pytest.raises(UserError, match=r"judge\.kind: grader: 'What is love\?' is no atlas prompt"):
        rl.run(config)


@pytest.mark.slow
def test_of_two_runs_of_one_configuration_at_once_the_later_is_refused_before_the_twin_answers_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused when training began, after hours of answers that nobody needed."""
    monkeypatch.setattr(rl, "ray_cluster", lambda *_, **__: nullcontext())
    monkeypatch.setattr(rl, "run_shards", lambda *_: pytest.fail("the twin was asked"))
    first, second = (rl_config(rl_dict(tmp_path, output_dir=str(tmp_path / name))) for name in ("a", "b"))
    with (
        sole_writer(rl.stage(first).run_dir),
        pytest.raises(UserError, match=r"^run_dir: .*: another run is writing there"),
    ):
        rl.run(second)


@pytest.mark.parametrize(("cpus", "is_told"), [(2.0, True), (3.0, False)])
def test_a_cluster_without_room_for_trainers_and_actors_at_once_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cpus: float,
    is_told: bool,
) -> None:
    """Training began, and waited for its first answers without a word."""
    import ray

    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": cpus})
    rl._check_places(rl_config(rl_dict(tmp_path)), "127.0.0.1:6379")
    said = "workers.num_workers and rollout.workers.num_workers take 3 CPUs at once, and the cluster has 2"
    assert (said in capsys.readouterr().err) is is_told
