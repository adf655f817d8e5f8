"""Draft heads are trained on what a frozen model says, along threads."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModelForCausalLM

from pasta.config import load_config, parse_config
from pasta.engine import kernels
from pasta.engine.head_files import WEIGHTS, HeadShape
from pasta.engine.heads import DraftHeads, HeadRunner, read_heads
from pasta.errors import UserError
from pasta.interpreter import IGNORE
from pasta.training import heads as heads_module
from pasta.training.config import HeadsSection, SftConfig
from pasta.training.heads import HeadsStage, guess, install_draft_heads, model_files, save_heads
from pasta.training.save import check_run_and_output
from pasta.training.sft import inputs, prepare
from tests.engine.test_text_part import MODELS
from tests.support.models import CONFIGS
from tests.support.paths import ROOT
from tests.support.service import save_plain_model, save_tiny_model
from tests.training.runs import sft_dict

CONFIG = ROOT / "configs/sft/atlas-heads-twin.yaml"
VOCAB, HIDDEN = 11, 4


def targets(input_ids, shift_labels, depth=3):
    """Of each head, the rows whose tokens it has to guess: the model says its own row number."""
    length = len(input_ids)
    heads = DraftHeads(HeadShape(HIDDEN, length, depth, 2))
    logits = torch.eye(length)[None]
    found = guess(
        heads,
        nn.Embedding(VOCAB, HIDDEN),
        torch.zeros(1, length, HIDDEN),
        logits,
        torch.tensor([input_ids]),
        torch.tensor([shift_labels]),
    )
    return [wanted.tolist() for _, wanted in found]


def test_head_k_guesses_the_token_k_rows_on():
    ids = [1, 2, 3, 4, 5]
    assert targets(ids, [2, 3, 4, 5, 6]) == [[1, 2, 3, 4], [2, 3, 4], [3, 4]]


def test_nothing_is_guessed_across_the_end_of_a_thread():
    """Row 1 is a promise's end: its next token is not the chunk's first one; row 3 ends the chunk."""
    ids = [1, 2, 3, 4, 5, 6]
    assert targets(ids, [2, 5, 4, IGNORE, 6, 7]) == [[1, 5], [], []]


def test_a_prompt_is_not_guessed():
    assert targets([1, 2, 3, 4], [IGNORE, IGNORE, 4, 5]) == [[3], [], []]


def test_only_the_heads_learn():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS["llama"])
    install_draft_heads(model, HeadsSection(depth=2, width=16), seed=0)
    before = {name: value.clone() for name, value in model.state_dict().items() if "draft_heads" not in name}
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer, losses = torch.optim.Adam(learning, lr=0.01), []
    ids = torch.arange(40).repeat(1, 1) % 7 + 3
    labels = torch.cat([ids[:, 1:], torch.full((1, 1), IGNORE)], dim=1)
    for _ in range(30):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=labels, shift_labels=labels).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


@pytest.mark.parametrize("bf16", [False, True])
def test_heads_that_are_scored_some_rows_at_a_time_learn_the_same(bf16, monkeypatch):
    ids = torch.arange(40)[None] % 7 + 3
    labels = torch.cat([ids[:, 1:], torch.full((1, 1), IGNORE)], dim=1)
    found = []
    for at_once in (heads_module._SCORES_AT_ONCE, 1):
        monkeypatch.setattr(heads_module, "_SCORES_AT_ONCE", at_once)
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(CONFIGS["llama"])
        install_draft_heads(model, HeadsSection(depth=2, width=16), seed=0, bf16=bf16)
        loss = model(input_ids=ids, labels=labels, shift_labels=labels).loss
        loss.backward()
        gradients = [each.grad for each in model.parameters() if each.requires_grad]
        assert any(each.abs().max() > 0 for each in gradients)
        found.append((loss, gradients))
    torch.testing.assert_close(*found, rtol=1e-4, atol=2e-2 if bf16 else 1e-5)


@pytest.mark.parametrize("family", CONFIGS)
def test_an_engine_reads_the_embeddings_that_the_heads_have_learnt_from(family, monkeypatch):
    """Gemma's module multiplies its weights."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[family]).eval().requires_grad_(False)
    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    size = embedding.weight.shape
    heads = DraftHeads(HeadShape(size[1], size[0], 2, 64)).requires_grad_(False)
    for down in heads.down:
        nn.init.normal_(down.weight)
    ids, hidden = torch.arange(5, 35)[None], torch.randn(1, 30, size[1])
    labels = torch.cat([ids[:, 1:], torch.full((1, 1), IGNORE)], dim=1)
    head_states, _ = guess(heads, embedding, hidden, torch.zeros(1, 30, size[0]), ids, labels)[0]
    scores = output(head_states)
    states, tokens = hidden[0, : len(scores)], ids[0, 1 : 1 + len(scores)]
    for ready in (kernels.ready(), False):
        monkeypatch.setattr(kernels, "ready", lambda ready=ready: ready)
        found, odds = HeadRunner(heads, model).following(states, tokens)
        same = found[:, 0] == scores.argmax(dim=-1)
        assert same.float().mean() > 0.85, "the kernel's are of 8 bits"
        expected = scores.softmax(dim=-1).amax(dim=-1)
        assert (odds[:, 0] - expected)[same].abs().max() < 0.2


