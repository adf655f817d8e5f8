"""What engines on this machine cannot run is said before anything starts, and without torch where all machines can."""

import json
import re
import shutil
import sys

import pytest
import torch
from transformers import BloomConfig

import serve.__main__
from jobs import benchmark, benchmark_people
from pasta.engine import kernels
from pasta.engine.memory import (
    check_engine_memory,
    check_positions,
    fitting_slot_tokens,
    machine_memory,
    num_positions,
    weight_bytes,
)
from pasta.engine.section import FORMATS, EngineSection, check_here
from pasta.errors import UserError
from pasta.sizes import EngineSettings
from tests.support.paths import ROOT
from tests.support.service import save_tiny_model


@pytest.mark.parametrize("made", [benchmark.parser, benchmark_people.parser, serve.__main__.parser])
def test_the_help_of_dtype_names_every_format(made):
    (action,) = [each for each in made()._actions if "--dtype" in each.option_strings]
    assert all(name in action.help for name in FORMATS)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def check(**keys):
    section = EngineSection(**keys)
    check_here(section, section.dtype, section.device)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"dtype": "fp8"}, "engine.dtype: 'fp8', but fp8 runs on CUDA GPUs, not on cpu; use auto"),
        ({"device": "cuda"}, "engine.device: 'cuda', but torch finds no CUDA device here; use cpu"),
        ({"device": "gpu"}, "device: 'gpu', expected auto, cpu, cuda or cuda:N"),
        ({"cuda_graphs": "on"}, "engine.cuda_graphs: 'on', but the model runs on cpu; expected auto or off"),
        ({"compile": "on"}, "engine.compile: 'on', but steps are not captured: the model runs on cpu"),
    ],
)
def test_what_cannot_run_here_is_named(keys, said):
    with pytest.raises(UserError) as caught:
        check(**keys)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_integers_need_a_cpu_with_their_instructions(monkeypatch, name):
    monkeypatch.setattr(kernels, "cpu_has", lambda *features: False)
    monkeypatch.setattr(kernels, "ready", lambda: False)
    with pytest.raises(UserError, match=rf"engine\.dtype: '{name}', but this CPU has no instructions"):
        check(dtype=name)


def test_what_every_machine_can_run_is_accepted_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "pasta.engine.supported", None)
    check()
    check(dtype="auto", device="cpu", cuda_graphs="off")
    with pytest.raises(ImportError):
        check(dtype="int8")


