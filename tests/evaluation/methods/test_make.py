"""Methods are made from their configuration; what cannot work is said before any weights are read."""

import copy
from pathlib import Path
from typing import Any

import pytest

from pasta.config import parse_config
from pasta.data.prompts import Prompt
from pasta.errors import UserError
from pasta.evaluation.config import EvaluateConfig
from pasta.evaluation.methods import make as methods
from pasta.evaluation.methods.checks import check_methods
from pasta.evaluation.methods.endpoint import EndpointMethod
from pasta.evaluation.methods.make import make_methods
from pasta.evaluation.methods.sot import SotEndpointMethod
from tests.support.models import tiny
from tests.support.service import save_tiny_model
from tests.support.tokenizers import byte_level

PROMPT = Prompt([{"role": "user", "content": "Name two rivers."}])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("model")))


def config(twin: str, engine: dict[str, Any] | None = None, **others: dict[str, Any]) -> EvaluateConfig:
    values = {
        "name": "e",
        "output_dir": "out",
        "prompts": {"source": "atlas", "count": 3},
        "baseline": "twin",
        "methods": {**others, "twin": {"kind": "sequential", "model": twin}},
        "limits": {"max_tokens": 150, "max_chunk_tokens": 20},
        "engine": {"device": "cpu", "num_slots": 16, "slot_tokens": 512} | (engine or {}),
    }
    return parse_config(values, EvaluateConfig, "e.yaml")


def problem(config: EvaluateConfig) -> str:
    with pytest.raises(UserError) as error:
        check_methods(config.methods, config.baseline, config.engine.num_slots)
    return str(error.value)


def test_a_missing_model_is_named_with_its_method(model):
    told = problem(config(model, pasta={"kind": "pasta", "model": "./gone"}))
    assert told.startswith("methods.pasta.model: ./gone: no such directory; train that model first")


def test_a_model_of_another_vocabulary_than_the_baseline_s_is_refused(model, tmp_path: Path):
    tokenizer = copy.deepcopy(byte_level())  # others use it too
    tokenizer.add_tokens(["one more"])
    tiny().model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    told = problem(config(model, pasta={"kind": "pasta", "model": str(tmp_path)}))
    assert told.startswith(f"methods.pasta.model: {tmp_path}: another vocabulary than {model}")
    assert "'one more'" in told


def test_a_skeleton_with_more_points_than_decode_at_once_is_refused(model):
    sot: dict[str, Any] = {"kind": "sot", "model": model}
    assert problem(config(model, {"num_slots": 4}, sot=sot)).startswith(
        "engine.num_slots 4: expected at least 10, the most points of a skeleton"
    )
    endpoint = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "concurrency": 2}
    assert problem(config(model, sot={"kind": "sot", "endpoint": endpoint})).startswith(
        "methods.sot.endpoint.concurrency 2: expected at least 10"
    )


def test_workers_share_what_an_endpoint_allows() -> None:
    endpoint = {
        "base_url": "http://127.0.0.1:9/v1",
        "model": "m",
        "concurrency": 25,
        "requests_per_minute": 60.0,
    }
    said = config(
        "twin", remote={"kind": "endpoint", "endpoint": endpoint}, sot={"kind": "sot", "endpoint": endpoint}
    )
    remote = {name: section for name, section in said.methods.items() if section.endpoint is not None}
    made = make_methods(remote, said.limits, said.engine, {}, num_workers=2)
    for method in made.values():
        assert isinstance(method, EndpointMethod | SotEndpointMethod)
        share = method._asker._endpoint.section
        assert (share.concurrency, share.requests_per_minute) == (12, 30.0)
    with pytest.raises(UserError) as caught:
        check_methods(remote, "remote", 16, num_workers=3)
    assert str(caught.value) == (
        "methods.sot.endpoint.concurrency 25: expected at least 30, the most points of a skeleton that method 'sot' "
        "decodes at once, for each of 3 workers (workers.num_workers)"
    )


@pytest.mark.slow
def test_a_model_is_loaded_once_however_many_methods_use_it(model, monkeypatch: pytest.MonkeyPatch):
    loads: list[str] = []
    load = methods.load_model

    def counted(source: str, **options: Any) -> Any:
        loads.append(source)
        return load(source, **options)

    monkeypatch.setattr(methods, "load_model", counted)
    pasta = {"kind": "pasta", "model": model}
    said = config(
        model,
        pasta=pasta,
        biased=pasta | {"promise_bias": 8.0},
        wrong=pasta | {"promise_bias": 8.0, "hint_factor": 5.0},
        sot={"kind": "sot", "model": model},
    )
    made = make_methods(said.methods, said.limits, said.engine, {})
    assert [*made] == ["pasta", "biased", "wrong", "sot", "twin"]
    assert loads == [model]
    # And they do not get into each other's way.
    first = {name: method.answer(PROMPT) for name, method in made.items()}
    again = {name: made[name].answer(PROMPT) for name in reversed(made)}
    assert {name: answer.text for name, answer in first.items()} == {name: again[name].text for name in first}
    assert len(first["biased"].threads) > len(first["twin"].threads) == 1
    assert first["biased"].text != first["wrong"].text  # what follows the first promise is elsewhere
