"""A service that cannot start says why in one line, before anything is started."""

import dataclasses
import json
import shutil
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
import ray
import torch
import yaml
from safetensors.torch import load_file

from pasta.data.tokenizers import read_config
from pasta.errors import UserError
from pasta.interpreter import RepetitionDetection
from serve import launch
from serve.checks import check_machine, check_served_models, check_service
from serve.config import ServeConfig
from serve.ingress import check_started
from serve.interpreter.encoding import RequestEncoder, RequestRefused
from serve.keys import new_key
from serve.launch import check_local, check_port, read_service_config, running
from serve.ray_start import free_port
from tests.serve.interpreter.test_deployment import order
from tests.support.models import save_misfit_heads
from tests.support.paths import ROOT
from tests.support.service import save_plain_model, save_tiny_model, service_config


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


def test_more_cache_than_this_machine_has_memory_is_refused(tmp_path):
    def grow(_, application):
        application["args"]["engine"]["num_slots"] = 65_536

    model = save_tiny_model(tmp_path / "model", max_position_embeddings=1 << 24)
    config = read_service_config(edited(service_config(tmp_path, model=model), grow))
    sizes = dataclasses.replace(config.args.engine, slot_tokens=1 << 24)
    config = dataclasses.replace(config, args=config.args.model_copy(update={"engine": sizes}))
    assert mistake(check_local, config).startswith(
        "engine.num_slots: 65536 of engine.slot_tokens 16777216: the cach"
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
    detection = {"max_pattern_size": 64, "min_count": 3}
    config = ServeConfig.model_validate({**arguments, "limits": {"repetition_detection": detection}})
    assert config.limits.repetition_detection == RepetitionDetection(64, 1, 3)
    for mistake in ({"max_pattern_size": "64"}, {"max_pattern_size": -1}, {"max_pattern": 64}):
        with pytest.raises(ValueError, match="max_pattern"):
            ServeConfig.model_validate({**arguments, "limits": {"repetition_detection": mistake}})


def test_a_valid_configuration_passes(tmp_path, model):
    check_served_models(read_service_config(service_config(tmp_path, model)).args)


def test_a_model_that_pasta_has_not_trained_is_served_sequentially(tmp_path):
    plain = save_plain_model(tmp_path / "plain")
    config = read_service_config(service_config(tmp_path, plain)).args
    assert mistake(check_served_models, config) == (
        f"models.pasta-atlas.path: the tokenizer of '{plain}' lacks control tokens (<promise <async> </async> "
        "<sync/>), which jobs.sft adds; expected a model that PASTA has trained, or mode: sequential"
    )
    models = {name: model.model_copy(update={"mode": "sequential"}) for name, model in config.models.items()}
    check_served_models(config.model_copy(update={"models": models}))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda top, app: top.update(aplications=[]), "'aplications'"),
        (lambda top, app: top["http_options"].update(port="8000a"), "http_options.port"),
        (lambda top, app: top.update(logging_config={}), "logging_config has no effect"),
        (lambda top, app: app.update(deployments=[{"name": "Decoder"}]), "deployments has no effect"),
        (lambda top, app: app.update(import_path="serve.other:build"), "serve.app:build"),
        (
            lambda top, app: top.update(proxy_location="Disabled"),
            "proxy_location: 'Disabled', expected HeadOnly",
        ),
        (lambda top, app: app.update(name=""), "names must be nonempty"),
        (lambda top, app: app.update(name="a#b"), "applications.0.name: 'a#b', expected"),
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
        (lambda top, app: app["args"].update(limits={"max_threads": 2**31}), "limits.max_threads"),
        (lambda top, app: app["args"].update(limits={"max_chunk_tokens": 2**31}), "limits.max_chunk_tokens"),
        (
            lambda top, app: app["args"].update(limits={"repetition_detection": {"max_pattern": 4}}),
            "limits.repetition_detection: unknown key 'max_pattern'",
        ),
        (
            lambda top, app: app["args"].update(limits={"repetition_detection": {"max_pattern_size": -4}}),
            "max_pattern_size: -4",
        ),
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
        (
            lambda top, app: app["args"].update(models={"a": {"path": "x", "device": "gpu"}}),
            "models.a.device",
        ),
        (
            lambda top, app: app["args"].update(models={"a": {"path": "a\nb"}}),
            "models.a.path: expected one line",
        ),
        (
            lambda top, app: app["args"].update(models={" ": {"path": "a"}}),
            "models. : expected one line of text",
        ),
        (
            lambda top, app: app["args"].update(keys={"file": ""}),
            "keys.file: expected one line of text, got ''",
        ),
        (
            lambda top, app: app["runtime_env"]["env_vars"].update(OMP_NUM_THREADS=1),
            "applications.0.runtime_env: env_vars.OMP_NUM_THREADS: expected a valid string, got 1",
        ),
        (
            lambda top, app: app["runtime_env"].update(env_vars=["A=1"]),
            "applications.0.runtime_env: env_vars: expected a",
        ),
    ],
)
def test_a_wrong_key_is_named(tmp_path, change, says):
    file = edited(service_config(tmp_path, tmp_path), change)
    message = mistake(read_service_config, file)
    assert says in message
    assert str(file) in message


