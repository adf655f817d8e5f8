"""Draft heads: they change no token, the kernel guesses what torch guesses, and heads of another model are refused."""

import json
from dataclasses import replace

import pytest
import torch

from pasta.engine import Engine, EngineConfig, kernels, load_model
from pasta.engine.head_files import SETTINGS, WEIGHTS, HeadShape, check_heads_beside
from pasta.engine.heads import DraftHeads, HeadRunner, read_heads, write_heads
from pasta.errors import UserError
from pasta.interpreter import Limits
from tests.engine.test_help import LOADED, PLAIN, SIZES, requests, same
from tests.support.models import save_misfit_heads
from tests.support.service import save_tiny_model

VOCAB, HIDDEN = LOADED.model.get_input_embeddings().weight.shape
SHORT = Limits(max_tokens=30, max_chunk_tokens=10, max_threads=4)
SHAPE = HeadShape(HIDDEN, VOCAB, depth=3, width=32)


def made(seed=0, shape=SHAPE):
    torch.manual_seed(seed)
    heads = DraftHeads(shape)
    for down in heads.down:
        torch.nn.init.normal_(down.weight)
    return heads.requires_grad_(False)


WITH_HEADS = replace(LOADED, heads=HeadRunner(made(), LOADED.model))


@pytest.mark.parametrize("at_once", [1, None], ids=["alone", "together"])
def test_guesses_change_no_answer(every_draft, at_once):
    asked = requests(11, count=2, limits=SHORT)
    plain = {result.request_id: same(result) for result in Engine(LOADED, PLAIN).decode(asked, at_once=1)}
    engine = Engine(WITH_HEADS, EngineConfig(**SIZES))
    assert {result.request_id: same(result) for result in engine.decode(asked, at_once)} == plain
    assert engine.drafter.num_drafted > 10


def test_heads_that_are_no_numbers_change_no_answer(every_draft):
    """Nor do states that are too large for them, of which they make none."""
    heads = made()
    heads.down[0].weight.fill_(float("nan"))
    asked = requests(11, count=2, limits=SHORT)
    plain = [same(result) for result in Engine(LOADED, PLAIN).decode(asked, at_once=1)]
    engine = Engine(replace(LOADED, heads=HeadRunner(heads, LOADED.model)), EngineConfig(**SIZES))
    assert [same(result) for result in engine.decode(asked, at_once=1)] == plain


def test_an_engine_leaves_nothing_on_its_model():
    Engine(WITH_HEADS, EngineConfig(**SIZES)).generate(requests(0, 1)[0].replace(limits=Limits(max_tokens=2)))
    assert not LOADED.model.get_output_embeddings()._forward_pre_hooks


@pytest.mark.slow
def test_a_traced_forward_keeps_its_states(every_draft):
    config = {**SIZES, "trace_forward": True}
    asked = requests(12, count=2, limits=SHORT)
    plain = [same(result) for result in Engine(LOADED, PLAIN).decode(asked, at_once=1)]
    engine = Engine(WITH_HEADS, EngineConfig(**config))
    assert [same(result) for result in engine.decode(asked, at_once=1)] == plain
    assert engine.runner.hidden.shape[-1] == HIDDEN


def test_heads_that_are_right_save_steps(every_draft, monkeypatch):
    """What a replay says next is known; heads that say the same are all accepted."""
    ids = [*LOADED.codec.encode_text("The Seine flows through Paris and on to the sea."), LOADED.codec.eos_id]
    request = requests(0, 1)[0].replace(prompt_ids=[5, 6, 7], parallel=False, forced=ids)
    engine = Engine(WITH_HEADS, EngineConfig(**SIZES, drafts=3))

    def known(hidden, tokens):
        at = len(engine._slots[0].interpreter.threads[0].tokens)
        following = [*ids[at : at + 3], 0, 0, 0][:3]
        return [following], [[0.9, 0.9, 0.9]]

    monkeypatch.setattr(WITH_HEADS.heads, "guess", known)
    result = engine.generate(request.replace(limits=Limits()))
    assert list(result.response_ids) == ids
    assert result.steps <= len(ids) / 2


def test_switched_off_nothing_is_guessed(monkeypatch):
    engine = Engine(WITH_HEADS, EngineConfig(**SIZES, draft_heads=False))
    monkeypatch.setattr(WITH_HEADS.heads, "guess", lambda *_: pytest.fail("guessed"))
    engine.generate(requests(0, 1)[0].replace(limits=Limits(max_tokens=8)))
    assert engine.runner.hidden is None


