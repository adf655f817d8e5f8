"""The service's configuration (``args`` of configs/serve/*.yaml), as a schema; serve/checks.py checks what it names."""

import hashlib
import ipaddress
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationInfo,
)

from pasta.engine.section import SCRATCH, check_device
from pasta.engine.snapshots import cached
from pasta.interpreter.limits import LARGEST_LIMIT
from pasta.interpreter.repetition import RepetitionDetection
from pasta.lang.document import MAX_DEPTH
from pasta.names import Name
from pasta.placement import Policy
from pasta.sizes import EngineSettings
from pasta.stages.workers import MOST_THREADS, MOST_WORKERS
from serve.ray_start import ROOT
from serve.wire import DecodingMode

#: Tokens that the shortest answer needs in a slot beside its prompt: its own token, the end of text (which
#: ``max_tokens`` does not count), and the engine's scratch place.
ANSWER_ROOM = 2 + SCRATCH
#: So many replicas of a kind; more than any cluster has room for are refused.
Replicas = Annotated[int, Field(ge=1, le=MOST_WORKERS)]
#: An origin as browsers send it, ``null`` (of a local file) aside.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:[0-9]{1,5})?")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _device(value: str) -> str:
    check_device(value)
    return value


class ModelConfig(_Strict):
    """One served model.

    ``path`` is a directory (relative to the repository's root) or a model's name on the Hugging Face Hub: what the
    local cache has is not asked for again. ``dtype`` is its number format; with ``auto`` each Decoder chooses the float
    format that its machine is fastest in. ``mode: sequential`` serves it without promises, whatever a request asks for;
    it may then be a model without control tokens. ``temperature`` is the default for requests that give none.
    """

    path: Name
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8", "int4", "fp8"] = "auto"
    device: Annotated[str, AfterValidator(_device)] = "auto"
    mode: DecodingMode = "parallel"
    temperature: float = Field(default=0.0, ge=0, le=2)

    @property
    def location(self) -> str:
        """What to load: the absolute path of a directory, unless ``path`` is the name of a model on the Hub that the
        Hugging Face cache does not hold (no network is used for one that it does)."""
        local = ROOT / self.path
        if local.is_dir() or not self.is_name:
            return str(local)
        return str(cached(self.path) or self.path)

    @property
    def is_name(self) -> bool:
        """Whether ``path`` is a name on the Hub: one that no directory here has."""
        looks_local = self.path.startswith((".", "/", "~")) or self.path.count("/") != 1
        return not looks_local and not (ROOT / self.path).parent.is_dir()


def _from_mapping(kind: type[Any]) -> BeforeValidator:
    """Reads a dataclass from a dictionary: ``serve deploy`` passes one, which strict validation refuses."""

    def read(value: Any, info: ValidationInfo) -> Any:
        if info.mode == "python" and isinstance(value, dict):
            return TypeAdapter(kind).validate_json(json.dumps(value), strict=True, extra="forbid")
        return value

    return BeforeValidator(read)


class LimitSettings(_Strict):
    """Bounds on one answer; a request may ask for fewer threads, and for a ``repetition_detection`` of its own.

    ``max_prompt_tokens`` limits prompts to less than the model's context.
    """

    max_threads: PositiveInt = Field(default=64, le=LARGEST_LIMIT)
    max_depth: PositiveInt = Field(default=4, le=MAX_DEPTH)
    max_chunk_tokens: PositiveInt = Field(default=1024, le=LARGEST_LIMIT)
    max_prompt_tokens: PositiveInt | None = None
    repetition_detection: Annotated[RepetitionDetection, _from_mapping(RepetitionDetection)] = (
        RepetitionDetection()
    )


class QueueSettings(_Strict):
    """How many requests for a model may wait for room in the budget, and for how long each."""

    max_requests: NonNegativeInt = 0
    max_wait_s: PositiveFloat = 10.0


class AdmissionSettings(_Strict):
    """The budget of tokens (prompts and the longest answers requested) that running requests for a model may hold.

    ``budget_tokens`` is by default twice the size of its caches in all Decoders that are running. Requests of at most
    ``short_tokens`` are short, all others long; neither kind may hold more than the fraction ``most_of_one_kind`` of
    the budget. A request beyond the budget waits in the ``queue``. If the queue is full, the client gets 429; its
    Retry-After estimates when there will be room at the recent rate, ``retry_after_s`` at least.
    """

    budget_tokens: PositiveInt | None = None
    short_tokens: PositiveInt = 512
    most_of_one_kind: float = Field(default=0.75, ge=0.5, le=1)
    retry_after_s: PositiveInt = 1
    queue: QueueSettings = QueueSettings()


class KeySettings(_Strict):
    """API keys. Without a ``file`` (serve/keys.py) the service answers everybody on this machine, and nobody else.

    The limits apply to keys that have none of their own; ``None``: no limit.
    """

    file: Name | None = None
    requests_per_minute: PositiveInt | None = None
    max_concurrent: PositiveInt | None = None

    @property
    def path(self) -> Path | None:
        """The absolute path of the file."""
        return None if self.file is None else ROOT / self.file


def _origin(value: str) -> str:
    if value != "*" and not _ORIGIN.fullmatch(value):
        raise ValueError(
            "expected an origin as browsers send it, in lower case and without a path: https://app.example"
        )
    return value


class CorsSettings(_Strict):
    """Origins whose web pages may use the API from a browser; ``*`` is all of them, and needs API keys.

    Without keys a page of a named origin is answered as programs on this machine are.
    """

    allow_origins: list[Annotated[str, AfterValidator(_origin)]] = []


