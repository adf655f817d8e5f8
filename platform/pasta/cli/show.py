"""``pasta show``: one annotated answer's threads over decoding steps."""

import re
from pathlib import Path

from pasta.cli.counting import codec_source
from pasta.cli.records import AnnotatedAnswer, parse_record, read_whole
from pasta.cli.terminal import columns, print_drawing, shorten, wants_color
from pasta.data.measures import Measures, measure_document
from pasta.data.timeline import LEGEND, render_timeline
from pasta.errors import UserError
from pasta.lang import parse
from pasta.rows import numbered, placed

#: How a JSONL file begins. A brace alone may begin an answer in text form, such as code.
_OBJECT = re.compile(rb'\s*\{[ \t]*["}]')


def show_record(file: Path, number: int, tokenizer: str, field: str, width: int | None) -> int:
    """Print record ``number`` of ``file`` as a timeline; returns the exit code. Raises UserError."""
    record = _read(file, number, field)
    counted_with, make_codec = codec_source(tokenizer)
    counts = measure_document(record.document, make_codec())
    across = width or columns(100)
    drawing = render_timeline(
        counts.trace, across, wants_color(), topics=counts.topics, sync_id=counts.sync_id
    )
    lines = [drawing, "", LEGEND, counts_text(counts), f"tokens counted with: {counted_with}"]
    if record.prompt:
        lines = [f"prompt: {shorten(record.prompt, across - len('prompt: '))}", "", *lines]
    print_drawing("\n".join(lines))
    return 0


def counts_text(counts: Measures) -> str:
    """A document's counts, in two lines."""
    lanes = counts.trace.lanes()
    busy = [lane for lane in lanes if lane]
    return (
        f"critical path {counts.trace.critical_path} steps, {counts.plain_tokens} tokens sequentially "
        f"({counts.trace.num_tokens} with tags), theoretical speedup {counts.speedup:.2f}\n"
        f"lanes: {max(lanes)} at most, {sum(lanes) / max(len(busy), 1):.1f} on average"
    )


def _read(file: Path, number: int, field: str) -> AnnotatedAnswer:
    data = read_whole(file)
    name = "standard input" if str(file) == "-" else str(file)
    if not data.strip():
        raise UserError(f"{name}: is empty; expected an annotated answer or a JSONL file of them")
    if not _OBJECT.match(data):
        if number != 1:
            raise UserError(f"--record {number}: {name} is one answer in text form, not a JSONL file")
        return _plain(data, name)
    lines = list(numbered(data.split(b"\n")))
    if number > len(lines):
        raise UserError(f"--record {number}: {name} has {len(lines)} records")
    line_number, line = lines[number - 1]
    with placed(f"{name}:{line_number}"):
        return parse_record(line, field)


def _plain(data: bytes, name: str) -> AnnotatedAnswer:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: byte {error.start + 1} is not UTF-8") from None
    with placed(name):
        return AnnotatedAnswer("", parse(text))
