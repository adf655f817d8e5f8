"""A service that cannot start says why in one line, before anything is started."""

import dataclasses
import json
import socket
import subprocess
import sys

import pytest
import ray
import yaml

from pasta.errors import UserError
from serve.config import ServeConfig, check_models, check_service
from serve.launch import check_port, read_service_config, running
from serve.ray_start import free_port
from tests.support.paths import ROOT
from tests.support.service import save_tiny_model, service_config


@pytest.fixture
def model(tmp_path):
    return save_tiny_model(tmp_path / "model")


def mistake(call, *arguments):
    with pytest.raises(UserError) as caught:
        call(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def edited(file, change):
    config = yaml.safe_load(file.read_text())
    change(config, config["applications"][0])
    file.write_text(yaml.safe_dump(config))
    return file


def test_the_shipped_configuration_is_valid_and_serves_a_model_and_its_twin():
    config = read_service_config(ROOT / "configs/serve/local.yaml")
    assert config.host == "127.0.0.1"
    assert [model.mode for model in config.args.models.values()] == ["parallel", "sequential"]
    assert all(
        model.path.startswith("platform/pasta/data/atlas/models/") for model in config.args.models.values()
    )


def test_ray_serve_can_build_the_arguments_from_a_plain_dictionary():
    """As ``serve deploy`` does."""
    arguments = {"models": {"a": {"path": "x"}}, "engine": {"num_slots": 3}}
    config = ServeConfig.model_validate(arguments)
    assert config.engine.num_slots == 3
    assert ServeConfig.model_validate_json(json.dumps(arguments)) == config
    for mistake in ({"num_slots": "3"}, {"num_slots": 0}, {"num_slot": 3}):
        with pytest.raises(ValueError, match="num_slot"):
            ServeConfig.model_validate({**arguments, "engine": mistake})


def test_a_valid_configuration_passes(tmp_path, model):
    check_models(read_service_config(service_config(tmp_path, model)).args)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda top, app: top.update(aplications=[]), "'aplications'"),
        (lambda top, app: top["http_options"].update(port="8000a"), "http_options.port"),
        (lambda top, app: top.update(logging_config={}), "logging_config has no effect"),
        (lambda top, app: app.update(deployments=[{"name": "Decoder"}]), "deployments has no effect"),
        (lambda top, app: app.update(import_path="serve.other:build"), "serve.app:build"),
        (
            lambda top, app: top["applications"].append(app | {"name": "b", "route_prefix": "/b"}),
            "exactly one",
        ),
        (lambda top, app: app["args"].update(replicas=3), "'replicas'"),
        (lambda top, app: app["args"].update(decoder={"num_replica": 3}), "did you mean 'num_replicas'"),
        (lambda top, app: app["args"].update(decoder={"num_replicas": 0}), "decoder.num_replicas"),
        (lambda top, app: app["args"].update(decoder={"tensor_parallel": 0}), "decoder.tensor_parallel"),
        (lambda top, app: app["args"].update(placement="everywhere"), "placement"),
        (lambda top, app: app["args"].update(limits={"max_depth": 101}), "limits.max_depth"),
        (lambda top, app: app["args"].update(front={"resources": {"front": 0}}), "front.resources.front"),
        (lambda top, app: app["args"].update(front={"resources": ["front"]}), "front.resources"),
        (lambda top, app: app["args"].update(decoder={"resources": {"GPU": 1}}), "decoder.resources"),
        (lambda top, app: app["args"].update(admission={"budget": 5}), "admission"),
        (lambda top, app: app["args"].update(admission={"most_of_one_kind": 0.1}), "most_of_one_kind"),
        (lambda top, app: app["args"].update(keys={"max_concurrent": 0}), "keys.max_concurrent"),
        (lambda top, app: app["args"].update(timeout_s=0), "timeout_s"),
        (lambda top, app: top["http_options"].update(host="0.0.0.0"), "is open to others"),
        (lambda top, app: app["args"].update(models={}), "models"),
        (lambda top, app: app["args"].update(models={"a": {"mode": "parallel"}}), "models.a.path"),
        (lambda top, app: app["args"].update(models={"a": {"path": "x", "dtype": "int2"}}), "models.a.dtype"),
    ],
)
def test_a_wrong_key_is_named(tmp_path, change, says):
    file = edited(service_config(tmp_path, tmp_path), change)
    message = mistake(read_service_config, file)
    assert says in message
    assert str(file) in message