def test_an_engine_that_does_not_see_the_machine_s_gpus_is_not_judged(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    check_here(EngineSettings(), "int4", "auto", sees_gpus=False)


PASTA = str(ROOT / "platform/pasta/data/atlas/models/pasta")


def test_a_cache_that_no_memory_here_holds_is_refused_with_what_fits():
    with pytest.raises(UserError) as caught:
        check_engine_memory(
            EngineSettings(num_slots=60_000, slot_tokens=1 << 24), [(PASTA, "float32")], "cpu"
        )
    said = str(caught.value)
    assert said.startswith(
        "engine.num_slots: 60000 of engine.slot_tokens 16777216: the caches of one engine take"
    )
    found = re.search(r"expected at most ([\d,]+) tokens of cache in all slots", said)
    check_engine_memory(
        EngineSettings(num_slots=1, slot_tokens=int(found[1].replace(",", "")) - 1),
        [(PASTA, "float32")],
        "cpu",
    )


def test_engines_that_share_a_machine_share_its_memory():
    sizes = EngineSettings(num_slots=16, slot_tokens=2048)
    check_engine_memory(sizes, [(PASTA, "auto")], "cpu")
    with pytest.raises(UserError, match="the caches of 1,000 engines take"):
        check_engine_memory(sizes, [(PASTA, "auto")], "cpu", engines=1_000)


def test_weights_that_no_memory_here_holds_are_refused_with_what_they_take(monkeypatch):
    monkeypatch.setattr("pasta.engine.memory.machine_memory", lambda: 100_000_000)
    sizes = EngineSettings(num_slots=1, slot_tokens=64)
    check_engine_memory(sizes, [(PASTA, "float32")], "cpu", engines=4)
    with pytest.raises(UserError) as caught:
        check_engine_memory(sizes, [(PASTA, "float32")], "cpu", engines=5, key="models.a.path")
    assert str(caught.value) == (
        f"models.a.path: {PASTA}: the weights of 5 engines take 0.1 GB, but this machine has 0.1 GB; expected smaller "
        "models, fewer engines, or dtype int8 or int4"
    )
    check_engine_memory(sizes, [(PASTA, "int8")], "cpu", engines=5)
    with pytest.raises(UserError, match=r"take 0.0 GB, and the processes 0.1 GB, but"):
        check_engine_memory(sizes, [(PASTA, "int8")], "cpu", beside=99_000_000)


@pytest.fixture
def long(tmp_path):
    """A model of 131,072 positions, whose cache takes 8 KiB a token in 16 bits, and the bytes of its weights."""
    folder = tmp_path / "long"
    shutil.copytree(PASTA, folder)
    config = json.loads((folder / "config.json").read_text())
    sizes = {"num_hidden_layers": 8, "layer_types": None, "num_key_value_heads": 4, "head_dim": 64}
    (folder / "config.json").write_text(json.dumps(config | sizes | {"max_position_embeddings": 131_072}))
    return str(folder), weight_bytes(str(folder), "bfloat16")


@pytest.mark.parametrize(
    ("memory_mib", "engines", "slot_tokens"),
    [
        (1, 1, 2048),  # no less than the default
        (2 * 16 * 8192 * 8 // 1024, 1, 8192),
        (2 * 16 * 8192 * 8 // 1024, 2, 4096),
        (2 * 16 * 8192 * 8 // 1024 - 1, 1, 4096),
        (1 << 20, 1, 32_768),
    ],
)
def test_a_slot_that_nobody_sizes_has_room_in_half_of_the_memory_beside_the_weights(
    monkeypatch, long, memory_mib, engines, slot_tokens
):
    source, weights = long
    beside = 1000
    memory = engines * weights + beside + (memory_mib << 20)
    monkeypatch.setattr("pasta.engine.memory.machine_memory", lambda: memory)
    found = fitting_slot_tokens(16, (source, "bfloat16"), "cpu", engines=engines, beside=beside)
    assert found == slot_tokens


def test_a_slot_that_nobody_sizes_has_no_more_tokens_than_the_model_positions():
    positions = num_positions(PASTA)
    assert positions < 32_768
    assert fitting_slot_tokens(1, (PASTA, "float32"), "cpu") == positions
    assert fitting_slot_tokens(1, ("somebody/else", "float32"), "cpu") == EngineSettings().slot_tokens


@pytest.mark.parametrize(
    ("told", "processes", "slot_tokens"),
    [
        ("echo 1000000; echo {mib}", 1, 8192),
        ("echo {mib}", 2, 16_384),
        ("echo no devices; exit 1", 1, 2048),
    ],
)
def test_on_gpus_a_slot_that_nobody_sizes_has_room_in_the_smallest_one(
    tmp_path, monkeypatch, long, told, processes, slot_tokens
):
    source, weights = long
    mib = (2 * 16 * 8192 * 8192 + weights) // (1 << 20) + 1
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n{told.format(mib=mib)}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    found = fitting_slot_tokens(16, (source, "bfloat16"), "cuda", engines=4, processes=processes)
    assert found == slot_tokens


@pytest.mark.parametrize("name", ["memory.max", "memory.limit_in_bytes"])
def test_a_container_has_the_memory_of_its_control_group(tmp_path, monkeypatch, name):
    groups = tuple(tmp_path / each for each in ("memory.max", "memory.limit_in_bytes"))
    monkeypatch.setattr("pasta.engine.memory._CONTROL_GROUPS", groups)
    physical = machine_memory()
    (tmp_path / name).write_text("2147483648\n")
    assert machine_memory() == 2**31
    for unlimited in ("max\n", "9223372036854771712\n"):
        (tmp_path / name).write_text(unlimited)
        assert machine_memory() == physical


def test_a_model_that_is_not_here_has_a_cache_of_unknown_size():
    check_engine_memory(EngineSettings(num_slots=60_000), [("someone/elsewhere", "auto")], "cpu")


def test_a_family_that_the_engine_does_not_know_is_named(tmp_path):
    BloomConfig().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"architecture 'bloom' is not supported; expected one of llama, "):
        check_engine_memory(EngineSettings(), [(str(tmp_path), "auto")], "cpu")
    with pytest.raises(UserError, match="is not supported"):
        check_positions(16, [str(tmp_path)])


def test_a_slot_of_more_tokens_than_a_model_has_positions_is_refused():
    """They would take memory, and no answer could use them."""
    check_positions(4096, [PASTA])
    with pytest.raises(UserError) as caught:
        check_positions(4097, [PASTA])
    assert str(caught.value) == (
        f"engine.slot_tokens: 4097, but {PASTA} has 4096 positions, and no answer goes past them; expected at most 4096"
    )


def test_models_that_share_the_settings_of_a_slot_are_judged_by_the_longest(tmp_path):
    save_tiny_model(tmp_path, max_position_embeddings=8192)
    check_positions(8192, [PASTA, str(tmp_path)])
    with pytest.raises(UserError, match="has 8192 positions"):
        check_positions(8193, [PASTA, str(tmp_path)])
    check_positions(8193, [PASTA, "someone/elsewhere"])
