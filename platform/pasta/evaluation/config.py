"""The configuration of an evaluation: every key of ``configs/evaluate/*.yaml``."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pasta.bounds import check_positive, check_unread
from pasta.config import to_dict
from pasta.data.endpoint import EndpointSection
from pasta.data.prompts import PromptsSection
from pasta.data.skeletons import STYLES, SkeletonPrompts, Style
from pasta.engine import SamplingParams
from pasta.engine.section import EngineSection, answer_limits, check_slot
from pasta.interpreter import Limits
from pasta.judges.config import JudgeSection
from pasta.stages.workers import DecodingWorkersSection
from pasta.tracking import TrackingSection

Kind = Literal["sequential", "pasta", "apar", "sot", "endpoint"]
#: Kinds that decode sequentially: possible baselines of a speedup.
BASELINES: tuple[Kind, ...] = ("sequential", "endpoint")
#: Kinds whose models write promises.
PROMISING: tuple[Kind, ...] = ("pasta", "apar")


MAX_HINT_FACTOR = 100.0
#: Names stand in keys (``--set methods.NAME.model``), figures and tables.
_NAME = re.compile(r"[\w+=@-][\w+=@ -]*")


@dataclass(frozen=True, slots=True)
class SotSection:
    """How skeletons and points are asked for.

    ``style`` chooses the words: ``prompted`` for a model that follows instructions, ``trained`` for one trained on the
    data that ``jobs.annotate`` makes with ``annotator: sot``; ``prompts`` gives words of your own instead. A skeleton
    cut at ``max_skeleton_tokens`` is not used; a point's text ends at ``max_point_tokens``.
    """

    style: Style = "prompted"
    prompts: SkeletonPrompts | None = None
    max_skeleton_tokens: int = 256
    max_point_tokens: int = 512

    def __post_init__(self) -> None:
        check_positive(self, "max_skeleton_tokens", "max_point_tokens")
        if self.prompts is not None:
            check_unread(self, "with prompts, which are used instead", "style")

    @property
    def words(self) -> SkeletonPrompts:
        """The words to use."""
        return self.prompts or STYLES[self.style]


@dataclass(frozen=True, slots=True)
class MethodSection:
    """One way to answer: ``sequential``, ``pasta``, ``apar`` with a ``model`` (directory or Hub name), ``sot`` with a
    model or an endpoint, ``endpoint`` with one.

    ``promise_bias`` is added to the logit of opening a promise; ``hint_factor`` multiplies the room that a promise's
    estimate reserves, as if the model had guessed lengths wrong; ``sot`` says how skeletons are asked for (by default
    as ``SotSection`` does). Points of the same ``line`` are joined in the Pareto figure, and ``label`` stands beside
    the point; neither changes what is measured.
    """

    kind: Kind
    model: str | None = None
    endpoint: EndpointSection | None = None
    promise_bias: float = 0.0
    hint_factor: float = 1.0
    line: str | None = None
    label: str | None = None
    sot: SotSection | None = None

    def __post_init__(self) -> None:
        if self.kind != "sot" and self.sot is not None:
            raise ValueError(f"sot: expected no such section with kind {self.kind}")
        if self.kind == "sot":
            if (self.model is None) == (self.endpoint is None):
                raise ValueError("kind sot: expected either a model or an endpoint")
        elif self.kind == "endpoint":
            if self.endpoint is None or self.model is not None:
                raise ValueError(
                    "kind endpoint: expected an endpoint (which names its model), and no model beside it"
                )
        elif self.model is None or self.endpoint is not None:
            raise ValueError(f"kind {self.kind}: expected a model, and no endpoint")
        SamplingParams(promise_bias=self.promise_bias)
        if self.promise_bias and self.kind not in PROMISING:
            raise ValueError(
                f"promise_bias {self.promise_bias}: expected none with kind {self.kind}, which opens no promises"
            )

        if not 0.0 < self.hint_factor <= MAX_HINT_FACTOR:
            raise ValueError(f"hint_factor {self.hint_factor}: expected above 0, to {MAX_HINT_FACTOR}")
        if self.hint_factor != 1.0 and self.kind not in PROMISING:
            raise ValueError(
                f"hint_factor {self.hint_factor}: expected none with kind {self.kind}, which opens no promises"
            )

    def identity(self) -> dict[str, Any]:
        """What the method's answers and their times depend on: all but how it is drawn, and an endpoint's prices."""
        values = to_dict(self)
        del values["line"], values["label"]
        if self.hint_factor == 1.0:
            # absent at its default, so that records from before this key stay valid
            del values["hint_factor"]
        if self.endpoint is not None:
            kept = ("base_url", "model", "max_tokens_key", "extra_body")
            values["endpoint"] = {key: values["endpoint"][key] for key in kept}
        return values


@dataclass(frozen=True, slots=True)
class TimedEngineSection(EngineSection):
    """``EngineSection`` of an evaluation, which times answers: by default in the float format that is fastest here."""

    dtype: str = "auto"


@dataclass(frozen=True, slots=True)
class EvaluateConfig:
    """One evaluation: every prompt answered by every method, ``1 + repeats`` times, all but the first timed.

    ``baseline`` names the method that the others are measured against. ``prompts`` are held-out tasks if they are the
    atlas's; their source may also be an AlpacaEval file (a JSON array of objects with ``"instruction"``). ``judge``
    says how good answers are; without one only speed is measured, and with ``repeats: 0`` only quality.
    """

    name: str
    output_dir: Path
    baseline: str
    methods: dict[str, MethodSection]
    prompts: PromptsSection
    judge: JudgeSection | None = None
    repeats: int = 1
    limits: Limits = field(default_factory=answer_limits)
    engine: TimedEngineSection = field(default_factory=TimedEngineSection)
    run_dir: Path = Path("runs/evaluate")
    workers: DecodingWorkersSection = field(default_factory=DecodingWorkersSection)
    tracking: TrackingSection = field(default_factory=TrackingSection)

    def __post_init__(self) -> None:
        for name in self.methods:
            if not _NAME.fullmatch(name):
                raise ValueError(f"methods.{name}: expected a name of letters, digits, spaces and _ - + = @")
        if self.baseline not in self.methods:
            raise ValueError(
                f"baseline {self.baseline!r}: no such method; expected one of {', '.join(self.methods) or 'methods'}"
            )
        kind = self.methods[self.baseline].kind
        if kind not in BASELINES:
            raise ValueError(
                f"baseline {self.baseline!r}: of kind {kind}; expected kind {' or '.join(BASELINES)}: a speedup is "
                "measured against one token after another"
            )
        if len(self.methods) < 2:
            raise ValueError(f"methods: only the baseline {self.baseline!r}; expected one to compare with it")
        if self.has_engines:
            check_slot(self.engine.slot_tokens, self.limits.max_tokens)
        elif self.workers.tensor_parallel > 1:
            raise ValueError(
                f"workers.tensor_parallel {self.workers.tensor_parallel}: expected 1, for no method has a model to "
                "share; endpoints decode elsewhere"
            )
        else:
            check_unread(self, "where no method has a model", "engine")
        if self.repeats < 0:
            raise ValueError(f"repeats {self.repeats}: expected 0 (nothing is timed) or more")
        if self.repeats and self.workers.num_workers != 1:
            raise ValueError(
                f"workers.num_workers {self.workers.num_workers}: expected 1 with repeats {self.repeats}; answers that "
                "share a machine's cores take each other's time (repeats: 0 decodes on several, without timing)"
            )

    @property
    def has_engines(self) -> bool:
        """Whether a method decodes on an engine of ours."""
        return any(section.model is not None for section in self.methods.values())

    def measured(self) -> dict[str, Any]:
        """The models and files that the evaluation compares."""
        methods = {name: section.identity() for name, section in self.methods.items()}
        return {"baseline": self.baseline, "methods": methods}

    def identity(self) -> dict[str, Any]:
        """The values that records depend on, without the prompts' own texts."""
        values = {
            "prompts": to_dict(self.prompts),
            **self.measured(),
            "judge": self.judge.identity() if self.judge else None,
            "repeats": self.repeats,
            "limits": to_dict(self.limits),
            "engine": to_dict(self.engine),
        }
        if self.repeats:
            # Times depend on these, answers do not.
            values["threads"] = self.workers.threads
            # absent at its default, so that records from before this key stay valid
            if self.workers.tensor_parallel > 1:
                values["tensor_parallel"] = self.workers.tensor_parallel
        return values

    def models(self) -> dict[str, str | None]:
        """The models of methods and judge by key; None where there is none."""
        models = {f"methods.{name}.model": section.model for name, section in self.methods.items()}
        return models | {
            "judge.reward.model": self.judge.reward.model if self.judge and self.judge.reward else None
        }
