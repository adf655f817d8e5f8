"""Processes one shard: read, annotate, validate, write; each file is written atomically.

annotated-00012.jsonl   records that are valid: id, source, messages, annotated, answer, figures
rejects-00012.jsonl     all others: where they were read, why they were refused, and what there was
shard-00012.json        that the shard is finished, and its counts; written last
journal-00012.jsonl     proposals that cost money, by record number, and the replies of those that are not whole, as
                        they come; deleted when the shard is finished
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from pasta.data.annotate.annotator import NO_USAGE, Annotator, Proposal, TeacherUsage
from pasta.data.annotate.finished import ShardResult, finished_shard, shard_file
from pasta.data.annotate.repair import Unrepairable
from pasta.data.annotate.validator import Validator
from pasta.data.instructions import Instruction
from pasta.data.sources import Broken, Shard, SourceSection, read_source_shard
from pasta.files import write_whole
from pasta.stages.records import RecordFile, record_line

BROKEN = "broken record"
_NAMED_PLACES = 20
#: Proposals of another kind in a journal are not read.
_JOURNAL = {"proposal": [each.name for each in fields(Proposal)]}
Rewrite = Callable[[Instruction], Sequence[Instruction]]


@dataclass
class _Written:
    """Lines of a shard's two files, and counts, as they grow; lines are kept by record number."""

    annotated: dict[int, str] = field(default_factory=dict)
    rejects: dict[int, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    repairs: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    usage: TeacherUsage = NO_USAGE
    refused: Counter[str] = field(default_factory=Counter)
    judged: TeacherUsage = NO_USAGE

    def reject(self, number: int, place: str, reason: str, detail: str, **rest: Any) -> None:
        self.rejected[reason] += 1
        self.rejects[number] = record_line({"source": place, "reason": reason, "detail": detail, **rest})


def annotate_shard(
    shard: Shard,
    source: SourceSection,
    annotator: Annotator,
    validator: Validator,
    directory: Path,
    rewrite: Rewrite = lambda record: (record,),
) -> ShardResult:
    """Annotate a shard into ``directory``, or find it finished there.

    ``rewrite`` turns a record that was read into the records that are annotated and counted. Raises UserError if the
    source cannot be read or the annotator gives up; the next call finds costly proposals made so far again.
    """
    done = finished_shard(directory, shard.index)
    if done is not None:
        return done
    begun = time.monotonic()
    written = _Written()
    records: dict[int, Instruction] = {}
    read = (
        each
        for record in read_source_shard(shard, source)
        for each in ((record,) if isinstance(record, Broken) else rewrite(record))
    )
    for number, record in enumerate(read):
        if isinstance(record, Broken):
            written.broken.append(f"{record.place}: {record.reason}")
            written.reject(number, record.place, BROKEN, record.reason, raw=record.raw)
        else:
            records[number] = record
    total = len(records) + len(written.broken)
    journal = None
    if annotator.is_costly:
        journal = RecordFile(shard_file(directory, "journal", shard.index, ".jsonl"), _JOURNAL)
    _annotate(records, annotator, validator, journal, written)
    missing = len(records) - written.counts.total() - (written.rejected.total() - len(written.broken))
    assert missing == 0, f"the annotator left out {missing} records"
    result = ShardResult(
        index=shard.index,
        num_records=total,
        num_annotated=written.counts["annotated"],
        num_plain=written.counts["plain"],
        rejected=dict(sorted(written.rejected.items())),
        repairs=dict(sorted(written.repairs.items())),
        broken=written.broken[:_NAMED_PLACES],
        usage=written.usage,
        seconds=time.monotonic() - begun,
        refused=dict(sorted(written.refused.items())),
        judged=written.judged,
    )
    for name, lines in (("rejects", written.rejects), ("annotated", written.annotated)):
        path = shard_file(directory, name, shard.index, ".jsonl")
        path.unlink(missing_ok=True)  # of a run that was killed before it could say that it had finished
        if lines:
            write_whole(path, "".join(lines[number] for number in sorted(lines)))
    write_whole(shard_file(directory, "shard", shard.index, ".json"), json.dumps(asdict(result)) + "\n")
    if journal is not None:
        journal.path.unlink(missing_ok=True)
    return result


def _annotate(
    records: Mapping[int, Instruction],
    annotator: Annotator,
    validator: Validator,
    journal: RecordFile | None,
    written: _Written,
) -> None:
    numbers = {id(record): number for number, record in records.items()}
    journalled = {} if journal is None else journal.records
    known = {int(key): Proposal.of(row["proposal"]) for key, row in journalled.items() if "proposal" in row}
    for number, proposal in known.items():
        if number in records:
            _keep(number, records[number], proposal, validator, written)

    def deliver(record: Instruction, proposal: Proposal) -> None:
        number = numbers[id(record)]
        if journal is not None:
            journal.add(str(number), {"proposal": asdict(proposal)})
        _keep(number, record, proposal, validator, written)

    asked: Sequence[Instruction] = [record for number, record in records.items() if number not in known]
    if asked:
        annotator.annotate(asked, deliver, journal)


def _keep(
    number: int, record: Instruction, proposal: Proposal, validator: Validator, written: _Written
) -> None:
    written.usage = written.usage + proposal.usage
    written.judged = written.judged + proposal.judged
    written.refused.update(refused.reason for refused in proposal.refused)
    rest: dict[str, Any] = {"id": record.id, "messages": list(record.messages), "answer": record.answer}
    if proposal.annotated is None:
        if len(proposal.refused) > 1:
            rest["proposals"] = [asdict(refused) for refused in proposal.refused]
        elif proposal.refused:
            rest["annotated"] = proposal.refused[0].annotated
        written.reject(number, record.place, proposal.reason, proposal.detail, **rest)
        return
    try:
        checked = validator.check(proposal.annotated, record.answer)
    except Unrepairable as error:
        rest["annotated"] = proposal.annotated
        written.reject(number, record.place, error.code, str(error), **rest)
        return
    written.repairs.update(checked.repairs)
    is_annotated = checked.measures.num_threads > 1
    if not is_annotated and not validator.checks.keep_unannotated:
        written.reject(number, record.place, "no chunks", "nothing in it was annotated", **rest)
        return
    written.counts["annotated" if is_annotated else "plain"] += 1
    written.annotated[number] = record_line(
        {
            "id": record.id,
            "source": record.place,
            "messages": rest["messages"],
            "annotated": checked.text,
            "answer": record.answer,
            "figures": checked.figures,
        }
    )
