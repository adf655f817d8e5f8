"""What engines on this machine cannot run is said before anything starts, and without torch where all machines can."""

import sys

import pytest
import torch

import serve.__main__
from jobs import benchmark, benchmark_people
from pasta.engine.section import FORMATS, EngineSection, check_here
from pasta.errors import UserError
from pasta.sizes import EngineSettings


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
        ({"dtype": "int4", "device": "cpu"}, "engine.dtype: 'int4', but int4 runs on CUDA GPUs, not on cpu"),
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


def test_int8_needs_a_cpu_with_its_instructions(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    with pytest.raises(UserError, match=r"engine\.dtype: 'int8', but this CPU has no instructions"):
        check(dtype="int8")


def test_what_every_machine_can_run_is_accepted_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "pasta.engine.supported", None)
    check()
    check(dtype="auto", device="cpu", cuda_graphs="off")
    with pytest.raises(ImportError):
        check(dtype="int8")


def test_an_engine_that_does_not_see_the_machine_s_gpus_is_not_judged(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    check_here(EngineSettings(), "int4", "auto", sees_gpus=False)