def some_guessed():
    """Heads that guess every third token only."""
    heads = made(3, replace(SHAPE, guessed=VOCAB // 3))
    heads.tokens.copy_(torch.arange(VOCAB // 3) * 3)
    return heads


@pytest.mark.skipif(not kernels.ready(), reason="the kernels are not built")
@pytest.mark.parametrize("heads", [made(3), some_guessed()], ids=["all tokens", "some"])
def test_the_kernel_guesses_what_torch_guesses(heads, monkeypatch):
    runner, hidden = HeadRunner(heads, LOADED.model), torch.randn(9, HIDDEN)
    tokens = torch.arange(9)
    found, odds = runner.guess(hidden, tokens)
    monkeypatch.setattr(kernels, "ready", lambda: False)
    expected, expected_odds = HeadRunner(heads, LOADED.model).guess(hidden, tokens)
    # 8-bit numbers: the likeliest of nearly equal ones may be another, and what follows it too.
    first = [row[0] == other[0] for row, other in zip(found, expected, strict=True)]
    assert sum(first) >= 7
    close = torch.tensor(odds)[:, 0] - torch.tensor(expected_odds)[:, 0]
    assert close[torch.tensor(first)].abs().max() < 0.1


@pytest.mark.parametrize("fast", [True, False], ids=["kernel", "torch"])
def test_only_some_tokens_are_guessed_where_the_heads_say_so(fast, monkeypatch):
    if not fast:
        monkeypatch.setattr(kernels, "ready", lambda: False)
    runner = HeadRunner(some_guessed(), LOADED.model)
    found, _ = runner.guess(torch.randn(40, HIDDEN), torch.arange(40))
    guessed = {token for row in found for token in row}
    assert len(guessed) > 20
    assert all(token % 3 == 0 for token in guessed)


@pytest.mark.parametrize("written", [made(), some_guessed()], ids=["all tokens", "some"])
def test_heads_are_read_as_they_were_written(tmp_path, written):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    heads = written.to(torch.bfloat16).float()
    write_heads(tmp_path, heads, {"name": "x"})
    read = read_heads(tmp_path, HIDDEN, VOCAB)
    assert read is not None
    assert read.shape == written.shape
    assert all(torch.equal(read.state_dict()[name], value) for name, value in heads.state_dict().items())
    assert json.loads((tmp_path / SETTINGS).read_text())["name"] == "x"


def test_a_model_without_heads_has_none(tmp_path):
    assert read_heads(tmp_path, HIDDEN, VOCAB) is None


def other_size(directory):
    return {"hidden_size": HIDDEN + 1}, "hidden_size"


def other_weights(directory):
    (directory / "model.safetensors").write_bytes(b"another")
    return {}, "made for the weights"


def broken(directory):
    (directory / WEIGHTS).write_bytes(b"broken")
    return {}, "cannot be loaded"


def no_settings(directory):
    (directory / SETTINGS).unlink()
    return {}, "no such file"


def other_settings(text):
    def write(directory):
        (directory / SETTINGS).write_text(text)
        return {}, r"draft_heads\.json: expected what jobs\.sft writes beside the heads; train them again"

    return write


def other_width(directory):
    told = json.loads((directory / SETTINGS).read_text())
    told["shape"]["width"] += 1
    (directory / SETTINGS).write_text(json.dumps(told))
    return {}, "up.0.weight is "


def no_number_of_units(directory):
    told = json.loads((directory / SETTINGS).read_text())
    told["shape"]["width"] = float(told["shape"]["width"])
    (directory / SETTINGS).write_text(json.dumps(told))
    return {}, "width 32.0: expected an integer"


def huge_depth(directory):
    """Whose tensors would not fit into memory by their names alone."""
    told = json.loads((directory / SETTINGS).read_text())
    told["shape"]["depth"] = 10**12
    (directory / SETTINGS).write_text(json.dumps(told))
    return {}, r"depth 1000000000000, but draft_heads\.safetensors has 6 tensors"


def other_tokens(directory):
    heads = some_guessed()
    heads.tokens += VOCAB
    write_heads(directory, heads, {})
    return {}, f"tokens: {VOCAB} to .*, but the model has 0 to {VOCAB - 1}"


@pytest.mark.parametrize(
    "change",
    [
        other_size,
        other_weights,
        other_width,
        broken,
        no_settings,
        *map(other_settings, ("{}", "[]", "null", '{"shape": null}', '{"shape": {"size": 1}, "model": "x"}')),
        no_number_of_units,
        huge_depth,
        other_tokens,
    ],
)
def test_heads_that_do_not_fit_are_refused_in_one_line(tmp_path, change):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    write_heads(tmp_path, made(), {})
    sizes, said = change(tmp_path)
    with pytest.raises(UserError, match=said) as error:
        read_heads(tmp_path, sizes.get("hidden_size", HIDDEN), VOCAB)
    assert "draft heads" in str(error.value)
    assert "\n" not in str(error.value)


def test_heads_beside_a_model_are_checked_without_loading_it(tmp_path):
    save_tiny_model(tmp_path)
    check_heads_beside(tmp_path, "model")
    said = save_misfit_heads(tmp_path)
    with pytest.raises(UserError) as error:
        check_heads_beside(tmp_path, "models.a.path")
    assert str(error.value) == f"models.a.path: {said}"
    check_heads_beside("nobody/has-this-model", "model")


def test_a_model_named_in_the_hub_s_cache_has_its_heads(tmp_path, monkeypatch):
    """A cache as the Hub's client lays it out."""
    cached = tmp_path / "models--some--model"
    snapshot = cached / "snapshots" / "0123abc"
    save_tiny_model(snapshot)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0123abc")
    write_heads(snapshot, made(), {})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    loaded = load_model("some/model", device="cpu")
    assert loaded.heads is not None
    assert loaded.heads.shape == SHAPE
    save_misfit_heads(snapshot)
    with pytest.raises(UserError, match="but the model has"):
        check_heads_beside("some/model", "model")
