"""Annotates the atlas as an imperfect teacher would, who judges by the layout: the start of the experiment on what
preference training gains.

It knows where the parts of an answer begin, for that can be seen. Whether they need each other it guesses from the
layout: independent parts laid out as a list are mostly marked, those in one paragraph mostly not, and steps that need
each other are marked where they look like a list. An answer is annotated by one guess as a whole. So a model that is
trained on many answers learns a distribution, with errors among its likeliest choices and right answers among ten
samples (a greedy decoder hides every error that is rarer than one half).
"""

import random
from dataclasses import dataclass, fields

from pasta.data.annotate.annotator import Proposal, truth_of
from pasta.data.annotate.marks import to_topic
from pasta.data.atlas.families import FAMILIES
from pasta.data.atlas.plan import Await, Node, Part, Plan, Say, to_document
from pasta.data.atlas.steps import Steps
from pasta.data.atlas.tasks import AtlasTask, plan_of
from pasta.data.instructions import Instruction
from pasta.lang import to_text


def _check_probability(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} {value}: expected a probability from 0 to 1")


@dataclass(frozen=True, slots=True)
class ByLayout:
    """The probability that the parts of an answer are marked, by how they are laid out.

    ``lists`` are bullet points and numbers; ``unlisted`` is for tasks whose layout the prompt does not choose.
    """

    lists: float
    paragraphs: float
    inline: float
    unlisted: float

    def __post_init__(self) -> None:
        for each in fields(self):
            _check_probability(each.name, getattr(self, each.name))

    def of(self, layout: str) -> float:
        """The probability for a layout of ``pasta.data.atlas.plan.LAYOUTS``, or "" for none."""
        return {
            "bullets": self.lists,
            "numbered": self.lists,
            "paragraphs": self.paragraphs,
            "inline": self.inline,
            "": self.unlisted,
        }[layout]


@dataclass(frozen=True, slots=True)
class ImperfectSection:
    """How often the teacher errs, in probabilities by answer.

    ``marks``: parts that are independent are marked. ``forks``: steps that need each other are marked as if they were
    independent. ``merges``: in an answer that is marked, neighbours become one part, two by two. ``forgets_syncs``: an
    answer that is marked has no syncs. A record's guesses follow from ``seed`` and the record's id.
    """

    seed: int = 0
    marks: ByLayout = ByLayout(lists=0.80, paragraphs=0.45, inline=0.25, unlisted=0.35)
    forks: ByLayout = ByLayout(lists=0.60, paragraphs=0.40, inline=0.15, unlisted=0.30)
    merges: float = 0.3
    forgets_syncs: float = 0.5

    def __post_init__(self) -> None:
        for name in ("merges", "forgets_syncs"):
            _check_probability(name, getattr(self, name))


def propose_imperfect(record: Instruction, options: ImperfectSection) -> Proposal:
    """The annotation of an answer of the atlas with the errors that ``options`` asks for. Rejects other answers."""
    task = truth_of(record)
    if isinstance(task, Proposal):
        return task
    return Proposal(to_text(to_document(guessed(task, record.id, options))))


def guessed(task: AtlasTask, record: str, options: ImperfectSection) -> Plan:
    """The plan that the imperfect teacher sees in the answer to a task; the answer's text stays the same."""
    rng = random.Random(f"imperfect:{options.seed}:{record}")
    # Every guess is drawn for every record, so that a change of one probability leaves the others' guesses alone.
    is_marked, merges, forgets = (
        rng.random(),
        rng.random() < options.merges,
        rng.random() < options.forgets_syncs,
    )
    chances = options.marks if task.independent else options.forks
    plan = plan_of(task.spec) if task.independent else as_parts(task)
    if is_marked >= chances.of(task.spec["layout"]):
        return _unmarked(plan)
    plan = _merged(plan) if merges else plan
    return _without_syncs(plan) if forgets else plan


def as_parts(task: AtlasTask) -> Plan:
    """The plan of a task of dependent steps, as if its steps were independent parts that only its last statement
    reads."""
    family = FAMILIES[task.spec["family"]]
    assert isinstance(family, Steps), f"{family.name} has dependent steps"
    first, *steps, last = family.laid_out_steps(task.spec["params"], task.spec["layout"])
    parts = [Part(f"step {number}", tuple(step)) for number, step in enumerate(steps, start=1)]
    closing = plan_of(task.spec)[len(first) + sum(map(len, steps)) + len(last) :]
    return [*first, *parts, Await(), *last, *closing]


def _unmarked(plan: Plan) -> list[Node]:
    out: list[Node] = []
    for node in plan:
        if isinstance(node, Part):
            out += _unmarked(node.items)
        elif isinstance(node, Say):
            out.append(node)
    return out


def _merged(plan: Plan) -> list[Node]:
    """The plan with neighbouring parts merged, two by two, at every depth."""
    out: list[Node] = []
    open_pair = False
    for node in plan:
        if not isinstance(node, Part):
            open_pair = False
            out.append(node)
            continue
        part = Part(node.topic, tuple(_merged(node.items)))
        if open_pair and isinstance(first := out[-1], Part):
            topic = to_topic(f"{first.topic} and {part.topic}", words=16)
            out[-1], open_pair = Part(topic, (*first.items, *part.items)), False
        else:
            out.append(part)
            open_pair = True
    return out


def _without_syncs(plan: Plan) -> list[Node]:
    return [
        Part(node.topic, tuple(_without_syncs(node.items))) if isinstance(node, Part) else node
        for node in plan
        if not isinstance(node, Await)
    ]
