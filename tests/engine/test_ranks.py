"""Tensor parallelism: two processes that share a model choose the tokens of one, and live and die together."""

import os
import re
import signal
from multiprocessing import get_context

import pytest
import torch
from transformers import LlamaConfig, SmolLM3Config

from pasta.engine import Engine, EngineConfig, Request, SamplingParams, load_model, random_model
from pasta.engine.ranks import Ranks, follow
from pasta.engine.section import check_tensor_parallel
from pasta.errors import UserError
from pasta.interpreter import Limits
from pasta.sizes import EngineSettings
from tests.support.models import CONFIGS, SMALL
from tests.support.tokenizers import byte_level

pytestmark = pytest.mark.slow

# Imported once, by a server from which the ranks are forked.
CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["pasta.engine.device", "torch.distributed.tensor", "transformers.distributed"]
)
SIZES = {"num_slots": 3, "slot_tokens": 256, "prefill_chunk": 32}
FAMILIES = {
    # An output layer of its own, whose rows two do not share evenly, and biases that are added once.
    "llama": LlamaConfig(**{**SMALL, "vocab_size": 513, "tie_word_embeddings": False}, attention_bias=True),
    "qwen3": CONFIGS["qwen3"],
    "gemma2": CONFIGS["gemma2"],
    "ministral3": CONFIGS["ministral3"],
    # An embedding that is cut, and a padding token whose number is larger than its part has rows.
    "smollm3": SmolLM3Config(**{**CONFIGS["smollm3"].to_dict(), "pad_token_id": 511}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Directories of models with random weights, by family."""
    root = tmp_path_factory.mktemp("models")
    for family, config in FAMILIES.items():
        loaded = random_model(config, byte_level(), device="cpu", packed=False)
        loaded.model.save_pretrained(root / family)
        loaded.tokenizer.save_pretrained(root / family)
    return root


def load(models, family, ranks=None):
    return load_model(models / family, dtype="float32", device="cpu", ranks=ranks)


def follow_rank_0(rendezvous):
    torch.set_num_threads(1)
    follow(Ranks(1, 2, rendezvous))


@pytest.fixture(scope="module")
def follower(tmp_path_factory):
    """A process that follows this one, which is rank 0."""
    rendezvous = tmp_path_factory.mktemp("ranks") / "rendezvous"
    process = CONTEXT.Process(target=follow_rank_0, args=(rendezvous,))
    process.start()
    ranks = Ranks(0, 2, rendezvous)
    yield process, ranks
    process.kill()
    process.join()
    torch.distributed.destroy_process_group()


def asked(codec):
    limits = Limits(max_tokens=70, max_chunk_tokens=12, max_threads=6, max_depth=2)
    return [
        Request(
            codec.encode_prompt([{"role": "user", "content": text}]),
            sampling=SamplingParams(promise_bias=12.0, seed=seed, temperature=temperature),
            limits=limits,
            request_id=f"{text} {temperature}",
        )
        for seed, text in enumerate(["Name three rivers.", "x"])
        for temperature in (0.0, 0.9)
    ]


def decode(engine):
    """Answers by request, of requests beside each other and of the same ones again; how many tokens were reused."""
    first, again = (
        {result.request_id: result for result in engine.decode(asked(engine.codec))} for _ in range(2)
    )
    ids = [{key: result.response_ids for key, result in results.items()} for results in (first, again)]
    return ids, sum(result.cached_tokens for result in again.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_two_processes_choose_the_tokens_of_one(models, follower, family):
    _, ranks = follower
    loaded = load(models, family, ranks)
    engine = Engine(loaded, EngineConfig(**SIZES))
    found, reused = decode(engine)
    alone = load(models, family)
    expected, reused_alone = decode(Engine(alone, EngineConfig(**SIZES)))
    assert found == expected
    assert reused == reused_alone > 0
    assert any(engine.codec.control.async_open in ids for ids in found[0].values())
    heads = loaded.model.config.num_key_value_heads
    assert engine.runner.cache.keys[0].shape[0] == heads // 2
    layer, whole = loaded.model.base_model.layers[0], alone.model.base_model.layers[0]
    cut = sum(p.numel() for p in layer.parameters() if p.dim() == 2)
    assert 2 * cut == sum(p.numel() for p in whole.parameters() if p.dim() == 2)


def test_processes_share_several_models_and_engines(models, follower):
    """As an evaluation does: a model has engines of several sizes, and another model decodes in between."""
    _, ranks = follower
    sizes = [("llama", 3), ("qwen3", 3), ("llama", 1)]

    def answers(ranks):
        loaded = {family: load(models, family, ranks) for family, _ in sizes}
        engines = [Engine(loaded[family], EngineConfig(**SIZES | {"num_slots": n})) for family, n in sizes]
        return [
            engine.generate(request).response_ids for request in asked(engines[0].codec) for engine in engines
        ]

    assert answers(ranks) == answers(None)


def test_another_device_than_torch_takes_is_one_line(models, follower, monkeypatch):
    _, ranks = follower
    monkeypatch.setattr(ranks, "device_type", "cuda")
    expected = "device: 'cpu', but with tensor_parallel torch takes 'cuda' here; expected auto"
    with pytest.raises(UserError, match=f"^{expected}$"):
        load(models, "llama", ranks)


def test_a_step_fails_when_a_rank_has_died(models, follower):
    process, ranks = follower
    engine = Engine(load(models, "llama", ranks), EngineConfig(**SIZES))
    engine.submit(asked(engine.codec)[0])
    engine.step()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with pytest.raises(RuntimeError):
        engine.generate(asked(engine.codec)[1])


def end_at_once(rendezvous):
    Ranks(0, 2, rendezvous)
    os._exit(0)


def wait_for_rank_0(rendezvous):
    try:
        Ranks(1, 2, rendezvous).agree(None)
    except RuntimeError:
        os._exit(7)
    os._exit(0)


def test_a_rank_ends_when_rank_0_has(tmp_path):
    functions = (end_at_once, wait_for_rank_0)
    processes = [CONTEXT.Process(target=each, args=(tmp_path / "rendezvous",)) for each in functions]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 7]


@pytest.mark.parametrize(
    ("size", "settings", "dtype", "expected"),
    [
        (
            4,
            {},
            "auto",
            "a.size: 4 processes cannot share the model's 2 key-value heads; expected a divisor of 2",
        ),
        (2, {}, "int8", "b.dtype: 'int8', but a.size is 2; expected one of auto, float32, bfloat16, float16"),
        (2, {"cuda_graphs": "on"}, "auto", "engine.cuda_graphs: 'on', but a.size is 2; expected auto or off"),
        (2, {"compile": "on"}, "auto", "engine.compile: 'on', but a.size is 2; expected off"),
    ],
)
def test_what_processes_cannot_share_is_one_line(size, settings, dtype, expected):
    engine = EngineSettings(**settings)
    with pytest.raises(UserError, match=f"^{re.escape(expected)}$"):
        check_tensor_parallel(size, FAMILIES["llama"], engine, dtype, key="a.size", dtype_key="b.dtype")


@pytest.mark.parametrize("family", ["olmo2", "olmo3", "phi3"])
def test_attention_that_needs_all_heads_cannot_be_shared(family):
    with pytest.raises(
        UserError, match=f"^tensor_parallel: 2, but the attention of {family} models cannot be"
    ):
        check_tensor_parallel(2, CONFIGS[family], EngineSettings(), "auto")


def test_one_process_has_any_format():
    check_tensor_parallel(1, FAMILIES["llama"], EngineSettings(compile="on"), "int8")