def test_the_application_has_the_name_in_the_file(tmp_path, monkeypatch):
    file = edited(service_config(tmp_path, tmp_path), lambda top, app: app.update(name="answers"))
    ran, told = [], []
    monkeypatch.setattr("ray.serve.run", lambda *_, name, **__: ran.append(name))
    monkeypatch.setattr("serve.app.build", lambda _: None)
    monkeypatch.setattr(launch, "_start_serve", lambda _: SimpleNamespace(result=lambda: None))
    config = read_service_config(file)
    alone = config.args.decoder.model_copy(update={"num_replicas": 1})
    one = {"models": dict([*config.args.models.items()][:1]), "decoder": alone}
    for args in (config.args, config.args.model_copy(update=one)):
        launch._deploy(dataclasses.replace(config, args=args), 0, quiet=False, progress=told.append)
    assert ran == ["answers"] * 2
    assert told == ["loading 2 models in 2 decoder replicas", "loading 1 model in 1 decoder replica"]


def test_a_missing_model_is_named(tmp_path):
    config = read_service_config(service_config(tmp_path, tmp_path / "nothing"))
    assert "models.pasta-atlas.path" in mistake(check_served_models, config.args)


@pytest.mark.parametrize("path", ["mine", "models/mine", "~/mine"])
def test_a_path_that_is_not_absolute_is_looked_for_in_the_repository_alone(
    tmp_path, model, monkeypatch, path
):
    shutil.copytree(model, tmp_path / path.removeprefix("~/"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    config = ServeConfig.model_validate({"models": {"a": {"path": path}}})
    assert f"'{path}' is not a directory in {ROOT}, where relative paths begin" in mistake(
        check_served_models, config
    )


def test_a_folder_of_the_hub_s_cache_is_told_from_a_model_s(tmp_path, model):
    shutil.copytree(model, tmp_path / "models--me--mine" / "snapshots" / "0123")
    config = ServeConfig.model_validate({"models": {"a": {"path": str(tmp_path / "models--me--mine")}}})
    says = "has no config.json; expected the model's name on the Hub, or one of the folders in its snapshots"
    assert says in mistake(check_served_models, config)


@pytest.mark.parametrize(
    ("file", "path", "says"),
    [
        (
            "adapter_config.json",
            "",
            "holds an adapter; expected a whole model, into which it has been merged",
        ),
        ("model-q4_0.gguf", "", "holds a GGUF file; expected config.json"),
        ("model-q4_0.gguf", "model-q4_0.gguf", "is a GGUF file; expected a directory with config.json"),
    ],
)
def test_what_comes_in_a_model_s_place_is_named(tmp_path, file, path, says):
    (tmp_path / file).touch()
    given = str(tmp_path / path)
    config = ServeConfig.model_validate({"models": {"a": {"path": given}}})
    assert says in mistake(check_served_models, config)
    with pytest.raises(UserError, match=says):
        read_config("model.init_from", given)


def test_keys_that_cannot_be_read_are_named(tmp_path, model):
    file = service_config(tmp_path, model, keys={"file": str(tmp_path / "keys.yaml")})
    assert "keys.file: " in mistake(check_service, read_service_config(file).args)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"keys": {"max_concurrent": 3}}, "keys.max_concurrent: 3 has no effect without keys.file"),
        ({"keys": {"requests_per_minute": 3}}, "keys.requests_per_minute: 3 has no effect without keys.file"),
        (
            {"admission": {"queue": {"max_wait_s": 2.5}}},
            "admission.queue.max_wait_s: 2.5 has no effect with max_requests 0",
        ),
        (
            {"decoder": {"autoscaling": {"min_replicas": 3, "max_replicas": 1}}},
            "decoder.autoscaling.min_replicas: 3 is above max_replicas 1; expected at most 1",
        ),
        (
            {"decoder": {"num_replicas": 1, "autoscaling": {"min_replicas": 2, "max_replicas": 3}}},
            "decoder.num_replicas: 1 is how many decoders there are at first; expected between autoscaling's",
        ),
    ],
)
def test_settings_that_contradict_one_another_or_do_nothing_are_named(model, settings, says):
    config = ServeConfig.model_validate({"models": {"a": {"path": str(model)}}, **settings})
    assert says in mistake(check_service, config)