def _custom(resources: dict[str, float]) -> dict[str, float]:
    for name in resources:
        if name in ("CPU", "GPU", "memory", "object_store_memory"):
            raise ValueError(f"{name!r} is not a custom resource; expected num_cpus or num_gpus beside it")
    return resources


#: Custom resources of nodes (``ray start --resources='{"front": 1}'``), and how much of each a replica reserves.
Resources = Annotated[dict[str, PositiveFloat], AfterValidator(_custom)]


#: How clients reach a Gateway: serve/ingress.py.
Proxy = Literal["ray", "haproxy", "none"]


class FrontSettings(_Strict):
    """How many ``gateways`` and ``interpreters`` there are, and what each of them reserves; ``resources`` restrict them
    to nodes that have those.

    They hold every open request: their nodes must stay, while a Decoder's node may be lost. Several Interpreters share
    out the admission budget, several Gateways the limits of API keys. Clients reach the Gateways by a ``proxy``: Ray
    Serve's own, or the HAProxy that comes with it, which needs API keys; with ``none`` they reach the one Gateway
    itself.
    """

    proxy: Proxy = "ray"

    gateways: Replicas = 1
    interpreters: Replicas = 1

    num_cpus: NonNegativeFloat = 0.1
    resources: Resources = {}


class AutoscalingSettings(_Strict):
    """Scales the Decoders with the load: one for each ``target_lanes`` threads that decode or wait for a slot.

    The load must persist for ``upscale_delay_s`` before a replica is added, and for ``downscale_delay_s`` before one is
    stopped (it finishes its requests first).
    """

    min_replicas: PositiveInt = 1
    max_replicas: Replicas
    target_lanes: PositiveFloat = 8.0
    upscale_delay_s: NonNegativeFloat = 10.0
    downscale_delay_s: NonNegativeFloat = 300.0


class DecoderSettings(_Strict):
    """The Decoder replicas. ``threads`` are torch's, in each replica; ``resources`` restrict them to nodes with those.

    With ``autoscaling``, ``num_replicas`` is the number at the start. A rolling update may start ``max_surge_percent``
    more replicas before it stops old ones; where no GPU is free, 0 stops old ones first. ``lane_knee`` is the number
    of lanes up to which placement ``auto`` keeps chunks at home; if not given, each replica measures it at its start.
    A Decoder ends requests that no Interpreter has renewed for ``lease_s``. It sends the tokens of an answer in
    batches, one every ``stream_interval_ms``, the first and the last token at once: a batch costs as much as a token,
    and takes CPU time from engines on CPUs. With ``tensor_parallel`` N a replica is N processes on one node that share
    the model: each has its part of it, and ``num_cpus``, ``num_gpus``, ``resources`` and ``threads`` of its own.
    With ``stand_in_ms`` no model is loaded: stand-ins write one text, a token each so many milliseconds, to measure
    the service without its engines.
    """

    num_replicas: Replicas = 2
    tensor_parallel: PositiveInt = 1
    autoscaling: AutoscalingSettings | None = None
    max_surge_percent: int = Field(default=100, ge=0, le=100)
    lane_knee: PositiveInt | None = None
    stream_interval_ms: NonNegativeFloat = 20.0
    lease_s: PositiveFloat = 10.0
    stand_in_ms: PositiveFloat | None = None
    num_cpus: PositiveFloat = 0.2
    num_gpus: NonNegativeFloat = 0.0
    resources: Resources = {}
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)] = 1

    @property
    def max_replicas(self) -> int:
        """The largest number of replicas."""
        return self.num_replicas if self.autoscaling is None else self.autoscaling.max_replicas


class ServeConfig(_Strict):
    """The arguments of ``serve.app:build``.

    ``max_ongoing_requests`` bounds the open requests of one Gateway (429 beyond). ``timeout_s`` is how long a
    request may take (408 beyond it; a request may ask for less), ``body_timeout_s`` how long its body may take
    to arrive, ``write_timeout_s`` how long a client may read nothing of a stream or a long answer,
    ``drain_timeout_s`` how long a stopping replica may finish its requests. ``metrics`` serves the service's
    metrics at ``/metrics``, to whoever may use the API.
    """

    models: dict[Name, ModelConfig] = Field(min_length=1)
    engine: Annotated[EngineSettings, _from_mapping(EngineSettings)] = EngineSettings()
    limits: LimitSettings = LimitSettings()
    front: FrontSettings = FrontSettings()
    decoder: DecoderSettings = DecoderSettings()
    placement: Policy = "local"
    max_ongoing_requests: PositiveInt = 256
    max_body_bytes: PositiveInt = 1_000_000
    admission: AdmissionSettings = AdmissionSettings()
    keys: KeySettings = KeySettings()
    cors: CorsSettings = CorsSettings()
    metrics: bool = False
    timeout_s: PositiveFloat = 600.0
    body_timeout_s: PositiveFloat = 30.0
    write_timeout_s: PositiveFloat = 60.0
    drain_timeout_s: PositiveFloat = 120.0

    def budget_tokens(self, num_decoders: int) -> int:
        """The admission budget of each model in tokens, with so many Decoders."""
        return (
            self.admission.budget_tokens or 2 * num_decoders * self.engine.num_slots * self.engine.slot_tokens
        )

    @property
    def version(self) -> str:
        """A hash of the models and engines. Decoders of another version have other models, or answer differently."""
        said = self.model_dump_json(include={"models", "engine"})
        return hashlib.blake2b(said.encode(), digest_size=8).hexdigest()


def is_loopback(host: str | None) -> bool:
    """Whether a host name or an address is the loopback interface's."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host or "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
