"""Every sentence form of the atlas world, by id, and the parser that reads sentences back.

A form is a template over named fields. A form of a *kind* takes its fields from the fact base row of its
subject; all other forms are *free*: their fields come from the task (amounts, positions, lists).
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from pasta.data.atlas.facts import FACTS, KINDS
from pasta.data.atlas.words import read_words

_ANSWERS = read_words("answers")
#: Sentences in order by style and kind of thing.
STYLES: dict[str, dict[str, tuple[str, ...]]] = {
    style: _ANSWERS[style] for style in ("profile", "sheet", "child", "self", "postcard")
}
#: One sentence a fact: kind, attribute, sentence.
LINE: dict[str, dict[str, str]] = _ANSWERS["line"]
#: A travel guide's sections: topic, sentences.
GUIDE: dict[str, tuple[str, ...]] = _ANSWERS["guide"]
_NUMBERS = frozenset({"a", "b", "d", "k", "n", "number", "century"})


@dataclass(frozen=True)
class Form:
    """One sentence form. ``kind`` is None for a free form."""

    id: str
    template: str
    kind: str | None
    pattern: re.Pattern[str]

    @property
    def names_subject(self) -> bool:
        return self.kind is not None and "{name}" in self.template


def _compile(template: str) -> re.Pattern[str]:
    seen: set[str] = set()
    out = []
    for index, piece in enumerate(re.split(r"\{(\w+)\}", template)):
        if index % 2 == 0:
            out.append(re.escape(piece))
        elif piece in seen:
            out.append(f"(?P={piece})")
        else:
            seen.add(piece)
            out.append(f"(?P<{piece}>{'[0-9]{1,9}' if piece in _NUMBERS else '.+?'})")
    return re.compile("".join(out))


def _forms() -> dict[str, Form]:
    forms: dict[str, Form] = {}

    def add(form_id: str, template: str, kind: str | None) -> None:
        same = next((f for f in forms.values() if f.kind == kind and f.template == template), None)
        forms[form_id] = same or Form(form_id, template, kind, _compile(template))

    for style, table in STYLES.items():
        for kind, templates in table.items():
            for index, template in enumerate(templates):
                add(f"{kind}.{style}.{index}", template, kind)
    add("countries.guide.head", _ANSWERS["guide_head"], "countries")
    for topic, templates in GUIDE.items():
        for index, template in enumerate(templates):
            add(f"countries.guide.{topic}.{index}", template, "countries")
    for kind in KINDS:
        for attribute, template in LINE[kind].items():
            add(f"{kind}.line.{attribute}", template, kind)
    for form_id, template in _ANSWERS["free"].items():
        add(form_id, template, None)
    return forms


FORMS: dict[str, Form] = _forms()
# The most literal form first: "X is known for Y" before "X is Y".
_UNIQUE: tuple[Form, ...] = tuple(
    sorted(
        {form.id: form for form in FORMS.values()}.values(),
        key=lambda form: -len(re.sub(r"\{\w+\}", "", form.template)),
    )
)


def write(form_id: str, fields: dict[str, str]) -> str:
    """The sentence of a form."""
    return FORMS[form_id].template.format(**fields)


@lru_cache(maxsize=4096)
def readings(sentence: str) -> tuple[tuple[Form, dict[str, str]], ...]:
    """Every form that the sentence can be read as, with its fields; the most literal form first."""
    return tuple(
        (form, match.groupdict())
        for form in _UNIQUE
        if (match := form.pattern.fullmatch(sentence)) is not None
    )


def fact_fields(form_id: str, name: str) -> dict[str, str] | None:
    """The fields of a kind's form for a subject; None if the fact does not exist (nothing precedes hydrogen)."""
    form = FORMS[form_id]
    assert form.kind is not None
    row = FACTS[form.kind][name]
    fields = re.findall(r"\{(\w+)\}", form.template)
    return {field: row[field] for field in fields} if all(field in row for field in fields) else None
