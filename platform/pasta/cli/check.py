"""``pasta check``: validate a file of annotated answers and print statistics."""

import itertools
import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean

from pasta.cli.counting import codec_source
from pasta.cli.records import parse_record, read_numbered_lines
from pasta.data.measures import measure_document
from pasta.errors import UserError
from pasta.lang.document import in_tens
from pasta.rows import placed
from pasta.statistics import geometric_mean, histogram_lines, percentile

_EDGES = (0.0, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, math.inf)
#: How often a long check says how far it is.
_TOLD_RECORDS = 10_000


@dataclass(frozen=True, slots=True)
class _Figures:
    """A document's measures without its tokens: files may have more than fit into the memory."""

    plain_tokens: int
    num_threads: int
    num_syncs: int
    depth: int
    chunk_tokens: tuple[int, ...]
    estimates: tuple[int, ...]
    speedup: float


def check_file(file: Path, tokenizer: str, field: str) -> int:
    """Print each invalid line and the file's statistics; 1 if a record is invalid, else 0. Raises UserError."""
    lines = read_numbered_lines(file)
    first = list(itertools.islice(lines, 1))  # before the tokenizer, which takes seconds to load
    if not first:
        raise UserError(f"{file}: holds no records; expected one JSON object a line")
    counted_with, make_codec = codec_source(tokenizer)
    valid: list[_Figures] = []
    num_records = 0
    for number, line in itertools.chain(first, lines):
        num_records += 1
        try:
            record = parse_record(line, field)
            with placed(field):
                measures = measure_document(record.document, make_codec())
            valid.append(_Figures(**{each.name: getattr(measures, each.name) for each in fields(_Figures)}))
        except UserError as error:
            print(f"{file}:{number}: {error}")
        if num_records % _TOLD_RECORDS == 0:
            print(f"{file}: {num_records:,} records so far", file=sys.stderr, flush=True)
    num_invalid = num_records - len(valid)
    if num_invalid:
        print()
    print("\n".join([*statistics(valid, num_records), "", _line("tokens counted with", counted_with)]))
    return 1 if num_invalid else 0


def statistics(valid: Sequence[_Figures], num_records: int) -> list[str]:
    """A file's statistics, as lines."""
    lines = [_line("records", f"{num_records}, {len(valid)} valid, {num_records - len(valid)} invalid")]
    if not valid:
        return lines
    annotated = [counts for counts in valid if counts.num_threads > 1]
    chunk_tokens = [n for counts in valid for n in counts.chunk_tokens]
    estimates = [n for counts in valid for n in counts.estimates]
    lines += [
        _line("annotated", f"{_percent(len(annotated), len(valid))} of the valid ({len(annotated)})"),
        _line("tokens an answer", _spread([counts.plain_tokens for counts in valid])),
        _line("threads an answer", _spread([counts.num_threads for counts in valid])),
        _line("nesting depth", _frequencies(counts.depth for counts in valid)),
        _line("syncs an answer", _spread([counts.num_syncs for counts in valid])),
    ]
    if chunk_tokens:
        exact = sum(
            estimate == in_tens(length) for length, estimate in zip(chunk_tokens, estimates, strict=True)
        )
        lines += [
            _line("tokens a chunk", _spread(chunk_tokens)),
            _line("estimates exact", f"{_percent(exact, len(estimates))} (the length rounded up to tens)"),
        ]
    speedups = [counts.speedup for counts in valid]
    lines += ["", _line("theoretical speedup", _spread(speedups, digits=2))]
    mean = f"{geometric_mean(speedups):.2f}"
    if annotated:
        mean += f", of the annotated {geometric_mean([counts.speedup for counts in annotated]):.2f}"
    lines.append(_line("geometric mean", mean))
    ranges = {
        f"{low:g} to {high:g}": sum(low <= speedup < high for speedup in speedups)
        for low, high in itertools.pairwise(_EDGES)
    }
    return lines + histogram_lines(ranges, 16, 7)


def _spread(values: Sequence[float], digits: int = 0) -> str:
    median, ninetieth = (percentile(values, share) for share in (0.5, 0.9))
    return (
        f"mean {fmean(values):.{max(digits, 1)}f}, median {median:.{digits}f}, 90% below {ninetieth:.{digits}f}, "
        f"{min(values):.{digits}f} to {max(values):.{digits}f}"
    )


def _frequencies(values: Iterable[int]) -> str:
    return ", ".join(f"{value}: {count}" for value, count in sorted(Counter(values).items()))


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%"


def _line(name: str, value: str) -> str:
    return f"{name:<22}{value}"