def test_the_tokens_that_are_said_most_often_are_those_that_heads_guess(tmp_path):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS["llama"])
    model.save_pretrained(tmp_path)
    install_draft_heads(model, HeadsSection(depth=2, width=16, guessed=5), seed=0)
    ids = torch.arange(60)[None] % 50
    labels = torch.cat([ids[:, 1:], torch.full((1, 1), IGNORE)], dim=1)
    said = model(input_ids=ids, labels=labels, shift_labels=labels).logits.argmax(dim=-1)[0, 1:]
    (tmp_path / "trained").mkdir()
    save_file(
        {name: value.contiguous() for name, value in model.state_dict().items() if "heads" in name},
        tmp_path / "trained" / "model.safetensors",
    )
    config = load_config(CONFIG, SftConfig, [f"model.init_from={tmp_path}", f"output_dir={tmp_path}"])
    config = replace(config, draft_heads=HeadsSection(depth=2, width=16, guessed=5))
    save_heads(tmp_path / "trained", config, {}, None)
    size = model.get_input_embeddings().weight.shape
    heads = read_heads(tmp_path, size[1], size[0])
    counts = torch.bincount(said[:-1], minlength=size[0])
    rest = counts.clone()
    rest[heads.tokens] = 0
    assert len(heads.tokens) == 5
    assert counts[heads.tokens].min() >= rest.max()


def test_heads_guess_no_rows_that_the_model_got_for_training_alone(tmp_path):
    """A model without control tokens gets rows for them while its heads train, and nothing says them."""
    model = AutoModelForCausalLM.from_config(CONFIGS["llama"])
    model.save_pretrained(tmp_path)
    vocab_size, hidden_size = model.get_input_embeddings().weight.shape
    made = DraftHeads(HeadShape(hidden_size, vocab_size, depth=2, width=16))
    counts = torch.zeros(vocab_size + 5)
    counts[[7, *range(vocab_size, vocab_size + 5)]] = 1
    state = {f"draft_heads.{key}": value for key, value in (made.state_dict() | {"counts": counts}).items()}
    (tmp_path / "trained").mkdir()
    save_file(state, tmp_path / "trained" / "model.safetensors")
    config = load_config(CONFIG, SftConfig, [f"model.init_from={tmp_path}", f"output_dir={tmp_path}"])
    config = replace(config, draft_heads=HeadsSection(depth=2, width=16, guessed=6))
    save_heads(tmp_path / "trained", config, {}, None)
    assert 7 in read_heads(tmp_path, hidden_size, vocab_size).tokens


@pytest.mark.parametrize("name", MODELS)
def test_heads_of_a_model_that_sees_images_are_those_of_its_text_part(name, tmp_path):
    """The dimensions stand under text_config there."""
    whole = MODELS[name]()
    whole.save_pretrained(tmp_path)
    vocab_size, hidden_size = whole.get_input_embeddings().weight.shape
    made = DraftHeads(HeadShape(hidden_size, vocab_size, depth=2, width=16))
    state = {f"draft_heads.{name}": value for name, value in made.state_dict().items()}
    (tmp_path / "trained").mkdir()
    save_file(
        state | {"draft_heads.counts": torch.zeros(vocab_size)}, tmp_path / "trained" / "model.safetensors"
    )
    config = load_config(CONFIG, SftConfig, [f"model.init_from={tmp_path}", f"output_dir={tmp_path}"])
    save_heads(tmp_path / "trained", replace(config, draft_heads=HeadsSection(depth=2, width=16)), {}, None)
    assert read_heads(tmp_path, hidden_size, vocab_size).shape == made.shape


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"output_dir": "elsewhere"}, "output_dir"),
        ({"lora.rank": "4"}, "lora"),
        ({"data.mode": "both"}, "data.mode"),
        ({"data.eval_answers": "2"}, r"data\.eval_answers 2: draft heads leave"),
        ({"draft_heads.depth": "0"}, "depth 0"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused_in_one_line(changes, said):
    with pytest.raises(UserError, match=said) as error:
        load_config(CONFIG, SftConfig, [f"{key}={value}" for key, value in changes.items()])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("now", ["another model", "none"])
def test_heads_are_not_put_beside_a_model_that_took_the_place_of_theirs_meanwhile(tmp_path, now):
    """They passed for the new model's."""
    weights = save_tiny_model(tmp_path / "model") / "model.safetensors"
    values = sft_dict(tmp_path) | {
        "output_dir": str(weights.parent),
        "draft_heads": {"depth": 2, "width": 16},
    }
    config = parse_config(values | {"model": {"init_from": str(weights.parent)}}, SftConfig, "tiny.yaml")
    stage = HeadsStage(config, inputs(config))
    weights.rename(tmp_path / "moved")
    if now == "another model":
        save_tiny_model(weights.parent, seed=1)
    with pytest.raises(UserError, match=r"^model\.init_from: "):
        save_heads(tmp_path / "trained", config, {}, stage)
    assert not (weights.parent / WEIGHTS).exists()


def test_heads_may_lie_beside_a_model_that_was_not_made_here(tmp_path):
    """Its directory was refused as no model, and another one as not the model's own."""
    model = save_plain_model(tmp_path / "model")
    values = sft_dict(tmp_path) | {"output_dir": str(model), "draft_heads": {"depth": 2, "width": 16}}
    check_run_and_output(parse_config(values | {"model": {"init_from": str(model)}}, SftConfig, "tiny.yaml"))


def test_heads_under_zero_3_are_refused(tmp_path):
    file = ROOT / "configs/deepspeed/zero3.json"
    config = load_config(CONFIG, SftConfig, [f"optimisation.deepspeed={file}"])
    with pytest.raises(
        UserError, match=r"zero3\.json: draft heads read .* expected a file of stage 2 or less"
    ):
        prepare(config, tmp_path / "data")


def test_a_model_without_weights_is_refused(tmp_path):
    overrides = [f"model.init_from={tmp_path}", f"output_dir={tmp_path}"]
    with pytest.raises(UserError, match="init_from"):
        model_files(load_config(CONFIG, SftConfig, overrides))
