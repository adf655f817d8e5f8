"""Grades exactly: every sentence of an answer is read back and checked against the facts and the prompt."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pasta.data.atlas.facts import FACTS
from pasta.data.atlas.family import read_names
from pasta.data.atlas.plan import Part, Plan, Say, statements
from pasta.data.atlas.sentences import FORMS, Form, readings
from pasta.data.atlas.tasks import AtlasTask, plan_of
from pasta.lang import Chunk, Document, Item, Sync, Text, render

Key = tuple[str, str]
_SENTENCE_GAP = re.compile(r"(?<=[.!?])[ \t]+(?=\S)")
_MARK = re.compile(r"(-|\d+\.)\s+")
_CONCLUSIONS = ("count", "same", "different")
#: How what reads the parts begins.
_OPENINGS = tuple(FORMS[form].template.partition("{")[0] for form in _CONCLUSIONS)


@dataclass(frozen=True)
class Grade:
    """``right`` of ``total`` statements; each with its text, whether it is right, and why not.

    ``total`` counts the statements that the prompt asks for, and every further one in the answer.
    """

    right: int
    total: int
    statements: list[tuple[str, bool, str]]


@dataclass(frozen=True)
class StructureGrade:
    """How far an annotated answer marks what the task's ground truth marks.

    ``dependent_left_alone``: no conclusion inside a chunk, no chunk where the truth has none at all, none nested
    deeper than its own. ``superfluous_parts``: chunks that are no part of the truth's: on a subject that was not
    asked for (its statements are wrong as well), on one twice, or where nothing is independent.
    ``sync_right``: as many syncs as the truth has, none right before a chunk, and one right before all that reads the
    parts. ``forks``: it has chunks.
    ``has_readers``: in the truth something reads parts, after a sync.
    """

    independent_parts: int
    annotated_parts: int
    dependent_left_alone: bool
    superfluous_parts: int
    sync_right: bool
    forks: bool
    has_readers: bool


@dataclass(frozen=True)
class _Found:
    """A sentence of an answer: its list mark, and its reading if it has one."""

    text: str
    mark: str
    form: Form | None
    fields: dict[str, str]
    subject: str

    @property
    def key(self) -> Key:
        return (self.form.id, self.subject) if self.form else ("", self.text)


def grade(task: AtlasTask, answer: str) -> Grade:
    """Grade an answer's text. A missing, wrong, extra or unreadable statement counts as wrong."""
    return grade_plan(plan_of(task.spec), answer)


def grade_plan(plan: Plan, answer: str) -> Grade:
    """Grade an answer's text by the plan of the right answer, as :func:`grade` does."""
    wanted = [*statements(plan)]
    found = [*_read_answer(answer, {_key(say) for say in wanted})]
    pairs = _align([_key(say) for say in wanted], [sentence.key for sentence in found])
    out: list[tuple[str, bool, str]] = []
    for want, have in pairs:
        if have is None:
            assert want is not None
            say = wanted[want]
            out.append((FORMS[say.form].template.format(**say.fields), False, "missing"))
        elif want is None:
            readable = found[have].form is not None
            out.append((found[have].text, False, "not asked for" if readable else "cannot be read"))
        else:
            why = _fault(wanted[want], found[have])
            out.append((found[have].text, not why, why))
    return Grade(sum(ok for _, ok, _ in out), len(out), out)


def _key(say: Say) -> Key:
    form = FORMS[say.form]
    return (form.id, say.subject if form.kind or say.form == "sheet.head" else "")


def _read_answer(answer: str, wanted: set[Key]) -> Iterator[_Found]:
    subject = ""
    for line in answer.split("\n"):
        line = line.strip()
        mark = match[1] if (match := _MARK.match(line)) else ""
        line = line[match.end() :] if match else line
        for index, text in enumerate(_SENTENCE_GAP.split(line) if line else []):
            readings = [*_readings(text, subject)]
            # Sentences like "It is known for ..." read the same for several kinds; the task decides.
            best = next((r for r in readings if r.key in wanted), readings[0] if readings else None)
            sentence = best or _Found(text, "", None, {}, subject)
            if sentence.form is not None and sentence.subject:
                subject = sentence.subject
            yield _Found(text, "" if index else mark, sentence.form, sentence.fields, sentence.subject)


