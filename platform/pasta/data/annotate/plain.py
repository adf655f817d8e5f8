"""The annotator that annotates nothing: for records whose answers are to be learned as they are."""

from collections.abc import Sequence

from pasta.data.annotate.annotator import Deliver, Proposal
from pasta.data.instructions import Instruction
from pasta.lang import Document, Text, to_text


class PlainAnnotator:
    """Proposes every answer without chunks."""

    is_costly = False

    def annotate(self, records: Sequence[Instruction], deliver: Deliver) -> None:
        """Deliver a proposal for each record."""
        for record in records:
            deliver(record, Proposal(to_text(Document((Text(record.answer),)))))