def test_a_missing_model_is_named(tmp_path):
    config = read_service_config(service_config(tmp_path, tmp_path / "nothing"))
    assert "models.pasta-atlas.path" in mistake(check_models, config.args)


def test_keys_that_cannot_be_read_are_named(tmp_path, model):
    file = service_config(tmp_path, model, keys={"file": str(tmp_path / "keys.yaml")})
    assert "keys.file: " in mistake(check_service, read_service_config(file).args)


def test_with_keys_a_service_may_listen_to_others(tmp_path, model):
    file = service_config(tmp_path, model, keys={"file": "keys.yaml"})
    edited(file, lambda top, app: top["http_options"].update(host="0.0.0.0"))
    assert read_service_config(file).host == "0.0.0.0"


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "model.safetensors"])
def test_an_incomplete_model_directory_is_named(tmp_path, model, file):
    (model / file).unlink()
    config = read_service_config(service_config(tmp_path, model))
    assert file.removeprefix("model") in mistake(check_models, config.args)


def test_an_unsupported_architecture_is_named(tmp_path):
    model = save_tiny_model(tmp_path / "model", model_type="gpt2")
    config = read_service_config(service_config(tmp_path, model))
    message = mistake(check_models, config.args)
    assert "'gpt2' is not supported" in message
    assert "llama" in message


def test_a_tokenizer_without_control_tokens_is_named(tmp_path, model):
    for file in (model / "tokenizer.json", model / "tokenizer_config.json"):
        file.write_text(file.read_text().replace("<sync/>", "<other/>"))
    config = read_service_config(service_config(tmp_path, model))
    assert "<sync/>" in mistake(check_models, config.args)


def test_a_rule_of_positions_that_is_none_is_named(tmp_path, model):
    file = model / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pasta_positions": "sideways"}))
    config = read_service_config(service_config(tmp_path, model))
    message = mistake(check_models, config.args)
    assert ".path: tokenizer: pasta_positions 'sideways', expected one of predicted-in-tens" in message


TWO = {"decoder": {"tensor_parallel": 2}}


@pytest.mark.parametrize(
    ("models", "more", "says"),
    [
        (
            {"a": {}},
            {"decoder": {"tensor_parallel": 3}},
            "decoder.tensor_parallel: 3 processes cannot share the ",
        ),
        (
            {"a": {"dtype": "int8"}},
            TWO,
            "models.a.dtype: 'int8', but decoder.tensor_parallel is 2; expected one of ",
        ),
        (
            {"a": {}},
            TWO | {"engine": {"compile": "on"}},
            "engine.compile: 'on', but decoder.tensor_parallel is 2",
        ),
        (
            {"a": {}},
            {"decoder": {"tensor_parallel": 2, "stand_in_ms": 5.0}},
            "decoder.tensor_parallel: 2, but stand",
        ),
        ({"a": {}, "b": {}}, TWO, "decoder.tensor_parallel: 2, but models has 2; expected one model"),
    ],
)
def test_what_several_processes_cannot_share_is_named(model, models, more, says):
    served = {name: {"path": str(model), **keys} for name, keys in models.items()}
    message = mistake(check_service, ServeConfig.model_validate({"models": served, **more}))
    assert message.startswith(says)


def test_a_port_in_use_is_named_and_nothing_is_started(tmp_path, model):
    config = read_service_config(service_config(tmp_path, model))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert f"127.0.0.1:{port}" in mistake(check_port, "127.0.0.1", port)
        service = running(dataclasses.replace(config, port=port))
        assert f"127.0.0.1:{port}" in mistake(service.__enter__)
    assert not ray.is_initialized()
    check_port("127.0.0.1", free_port())


def test_the_command_says_it_in_one_line_and_exits_with_2(tmp_path):
    file = service_config(tmp_path, tmp_path / "nothing")
    done = subprocess.run(
        [sys.executable, "-m", "serve.run", file], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: models.pasta-atlas.path")
    assert done.stderr.count("\n") == 1
