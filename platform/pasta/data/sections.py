"""The ``data`` sections of training configurations. Imports nothing heavy."""

from dataclasses import dataclass, field
from pathlib import Path

from pasta.bounds import check_at_most, check_not_negative, check_positive, check_unread
from pasta.data.atlas_keys import check_atlas_keys
from pasta.data.linearise import Mode
from pasta.sizes import MOST_TOKENS


@dataclass(frozen=True, slots=True)
class DataSection:
    """The training data. ``source`` is ``atlas``, a JSONL file of ``{"messages": [...], "annotated": text form}``, or a
    stage directory of jobs.annotate.

    ``mode`` is ``pasta`` (with threads), ``sequential`` (annotations taken out, plain causal) or ``both``. ``seed`` is
    what the atlas is made from. Documents are packed into rows of up to ``row_length`` tokens; a longer one has its own
    row, and one above ``max_length`` is left out and counted. Short rows are cheaper: attention costs the square of
    their length. ``mixture`` multiplies the weights of atlas families. A share ``talk`` of the documents are
    conversations in people's words instead, a share ``echo`` of the rest exercises in copying. With ``syncs`` false all
    syncs are taken out. Of ``eval_documents`` that are held out (the last of a file or a stage), ``eval_answers`` are
    answered by the model at every evaluation, in up to ``max_length`` tokens.
    """

    source: str
    mode: Mode
    row_length: int
    max_length: int
    seed: int = 0
    documents: int | None = None
    eval_documents: int = 0
    mixture: dict[str, float] = field(default_factory=dict)
    echo: float = 0.0
    talk: float = 0.0
    eval_answers: int = 0
    syncs: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.eval_answers <= self.eval_documents:
            raise ValueError(
                f"eval_answers {self.eval_answers}: expected 0 to eval_documents ({self.eval_documents})"
            )
        if not 1 <= self.row_length <= self.max_length:
            raise ValueError(f"row_length {self.row_length}: expected 1 to max_length ({self.max_length})")
        check_at_most(self, max_length=MOST_TOKENS)
        counts = {"documents": self.documents, "eval_documents": self.eval_documents}
        check_atlas_keys(self.source, counts, self.mixture, self.echo, self.talk)
        if self.source != "atlas":
            check_unread(self, "with a file or a stage: only the atlas is made from a seed", "seed")
        if not self.syncs and self.mode == "sequential":
            raise ValueError("syncs false: expected mode pasta or both; sequential answers have no syncs")
        if self.documents == 0 or (self.source == "atlas" and self.documents is None):
            raise ValueError(
                "documents: expected the number of documents, which for the atlas has no default"
            )


@dataclass(frozen=True, slots=True)
class PairsSection:
    """The pairs: ``source`` is a JSONL file, or a stage directory with ``pairs.jsonl`` in it.

    A line is ``{"messages": [...], "chosen": text form, "rejected": text form}``. With ``chosen_ids`` and
    ``rejected_ids`` (a stage has them) answers are learned in the tokens that they were sampled in, where these spell
    them for the model's tokenizer. A pair with a sequence above ``max_length`` tokens is left out and counted. The last
    ``eval_pairs`` are held out; of the others the first ``pairs`` are trained on, or all.
    """

    source: Path
    max_length: int
    eval_pairs: int = 0
    pairs: int | None = None

    def __post_init__(self) -> None:
        check_positive(self, "max_length", "pairs")
        check_at_most(self, max_length=MOST_TOKENS)
        check_not_negative(self, "eval_pairs")
