"""Training draft heads: the model is frozen, and the heads learn what it will say after its next token.

The targets follow threads. In flat order the rows of a thread lie beside one another while its next token is the next
row's; where they do not (a promise's ``/>``, the end of a chunk or a document) nothing is guessed across. A head learns
the model's own choices, since its guesses are compared with those; the tags of a promise are among them.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from pasta.engine.families import read_model_config
from pasta.engine.head_files import SETTINGS, WEIGHTS, HeadShape
from pasta.engine.heads import DraftHeads, write_heads
from pasta.errors import UserError
from pasta.interpreter import IGNORE
from pasta.rows import read_json
from pasta.stages.records import write_json
from pasta.stages.stage import Stage, input_fingerprint
from pasta.training.config import HeadsSection, SftConfig
from pasta.training.run import TrainingStage
from pasta.training.trainer import PlainHeadTrainer

#: The name of the trained module in the model, and of its buffer that counts how often each token was to be guessed.
_NAME, _COUNTS = "draft_heads", "counts"
#: Scores that are in memory at a time: 128 MB in float32.
_SCORES_AT_ONCE = 1 << 25


class HeadsStage(TrainingStage):
    """A run that puts draft heads beside a model; it is done if those that lie there are this run's."""

    def __init__(self, config: SftConfig, inputs: dict[str, str | Path], *, restart: bool = False) -> None:
        super().__init__("sft", config, inputs, restart=restart)

    @property
    def _settings(self) -> Path:
        return self.output_dir / SETTINGS

    def _found(self) -> Any:
        if not self._settings.is_file() or not (self.output_dir / WEIGHTS).is_file():
            return None
        settings = read_json(self._settings)
        is_ours = self.is_known_as(
            settings.get("identity"), settings.get("config", {}), settings.get("answers", "")
        )
        return settings if is_ours else None

    def _forget_output(self) -> None:
        write_json(self._settings, {**read_json(self._settings), "identity": None})


def model_files(config: SftConfig) -> dict[str, str | Path]:
    """The weights that the heads are for. Raises ``UserError`` if there are none."""
    assert config.model.init_from is not None, "SftConfig guarantees it"
    directory = Path(config.model.init_from)
    files: dict[str, str | Path] = {
        f"model.init_from/{path.name}": path for path in sorted(directory.glob("model*.safetensors"))
    }
    if not files:
        raise UserError(
            f"model.init_from: {directory}: no model*.safetensors in it; draft heads are for a model that is there"
        )
    return files


def _check_unchanged(config: SftConfig, stage: Stage) -> None:
    """Heads of one model beside another would pass for that one's, and guess what it never says."""
    for name, path in model_files(config).items():
        if input_fingerprint(name, path) != stage.inputs.get(name, {}).get("fingerprint"):
            raise UserError(
                f"model.init_from: {path}: has changed since this run began, whose draft heads are for the model that "
                "was there; the same command trains heads for this one"
            )


