"""Models that see images and write text: the part that writes text is read."""

import json

import pytest
import torch
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
)

from pasta.engine import load_model
from pasta.engine.families import pretrained_config
from pasta.engine.memory import num_positions
from pasta.errors import UserError
from pasta.training.config import ModelSection
from pasta.training.model import build_model, check_trainable, make_tokenizer
from tests.support.models import CONFIGS
from tests.support.tokenizers import byte_level

VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
IMAGES = VISION | {"image_size": 28, "patch_size": 14}
MODELS = {
    "gemma3": lambda: Gemma3ForConditionalGeneration(
        Gemma3Config(
            text_config=CONFIGS["gemma3"].to_dict(),
            vision_config=IMAGES,
            mm_tokens_per_image=4,
            image_token_index=500,
            boi_token_index=501,
            eoi_token_index=502,
        )
    ),
    "mistral3": lambda: Mistral3ForConditionalGeneration(
        Mistral3Config(
            text_config=CONFIGS["ministral3"].to_dict(),
            vision_config=IMAGES | {"model_type": "pixtral"},
            image_token_index=500,
        )
    ),
}


@pytest.fixture(params=MODELS)
def whole(request, tmp_path):
    """A model of both parts and its directory."""
    torch.manual_seed(0)
    model = MODELS[request.param]().eval()
    model.save_pretrained(tmp_path)
    byte_level().save_pretrained(tmp_path)
    return model, tmp_path


TEXT = torch.tensor([list(b"Which rivers flow?")])


def logits(model):
    with torch.no_grad():
        return model.float().eval()(TEXT).logits


def test_it_is_served_as_the_text_model_that_it_is(whole):
    model, directory = whole
    loaded = load_model(directory, device="cpu", packed=False)
    assert loaded.model.config.model_type in ("gemma3_text", "ministral3")
    assert loaded.max_positions == num_positions(str(directory)) == 4096
    torch.testing.assert_close(loaded.model.lm_head.weight, model.lm_head.weight)
    assert loaded.num_parameters < sum(parameter.numel() for parameter in model.parameters())


def test_it_is_trained_as_a_text_model_and_saved_as_one(whole, tmp_path):
    model, directory = whole
    section = ModelSection(init_from=str(directory))
    built = build_model(section, make_tokenizer(section), seed=0)
    torch.testing.assert_close(logits(built), logits(model), rtol=0, atol=1e-5)
    built.save_pretrained(tmp_path / "saved")
    assert pretrained_config(tmp_path / "saved").model_type == built.config.model_type
    byte_level().save_pretrained(tmp_path / "saved")
    saved = load_model(tmp_path / "saved", device="cpu", packed=False).model
    torch.testing.assert_close(logits(saved), logits(model), rtol=0, atol=1e-5)


def test_the_whole_says_whether_its_output_layer_is_the_embedding(whole):
    model, directory = whole
    file = directory / "config.json"
    told = json.loads(file.read_text())
    assert told["tie_word_embeddings"]
    told["text_config"]["tie_word_embeddings"] = False
    file.write_text(json.dumps(told))
    loaded = load_model(directory, device="cpu", packed=False).model
    assert loaded.config.tie_word_embeddings
    torch.testing.assert_close(logits(loaded), logits(model), rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", ["model.language_model.", "language_model.model."])
def test_both_forms_of_its_checkpoints_are_read(form, whole, tmp_path):
    from safetensors.torch import load_file, save_file

    model, directory = whole
    file = directory / "model.safetensors"
    tensors = load_file(file)
    renamed = {name.replace("language_model.model.", form): tensor for name, tensor in tensors.items()}
    save_file(renamed, file, {"format": "pt"})
    section = ModelSection(init_from=str(directory))
    built = build_model(section, make_tokenizer(section), seed=0)
    torch.testing.assert_close(logits(built), logits(model), rtol=0, atol=1e-5)


def test_quantised_weights_of_it_are_refused(whole):
    """How they are quantised stands beside the parts in config.json."""
    _, directory = whole
    file = directory / "config.json"
    told = json.loads(file.read_text()) | {"quantization_config": {"quant_method": "fp8"}}
    file.write_text(json.dumps(told))
    section = ModelSection(init_from=str(directory))
    for refused in (
        lambda: load_model(directory, device="cpu"),
        lambda: check_trainable(section, make_tokenizer(section)),
    ):
        with pytest.raises(UserError, match=r"its weights are quantised \(fp8\)"):
            refused()
