"""The model that training starts from."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

import pasta.training.model as model_module
from pasta.errors import UserError
from pasta.lang import CONTROL_TOKENS
from pasta.training.config import ModelSection
from pasta.training.model import build_model, check_trainable, make_room, make_tokenizer, new_token_ids
from pasta.training.save import save_trained
from tests.support.models import tiny
from tests.support.tokenizers import TEMPLATE, byte_level
from tests.training.runs import sft_config


def _plain_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer as it comes from elsewhere: without control tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab={**letters, "<|end|>": len(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def saved_model(directory: Path, spare: int = 0, **changes: object) -> Path:
    """A model as it comes from elsewhere, its embedding with ``spare`` rows more than the tokenizer has tokens."""
    tokenizer = _plain_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer) + spare, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, **changes,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def test_a_model_without_a_chat_template_needs_another_s_tokenizer(tmp_path: Path) -> None:
    base, instruct = (str(saved_model(tmp_path / name)) for name in ("base", "instruct"))
    (tmp_path / "base" / "chat_template.jinja").unlink()
    with pytest.raises(
        UserError, match=r"model.init_from: .*/base: its tokenizer has no chat template; .* model.tok"
    ):
        make_tokenizer(ModelSection(init_from=base))
    assert make_tokenizer(ModelSection(init_from=base, tokenizer=instruct)).chat_template


@pytest.mark.parametrize("tied", [True, False])
def test_control_tokens_get_rows_at_the_mean_of_the_old_ones(tmp_path: Path, tied: bool) -> None:
    path = saved_model(tmp_path / "model", tie_word_embeddings=tied)
    old = AutoModelForCausalLM.from_pretrained(path)
    rows = old.get_input_embeddings().weight.shape[0]
    section = ModelSection(init_from=str(path))
    tokenizer = make_tokenizer(section)
    model = build_model(section, tokenizer, seed=0)
    for module, before in (
        (model.get_input_embeddings(), old.get_input_embeddings()),
        (model.get_output_embeddings(), old.get_output_embeddings()),
    ):
        assert module.weight.shape[0] == rows + len(CONTROL_TOKENS)
        torch.testing.assert_close(module.weight[:rows], before.weight)
        torch.testing.assert_close(
            module.weight[rows:], before.weight.mean(0).expand(len(CONTROL_TOKENS), -1)
        )


def test_control_tokens_in_spare_rows_start_at_the_mean_too(tmp_path: Path) -> None:
    path = saved_model(tmp_path / "model", spare=7)
    old = AutoModelForCausalLM.from_pretrained(path).get_input_embeddings().weight
    section = ModelSection(init_from=str(path))
    tokenizer = make_tokenizer(section)
    new = build_model(section, tokenizer, seed=0).get_input_embeddings().weight
    assert new.shape == old.shape
    first = len(_plain_tokenizer())
    added = slice(first, first + len(CONTROL_TOKENS))
    others = torch.cat([old[:first], old[added.stop :]])
    torch.testing.assert_close(new[added], others.mean(0).expand(len(CONTROL_TOKENS), -1))
    torch.testing.assert_close(new[:first], old[:first])


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            Path.unlink,
            " has not all of a model's weights; expected model.safetensors or the files of its index",
        ),
        (_cut, r": model.safetensors is cut, or no weights \([0-9]+ bytes\); copy it again"),
        (
            lambda file: file.write_text("version https://git-lfs.github.com/spec/v1\n"),
            r" \(43 bytes\); copy it",
        ),
        (lambda file: file.write_bytes(b""), r": model.safetensors is cut, or no weights \(0 bytes\)"),
    ],
    ids=["gone", "cut", "a pointer of git-lfs", "empty"],
)
def test_a_model_that_was_copied_in_part_is_told_before_any_worker_reads_it(
    tmp_path: Path, change: Callable[[Path], object], expected: str
) -> None:
    """Each worker of a run told it, in a stack trace."""
    path = saved_model(tmp_path / "model")
    section = ModelSection(init_from=str(path))
    tokenizer = make_tokenizer(section)
    check_trainable(section, tokenizer)
    change(path / "model.safetensors")
    with pytest.raises(UserError, match=f"^model.init_from: {path}.*{expected}"):
        check_trainable(section, tokenizer)


def test_all_ranks_fill_the_rows_of_embedding_and_head_in_one_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under ZeRO-3 they gather a weight together: in two orders they would mix embedding and head."""
    section = ModelSection(init_from=str(saved_model(tmp_path, tie_word_embeddings=False)))
    tokenizer, filled = make_tokenizer(section), list[Any]()
    monkeypatch.setattr(model_module, "_set_to_mean", lambda weight, rows: filled.append(weight))
    models = [
        build_model(section, tokenizer, seed=0) for _ in range(12)
    ]  # where each lies in memory is chance
    embeddings = [model.get_input_embeddings().weight for model in models]
    assert [id(weight) for weight in filled[::2]] == [id(weight) for weight in embeddings]
    assert len(filled) == 2 * len(models)


