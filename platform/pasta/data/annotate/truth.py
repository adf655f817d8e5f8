"""Ground truth for answers of the atlas: their plan says what is independent."""

from collections.abc import Sequence

from pasta.data.annotate.annotator import Deliver, Proposal
from pasta.data.atlas.tasks import task_for_prompt
from pasta.data.instructions import Instruction
from pasta.lang import to_text


class AtlasAnnotator:
    """Annotates answers to atlas prompts, if they are the ones the atlas gives."""

    is_costly = False

    def annotate(self, records: Sequence[Instruction], deliver: Deliver) -> None:
        """Deliver the truth about each record, or say that there is none."""
        for record in records:
            deliver(record, _truth(record))


def _truth(record: Instruction) -> Proposal:
    task = task_for_prompt(record.messages[-1]["content"])
    if task is None:
        return Proposal(None, "no truth", "the prompt is none of the atlas")
    if task.answer != record.answer:
        return Proposal(None, "no truth", "the answer is not the one that the atlas gives to this prompt")
    return Proposal(to_text(task.document))
