"""Tasks: sampling, the held-out split, and the way back from a prompt's text to its task."""

import hashlib
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from pasta.data.atlas.families import FAMILIES
from pasta.data.atlas.family import Params
from pasta.data.atlas.plan import LAYOUTS, Plan, Say, to_document, token_counter, with_estimates
from pasta.errors import UserError
from pasta.lang import Codec, Document, render

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = ("train", "heldout")
CLOSING_REQUEST = "End with a kind word."
_HELDOUT_SHARE = 0.1
#: Draws in a row without a new prompt, after which a family is taken to have no more.
_FRUITLESS = 2000


@dataclass(frozen=True)
class AtlasTask:
    """One prompt with its annotated answer. ``spec`` is JSON-able and enough to rebuild and grade the task."""

    family: str
    independent: bool
    prompt: str
    document: Document
    spec: dict[str, Any]

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.prompt}]

    @property
    def answer(self) -> str:
        return render(self.document)


def split_of(family: str, params: Params) -> Split:
    """The split that a combination belongs to, whatever its wording, layout or order."""
    key = json.dumps([family, FAMILIES[family].key(params)], sort_keys=True)
    digest = hashlib.sha256(key.encode()).digest()
    return "heldout" if int.from_bytes(digest[:8]) < _HELDOUT_SHARE * 2**64 else "train"


def plan_of(spec: dict[str, Any]) -> Plan:
    """The plan of the answer that a spec asks for."""
    family = FAMILIES[spec["family"]]
    plan = list(family.plan(spec["params"], spec["layout"]))
    if spec["closing"]:
        plan.append(Say("closing", {}, " " if spec["layout"] == "inline" else "\n\n"))
    return plan


def task_of(spec: dict[str, Any]) -> AtlasTask:
    """The task of a spec: keys family, params, wording (index), layout ("" if the family has one), closing."""
    family = FAMILIES[spec["family"]]
    prompt = family.wordings[spec["wording"]].format(**family.slots(spec["params"]))
    if spec["layout"]:
        prompt += f" {LAYOUTS[spec['layout']]}"
    if spec["closing"]:
        prompt += f" {CLOSING_REQUEST}"
    return AtlasTask(family.name, family.independent, prompt, to_document(plan_of(spec)), spec)


def sample_task(rng: random.Random, split: Split, family: str | None = None) -> AtlasTask:
    """A task of the split, of a family drawn by weight unless one is named. Estimates are provisional."""
    if split not in SPLITS:
        raise UserError(f"atlas split {split!r}: expected one of {', '.join(SPLITS)}")
    if family is not None and family not in FAMILIES:
        raise UserError(f"atlas family {family!r}: expected one of {', '.join(FAMILIES)}")
    names = list(FAMILIES)
    name = family or rng.choices(names, [FAMILIES[name].weight for name in names])[0]
    chosen = FAMILIES[name]
    while True:
        params = chosen.draw(rng)
        if split_of(name, params) == split:
            break
    spec = {
        "family": name,
        "params": params,
        "wording": rng.randrange(len(chosen.wordings)),
        "layout": rng.choice(chosen.layouts) if chosen.laid_out else "",
        "closing": rng.random() < chosen.closing_rate,
    }
    return task_of(spec)


def iter_corpus(seed: int, split: Split, count: int, codec: Codec | None = None) -> Iterator[AtlasTask]:
    """``count`` tasks, the same for the same seed; estimates are exact when a codec is given."""
    rng = random.Random(f"atlas:{seed}:{split}")
    # The same description of a thing comes back in many answers: count its tokens once.
    count_tokens = lru_cache(maxsize=50_000)(token_counter(codec)) if codec else None
    for _ in range(count):
        task = sample_task(rng, split)
        yield replace(task, document=with_estimates(task.document, count_tokens)) if count_tokens else task


def estimated(task: AtlasTask, codec: Codec | None) -> AtlasTask:
    """The task with its estimates counted in the codec's tokens."""
    return replace(task, document=with_estimates(task.document, token_counter(codec))) if codec else task


def heldout_prompts(count: int = 200, seed: int = 0) -> list[AtlasTask]:
    """Distinct held-out tasks, families in proportion to their weights (largest remainders), shuffled.

    Raises UserError if a family does not have so many.
    """
    total = sum(family.weight for family in FAMILIES.values())
    shares = {name: count * family.weight / total for name, family in FAMILIES.items()}
    quota = {name: int(share) for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda name: (quota[name] - shares[name], name))
    for name in by_remainder[: count - sum(quota.values())]:
        quota[name] += 1
    rng = random.Random(f"atlas:{seed}:heldout prompts")
    tasks: dict[str, AtlasTask] = {}
    for name, number in quota.items():
        goal, fruitless = len(tasks) + number, 0
        while len(tasks) < goal:
            task = sample_task(rng, "heldout", name)
            fruitless = fruitless + 1 if task.prompt in tasks else 0
            if fruitless > _FRUITLESS:
                found = number - goal + len(tasks)
                raise UserError(
                    f"atlas: {count} held-out prompts take {number} of family {name!r}, which has {found}; "
                    "expected a smaller number"
                )
            tasks.setdefault(task.prompt, task)
    out = list(tasks.values())
    rng.shuffle(out)
    return out


def _slot_pattern(wording: str) -> re.Pattern[str]:
    pieces = re.split(r"\{(\w+)\}", wording)
    return re.compile("".join(f"(?P<{p}>.+?)" if i % 2 else re.escape(p) for i, p in enumerate(pieces)))


_PATTERNS = [
    (family, index, _slot_pattern(wording))
    for family in FAMILIES.values()
    for index, wording in enumerate(family.wordings)
]


def task_asked(messages: Sequence[Mapping[str, str]]) -> AtlasTask | None:
    """The task that a conversation of one message asks for; None if it is none of the atlas."""
    return task_for_prompt(messages[0]["content"]) if len(messages) == 1 else None


def task_for_prompt(prompt: str) -> AtlasTask | None:
    """The task that a prompt's text asks for; None if it is no atlas prompt."""
    text = prompt.strip()
    closing = text.endswith(f" {CLOSING_REQUEST}")
    if closing:
        text = text.removesuffix(f" {CLOSING_REQUEST}")
    layout = next((name for name, request in LAYOUTS.items() if text.endswith(f" {request}")), "")
    if layout:
        text = text.removesuffix(f" {LAYOUTS[layout]}")
    for family, index, pattern in _PATTERNS:
        match = pattern.fullmatch(text)
        if match is None or family.laid_out != bool(layout):
            continue
        try:
            params = family.unslot(match.groupdict())
            spec = {
                "family": family.name, "params": params, "wording": index, "layout": layout, "closing": closing,
            }  # fmt: skip
            task = task_of(spec)
        except (KeyError, ValueError, IndexError):
            continue
        if task.prompt == prompt.strip():
            return task
    return None