def test_a_model_that_knows_the_control_tokens_keeps_their_rows(tmp_path: Path) -> None:
    section = sft_config(tmp_path).model
    tokenizer = make_tokenizer(section)
    model = build_model(section, tokenizer, seed=0)
    model.save_pretrained(tmp_path / "trained")
    tokenizer.save_pretrained(tmp_path / "trained")
    again = build_model(ModelSection(init_from=str(tmp_path / "trained")), tokenizer, seed=0)
    assert torch.equal(again.get_input_embeddings().weight, model.get_input_embeddings().weight)


def test_a_model_without_a_tokenizer_keeps_the_rows_of_the_tokens_that_it_is_given(tmp_path: Path) -> None:
    """For a Qwen that lies without one transformers makes a tokenizer of nothing."""
    plain = _plain_tokenizer()
    plain.save_pretrained(tmp_path / "tokenizer")
    config = Qwen3Config(
        vocab_size=len(plain), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, head_dim=8,
    )  # fmt: skip
    old = AutoModelForCausalLM.from_config(config)
    old.save_pretrained(tmp_path / "model")
    section = ModelSection(init_from=str(tmp_path / "model"), tokenizer=str(tmp_path / "tokenizer"))
    tokenizer = make_tokenizer(section)
    new = build_model(section, tokenizer, seed=0).get_input_embeddings().weight
    torch.testing.assert_close(new[: len(plain)], old.get_input_embeddings().weight)
    assert new_token_ids(section, tokenizer) == [*range(len(plain), len(tokenizer))]


@pytest.mark.parametrize(
    ("stored", "kept"),
    [
        ({"temperature": 0.9, "top_p": 0.6}, {}),
        ({"pad_token_id": -1}, {}),
        ({"temperature": 0.9, "do_sample": True}, {"temperature": 0.9, "do_sample": True}),
    ],
)
def test_a_generation_configuration_that_cannot_be_saved_ends_no_run(
    tmp_path: Path, stored: dict[str, Any], kept: dict[str, Any]
) -> None:
    """Vicuna's has a temperature without do_sample, and the trainer adds its own end of text."""
    path = saved_model(tmp_path / "model")
    (path / "generation_config.json").write_text(json.dumps(stored | {"eos_token_id": [2, 3]}))
    section = ModelSection(init_from=str(path))
    model: Any = build_model(section, make_tokenizer(section), seed=0)
    model.generation_config.eos_token_id = [2, 3, 4]
    model.save_pretrained(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved/generation_config.json").read_text())
    assert {key: value for key, value in saved.items() if key != "transformers_version"} == kept | {
        "eos_token_id": [2, 3, 4]
    }


def test_other_programs_are_told_the_end_of_a_turn(tmp_path: Path) -> None:
    """Gemma's base model with the tokenizer of its instruct model: turns end with a token of their own."""
    path = saved_model(tmp_path / "model", eos_token_id=_plain_tokenizer().eos_token_id)
    section = ModelSection(init_from=str(path))
    tokenizer = make_tokenizer(section)
    ends = build_model(section, tokenizer, seed=0).generation_config.eos_token_id
    assert ends == tokenizer.eos_token_id
    tokenizer.add_tokens(["<end_of_turn>"], special_tokens=True)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}<end_of_turn>{% endfor %}"
    model: Any = build_model(section, tokenizer, seed=0)
    expected = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<end_of_turn>")]
    assert model.generation_config.eos_token_id == expected
    model.save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved/generation_config.json").read_text())["eos_token_id"] == expected


def test_a_model_with_room_is_left_as_it_is(tmp_path: Path) -> None:
    section = sft_config(tmp_path).model
    tokenizer = make_tokenizer(section)
    assert make_room(build_model(section, tokenizer, seed=0), tokenizer) == 0


def test_the_same_seed_gives_the_same_model_from_scratch(tmp_path: Path) -> None:
    section = sft_config(tmp_path).model
    tokenizer = make_tokenizer(section)
    one, two, other = (
        build_model(section, tokenizer, seed).get_input_embeddings().weight for seed in (1, 1, 2)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    section = ModelSection(init_from=str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="nowhere: no such directory"):
        make_tokenizer(section)


def test_an_unsupported_architecture_is_named(tmp_path: Path) -> None:
    tokenizer = byte_level()
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=8, n_layer=1, n_head=1)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "gpt2")
    tokenizer.save_pretrained(tmp_path / "gpt2")
    section = ModelSection(init_from=str(tmp_path / "gpt2"))
    with pytest.raises(
        UserError, match=r"^model\.init_from: .* 'gpt2' is not supported; expected one of .*llama"
    ):
        build_model(section, make_tokenizer(section), seed=0)


