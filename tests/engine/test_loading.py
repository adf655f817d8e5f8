"""Loading models: what is wrong is said in one line, with what to do."""

import copy
import json
import logging
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BertConfig, Phi3Config, modeling_utils
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from pasta.engine import (
    Engine,
    EngineConfig,
    Request,
    load_model,
    pretrained,
    random_model,
    read_model_config,
)
from pasta.engine.families import SCALINGS
from pasta.errors import UserError
from pasta.interpreter import Limits
from tests.support.models import CONFIGS, tiny
from tests.support.service import save_plain_model
from tests.support.tokenizers import byte_level


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model directory as training writes it."""
    directory = tmp_path_factory.mktemp("model")
    tiny().model.save_pretrained(directory)
    byte_level().save_pretrained(directory)
    return directory


def refused(match, *args, **options):
    with pytest.raises(UserError, match=match) as caught:
        load_model(*args, **options)
    assert "\n" not in str(caught.value)


def test_a_saved_model_loads(saved):
    loaded = load_model(saved, device="cpu")
    assert loaded.num_parameters == tiny().num_parameters
    assert loaded.codec.control == tiny().codec.control


def test_a_recorded_forward_says_nothing_of_losses(saved, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    modeling_utils.logger.warning_once.cache_clear()
    engine = Engine(load_model(saved, device="cpu"), EngineConfig(num_slots=1, slot_tokens=64))
    engine.generate(Request(prompt_ids=[5, 6, 7], limits=Limits(max_tokens=4)))
    assert not [record.getMessage() for record in caplog.records if "loss" in record.getMessage()]


def test_a_missing_directory(tmp_path):
    refused("is not a directory", tmp_path / "nowhere")


def test_a_directory_without_a_configuration(tmp_path):
    refused("no readable config.json", tmp_path)


def test_an_unsupported_architecture(saved, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(BertConfig().to_dict()))
    refused("architecture 'bert' is not supported; expected one of llama", tmp_path)


def test_a_tokenizer_without_control_tokens(saved, tmp_path):
    (tmp_path / "config.json").write_text((saved / "config.json").read_text())
    tokenizer = json.loads((saved / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = [t for t in tokenizer["added_tokens"] if t["content"] != "<sync/>"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((saved / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    refused("control tokens <sync/> are not in the vocabulary", tmp_path)


@pytest.mark.parametrize("content", ["{}", '{"added_tokens": []}'])
def test_a_damaged_tokenizer(saved, tmp_path, content):
    for file in ("config.json", "tokenizer_config.json"):
        (tmp_path / file).write_text((saved / file).read_text())
    (tmp_path / "tokenizer.json").write_text(content)
    refused("no tokenizer can be read there", tmp_path)


def test_a_tokenizer_of_another_class_than_its_file(saved, tmp_path):
    """transformers makes it, and then it can encode nothing."""
    for file in ("config.json", "tokenizer.json"):
        (tmp_path / file).write_text((saved / file).read_text())
    settings = json.loads((saved / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(settings | {"tokenizer_class": "GemmaTokenizer"})
    )
    refused(r"tokenizer: it cannot encode .* \(Unk token", tmp_path)


def test_a_random_model_leaves_its_configuration_as_it_was():
    config = copy.deepcopy(CONFIGS["llama"])
    before = config.to_dict()
    random_model(config, byte_level(), dtype="bfloat16", device="cpu")
    assert config.to_dict() == before


def copied(saved, tmp_path, **changes):
    """A copy of the model, of which the configuration has these ``changes``."""
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    config = json.loads((saved / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    return tmp_path


PROJECTION = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        # transformers would go on with random numbers.
        ({PROJECTION: None}, rf"no weights for {PROJECTION}; expected those of all layers in config\.json"),
        ({PROJECTION: torch.ones(3, 4)}, rf"{PROJECTION} is 3 x 4, but config\.json makes it 32 x 32"),
        # It would leave them out, and compute something else.
        ({PROJECTION[:-6] + "bias": torch.ones(32)}, r"q_proj\.bias, for which config\.json has no place"),
        (
            {PROJECTION: torch.ones(32, 32).to(torch.float8_e4m3fn), PROJECTION + "_scale": torch.ones(1)},
            r"q_proj\.weight_scale, for which config\.json has no place",
        ),
    ],
    ids=["missing", "shape", "bias", "scale"],
)
def test_weights_that_are_not_those_of_the_configuration(saved, tmp_path, changes, match):
    weights = load_file(copied(saved, tmp_path) / "model.safetensors") | changes
    save_file(
        {name: tensor for name, tensor in weights.items() if tensor is not None},
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    refused(f"^model '{tmp_path}': .*{match}", tmp_path, device="cpu")


@pytest.mark.parametrize("over", [PROJECTION[:-6] + "bias", None])
def test_with_zero_3_weights_that_have_no_place_are_found_too(saved, tmp_path, monkeypatch, over):
    """transformers then says of none that it was left out."""

    def read(source, **options):
        model, info = from_pretrained(source, **options)
        info["unexpected_keys"] = set()
        return model, info

    weights = load_file(copied(saved, tmp_path) / "model.safetensors")
    save_file(
        weights | ({over: torch.ones(32)} if over else {}), tmp_path / "model.safetensors", {"format": "pt"}
    )
    from_pretrained = AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", read)
    monkeypatch.setattr(pretrained, "is_deepspeed_zero3_enabled", lambda: True)
    if over:
        refused(rf"{over}, for which config\.json has no place", tmp_path, device="cpu")
    else:
        load_model(tmp_path, device="cpu")


@pytest.mark.parametrize("own", [True, False])
def test_with_zero_3_an_output_layer_of_its_own_is_refused_where_the_configuration_ties_it(
    saved, tmp_path, monkeypatch, own
):
    """It would be left out."""
    weights = load_file(copied(saved, tmp_path) / "model.safetensors")
    head = weights["model.embed_tokens.weight"] + float(own)
    save_file({**weights, "lm_head.weight": head}, tmp_path / "model.safetensors", {"format": "pt"})
    monkeypatch.setattr(pretrained, "is_deepspeed_zero3_enabled", lambda: True)
    monkeypatch.setattr(pretrained, "_ties_wrongly", lambda _: False)
    if own:
        refused(
            "have an output layer of their own, lm_head.weight, which ZeRO-3 leaves out",
            tmp_path,
            device="cpu",
        )
    else:
        load_model(tmp_path, device="cpu")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", [PROJECTION, "model.norm.weight"])
def test_weights_that_are_no_numbers_are_refused(saved, tmp_path, name, value):
    weights = load_file(copied(saved, tmp_path) / "model.safetensors")
    weights[name].view(-1)[-1] = value
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    refused(f"^model '{tmp_path}': {name} holds {value}; expected finite numbers", tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("family", "changes", "match"),
    [
        (
            "ministral3",
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}},
            r"rope_parameters has no llama_4_scaling_beta; expected a number",
        ),
        (
            "phi3",
            {"hidden_size": 36},
            r"heads of 9 numbers; expected an even number, which is turned in pairs",
        ),
    ],
)
def test_a_configuration_that_no_model_computes_with_is_refused(tmp_path, family, changes, match):
    config = type(CONFIGS[family])(**CONFIGS[family].to_dict() | changes)
    with pytest.raises(UserError, match=f"^model configuration: {match}"):
        random_model(config, byte_level(), device="cpu")


def test_an_output_layer_of_its_own_stays_one_where_the_configuration_ties_it(saved, tmp_path):
    """transformers reads it, and leaves a configuration by which draft heads, adapters, new rows and weights that
    come from training would take the embedding instead."""
    weights = load_file(copied(saved, tmp_path) / "model.safetensors")
    head = torch.randn_like(weights["model.embed_tokens.weight"])
    save_file({**weights, "lm_head.weight": head}, tmp_path / "model.safetensors", {"format": "pt"})
    model = load_model(tmp_path, device="cpu", packed=False).model
    model.tie_weights()
    assert not model.config.tie_word_embeddings
    torch.testing.assert_close(model.lm_head.weight.data, head)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(file.read_bytes()[:-100]),
        lambda file: file.write_bytes(b"version https://git-lfs.github.com/spec/v1\n"),
        lambda file: file.rename(file.with_name("pytorch_model.bin")),
        lambda file: (
            file.rename(file.with_name("model-1.safetensors"))
            .with_name(f"{file.name}.index.json")
            .write_text("{}")
        ),
    ],
    ids=["cut", "pointer", "other", "index"],
)
def test_weights_that_are_damaged(saved, tmp_path, damage):
    damage(copied(saved, tmp_path) / "model.safetensors")
    refused(f"^model '{tmp_path}': cannot be loaded \\(", tmp_path, device="cpu")


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors", "fp8", "bitsandbytes", "modelopt"])
def test_quantised_weights(saved, tmp_path, method):
    copied(saved, tmp_path, quantization_config={"quant_method": method})
    refused(f"its weights are quantised \\({method}\\); expected those of a float format", tmp_path)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_hidden_layers": "x"}, "expected int, got str"),
        ({"head_dim": 7}, "even rotary dimension"),
        ({"num_attention_heads": 0}, "modulo by zero"),
        ({"hidden_act": "none"}, "none"),
        ({"rope_parameters": {"rope_type": "none"}}, "none"),
    ],
)
def test_a_configuration_of_which_no_model_can_be_made(saved, tmp_path, changes, match):
    refused(f"^model '{tmp_path}': .*{match}", copied(saved, tmp_path, **changes), device="cpu")


def test_an_embedding_without_room_for_the_tokenizer():
    config = CONFIGS["llama"].__class__(**{**CONFIGS["llama"].to_dict(), "vocab_size": 300})
    with pytest.raises(UserError, match=r"embedding has 300 rows, its tokenizer \d+ tokens"):
        random_model(config, byte_level(), device="cpu")


def test_an_embedding_smaller_than_the_tokenizer_of_a_model_without_control_tokens(tmp_path):
    """jobs.sft would give the rows of control tokens, of which there are none."""
    save_plain_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    weights = load_file(tmp_path / "model.safetensors")
    few = {name: each[:300] if len(each) == config["vocab_size"] else each for name, each in weights.items()}
    save_file(few, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 300}))
    with pytest.raises(
        UserError, match=r"300 rows, its tokenizer \d+ tokens; .* belong to another"
    ) as caught:
        load_model(tmp_path, device="cpu", sequential=True)
    assert "control tokens" not in str(caught.value)


def test_a_dtype_nobody_knows(saved):
    refused("dtype: 'int2', expected one of auto, float32", saved, dtype="int2")


@pytest.mark.parametrize("device", ["tpu:0", "gpu"])
def test_a_device_nobody_knows(saved, device):
    refused(f"device: '{device}'", saved, device=device)


def test_a_scaling_of_positions_that_nobody_knows_is_said(saved, tmp_path):
    """The Decoder ended with KeyError: 'ntk-magic'."""
    assert {*SCALINGS} == {"default", *ROPE_INIT_FUNCTIONS}
    values = json.loads((saved / "config.json").read_text())
    for name in ("ntk-magic", 3):
        scaling = {"rope_type": name, "factor": 2.0, "rope_theta": 1e4}
        (tmp_path / "config.json").write_text(json.dumps(values | {"rope_parameters": scaling}))
        refused(
            f"positions are scaled as {name!r}, which is not known; expected one of default, linear", tmp_path
        )


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_the_old_name_of_longrope_is_said(saved, tmp_path, key):
    values = Phi3Config(num_hidden_layers=1, original_max_position_embeddings=1024).to_dict()
    scaling = {key: "su", "short_factor": [1.0] * 48, "long_factor": [1.0] * 48}
    (tmp_path / "config.json").write_text(
        json.dumps(values | {"rope_parameters": None, "rope_scaling": scaling})
    )
    said = "rope_scaling has the type 'su', the old name of longrope; expected longrope there"
    refused(rf"no readable config.json \({said}\)", tmp_path)
    with pytest.raises(UserError) as caught:
        read_model_config(tmp_path)
    assert str(caught.value) == f"model configuration '{tmp_path}': {said}"


def test_a_model_configuration_that_is_no_object(tmp_path):
    file = tmp_path / "config.json"
    file.write_text("[3]")
    with pytest.raises(UserError) as caught:
        read_model_config(file)
    assert str(caught.value) == f"model configuration: {file}: expected an object, got a list"


def test_a_model_configuration_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_model_config(tmp_path / "no.json")


def test_a_model_configuration_file_that_is_no_configuration(tmp_path):
    (tmp_path / "c.json").write_text("{}")
    with pytest.raises(UserError, match=r"c\.json"):
        read_model_config(tmp_path / "c.json")
