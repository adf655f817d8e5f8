"""Nothing needs the kernels: without them torch's own operators serve, and one line says so."""

import re
import subprocess
from types import SimpleNamespace

import pytest
import torch

from pasta.engine import kernels
from pasta.errors import UserError


def test_without_the_library_torch_s_own_operators_serve(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(kernels, "why_not_here", lambda: "")
    monkeypatch.setattr(kernels, "library", lambda: tmp_path / "missing.so")
    kernels.ready.cache_clear()
    try:
        assert not kernels.ready()
        assert "python -m jobs.kernels" in caplog.text
    finally:
        kernels.ready.cache_clear()


def test_a_library_that_cannot_be_loaded_is_said_and_left_alone(monkeypatch, tmp_path, caplog):
    (tmp_path / "broken.so").write_bytes(b"not a library")
    monkeypatch.setattr(kernels, "why_not_here", lambda: "")
    monkeypatch.setattr(kernels, "library", lambda: tmp_path / "broken.so")
    kernels.ready.cache_clear()
    try:
        assert not kernels.ready()
        assert "cannot be loaded" in caplog.text
    finally:
        kernels.ready.cache_clear()


@pytest.mark.parametrize(
    ("compiler", "told"), [("no-such-compiler", "cannot be run"), ("false", "false failed")]
)
def test_no_compiler_is_one_line(monkeypatch, tmp_path, compiler, told):
    monkeypatch.setattr(kernels, "why_not_here", lambda: "")
    monkeypatch.setattr(kernels, "library", lambda: tmp_path / "kernels.so")
    monkeypatch.setattr("torch.utils.cpp_extension.get_cxx_compiler", lambda: compiler)
    with pytest.raises(UserError, match=rf"^kernels: .*{re.escape(told)}.*decoding works without$") as caught:
        kernels.build_extension()
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir()), "nothing half made stays"


def test_a_disk_that_is_full_is_what_a_failed_build_says(monkeypatch, tmp_path):
    """ "ld returned 1 exit status" helped nobody."""
    said = "ld: final link failed: No space left on device\ncollect2: error: ld returned 1 exit status\n"
    monkeypatch.setattr(kernels, "why_not_here", lambda: "")
    monkeypatch.setattr(kernels, "library", lambda: tmp_path / "kernels.so")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=1, stderr=said))
    with pytest.raises(UserError, match="failed: No space left on device"):
        kernels.build_extension()


def test_another_cpu_is_told_why(monkeypatch):
    monkeypatch.setattr(kernels, "cpu_has", lambda *features: False)
    with pytest.raises(UserError, match="this CPU lacks their instructions"):
        kernels.build_extension()


@pytest.mark.parametrize(
    ("features", "bfloat16", "narrow"),
    [
        ({"avx2", "fma3"}, True, True),
        ({"avx2", "fma3", "avx512_f"}, True, True),  # without products of 8-bit numbers AVX2 serves it better
        ({"avx2", "fma3", "avx512_f", "avx512_vnni"}, False, False),
        ({"avx2", "fma3", "avx512_f", "avx512_vnni", "avx512_bf16"}, True, False),
    ],
)
def test_the_instructions_of_this_cpu_say_what_is_built_and_run(
    monkeypatch, tmp_path, features, bfloat16, narrow
):
    monkeypatch.setattr(kernels, "cpu_has", lambda *named: features.issuperset(named))
    monkeypatch.setattr(kernels, "ready", lambda: True)
    monkeypatch.setattr(kernels, "library", lambda: tmp_path / "kernels.so")
    monkeypatch.setattr("torch.utils.cpp_extension.get_cxx_compiler", lambda: "echo")
    assert kernels.runs(torch.float32)
    assert kernels.runs(torch.bfloat16) == bfloat16
    commands = []
    run = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda command, **kept: (commands.append(command), run(command, **kept))[1]
    )
    kernels.build_extension()
    assert ("-mno-avx512f" in commands[0]) == narrow


@pytest.fixture
def a_gpu(monkeypatch):
    """One of compute capability 9.0 on which the kernels compile, and no memory of what was found before."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(kernels, "find_spec", lambda name: object())
    monkeypatch.setattr(kernels, "_for_gpus", lambda: SimpleNamespace(try_out=lambda device: None))
    kernels._triton_compiles.cache_clear()
    yield torch.device("cuda")
    kernels._triton_compiles.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_has_kernels_where_triton_can_compile_them(monkeypatch, a_gpu, dtype):
    assert kernels.run_on(a_gpu, dtype)
    assert not kernels.run_on(a_gpu, torch.float16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not kernels.run_on(a_gpu, dtype)


def test_without_triton_torch_s_own_operators_serve_on_a_gpu(monkeypatch, a_gpu, caplog):
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    assert not kernels.run_on(a_gpu, torch.bfloat16)
    assert "triton is not installed" in caplog.text


def test_where_triton_does_not_compile_one_line_says_why(monkeypatch, a_gpu, caplog):
    def broken(device):
        raise RuntimeError("no C compiler\nand much more")

    monkeypatch.setattr(kernels, "_for_gpus", lambda: SimpleNamespace(try_out=broken))
    assert not kernels.run_on(a_gpu, torch.bfloat16)
    assert not kernels.run_on(a_gpu, torch.bfloat16)
    assert [record.message.count("no C compiler)") for record in caplog.records] == [1]


def test_a_kernel_is_tried_out():
    kernels._for_gpus().try_out(torch.device("cpu"))
