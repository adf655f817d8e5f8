"""Checks of judges that need no torch: a process that only starts workers has none for transformers' models."""

from typing import Any

from pasta.data.tokenizers import read_config, read_tokenizer
from pasta.engine.snapshots import check_local_weights
from pasta.errors import UserError
from pasta.judges.config import RewardModelSection
from pasta.lang import has_chat_template

REWARD_MODEL = "judge.reward.model"


def check_reward_model(section: RewardModelSection) -> Any:
    """The tokenizer of a reward model whose configuration is one and whose files of weights are whole; they are not
    read. Raises UserError."""
    name = section.model
    config, tokenizer = read_config(REWARD_MODEL, name), read_tokenizer(REWARD_MODEL, name)
    architecture = (getattr(config, "architectures", None) or ["none"])[0]
    if not architecture.endswith("ForSequenceClassification") or config.num_labels != 1:
        raise UserError(
            f"{REWARD_MODEL}: {name}: is a {architecture} with {config.num_labels} outputs; "
            "expected a sequence classifier with one"
        )
    if not has_chat_template(tokenizer):
        raise UserError(
            f"{REWARD_MODEL}: {name}: its tokenizer has no chat template; expected one, to show it a conversation"
        )
    check_local_weights(name, REWARD_MODEL)
    return tokenizer
