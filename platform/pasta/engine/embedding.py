"""A large embedding that stays in the 16 bits in which it is stored, though its model computes in float32."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: Bytes in float32 from which a table is left as it is stored. To widen rows as they are read takes a microsecond a
#: step, which a small model would feel and a large one does not.
_WORTH = 64 << 20


class WidenedEmbedding(nn.Module):
    """Replaces an embedding whose table has 16 bits: it gives the numbers that a table in float32 would, and makes no
    such table. With a vocabulary of 150,000 that would take as much memory as all linear layers of a model of 0.6B
    parameters in 8 bits."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.weight = embedding.weight
        # Gemma's grow by sqrt(hidden).
        self._scale = float(getattr(embedding, "embed_scale", 1.0))

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [B, Q] to [B, Q, hidden] in float32."""
        rows = F.embedding(tokens, self.weight).float()
        return rows if self._scale == 1.0 else rows * self._scale


def keep_stored_embedding(model: Any) -> Tensor | None:
    """Replace the embedding of a model that will compute in float32 by a ``WidenedEmbedding`` if its table is large and
    has 16 bits. Returns the table, which nobody should convert; None if the embedding stays as it is."""
    embedding = model.get_input_embeddings()
    if not isinstance(embedding, nn.Embedding) or 4 * embedding.weight.numel() < _WORTH:
        return None
    if embedding.weight.dtype not in (torch.bfloat16, torch.float16):
        return None
    model.set_input_embeddings(WidenedEmbedding(embedding))
    return embedding.weight