def test_with_keys_a_service_may_listen_to_others(tmp_path, model):
    file = service_config(tmp_path, model, keys={"file": "keys.yaml"})
    edited(file, lambda top, app: top["http_options"].update(host="0.0.0.0"))
    assert read_service_config(file).host == "0.0.0.0"


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "model.safetensors"])
def test_an_incomplete_model_directory_is_named(tmp_path, model, file):
    (model / file).unlink()
    config = read_service_config(service_config(tmp_path, model))
    assert file.removeprefix("model") in mistake(check_served_models, config.args)


def test_an_embedding_that_is_smaller_than_the_vocabulary_is_told_before_any_process_starts(tmp_path, model):
    values = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(values | {"vocab_size": 64}))
    config = read_service_config(service_config(tmp_path, model))
    assert "its embedding has 64 rows, its tokenizer " in mistake(check_served_models, config.args)


def test_weights_in_the_older_file_of_torch_are_served_as_those_of_a_name_on_the_hub_are(tmp_path, model):
    weights = load_file(model / "model.safetensors")
    torch.save(weights, model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()
    check_served_models(read_service_config(service_config(tmp_path, model)).args)


def test_one_file_of_weights_is_read_before_an_index_that_was_left_there(tmp_path, model):
    """As transformers does."""
    index = {"weight_map": {"a": "gone.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    check_served_models(read_service_config(service_config(tmp_path, model)).args)


@pytest.mark.parametrize(
    "index",
    [
        None,
        {},
        [],
        {"weight_map": ["a"]},
        {"weight_map": {"a": {}}},
        {"weight_map": {"a": "gone.safetensors"}},
    ],
)
def test_draft_heads_and_a_part_of_the_weights_are_no_model(tmp_path, model, index):
    (model / "model.safetensors").rename(model / "draft_heads.safetensors")
    if index is not None:
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
    config = read_service_config(service_config(tmp_path, model))
    assert mistake(check_served_models, config.args) == (
        f"models.pasta-atlas.path: {str(model)!r} has not all of a model's weights; expected model.safetensors or the "
        "files of its index, or pytorch_model.bin"
    )


def test_weights_that_were_copied_in_part_are_no_model(tmp_path, model):
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    config = read_service_config(service_config(tmp_path, model))
    assert mistake(check_served_models, config.args) == (
        f"models.pasta-atlas.path: {str(model)!r}: model.safetensors is cut, or no weights (1000 bytes); copy it again"
    )


def test_an_unsupported_architecture_is_named(tmp_path):
    model = save_tiny_model(tmp_path / "model", model_type="gpt2")
    config = read_service_config(service_config(tmp_path, model))
    message = mistake(check_served_models, config.args)
    assert "'gpt2' is not supported" in message
    assert "llama" in message


def test_a_configuration_that_transformers_does_not_read_is_named_and_not_the_tokenizer(tmp_path, model):
    file = model / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_attention_heads": "many"}))
    config = read_service_config(service_config(tmp_path, model))
    said = mistake(check_served_models, config.args)
    assert said.startswith(f"models.pasta-atlas.path: model configuration {str(model)!r}: ")


def test_a_tokenizer_without_control_tokens_is_named(tmp_path, model):
    for file in (model / "tokenizer.json", model / "tokenizer_config.json"):
        file.write_text(file.read_text().replace("<sync/>", "<other/>"))
    config = read_service_config(service_config(tmp_path, model))
    assert "<sync/>" in mistake(check_served_models, config.args)


@pytest.mark.parametrize("content", ["{}", '{"added_tokens": []}', "{", "[]"])
def test_a_damaged_tokenizer_is_named(tmp_path, model, content):
    (model / "tokenizer.json").write_text(content)
    config = read_service_config(service_config(tmp_path, model))
    said = mistake(check_served_models, config.args)
    assert said.startswith(f"models.pasta-atlas.path: {model}: no tokenizer can be read there (")


def test_a_rule_of_positions_that_is_none_is_named(tmp_path, model):
    file = model / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pasta_positions": "sideways"}))
    config = read_service_config(service_config(tmp_path, model))
    message = mistake(check_served_models, config.args)
    assert ".path: tokenizer: pasta_positions 'sideways', expected one of predicted-in-tens" in message


def test_draft_heads_that_do_not_fit_the_model_are_named(tmp_path, model):
    said = save_misfit_heads(model)
    config = read_service_config(service_config(tmp_path, model))
    assert mistake(check_service, config.args) == f"models.pasta-atlas.path: {said}"


def test_draft_heads_that_are_not_read_need_not_fit(tmp_path, model):
    save_misfit_heads(model)
    served = {"models": {"a": {"path": str(model)}}}
    check_service(ServeConfig.model_validate(served | TWO))


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


def machine_mistake(monkeypatch, tmp_path, model, change):
    """What the service says of a configuration on a machine without a GPU, before it starts."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    file = edited(service_config(tmp_path, model), lambda top, app: change(app["args"]))
    return mistake(check_local, read_service_config(file))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda args: args["models"]["pasta-atlas-sequential"].update(dtype="fp8"),
            "models.pasta-atlas-sequential.dtype: 'fp8', but fp8 runs on CUDA GPUs, not on cpu; use auto",
        ),
        (
            lambda args: args["models"]["pasta-atlas"].update(device="cuda"),
            "models.pasta-atlas.device: 'cuda', but torch finds no CUDA device here; use cpu",
        ),
        (
            lambda args: args["engine"].update(cuda_graphs="on"),
            "engine.cuda_graphs: 'on', but the model runs on cpu; expected auto or off",
        ),
        (
            lambda args: args["engine"].update(compile="on"),
            "engine.compile: 'on', but steps are not captured: the model runs on cpu; expected off",
        ),
    ],
)
def test_what_this_machine_cannot_run_is_named_before_anything_starts(
    monkeypatch, tmp_path, model, change, says
):
    assert machine_mistake(monkeypatch, tmp_path, model, change) == says


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"front": {"resources": {"front": 0.01}}}, "front.resources: this machine has no 'front'; "),
        ({"decoder": {"resources": {"fast": 1}}}, "decoder.resources: this machine has no 'fast'; "),
        (
            {"decoder": {"num_replicas": 10, "stand_in_ms": 5.0}},
            "decoder.num_replicas: 10 of 0.2 CPUs (decoder.num_cpus), and 0.2 for front, but this machine has 2; ",
        ),
        (
            {"decoder": {"num_replicas": 1, "num_cpus": 1, "tensor_parallel": 2}},
            "decoder.num_replicas: 1 of 2 CPUs (decoder.num_cpus), and 0.2 for front, but this machine has 2; ",
        ),
        (
            {
                "decoder": {"num_replicas": 1, "autoscaling": {"max_replicas": 10}},
                "engine": {"num_slots": 100_000, "slot_tokens": 512},
            },
            "engine.num_slots: 100000 of engine.slot_tokens 512: the caches of 10 engines take ",
        ),
        (
            {"decoder": {"num_replicas": 1, "autoscaling": {"max_replicas": 100}}},
            "models.a.path: {model}: the weights of 100 engines take 0.0 GB, and the processes 45.9 GB, but ",
        ),
    ],
)
def test_replicas_that_this_machine_has_no_room_for_are_named(tmp_path, model, monkeypatch, change, says):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("pasta.engine.memory.machine_memory", lambda: 8e9)
    served = {"models": {"a": {"path": str(model)}}, "engine": {"num_slots": 1, "slot_tokens": 512}}
    with pytest.raises(UserError) as caught:
        check_machine(ServeConfig.model_validate(served | change))
    assert str(caught.value).startswith(says.format(model=model))
    check_machine(ServeConfig.model_validate(served | {"decoder": {"num_replicas": 9}}))


def test_decoders_that_reserve_more_gpus_than_ray_finds_are_named(tmp_path, model, monkeypatch):
    def reserve(_, application):
        application["args"]["decoder"] = {"num_replicas": 2, "num_gpus": 0.75}

    config = read_service_config(edited(service_config(tmp_path, model), reserve))
    monkeypatch.setattr("serve.launch._start_ray", lambda *_, **__: None)
    monkeypatch.setattr("serve.launch.stop_ray", lambda: None)
    monkeypatch.setattr("serve.launch.check_local", lambda _: None)
    monkeypatch.setattr("serve.launch._deploy", lambda *_, **__: pytest.fail("they would wait for ever"))
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0, "GPU": 1.0})
    said = mistake(running(dataclasses.replace(config, port=0)).__enter__)
    assert said.startswith("decoder.num_replicas: 2 of 0.75 GPUs (decoder.num_gpus), but Ray finds 1 on ")


def test_a_cluster_s_decoders_find_out_themselves_what_they_can_run(tmp_path, model):
    """``serve deploy`` builds the application on a machine that may have no GPU."""
    file = edited(
        service_config(tmp_path, model), lambda top, app: app["args"]["engine"].update(cuda_graphs="on")
    )
    check_service(read_service_config(file).args)


def slots(model, slot_tokens, **limits):
    values = {"models": {"a": {"path": str(model)}}, "engine": {"slot_tokens": slot_tokens}, "limits": limits}
    return ServeConfig.model_validate(values)


def takes(config, prompt):
    """Whether the service takes the prompt and an answer of one token."""
    try:
        RequestEncoder(config.models["a"], config).decode_orders(order(prompts=[prompt], max_tokens=1))
    except RequestRefused:
        return False
    return True


def test_a_slot_that_holds_no_chat_at_all_is_named_with_the_least_one(model):
    said = mistake(check_service, slots(model, 4))
    assert said.startswith("engine.slot_tokens: 4, but the shortest prompt of a takes ")
    least = int(said.rpartition(" ")[2])
    check_service(slots(model, least))
    shortest = [{"role": "user", "content": "a"}]
    assert takes(slots(model, least), shortest)
    assert not takes(slots(model, least - 1), shortest)


def test_a_slot_longer_than_the_model_is_named_with_the_longest(model):
    said = mistake(check_service, slots(model, 1 << 20))
    assert said.startswith(f"engine.slot_tokens: 1048576, but {model} has ")
    check_service(slots(model, int(said.rpartition(" ")[2])))


def test_a_budget_without_room_for_any_request_is_named_with_the_least(model):
    def budget(tokens, **admission):
        values = {"models": {"a": {"path": str(model)}}, "admission": {"budget_tokens": tokens, **admission}}
        return ServeConfig.model_validate(values)

    said = mistake(check_service, budget(5))
    assert said.startswith("admission.budget_tokens: 5, of which a request may hold 3 (")
    least = int(said.rpartition("at least ")[2])
    check_service(budget(least))
    with pytest.raises(UserError):
        check_service(budget(least - 1))
    # The shortest request is admitted with it.
    encoder = RequestEncoder(budget(least).models["a"], budget(least))
    (shortest,) = encoder.decode_orders(
        order(model="a", prompts=[[{"role": "user", "content": "a"}]], max_tokens=1)
    )
    needed = len(shortest.prompt_ids) + shortest.limits.max_tokens
    assert int(least * 0.75) >= needed > int((least - 1) * 0.75)
    check_service(budget(needed, most_of_one_kind=1.0))


def test_prompts_longer_than_a_slot_are_named_with_the_longest(model):
    said = mistake(check_service, slots(model, 64, max_prompt_tokens=64))
    assert said.startswith("limits.max_prompt_tokens: 64, but a slot holds 64 tokens, prompt and answer ")
    most = int(said.rpartition(" ")[2])
    check_service(slots(model, 64, max_prompt_tokens=most))
    assert takes(slots(model, 64), [5] * most)
    assert not takes(slots(model, 64), [5] * (most + 1))


def test_stand_ins_run_on_any_machine(tmp_path, model):
    file = service_config(tmp_path, model, decoder={"stand_in_ms": 5.0}, engine={"compile": "on"})
    check_local(read_service_config(file))


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


def test_two_services_do_not_start_at_one_port(tmp_path, model, monkeypatch):
    """Nothing listens there while the first one loads, and Ray Serve's proxies would share the port."""
    config = dataclasses.replace(read_service_config(service_config(tmp_path, model)), port=free_port())
    for name in ("_start_ray", "_check_gpus", "_deploy", "_started"):
        monkeypatch.setattr(launch, name, lambda *_, **__: None)
    monkeypatch.setattr(launch, "stop_ray", lambda: None)
    with running(config):
        says = f"cannot listen on 127.0.0.1:{config.port} (another service starts or runs there); choose another --port"
        assert mistake(running(config).__enter__) == says
        assert mistake(launch.check_ports, config, 0) == says
        with running(dataclasses.replace(config, port=free_port())):
            pass
    with running(config):
        pass


@pytest.mark.parametrize(("proxy", "fails"), [("none", "run"), ("ray", "proxy")])
def test_a_port_that_is_taken_while_the_service_loads_is_named(tmp_path, model, monkeypatch, proxy, fails):
    config = read_service_config(service_config(tmp_path, model, front={"proxy": proxy}))

    def fail(what):
        if fails == what:
            raise RuntimeError("Failed to bind, or no available ports")

    monkeypatch.setattr("ray.serve.run", lambda *_, **__: fail("run"))
    monkeypatch.setattr("serve.app.build", lambda _: None)
    monkeypatch.setattr(launch, "_failure", lambda _: "Gateway does not start: NoAvailablePortError")
    monkeypatch.setattr(launch, "_start_serve", lambda _: SimpleNamespace(result=lambda: fail("proxy")))
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]

        def deploy():
            launch._deploy(config, port, quiet=False, progress=lambda _: None)

        with pytest.raises(RuntimeError if fails == "proxy" else UserError, match=r"vailable|bind"):
            deploy()
        other.listen()
        assert f"cannot listen on 127.0.0.1:{port} (address already in use)" in mistake(deploy)


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "::1"])
@pytest.mark.parametrize("port", [0, 8000])
def test_a_host_that_cannot_be_listened_on_is_named(tmp_path, model, host, port):
    keys = {"file": str(tmp_path / "keys.yaml")}
    new_key(tmp_path / "keys.yaml", "a")
    config = read_service_config(service_config(tmp_path, model, keys=keys))
    said = mistake(running(dataclasses.replace(config, host=host, port=port)).__enter__)
    assert said.startswith(f"cannot listen on {host} (")
    assert said.endswith("; choose another host: an IPv4 address of this machine, or a name of one")


