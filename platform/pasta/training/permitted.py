"""Log-probabilities of an answer's tokens among what an engine may choose at each place.

An engine never chooses what the language forbids: no end-of-text in a chunk, no text after a full topic. Where a model
wants that, what it takes instead has next to no probability in the whole vocabulary. A loss that counts it there learns
to want the forbidden more, which changes nothing at that place, and ends answers early where ending is allowed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pasta.engine.sampling import ConstraintTable
from pasta.interpreter import IGNORE, Limits, chosen_among

#: Log-probabilities are taken of so many tokens at a time: of all, those of a large vocabulary are gigabytes.
_SLICE = 512


def mark_constraints(
    constraints: Tensor,
    table: ConstraintTable,
    limits: Limits,
    prompt_ids: Sequence[int],
    response_ids: Sequence[int],
    predicted_by: Sequence[int],
) -> None:
    """Write into ``constraints`` [N] the rows of ``table`` under which the tokens of a response were chosen.

    ``predicted_by`` has a place in it for each token of the response, that of the row that predicts it; nothing is
    written for a token that is given. Raises ``ConstraintError`` for a response that is not well-formed.
    """
    among = chosen_among(table.grammar, limits, prompt_ids, response_ids)
    chosen = [(at, each) for at, each in zip(predicted_by, among, strict=True) if each is not None]
    places, found = zip(*chosen, strict=True)
    constraints[list(places)] = torch.tensor(table.rows(found))


def scored_columns(labels: Tensor) -> Tensor:
    """The columns [K] of ``labels`` [R, S] in which any row has a label, as a model's ``logits_to_keep`` takes them:
    logits of prompts and padding are not needed."""
    return (labels != IGNORE).any(dim=0).nonzero()[:, 0]


def permitted_log_probs(
    logits: Tensor, labels: Tensor, constraints: Tensor, forbidden: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The log-probabilities [R, S] of ``labels`` as an engine samples at ``temperature``, and the entropies there; 0
    where there is no label.

    ``logits`` [R, K, V] are those of ``scored_columns``; ``constraints`` [R, S] are rows of ``forbidden`` [C, V]. A
    label itself is always permitted. Raises ValueError for logits of other columns.
    """
    scored, columns = labels != IGNORE, scored_columns(labels)
    if logits.shape[:2] != (len(labels), len(columns)):
        raise ValueError(
            f"logits {tuple(logits.shape)}: expected those of {len(labels)} rows, {len(columns)} columns"
        )
    place = scored.flatten().nonzero()[:, 0]
    # Columns without a label are left out of logits, which changes no order.
    row = scored[:, columns].flatten().nonzero()[:, 0]
    flat = logits.flatten(0, 1)
    found = [
        checkpoint(
            _log_probs,
            flat[of_logits],
            labels.flatten()[at],
            forbidden[constraints.flatten()[at]],
            temperature,
            use_reentrant=False,
        )
        for of_logits, at in zip(row.split(_SLICE), place.split(_SLICE), strict=True)
    ]
    own, entropy = (torch.cat(values) for values in zip(*found, strict=True))
    nothing = own.new_zeros(labels.numel())
    return (
        nothing.index_put((place,), own).view(labels.shape),
        nothing.index_put((place,), entropy).view(labels.shape),
    )


def _log_probs(
    logits: Tensor, labels: Tensor, forbidden: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    own = labels[:, None]
    # A limit is reached in the order of time: it may have permitted what it would not in the order of storage.
    scores = (logits.float() / temperature).masked_fill(forbidden.scatter(1, own, False), float("-inf"))
    log_probs = scores.log_softmax(dim=-1)
    return log_probs.gather(1, own)[:, 0], torch.special.entr(log_probs.detach().exp()).sum(dim=-1)