def test_an_unknown_dimension_is_named(tmp_path: Path) -> None:
    section = sft_config(tmp_path).model
    assert section.architecture is not None
    architecture = yaml.safe_load(section.architecture.read_text())
    architecture["config"]["hiden_size"] = 3
    section.architecture.write_text(yaml.safe_dump(architecture))
    with pytest.raises(UserError, match="unknown key 'hiden_size' for model type llama"):
        build_model(section, make_tokenizer(section), seed=0)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("hidden_size", "wide", "hidden_size.*expected int, got str"),
        ("vocab_size", 500, "vocab_size: has no place here; it follows from the tokenizer"),
        ("num_key_value_heads", 3, "no model can be made of it .*; expected dimensions that fit together"),
        ("intermediate_size", -4, "no model can be made of it"),
        ("hidden_act", "gulu", "no model can be made of it .KeyError: 'gulu'"),
    ],
)
def test_dimensions_of_which_no_model_can_be_made_are_refused(
    tmp_path: Path, key: str, value: Any, expected: str
) -> None:
    section = sft_config(tmp_path).model
    assert section.architecture is not None
    architecture = yaml.safe_load(section.architecture.read_text())
    architecture["config"][key] = value
    section.architecture.write_text(yaml.safe_dump(architecture))
    with pytest.raises(UserError, match=rf"model\.yaml: config: .*{expected}") as error:
        check_trainable(section, make_tokenizer(section))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("from_scratch", [False, True])
def test_an_attention_that_a_family_has_not_is_refused(tmp_path: Path, from_scratch: bool) -> None:
    """Gemma 2's scores are capped, for which PyTorch's fused attention has no place."""
    if from_scratch:
        section = replace(sft_config(tmp_path).model, attention="sdpa")
        assert section.architecture is not None
        architecture = yaml.safe_load(section.architecture.read_text()) | {"model_type": "gemma2"}
        section.architecture.write_text(yaml.safe_dump(architecture))
    else:
        tiny("gemma2").model.save_pretrained(tmp_path)
        byte_level().save_pretrained(tmp_path)
        section = ModelSection(init_from=str(tmp_path))
    tokenizer = make_tokenizer(section)
    with pytest.raises(UserError, match=r"^model\.attention: 'sdpa', but .* gemma2 .*; expected eager$"):
        check_trainable(section, tokenizer)
    check_trainable(replace(section, attention="eager"), tokenizer)


def test_weights_of_another_vocabulary_are_refused(tmp_path: Path) -> None:
    path = saved_model(tmp_path / "model")
    byte_level().save_pretrained(tmp_path / "tokenizer")
    section = ModelSection(init_from=str(path), tokenizer=str(tmp_path / "tokenizer"))
    with pytest.raises(UserError, match="was trained with another vocabulary"):
        build_model(section, make_tokenizer(section), seed=0)


def test_a_tokenizer_that_cannot_end_an_answer_is_refused(tmp_path: Path) -> None:
    tokenizer = _plain_tokenizer()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    section = ModelSection(architecture=Path("unused.yaml"), tokenizer=str(tmp_path / "tokenizer"))
    with pytest.raises(UserError, match="eos_token is not set"):
        make_tokenizer(section)


def test_a_directory_that_a_killed_process_of_the_same_id_left_is_replaced(tmp_path: Path) -> None:
    start = saved_model(tmp_path / "start")
    left = tmp_path / f".model.{os.getpid()}"
    left.mkdir()
    (left / "half").write_text("")
    section = ModelSection(init_from=str(start), save_dtype="float32")
    save_trained(start, tmp_path / "model", section, None, AutoTokenizer.from_pretrained(start), {})
    assert (tmp_path / "model/config.json").is_file()
    assert not (tmp_path / "model/half").exists()


def test_weights_that_a_trainer_left_out_are_not_made_up(tmp_path: Path) -> None:
    trained = saved_model(tmp_path / "trained", tie_word_embeddings=False)
    model = AutoModelForCausalLM.from_pretrained(trained)
    state = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    model.save_pretrained(trained, state_dict=state)
    section = ModelSection(init_from=str(trained))
    with pytest.raises(UserError, match=r"model: the trained model: has no weights for lm_head\.weight"):
        save_trained(trained, tmp_path / "model", section, None, byte_level(), {})
    assert not (tmp_path / "model").exists()
