"""The service's configuration: ``args`` of configs/serve/*.yaml, and what must be true before workers start."""

import hashlib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
)

from pasta.errors import UserError, first_line
from pasta.placement import Policy
from pasta.sizes import EngineSizes
from serve.keys import read_keys
from serve.wire import Mode

#: Relative model paths start here: the repository's root, wherever a worker runs.
ROOT = Path(__file__).resolve().parent.parent


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ModelConfig(_Strict):
    """One served model.

    ``path`` is a directory (relative to the repository's root) or the name of a model in the Hugging Face
    cache. ``mode`` sequential serves it without promises, whatever a request asks for. ``temperature`` is
    used where a request gives none.
    """

    path: str
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "auto"
    mode: Mode = "parallel"
    temperature: float = Field(default=0.0, ge=0, le=2)

    @property
    def location(self) -> str:
        """What to load: an absolute path if there is such a directory."""
        local = ROOT / self.path
        return str(local) if local.is_dir() else self.path


class LimitSettings(_Strict):
    """Bounds on one answer; a request may ask for fewer threads.

    ``max_prompt_tokens`` is less than the context where prompts are to be shorter than that.
    """

    max_threads: PositiveInt = 64
    max_depth: PositiveInt = 4
    max_chunk_tokens: PositiveInt = 1024
    max_prompt_tokens: PositiveInt | None = None


class AdmissionSettings(_Strict):
    """How much is taken on at once, in tokens: prompts and the longest answers asked for.

    ``budget_tokens`` is by default twice what all caches hold. Requests of at most ``short_tokens`` are short,
    and neither kind may hold more than ``most_of_one_kind`` of the budget. Beyond it the answer is 429; its
    Retry-After says when there will be room at the pace of late, ``retry_after_s`` at least.
    """

    budget_tokens: PositiveInt | None = None
    short_tokens: PositiveInt = 512
    most_of_one_kind: float = Field(default=0.75, ge=0.5, le=1)
    retry_after_s: PositiveInt = 1


class KeySettings(_Strict):
    """Who may ask. Without a ``file`` (see serve/keys.py) everybody on this machine, and nobody else.

    The limits are those of keys that name none of their own; ``None`` is no limit.
    """

    file: str | None = None
    requests_per_minute: PositiveInt | None = None
    max_concurrent: PositiveInt | None = None

    @property
    def path(self) -> Path | None:
        """Where the file is."""
        return None if self.file is None else ROOT / self.file


def _custom(resources: dict[str, float]) -> dict[str, float]:
    for name in resources:
        if name in ("CPU", "GPU", "memory", "object_store_memory"):
            raise ValueError(
                f"{name!r} is none of a cluster's own resources; expected num_cpus or num_gpus beside it"
            )
    return resources


#: Resources that nodes are started with (``ray start --resources='{"front": 1}'``), and how much of each is reserved.
Resources = Annotated[dict[str, PositiveFloat], AfterValidator(_custom)]


class FrontSettings(_Strict):
    """What the Gateway and the Interpreter each reserve; ``resources`` keep them on nodes that have those.

    They hold every open request: a Decoder may be lost with its node, they may not.
    """

    num_cpus: NonNegativeFloat = 0.1
    resources: Resources = {}


class AutoscalingSettings(_Strict):
    """As many Decoders as their work needs: one for each ``target_lanes`` threads that decode or wait to.

    The need must have lasted for the delay before a replica is added or (after it ended what it had begun) taken.
    """

    min_replicas: PositiveInt = 1
    max_replicas: PositiveInt
    target_lanes: PositiveFloat = 8.0
    upscale_delay_s: NonNegativeFloat = 10.0
    downscale_delay_s: NonNegativeFloat = 300.0