def test_haproxy_needs_keys_and_speaks_no_https(tmp_path, model):
    front = {"proxy": "haproxy"}
    config = read_service_config(service_config(tmp_path, model, front=front))
    assert mistake(check_local, config).startswith(
        "front.proxy: 'haproxy', but a Gateway behind it does not see "
    )
    new_key(tmp_path / "keys.yaml", "a")
    keys = {"file": str(tmp_path / "keys.yaml")}
    config = read_service_config(service_config(tmp_path, model, front=front, keys=keys))
    check_local(config)
    secured = dataclasses.replace(config, ssl_certfile="cert.pem", ssl_keyfile="key.pem")
    assert mistake(check_local, secured).startswith(
        "ssl_certfile: Ray's HAProxy (front.proxy) speaks no HTTPS"
    )


@pytest.mark.parametrize("proxy", ["haproxy", "none"])
def test_a_gateway_whose_ray_was_started_for_another_proxy_says_so(model, proxy):
    config = ServeConfig.model_validate({"models": {"a": {"path": str(model)}}, "front": {"proxy": proxy}})
    said = mistake(check_started, config)
    assert said.startswith(
        f"front.proxy: {proxy!r}, but Ray was started for 'ray' (RAY_SERVE_ENABLE_HA_PROXY "
    )


