"""The key-value cache's memory."""

import torch

from pasta.engine.cache import LaneCache
from tests.support.memory import resident
from tests.support.models import CONFIGS


def test_large_slots_take_memory_only_as_they_are_filled():
    before = resident()
    cache = LaneCache(CONFIGS["llama"], 16, 1 << 20, torch.float32, torch.device("cpu"))
    size = sum(block.numel() * block.element_size() for block in (*cache.keys, *cache.values))
    assert size > 5e9
    for block in (*cache.keys, *cache.values):
        block[:, :1000] = 1
        assert block[0, 1000].sum() == 0
    assert resident() - before < 20e6
