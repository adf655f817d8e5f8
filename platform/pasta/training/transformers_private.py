"""The only module of training that uses private APIs of transformers, written against transformers 5.23.0.

tests/training/test_private.py fails, and names that version, when one of them is gone:

- ``Trainer._prepare_inputs``: move a batch to the trainer's device.
- ``integrations.deepspeed._hf_deepspeed_config_weak_ref``: the DeepSpeed configuration that models are made under.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import Trainer
from transformers.integrations import deepspeed as integration


def prepare_inputs(trainer: Trainer, inputs: dict[str, Any]) -> dict[str, Any]:
    """Move a batch to the device, as the trainer's own steps do."""
    prepared: dict[str, Any] = trainer._prepare_inputs(inputs)
    return prepared


@contextmanager
def outside_deepspeed() -> Iterator[None]:
    """Load whole models: under a ZeRO-3 configuration a rank that loads alone would wait for the others to take their
    parts."""
    reference = integration._hf_deepspeed_config_weak_ref
    integration.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        if reference is not None and (config := reference()) is not None:
            integration.set_hf_deepspeed_config(config)