def test_without_a_proxy_there_is_one_gateway(tmp_path, model):
    config = read_service_config(service_config(tmp_path, model, front={"proxy": "none", "gateways": 2}))
    assert mistake(check_service, config.args).startswith("front.gateways: 2, but without a proxy ")


def test_a_certificate_that_is_none_is_named(tmp_path, model):
    (tmp_path / "junk").write_bytes(b"junk")
    config = read_service_config(service_config(tmp_path, model))
    junk = dataclasses.replace(
        config, ssl_certfile=str(tmp_path / "junk"), ssl_keyfile=str(tmp_path / "junk")
    )
    assert mistake(check_local, junk).endswith(
        "is not in PEM format; expected a text with -----BEGIN … in it"
    )


@pytest.mark.parametrize("prefix", ["x", "/x/", "/{x}", None])
def test_a_route_prefix_that_ray_serve_does_not_take_is_named(tmp_path, model, prefix):
    file = edited(service_config(tmp_path, model), lambda top, app: app.update(route_prefix=prefix))
    assert "applications.0.route_prefix: " in mistake(read_service_config, file)


@pytest.mark.parametrize("port", [65_536, -1])
def test_what_is_no_port_is_named(tmp_path, model, port):
    file = edited(service_config(tmp_path, model), lambda top, app: top.update(http_options={"port": port}))
    assert mistake(read_service_config, file).endswith(
        f"http_options.port: {port}, expected a port from 0 to 65535"
    )
    config = dataclasses.replace(read_service_config(service_config(tmp_path, model)), port=port)
    assert mistake(running(config).__enter__) == f"--port: {port}, expected a port from 0 to 65535"
    service = running(dataclasses.replace(config, port=0), metrics_port=port)
    assert mistake(service.__enter__) == f"--metrics-port: {port}, expected a port from 0 to 65535"
    assert not ray.is_initialized()


@pytest.mark.slow
def test_the_command_says_it_in_one_line_and_exits_with_2(tmp_path):
    file = service_config(tmp_path, tmp_path / "nothing")
    done = subprocess.run(
        [sys.executable, "-m", "serve.run", file], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: models.pasta-atlas.path")
    assert done.stderr.count("\n") == 1