class DecoderSettings(_Strict):
    """The Decoder replicas. ``threads`` are torch's, in each replica; ``resources`` keep them on nodes that have those.

    With ``autoscaling``, ``num_replicas`` is how many there are at first. An update may start ``max_surge_percent``
    more than usual before it stops old ones; where there is no room for more, as on GPUs that are all in use, 0 stops
    old ones first. ``lane_knee`` is the number of lanes up to which placement auto keeps chunks at home; measured by
    each replica when it starts if it is not given. A Decoder gives up what no Interpreter has claimed for ``lease_s``.
    Tokens of an answer leave it in batches of ``stream_interval`` steps, the first and the last at once: passing on a
    batch costs as much as passing on a token, and takes the cores that engines on CPUs need.
    """

    num_replicas: PositiveInt = 2
    autoscaling: AutoscalingSettings | None = None
    max_surge_percent: int = Field(default=100, ge=0, le=100)
    lane_knee: PositiveInt | None = None
    stream_interval: PositiveInt = 1
    lease_s: PositiveFloat = 10.0
    num_cpus: PositiveFloat = 0.2
    num_gpus: NonNegativeFloat = 0.0
    resources: Resources = {}
    threads: PositiveInt = 1

    @property
    def max_replicas(self) -> int:
        """How many there may be."""
        return self.num_replicas if self.autoscaling is None else self.autoscaling.max_replicas


class ServeConfig(_Strict):
    """Everything ``serve.app:build`` takes.

    ``max_ongoing_requests`` bounds what one replica holds at once. ``timeout_s`` is how long a request may
    take (408 beyond it; a request may ask for less), ``drain_timeout_s`` how long a replica that is to stop waits
    for what it has begun.
    """

    models: dict[str, ModelConfig] = Field(min_length=1)
    engine: EngineSizes = EngineSizes()
    limits: LimitSettings = LimitSettings()
    front: FrontSettings = FrontSettings()
    decoder: DecoderSettings = DecoderSettings()
    placement: Policy = "local"
    max_ongoing_requests: PositiveInt = 256
    max_body_bytes: PositiveInt = 1_000_000
    admission: AdmissionSettings = AdmissionSettings()
    keys: KeySettings = KeySettings()
    timeout_s: PositiveFloat = 600.0
    drain_timeout_s: PositiveFloat = 120.0

    @property
    def budget_tokens(self) -> int:
        """The admission budget."""
        caches = (
            self.engine.num_slots * self.engine.slot_tokens * self.decoder.max_replicas * len(self.models)
        )
        return self.admission.budget_tokens or 2 * caches

    @property
    def version(self) -> str:
        """Names what Decoders decode with: those of another version say other things, or know other models."""
        said = self.model_dump_json(include={"models", "engine"})
        return hashlib.blake2b(said.encode(), digest_size=8).hexdigest()


def check_service(config: ServeConfig) -> None:
    """Raise ``UserError``, naming the key, if a model or the API keys cannot be used."""
    check_models(config)
    scaling = config.decoder.autoscaling
    if scaling and not scaling.min_replicas <= config.decoder.num_replicas <= scaling.max_replicas:
        raise UserError(
            f"decoder.num_replicas: {config.decoder.num_replicas} is how many decoders there are at first; expected "
            f"between autoscaling's min_replicas {scaling.min_replicas} and max_replicas {scaling.max_replicas}"
        )
    if config.keys.path is not None:
        try:
            read_keys(config.keys.path)
        except UserError as error:
            raise UserError(f"keys.file: {error}") from None


def check_models(config: ServeConfig, source: str = "models") -> None:
    """Raise ``UserError``, naming the key, if a model cannot be served. Loads tokenizers, not weights."""
    for name, model in config.models.items():
        _check_directory(model, f"{source}.{name}.path")
    for name, model in config.models.items():
        _check_loadable(model, f"{source}.{name}")


def _check_directory(model: ModelConfig, key: str) -> None:
    looks_local = model.path.startswith((".", "/", "~")) or model.path.count("/") != 1
    directory = Path(model.location)
    if not directory.is_dir():
        if looks_local or (ROOT / model.path).parent.is_dir():
            raise UserError(
                f"{key}: {model.path!r} is not a directory; expected one with config.json, model.safetensors "
                "and a tokenizer (the shipped ones are made by make train)"
            )
        return
    for file in ("config.json", "tokenizer_config.json", "*.safetensors"):
        if not any(directory.glob(file)):
            raise UserError(f"{key}: {model.path!r} has no {file}; expected a model's weights and tokenizer")


def _check_loadable(model: ModelConfig, key: str) -> None:
    from transformers import AutoTokenizer

    from pasta.engine.loading import check_architecture, read_model_config
    from pasta.lang import Codec

    try:
        if Path(model.location).is_dir():
            check_architecture(read_model_config(model.location), model.path)
        Codec(AutoTokenizer.from_pretrained(model.location))
    except UserError as error:
        raise UserError(f"{key}: {error}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{key}.path: {model.path!r} cannot be loaded ({first_line(error)})") from None
