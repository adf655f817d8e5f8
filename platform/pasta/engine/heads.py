"""Draft heads: small networks that guess the tokens after the next one, from what the model has just computed.

Head k reads the model's last hidden state and the tokens since; the model's own output layer scores what it says (Hydra
heads, Ankner et al. 2024: Medusa's, each also told of the tokens before the one that it guesses)::

    token[0] = what the hidden state chose
    token[k] = argmax(output(down[k](silu(up[k]([hidden, embedding(token[0]), ..., embedding(token[k - 1])])))))

A wrong guess costs a row of a forward and changes nothing, so on a CPU with the project's kernels the heads compute in
8-bit integers whatever the model does.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from pasta.engine import kernels
from pasta.engine.head_files import (
    SETTINGS,
    WEIGHTS,
    HeadShape,
    check_heads,
    has_heads,
    weights_fingerprint,
)
from pasta.engine.packing import Int8Linear
from pasta.errors import UserError, first_line
from pasta.files import write_whole


class DraftHeads(nn.Module):
    """The heads' own weights, and the ``tokens`` [guessed] that they may guess. Embedding and output layer are the
    model's."""

    tokens: Tensor

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        hidden, width = shape.hidden_size, shape.width
        self.up = nn.ModuleList(
            nn.Linear((depth + 2) * hidden, width, bias=False) for depth in range(shape.depth)
        )
        downs = [nn.Linear(width, hidden, bias=False) for _ in range(shape.depth)]
        for down in downs:
            nn.init.zeros_(down.weight)  # at first every token is equally likely
        self.down = nn.ModuleList(downs)
        self.register_buffer("tokens", torch.arange(shape.guessed or shape.vocab_size), shape.guessed > 0)

    def forward(self, depth: int, known: Tensor) -> Tensor:
        """What the output layer scores for head ``depth`` (from 0): [..., hidden]. ``known`` holds the hidden state and
        the embeddings of the tokens since, one after another [..., (depth + 2) * hidden]."""
        said: Tensor = self.down[depth](F.silu(self.up[depth](known)))
        return said


class Guess(NamedTuple):
    """The heads' guess after ``token``: the tokens that follow [depth], and the odds of each if those before it are
    right."""

    token: int
    following: list[int]
    odds: list[float]


class HeadInput(NamedTuple):
    """What a thread's guesses are made from: how many tokens it had, and the hidden state that chose the last of them,
    row ``at`` of a forward's states [N, H]; or what has been guessed from it already."""

    num_tokens: int
    rows: Tensor | Sequence[Guess]
    at: int


class HeadRunner:
    """Draft heads on a loaded model, ready to guess."""

    _output: Tensor  # of what the heads guess, where no kernel has it in its own layout

    def __init__(self, heads: DraftHeads, model: Any) -> None:
        self.shape = heads.shape
        embedding = model.get_input_embeddings()
        # The parameter itself: its values may yet move, or change their format.
        self._embedding: Tensor = embedding.weight
        # Gemma's embeddings grow by sqrt(hidden) as the module reads them; the heads have learnt from the module.
        self._scale = float(getattr(embedding, "embed_scale", 1.0))
        output = self._embedding if model.config.tie_word_embeddings else model.get_output_embeddings().weight
        self._heads, output = heads.to(self._embedding.device), output.detach()
        guessed = output[self._heads.tokens] if heads.shape.guessed else output
        self._packed: list[list[Tensor]] = []
        if self._embedding.device.type == "cpu" and kernels.ready():
            layer = nn.Linear(guessed.shape[1], len(guessed), bias=False, device="meta")
            layer.weight = nn.Parameter(guessed, requires_grad=False)
            self._packed = [_packed(heads.up), _packed(heads.down), _packed([layer])]
        else:
            self._output = guessed

    def inputs(self, count: int) -> tuple[Tensor, Tensor]:
        """States and tokens of ``count`` rows, all zero, for ``following``."""
        like = self._embedding
        return like.new_zeros(count, like.shape[1]), like.new_zeros(count, dtype=torch.long)

    def guess(self, hidden: Tensor, tokens: Tensor) -> tuple[list[list[int]], list[list[float]]]:
        """Call ``following`` and copy its result to the host, which waits for it."""
        found, odds = self.following(hidden, tokens)
        return found.tolist(), odds.tolist()

    @torch.inference_mode()
    def following(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Guess the tokens after ``tokens`` [L], which the states ``hidden`` [L, hidden] chose.

        Returns the tokens [L, depth], and how likely the heads hold each to be if those before it are right. Where a
        token is below 0, there is none, its guesses mean nothing.
        """
        tokens = tokens.clamp(min=0)
        if not self._packed:
            return self._plain(hidden, tokens)
        found, odds = torch.ops.pasta.draft(
            hidden, tokens, self._embedding, *self._packed, self._heads.tokens, self.shape.width, self._scale
        )
        return found, odds

    def _plain(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        known, found, odds = hidden.float(), [tokens], []
        for depth in range(self.shape.depth):
            known = torch.cat([known, self._scale * self._embedding[found[-1]].float()], dim=-1)
            said = self._heads(depth, known).to(self._output.dtype)
            best = F.linear(said, self._output).float().softmax(dim=-1).max(dim=-1)
            found.append(self._heads.tokens[best.indices])
            odds.append(best.values)
        return torch.stack(found[1:], dim=1), torch.stack(odds, dim=1)


def _packed(layers: Any) -> list[Tensor]:
    """Weight, scales and offsets of each layer."""
    packed = [Int8Linear(layer) for layer in layers]
    return [getattr(layer, name) for layer in packed for name in ("_weight", "_scales", "_zeros")]


# -- on disk -----------------------------------------------------------------------------------------------------


def read_heads(directory: Path, hidden_size: int, vocab_size: int) -> DraftHeads | None:
    """The draft heads in a model's directory; ``None`` if it has none.

    Raises ``UserError`` if they were made for another model, or are broken.
    """
    if not has_heads(directory):
        return None
    shape = check_heads(directory, hidden_size, vocab_size)
    heads = DraftHeads(shape)
    try:
        heads.load_state_dict(load_file(directory / WEIGHTS))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"draft heads: {directory / WEIGHTS}: cannot be loaded ({first_line(error)})"
        ) from None
    least, most = int(heads.tokens.min()), int(heads.tokens.max())
    if not 0 <= least <= most < vocab_size:
        raise UserError(
            f"draft heads: {directory / WEIGHTS}: tokens: {least} to {most}, but the model has 0 to {vocab_size - 1}; "
            "train them again, or remove them"
        )
    return heads.requires_grad_(False)


def write_heads(directory: Path, heads: DraftHeads, more: dict[str, Any]) -> None:
    """Put heads beside the model in ``directory``, their weights in bfloat16, with ``more`` about them as JSON."""
    state = {
        name: (value.to(torch.bfloat16) if value.is_floating_point() else value).contiguous()
        for name, value in heads.state_dict().items()
    }
    told = {"shape": asdict(heads.shape), "model": weights_fingerprint(directory), **more}
    write_whole(directory / WEIGHTS, save(state))
    write_whole(directory / SETTINGS, (json.dumps(told, indent=2, sort_keys=True) + "\n").encode())
