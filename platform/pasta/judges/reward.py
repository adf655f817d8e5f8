"""A reward model as judge: any Hugging Face sequence classifier with one output."""

import math
from collections.abc import Mapping, Sequence

import torch
from transformers import AutoModelForSequenceClassification

from pasta.data.prompts import Messages
from pasta.engine.loading import resolve_dtype
from pasta.engine.pretrained import read_pretrained
from pasta.engine.supported import resolve_device
from pasta.errors import UserError, first_line
from pasta.judges.checks import REWARD_MODEL, check_reward_model
from pasta.judges.config import RewardModelSection
from pasta.judges.judge import Case, Verdict
from pasta.lang import system_joined


class RewardJudge:
    """Rates an answer by sigmoid(r(answer) − r(baseline)): under the Bradley–Terry model, with which reward models are
    trained, the probability that it is preferred to the baseline's. The teacher's quality has the same scale.

    Raises UserError for a model that is missing, has another head, or does not fit its tokenizer.
    """

    def __init__(self, section: RewardModelSection) -> None:
        self._section = section
        self._device = resolve_device(section.device)
        self._tokenizer = check_reward_model(section)
        name = section.model
        model = read_pretrained(
            AutoModelForSequenceClassification,
            name,
            f"{REWARD_MODEL}: {name}",
            expected="a trained reward model",
            dtype=resolve_dtype(section.dtype),
        )
        rows = model.get_input_embeddings().num_embeddings
        if (size := max(self._tokenizer.get_vocab().values()) + 1) > rows:
            raise UserError(
                f"{REWARD_MODEL}: {name}: its embedding has {rows} rows, its tokenizer {size} tokens; the weights "
                "belong to another vocabulary"
            )
        self._model = model.to(self._device).eval()
        # Without a padding token that stands in no text the classifier cannot tell where a row of a batch ends.
        own, pad = self._model.config.pad_token_id, self._tokenizer.pad_token_id
        if own is not None and own < 0:  # as old configurations of Llama say that there is none
            own = self._model.config.pad_token_id = None
        if own is None and pad is not None and pad != self._tokenizer.eos_token_id:
            own = self._model.config.pad_token_id = pad
        self._batch_size = 1 if own is None else section.batch_size
        self._pad_id = own or 0
        positions = getattr(model.config, "max_position_embeddings", None)
        self._max_length = min(section.max_length or math.inf, positions or math.inf)
        self._counts = {"judge_tokens": 0}

    def judge(self, cases: Sequence[Case]) -> list[list[Verdict]]:
        """A verdict for each answer; one that is too long for the model, or gets no finite reward, is invalid."""
        # Equal texts are read once: a row's reward depends a little on the batch that it is in.
        distinct = [dict.fromkeys((case.baseline, *case.answers)) for case in cases]
        rows = [
            self._encode(case.messages, text)
            for case, texts in zip(cases, distinct, strict=True)
            for text in texts
        ]
        rewards = iter(self._rewards(rows))
        out = []
        for case, texts in zip(cases, distinct, strict=True):
            of = {text: next(rewards) for text in texts}
            out.append([self._verdict(of[answer], of[case.baseline]) for answer in case.answers])
        return out

    def usage(self) -> dict[str, float]:
        """Tokens read."""
        return {key: float(value) for key, value in self._counts.items()}

    def _verdict(self, reward: float | str, baseline: float | str) -> Verdict:
        problem = next((value for value in (reward, baseline) if isinstance(value, str)), None)
        if problem is not None:
            return Verdict(None, {"invalid": problem})
        assert isinstance(reward, float)
        assert isinstance(baseline, float)
        quality = 0.5 + 0.5 * math.tanh((reward - baseline) / 2)  # the sigmoid, without overflow
        return Verdict(quality, {"reward": reward, "baseline_reward": baseline})

    def _encode(self, messages: Messages, answer: str) -> list[int]:
        turns = [*messages, {"role": "assistant", "content": answer}]
        try:
            text = self._render(turns)
        except UserError:
            if (joined := system_joined(turns)) is None:
                raise
            text = self._render(joined)
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _render(self, turns: Sequence[Mapping[str, str]]) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(turns, tokenize=False)
        except Exception as error:  # the template is code of the model directory
            raise UserError(
                f"{REWARD_MODEL}: {self._section.model}: chat template: {first_line(error)}"
            ) from None
        return text

    @torch.inference_mode()
    def _rewards(self, rows: Sequence[list[int]]) -> list[float | str]:
        """The reward of each row of token ids, or why it has none."""
        rewards: list[float | str] = [
            f"{len(row)} tokens, but the reward model reads {self._max_length}" for row in rows
        ]
        # Rows of like length share a batch: little padding.
        order = sorted(
            (i for i, row in enumerate(rows) if 0 < len(row) <= self._max_length), key=lambda i: len(rows[i])
        )
        for at in range(0, len(order), self._batch_size):
            chosen = order[at : at + self._batch_size]
            longest = len(rows[chosen[-1]])
            ids = torch.full((len(chosen), longest), self._pad_id)  # [B, T]
            mask = torch.zeros_like(ids)
            for n, i in enumerate(chosen):
                ids[n, : len(rows[i])] = torch.tensor(rows[i])
                mask[n, : len(rows[i])] = 1
            logits = self._model(input_ids=ids.to(self._device), attention_mask=mask.to(self._device)).logits
            self._counts["judge_tokens"] += int(mask.sum())
            for i, value in zip(chosen, logits[:, 0].float().tolist(), strict=True):
                rewards[i] = value if math.isfinite(value) else f"the reward is {value}"
        return rewards