def install_draft_heads(
    model: PreTrainedModel, section: HeadsSection, seed: int, *, bf16: bool = False
) -> None:
    """Freeze ``model`` and give it draft heads, whose loss becomes the loss of its forward."""
    embedding: Any = model.get_input_embeddings()
    output: Any = model.get_output_embeddings()
    vocab_size, hidden_size = embedding.weight.shape
    model.requires_grad_(False)
    torch.manual_seed(seed)
    heads = DraftHeads(HeadShape(hidden_size, vocab_size, section.depth, section.width))
    heads.register_buffer(_COUNTS, torch.zeros(vocab_size, dtype=torch.long))
    model.add_module(_NAME, heads)
    seen: list[Tensor] = []

    def see(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen[:] = args[:1]

    def set_loss(module: nn.Module, args: Any, kwargs: dict[str, Any], out: Any) -> Any:
        hidden = seen.pop()
        if kwargs.get("labels") is None:
            return out
        with torch.autocast(hidden.device.type, torch.bfloat16, enabled=bf16):
            guesses = guess(heads, embedding, hidden, out.logits, kwargs["input_ids"], kwargs["shift_labels"])
            total = torch.stack([_loss(output.weight, *each) for each in guesses]).sum()
        for _, wanted in guesses[:1]:
            getattr(heads, _COUNTS).add_(torch.bincount(wanted, minlength=vocab_size))
        count = kwargs.get("num_items_in_batch")
        out.loss = total / (sum(len(wanted) for _, wanted in guesses) if count is None else count)
        return out

    output.register_forward_pre_hook(see)
    model.register_forward_hook(set_loss, with_kwargs=True)


def guess(
    heads: DraftHeads,
    embedding: nn.Embedding,
    hidden: Tensor,
    logits: Tensor,
    input_ids: Tensor,
    shift_labels: Tensor,
) -> list[tuple[Tensor, Tensor]]:
    """For N rows of the batch what each head gives the output layer [N, H], which makes scores of it, and the tokens
    that the model chooses [N].

    ``hidden`` [B, S, H] are the model's last states, ``logits`` [B, S, V] what it makes of them; ``shift_labels`` [B,
    S] are the rows' targets.
    """
    length, chosen = input_ids.shape[1], logits.argmax(dim=-1)
    # Whether a row's target is the token of the next row: then both rows are of one thread. [B, S - 1]
    goes_on = shift_labels[:, :-1] == input_ids[:, 1:]  # [B, S - 1]
    batch, row = goes_on.nonzero(as_tuple=True)
    known, found = hidden[batch, row], []
    for depth in range(heads.shape.depth):
        ahead = row + depth + 1
        keep = ahead < length
        keep &= shift_labels[batch, ahead.clamp(max=length - 1)] != IGNORE
        if depth:
            keep &= goes_on[batch, (ahead - 1).clamp(max=length - 2)]
        batch, row, known, ahead = batch[keep], row[keep], known[keep], ahead[keep]
        known = torch.cat([known, embedding(input_ids[batch, ahead])], dim=-1)
        found.append((heads(depth, known), chosen[batch, ahead]))
    return found


def _loss(weight: Tensor, states: Tensor, wanted: Tensor) -> Tensor:
    """The summed loss in nats of the scores that an output layer's ``weight`` [V, H] makes of ``states`` [N, H].

    Where that is many scores, they are made for some rows at a time, and made again as gradients are taken: in float32
    and for all rows the heads' of 1,024 tokens of Qwen 3's vocabulary are 2.4 GB, several times over.
    """
    rows = max(1, _SCORES_AT_ONCE // len(weight))
    if len(states) <= rows:
        return _loss_of_rows(weight, states, wanted)
    parts = zip(states.split(rows), wanted.split(rows), strict=True)
    losses = [checkpoint(_loss_of_rows, weight, *part, use_reentrant=False) for part in parts]
    return torch.stack(losses).sum()


def _loss_of_rows(weight: Tensor, states: Tensor, wanted: Tensor) -> Tensor:
    # By the output layer's own weight: calling its module would trigger its hooks.
    return F.cross_entropy(F.linear(states, weight).float(), wanted, reduction="sum")


@torch.no_grad()
def head_figures(trainer: Any) -> dict[str, float]:
    """The heads' ``eval_loss``, and the share of held-out tokens that each gets right, given the right tokens before:
    ``eval_head_1`` and so on; over all ranks. Leaves the model in evaluation mode.

    The loss is as in training: summed over heads and what they guess, over the number of all targets, in nats.
    """
    if trainer.eval_dataset is None:
        return {}
    model = trainer.accelerator.unwrap_model(trainer.model)
    model.eval()
    heads: DraftHeads = getattr(model, _NAME)
    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    # Of each head: right guesses, guesses, summed losses, the batch's targets.
    sums = torch.zeros(heads.shape.depth, 4, dtype=torch.float64)
    states: list[Tensor] = []
    handle = output.register_forward_pre_hook(lambda module, args: states.append(args[0]))
    for batch in trainer.get_eval_dataloader():
        inputs = {
            name: value for name, value in batch.items() if name not in ("kinds", "labels", "shift_labels")
        }
        logits = model(**inputs, use_cache=False).logits
        given = (states.pop(), logits, batch["input_ids"], batch["shift_labels"])
        by_row = torch.zeros(len(logits), *sums.shape, dtype=torch.float64, device=logits.device)
        for counts, *row in zip(by_row, *(values.split(1) for values in given), strict=True):
            for depth, (head_states, wanted) in enumerate(guess(heads, embedding, *row)):
                scores = F.linear(head_states, output.weight)
                counts[depth, 0] = (scores.argmax(-1) == wanted).sum()
                counts[depth, 1] = len(wanted)
                counts[depth, 2] = F.cross_entropy(scores.float(), wanted, reduction="sum")
            counts[:, 3] = (row[-1] != IGNORE).sum()
        # Of all ranks, without the rows that fill up their last batches.
        sums += trainer.accelerator.gather_for_metrics(by_row).sum(dim=0).cpu()
    handle.remove()
    right, guesses, losses, targets = sums.unbind(dim=1)
    shares = {
        f"eval_head_{depth + 1}": float(share) for depth, share in enumerate(right / guesses.clamp(min=1))
    }
    return {"eval_loss": float(losses.sum() / targets[0].clamp(min=1)), **shares}


class HeadTrainer(PlainHeadTrainer):
    """PlainHeadTrainer that evaluates the draft heads: the frozen model's own figures do not change."""

    control: Any

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Log and return ``head_figures`` of the held-out data; arguments are ignored."""
        figures = head_figures(self)
        self.log(dict(figures))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, figures)
        return figures


def save_heads(trained: Path, config: SftConfig, card: dict[str, Any], stage: Stage | None) -> None:
    """Put the heads of the model saved in ``trained`` beside the model that they are for; ``stage`` is their run.

    Raises UserError if another model lies there than when it began.
    """
    assert config.draft_heads is not None
    if stage is not None:
        _check_unchanged(config, stage)
    state: dict[str, Tensor] = {}
    for path in sorted(trained.glob("*.safetensors")):
        state |= {
            name.removeprefix(f"{_NAME}."): value
            for name, value in load_file(path).items()
            if name.startswith(f"{_NAME}.")
        }
    model = read_model_config(config.output_dir)
    # Rows that training gave to control tokens, which the model does not know, are not its own.
    section, counts = config.draft_heads, state.pop(_COUNTS)[: model.vocab_size]
    guessed = section.guessed if section.guessed < len(counts) else 0
    heads = DraftHeads(HeadShape(model.hidden_size, model.vocab_size, section.depth, section.width, guessed))
    if guessed:
        state["tokens"] = counts.topk(guessed).indices.sort().values
    heads.load_state_dict(state)
    made: dict[str, Any] = {"identity": None if stage is None else stage.identity}
    if isinstance(stage, TrainingStage):
        made["answers"] = stage.answers
    write_heads(config.output_dir, heads, {**card, **made})
