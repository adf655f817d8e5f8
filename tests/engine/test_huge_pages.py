"""Weights that the kernels read lie in memory for which Linux is asked to use huge pages; their values stay."""

import mmap
from pathlib import Path

import pytest
import torch
from torch import nn

from pasta.engine import load_model
from pasta.engine.huge_pages import use_huge_pages
from pasta.engine.packing import Packed
from tests.engine.test_kernels import formats, linear
from tests.support.kernels import built, needs_kernels
from tests.support.service import save_tiny_model

pytestmark = [
    needs_kernels,
    pytest.mark.skipif(
        not Path("/sys/kernel/mm/transparent_hugepage").is_dir(),
        reason="this Linux has no huge pages to ask for",
    ),
]


def advised(tensor: torch.Tensor) -> bool:
    """Whether Linux was asked for huge pages where ``tensor`` lies ("hg" in the flags of its mapping)."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first:
            begin, end = (int(part, 16) for part in first.split("-"))
            inside = begin <= tensor.data_ptr() < end
        elif inside and first == "VmFlags:":
            return "hg" in line.split()
    return False


def layers(name: str) -> nn.Sequential:
    built()
    return nn.Sequential(*(linear(name, inputs=1024, outputs=4096) for _ in range(2)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*formats(), "int4"])
def test_weights_move_and_results_stay(name):
    model = layers(name)
    x = torch.randn(3, 1024, dtype=torch.bfloat16 if name == "bfloat16" else torch.float32)
    before = [layer(x) for layer in model]
    assert not any(advised(layer._weight) for layer in model)
    use_huge_pages(model)
    assert all(advised(layer._weight) for layer in model)
    assert all(torch.equal(layer(x), known) for layer, known in zip(model, before, strict=True))


@pytest.mark.slow
def test_less_than_a_huge_page_stays_where_it_is(tmp_path):
    built()
    model = load_model(save_tiny_model(tmp_path), dtype="float32", device="cpu").model
    packed = [layer for layer in model.modules() if isinstance(layer, Packed)]
    assert packed
    assert not any(advised(layer._weight) for layer in packed)


def test_where_linux_has_no_huge_pages_all_stays(monkeypatch):
    class Refused(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError("Invalid argument")

    model = layers("float32")
    weights = [layer._weight for layer in model]
    monkeypatch.setattr(mmap, "mmap", Refused)
    use_huge_pages(model)
    assert all(layer._weight is weight for layer, weight in zip(model, weights, strict=True))
