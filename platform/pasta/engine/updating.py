"""Changes the weights of a decoding engine in place, and forgets all that it computed before."""

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from pasta.engine.attention import GROUPED
from pasta.engine.engine import Engine
from pasta.engine.formats import apply_format
from pasta.errors import UserError


@torch.no_grad()
def update_weights(engine: Engine, weights: Mapping[str, Tensor]) -> None:
    """Let ``engine``, which must have no requests, decode with these weights from now on.

    ``weights`` are named as in the model's checkpoint; the output layer's may be missing if it is the embedding. They
    get the engine's number format and layout. Traces and captured graphs stay valid: they refer to the same memory.
    Raises UserError for names or shapes that are not the model's.
    """
    assert engine.loaded.ranks is None, "the other ranks would keep their weights"
    assert not engine.num_active, "a request would go on with keys and values of other weights"
    loaded = engine.loaded
    config = loaded.model.config
    with torch.device("meta"):
        fresh = AutoModelForCausalLM.from_config(config, attn_implementation=GROUPED)
    # Buffers are no part of a checkpoint and are not changed here; on the meta device they have no values.
    try:
        unexpected = fresh.load_state_dict(dict(weights), strict=False, assign=True).unexpected_keys
    except RuntimeError as error:
        raise UserError(
            f"weights: do not fit {loaded.name!r} ({str(error).splitlines()[-1].strip()})"
        ) from None
    fresh.tie_weights()
    missing = [name for name, parameter in fresh.named_parameters() if parameter.is_meta]
    if missing or unexpected:
        wrong = f"has no {missing[0]}" if missing else f"has {unexpected[0]}, which the model has not"
        raise UserError(f"weights: {len(weights)} tensors for {loaded.name!r}: {wrong}")
    fresh.requires_grad_(False).eval()
    device = loaded.model.device
    for parameter in fresh.parameters():
        parameter.data = parameter.data.to(device)
    apply_format(fresh, loaded.format, device, loaded.packed)
    new = dict(itertools.chain(fresh.named_parameters(), fresh.named_buffers()))
    for name, tensor in itertools.chain(loaded.model.named_parameters(), loaded.model.named_buffers()):
        if not new[name].is_meta:
            tensor.copy_(new[name])
    engine.runner.state.weights_changed()
    engine.turns.stop()  # half of a next turn may be prefilled
    engine.prefixes.forget()
