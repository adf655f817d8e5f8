"""A user's mistake is told before a twin answers prompts or a worker trains."""

import json
from pathlib import Path

import pytest

from jobs import rl
from pasta.errors import UserError
from tests.rl.runs import rl_config, rl_dict


def test_the_grader_refuses_prompts_of_one_s_own_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rl, "ray_cluster", lambda *_: pytest.fail("Ray was started"))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"messages": [{"role": "user", "content": "What is love?"}]}))
    config = rl_config(rl_dict(tmp_path, prompts={"source": str(prompts)}))
    with pytest.raises(UserError, match=r"judge\.kind: grader: 'What is love\?' is no atlas prompt"):
        rl.run(config)