def _readings(text: str, subject: str) -> Iterator[_Found]:
    for form, fields in readings(text):
        if form.kind is not None:
            name = fields["name"] if form.names_subject else subject
            if name in FACTS[form.kind]:
                yield _Found(text, "", form, fields, name)
        elif form.id == "sheet.head":
            try:
                yield _Found(text, "", form, fields, read_names(fields["title"])[0])
            except ValueError:
                continue
        else:
            yield _Found(text, "", form, fields, "")


def _align(wanted: Sequence[Key], found: Sequence[Key]) -> list[tuple[int | None, int | None]]:
    """Longest common subsequence of keys: pairs of indices, None on one side where there is no partner."""
    rows, columns = len(wanted), len(found)
    best = [[0] * (columns + 1) for _ in range(rows + 1)]  # best[i][j]: of wanted[i:] and found[j:]
    for i in reversed(range(rows)):
        for j in reversed(range(columns)):
            same = wanted[i] == found[j]
            best[i][j] = best[i + 1][j + 1] + 1 if same else max(best[i + 1][j], best[i][j + 1])
    pairs: list[tuple[int | None, int | None]] = []
    i = j = 0
    while i < rows or j < columns:
        if i < rows and j < columns and wanted[i] == found[j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif j == columns or (i < rows and best[i + 1][j] >= best[i][j + 1]):
            pairs.append((i, None))
            i += 1
        else:
            pairs.append((None, j))
            j += 1
    return pairs


def _fault(say: Say, sentence: _Found) -> str:
    """What is wrong with a sentence that stands where ``say`` is asked for; empty if nothing is."""
    mark = say.before.strip()
    if sentence.mark != mark:
        return f"list mark {sentence.mark or 'none'!r}, expected {mark or 'none'!r}"
    assert sentence.form is not None
    if sentence.form.kind is not None:
        facts = FACTS[sentence.form.kind][sentence.subject]
        for field, value in sentence.fields.items():
            if facts.get(field) != value:
                return f"{field} of {sentence.subject} is {facts.get(field)!r}, not {value!r}"
        return ""
    if fault := _untrue(sentence.form.id, sentence.fields):
        return fault
    for field, value in sentence.fields.items():
        if say.fields[field] != value:
            return f"{field} is {value!r}, expected {say.fields[field]!r}"
    return ""


def _untrue(form: str, fields: dict[str, str]) -> str:
    """What contradicts arithmetic or the facts in a sentence taken by itself; empty if nothing does."""
    numbers = {
        name: int(fields[name]) for name in ("a", "d", "b", "k", "n") if fields.get(name, "").isdigit()
    }
    if form.endswith((".plus", ".minus")):
        if len(numbers) < 3:
            return "not a number"
        a, d, b = numbers["a"], numbers["d"], numbers["b"]
        if b != (a + d if form.endswith(".plus") else a - d):
            return f"wrong sum: {b}"
    if form.startswith("chain.") and form != "chain.end":
        number = fields["b"] if form in {"chain.plus", "chain.minus"} else fields["a"]
        element = fields["element"]
        if FACTS["elements"].get(element, {}).get("number") != number:
            return f"{element} is not element {number}"
    if form == "trip.stay":
        country = fields["country"]
        if FACTS["countries"].get(country, {}).get("capital") != fields["city"]:
            return f"{fields['city']} is not the capital of {country}"
    return ""


Path = tuple[str, ...]


def grade_structure(
    task: AtlasTask, document: Document, by: Literal["topic", "text", "statements"] = "topic"
) -> StructureGrade:
    """Compare an annotated answer's structure with the task's.

    A part is found again by its topic, which a model learns from the truth; by its text, where somebody else chose the
    topics and the answer is the task's own; or by what it states, whoever chose the topics and whatever is wrong in it.
    """
    name = _by_statements(task) if by == "statements" else {"topic": _topic, "text": _bare}[by]
    # A part's text, or what it states, tells it by itself; a topic may come again in another part.
    kept = slice(None) if by == "topic" else slice(-1, None)
    parts, marked = (
        Counter(path[kept] for path in _paths(each.items, name)) for each in (task.document, document)
    )
    num_syncs = _num_syncs(task.document.items)
    concludes = any(say.form in _CONCLUSIONS for say in statements(plan_of(task.spec)))
    nested = any(chunk.items and Sync() in chunk.items for chunk in task.document.chunks())
    leaked = concludes and any(
        _concludes(chunk.items)
        for chunk in document.chunks()
        if not (nested and any(isinstance(item, Chunk) for item in chunk.items))
    )
    return StructureGrade(
        independent_parts=parts.total(),
        annotated_parts=(parts & marked).total(),
        dependent_left_alone=not leaked and document.depth() <= task.document.depth(),
        superfluous_parts=(marked - parts).total(),
        sync_right=_are_placed(document.items) and _num_syncs(document.items) == num_syncs,
        forks=bool(marked),
        has_readers=num_syncs > 0,
    )


def _paths(items: tuple[Item, ...], name: Callable[[Chunk], str], path: Path = ()) -> Iterator[Path]:
    """Every chunk by the names of the chunks on the way to it (with a number where they repeat)."""
    seen: Counter[str] = Counter()
    for item in items:
        if isinstance(item, Chunk):
            own = name(item)
            seen[own] += 1
            numbered = own if seen[own] == 1 else f"{own} ({seen[own]})"
            yield (*path, numbered)
            yield from _paths(item.items, name, (*path, numbered))


def _topic(chunk: Chunk) -> str:
    return chunk.topic


def _by_statements(task: AtlasTask) -> Callable[[Chunk], str]:
    """Names a chunk by the number of the truth's part that it is: the one of whose own statements it makes the largest
    share, unless it makes all of another part's too. Any other chunk has a name that is no part's."""
    plan = plan_of(task.spec)
    wanted = {_key(say) for say in statements(plan)}
    parts = [*_parts(plan)]
    times = Counter(said for own, _ in parts for said in own)
    parts = [({said for said in own if times[said] == 1}, around) for own, around in parts]

    def name(chunk: Chunk) -> str:
        found = _read_answer(render(Document(chunk.items)), wanted)
        made = {_told(sentence.key, sentence.fields) for sentence in found}
        shares = {n: len(own & made) / len(own) for n, (own, _) in enumerate(parts) if own & made}
        # A part that lies in one that the chunk is belongs to it.
        outer = [n for n in shares if not parts[n][1] & shares.keys()]
        best = max(outer, key=lambda n: shares[n], default=None)
        if best is None or any(shares[n] == 1.0 for n in outer if n != best):
            return f"no part: {chunk.topic}"
        return str(best)

    return name


def _parts(plan: Plan) -> Iterator[tuple[set[Key], frozenset[int]]]:
    """What each part states itself, and the numbers of the parts that it lies in."""
    number = 0
    for node in plan:
        if isinstance(node, Part):
            said = {_told(_key(say), say.fields) for say in node.items if isinstance(say, Say)}
            yield said, frozenset()
            inner = [*_parts(node.items)]
            for said, around in inner:
                yield said, frozenset({number, *(number + 1 + n for n in around)})
            number += 1 + len(inner)


def _told(key: Key, fields: dict[str, str]) -> Key:
    """What a statement says, right or wrong: of which subject, or without one of what."""
    form, subject = key
    return form, subject or " ".join(fields.values())


def _bare(chunk: Chunk) -> str:
    """A chunk's text without a list's mark, which may stand before the promise as well."""
    text = render(Document(chunk.items)).strip()
    mark = _MARK.match(text)
    return text[mark.end() :] if mark else text


def _num_syncs(items: tuple[Item, ...]) -> int:
    return sum(_num_syncs(item.items) if isinstance(item, Chunk) else item == Sync() for item in items)


def _are_placed(items: tuple[Item, ...]) -> bool:
    """Whether, in a thread and those that it forks, what reads the parts stands behind a sync and no chunk does."""
    for before, item in pairwise((None, *items)):
        if isinstance(item, Text) and _concludes((item,)) and before != Sync():
            return False
        if isinstance(item, Chunk) and (before == Sync() or not _are_placed(item.items)):
            return False
    return True


def _concludes(items: tuple[Item, ...]) -> bool:
    text = render(Document(items))
    return any(opening in text for opening in _OPENINGS)
