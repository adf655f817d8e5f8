"""Skeletons, the outlines of Skeleton-of-Thought (Ning et al., ICLR 2024, arXiv 2307.15337), and requests about them.

An answer is made in two stages: one request for a skeleton, a numbered list of a few words a point, then one request
for each point, all at once. Training data (``pasta.data.sot``) and decoding (``pasta.evaluation.methods.sot``) both
take their words from here, so that what a model was taught and what it is asked agree to the token.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Annotated, Literal

from pasta.names import FREE_TEXT

Template = Annotated[str, FREE_TEXT]
Style = Literal["prompted", "trained"]
MIN_POINTS = 2
#: The placeholders that hold numbers.
_NUMBERS = ("max_points", "number")
_POINT = re.compile(r"(\d{1,3})[.)]\s+(\S.*)")
_EMPHASIS = re.compile(r"\*\*|__|^[*_]|[*_]$")


@dataclass(frozen=True, slots=True)
class SkeletonPrompts:
    """The words of both requests, and how an answer is put together from what comes back.

    ``skeleton`` holds ``{request}``; ``point`` holds ``{request}``, ``{skeleton}``, ``{number}`` and ``{point}``; both
    may hold ``{max_points}``. They take the place of the user's last message. ``item`` is how a point stands in the
    answer (``{number}``, ``{point}``, ``{text}``), between ``separator``. With ``strip`` the white space around a
    point's text is dropped; without, points bring their own. A skeleton of more than ``max_points`` is no skeleton.
    """

    skeleton: Template
    point: Template
    item: Template = "{number}. {point}: {text}"
    separator: Template = "\n"
    strip: bool = True
    max_points: int = 10

    def __post_init__(self) -> None:
        everywhere = {"max_points"}
        for name, needed, known in (
            ("skeleton", {"request"}, everywhere),
            ("point", {"request", "point"}, everywhere | {"skeleton", "number"}),
            ("item", {"text"}, {"number", "point"}),
        ):
            _check_placeholders(name, getattr(self, name), needed, needed | known)
        if self.max_points < MIN_POINTS:
            raise ValueError(f"max_points {self.max_points}: expected at least {MIN_POINTS}")

    def skeleton_messages(self, messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
        """The request for a skeleton of the answer to ``messages``, whose last one is the user's."""
        return _asked(messages, self.skeleton, max_points=self.max_points)

    def point_messages(
        self, messages: Sequence[Mapping[str, str]], points: Sequence[str], number: int
    ) -> list[dict[str, str]]:
        """The request for the text of point ``number`` (from 1) of a skeleton."""
        return _asked(
            messages,
            self.point,
            max_points=self.max_points,
            skeleton=write_skeleton(points),
            number=number,
            point=points[number - 1],
        )

    def join(self, points: Sequence[str], texts: Sequence[str]) -> str:
        """The answer: the points' texts in order."""
        return self.separator.join(
            self.item.format(number=number, point=point, text=text.strip() if self.strip else text)
            for number, (point, text) in enumerate(zip(points, texts, strict=True), start=1)
        )

    def read(self, skeleton: str) -> list[str]:
        """The points of a skeleton that a model wrote; none if the text is no skeleton.

        It reads strictly, since every point costs a request: each line that is not blank is a point, numbered from 1
        without a gap. Only a first line that ends with a colon may stand above them.
        """
        lines = [line.strip() for line in skeleton.strip().splitlines() if line.strip()]
        if len(lines) > 1 and lines[0].strip("*_").endswith(":") and not _POINT.match(lines[0]):
            del lines[0]
        points = []
        for number, line in enumerate(lines, start=1):
            match = _POINT.fullmatch(line)
            point = _EMPHASIS.sub("", match[2]).strip() if match and int(match[1]) == number else ""
            if not point:
                return []
            points.append(point)
        return points if len(points) <= self.max_points else []


def write_skeleton(points: Sequence[str]) -> str:
    """A skeleton as a numbered list, a point a line."""
    return "\n".join(f"{number}. {point}" for number, point in enumerate(points, start=1))


def _asked(messages: Sequence[Mapping[str, str]], template: str, **values: object) -> list[dict[str, str]]:
    *before, last = [dict(message) for message in messages]
    return [*before, {**last, "content": template.format(request=last["content"], **values)}]


def _check_placeholders(name: str, template: str, needed: set[str], known: set[str]) -> None:
    try:
        found = {field for _, field, _, _ in Formatter().parse(template) if field is not None}
    except ValueError as error:
        raise ValueError(f"{name} {template[:40]!r}: {error}; write {{{{ for a brace") from None
    for wrong, problem in ((needed - found, "lacks"), (found - known, "has an unknown")):
        if wrong:
            names = ", ".join(f"{{{each}}}" for each in sorted(known))
            raise ValueError(
                f"{name} {template[:40]!r}: {problem} {{{min(wrong)}}}; its placeholders are {names}"
            )
    try:  # what stands behind a placeholder's name shows only here
        template.format(**{each: 1 if each in _NUMBERS else "" for each in known})
    except (ValueError, LookupError) as error:
        raise ValueError(f"{name} {template[:40]!r}: cannot be filled in ({error})") from None


#: For models that follow instructions: the words are ours, the two requests are the paper's.
PROMPTED = SkeletonPrompts(
    skeleton=(
        "Before an answer to the request below is written, it has to be outlined. Write this outline, and not yet the "
        "answer: a numbered list (1., 2., 3., …) of three to {max_points} points, in the order in which the answer has "
        "them. Each point is a label of three to five words, no sentence. Write nothing else, neither before the "
        "list nor after it.\n\nRequest:\n{request}"
    ),
    point=(
        # What all points share comes first: a server computes it once.
        "An answer to the request below has been outlined, and its points are being written at the same time, each by "
        "somebody else.\n\nRequest:\n{request}\n\nOutline:\n{skeleton}\n\nYour part is point {number}: {point}\n\n"
        "Write the text of this point, one to three sentences. Start with its content at once, repeat neither its "
        "number nor its label, and leave all other points to the others."
    ),
)
#: For models that are trained for it, such as the atlas' models: short, since every request holds these words. Points
#: bring their own list marks and line breaks, so that they join to exactly the answer that they were cut from.
TRAINED = SkeletonPrompts(
    skeleton="{request} Say the points first.",
    point="{request}\n{skeleton}\nNow point {number}: {point}",
    item="{text}",
    separator="",
    strip=False,
    max_points=16,
)
STYLES: dict[Style, SkeletonPrompts] = {"prompted": PROMPTED, "trained": TRAINED}
