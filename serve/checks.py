"""Checks of a service's configuration before any worker starts: its models, its keys, and this machine."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pasta.engine.head_files import check_heads_beside
from pasta.engine.memory import check_engine_memory, check_positions
from pasta.engine.section import SCRATCH, check_here, check_tensor_parallel
from pasta.engine.snapshots import check_weights
from pasta.errors import UserError, first_line
from pasta.lang import CONTROL_TOKENS, CodecError
from serve import hub
from serve.config import ANSWER_ROOM, ModelConfig, QueueSettings, ServeConfig
from serve.ingress import check_ingress
from serve.keys import read_keys
from serve.ray_start import ROOT

if TYPE_CHECKING:
    from pasta.lang import Codec

#: What processes take without models: those of Ray and the command, a Gateway or Interpreter, a Decoder (2026-11-30,
#: proportional set sizes in a service of two Decoders on two cores: 661, 135 and 151, and 465 MB).
_RAY_BYTES, _FRONT_BYTES, _DECODER_BYTES = 650_000_000, 140_000_000, 450_000_000


def check_service(config: ServeConfig) -> None:
    """Raise ``UserError``, naming the key, if a model or the API keys cannot be used."""
    check_served_models(config)
    check_ingress(config)
    _check_tensor_parallel(config)
    scaling = config.decoder.autoscaling
    if scaling and scaling.min_replicas > scaling.max_replicas:
        raise UserError(
            f"decoder.autoscaling.min_replicas: {scaling.min_replicas} is above max_replicas {scaling.max_replicas}; "
            f"expected at most {scaling.max_replicas}"
        )
    if scaling and not scaling.min_replicas <= config.decoder.num_replicas <= scaling.max_replicas:
        raise UserError(
            f"decoder.num_replicas: {config.decoder.num_replicas} is how many decoders there are at first; expected "
            f"between autoscaling's min_replicas {scaling.min_replicas} and max_replicas {scaling.max_replicas}"
        )
    if config.keys.path is None:
        for name in ("requests_per_minute", "max_concurrent"):
            if (limit := getattr(config.keys, name)) is not None:
                raise UserError(
                    f"keys.{name}: {limit} has no effect without keys.file: it limits each key's requests"
                )
    queue = config.admission.queue
    if not queue.max_requests and queue != QueueSettings():
        raise UserError(
            f"admission.queue.max_wait_s: {queue.max_wait_s:g} has no effect with max_requests 0: nothing waits"
        )
    if config.keys.path is None and "*" in config.cors.allow_origins:
        raise UserError(
            "cors.allow_origins: '*' opens a service without API keys to every web page; name the origins, or make "
            "keys (keys.file)"
        )
    if config.keys.path is not None:
        try:
            read_keys(config.keys.path)
        except UserError as error:
            raise UserError(f"keys.file: {error}") from None


def check_machine(config: ServeConfig) -> None:
    """Raise ``UserError``, naming the key, if Decoders on this machine cannot run what is configured."""
    _check_reserved(config)
    if config.decoder.stand_in_ms is not None:
        return
    for name, model in config.models.items():
        check_here(
            config.engine,
            model.dtype,
            model.device,
            model_key=f"models.{name}.",
            sees_gpus=config.decoder.num_gpus > 0,
        )
    check_service_memory(config)


def check_service_memory(config: ServeConfig) -> None:
    """Raise ``UserError``, naming the key, if this machine has no memory for the service with the models that are
    here: the system would kill one of its processes after another, and Ray start each anew."""
    names, decoder = [*config.models], config.decoder
    if decoder.stand_in_ms is not None:
        return
    check_engine_memory(
        config.engine,
        [(model.location, model.dtype) for model in config.models.values()],
        "auto",
        engines=decoder.max_replicas,
        beside=bytes_beside(config),
        sees_gpus=decoder.num_gpus > 0,
        key=f"models.{names[0]}.path" if len(names) == 1 else "models",
    )


def bytes_beside(config: ServeConfig) -> int:
    """What a service's processes take of this machine's memory without their models."""
    front, decoders = config.front.gateways + config.front.interpreters, config.decoder.max_replicas
    return _RAY_BYTES + front * _FRONT_BYTES + decoders * _DECODER_BYTES


def _check_reserved(config: ServeConfig) -> None:
    """Raise ``UserError``, naming the key, if replicas reserve what Ray on this machine does not have: they would wait
    for it for ever."""
    front, decoder = config.front, config.decoder
    for section, resources in (("front", front.resources), ("decoder", decoder.resources)):
        for name in resources:
            raise UserError(
                f"{section}.resources: this machine has no {name!r}; remove it, or use serve deploy on a cluster"
            )
    each, here = decoder.tensor_parallel * decoder.num_cpus, os.cpu_count() or 1
    for_front = (front.gateways + front.interpreters) * front.num_cpus
    if round(decoder.num_replicas * each + for_front, 4) > here:  # Ray counts by ten-thousandths
        raise UserError(
            f"decoder.num_replicas: {decoder.num_replicas} of {each:g} CPUs (decoder.num_cpus), and {for_front:g} for "
            f"front, but this machine has {here}; expected fewer"
        )


def _check_tensor_parallel(config: ServeConfig) -> None:
    """Raise ``UserError``, naming the key, if a replica's processes cannot share what it serves."""
    size, key = config.decoder.tensor_parallel, "decoder.tensor_parallel"
    if size == 1:
        return
    if config.decoder.stand_in_ms is not None:
        raise UserError(
            f"{key}: {size}, but stand-ins (decoder.stand_in_ms) have no model to share; expected 1"
        )
    if len(config.models) > 1:
        raise UserError(f"{key}: {size}, but models has {len(config.models)}; expected one model, or 1")
    from pasta.engine.families import pretrained_config

    ((name, model),) = config.models.items()
    found = pretrained_config(model.location)
    check_tensor_parallel(size, found, config.engine, model.dtype, key=key, dtype_key=f"models.{name}.dtype")


def check_served_models(config: ServeConfig) -> None:
    """Raise ``UserError``, naming the key, if a model cannot be served. Loads tokenizers, not weights."""
    for name, model in config.models.items():
        check_model_directory(model, f"models.{name}.path")
    for name, model in config.models.items():
        codec = load_codec(model, f"models.{name}.path")
        _check_slot(config, name, codec)
        _check_heads(config, model, f"models.{name}.path")
    check_positions(config.engine.slot_tokens, [model.location for model in config.models.values()])


def _check_heads(config: ServeConfig, model: ModelConfig, key: str) -> None:
    if config.decoder.tensor_parallel == 1:  # several processes do not read them
        check_heads_beside(model.location, key)


def check_model_directory(model: ModelConfig, key: str) -> None:
    """Raise ``UserError``, naming ``key``, if the model's path is no directory of a model."""
    directory = Path(model.location)
    is_found = directory.is_absolute() and directory.is_dir()
    if not is_found and os.path.isdir(os.path.expanduser(model.path)):
        raise UserError(
            f"{key}: {model.path!r} is not a directory in {ROOT}, where relative paths begin; expected an absolute one"
        )
    if model.is_name:
        return
    from pasta.data.tokenizers import why_no_model

    if why := why_no_model(directory):
        raise UserError(f"{key}: {model.path!r} {why}")
    if not is_found:
        raise UserError(
            f"{key}: {model.path!r} is not a directory; expected one with config.json, model.safetensors "
            "and a tokenizer (the shipped ones are made by make train)"
        )
    for file in ("config.json", "tokenizer_config.json"):
        if not (directory / file).exists():
            expected = "a model's weights and tokenizer"
            if (directory / "snapshots").is_dir():  # of the Hugging Face cache
                expected = "the model's name on the Hub, or one of the folders in its snapshots"
            raise UserError(f"{key}: {model.path!r} has no {file}; expected {expected}")
    check_weights(directory, f"{key}: {model.path!r}")


def load_codec(model: ModelConfig, key: str) -> "Codec":
    """Load the model's tokenizer. Raises ``UserError``, naming ``key``.

    Of a model on the Hub that is not cached it downloads all but the weights.
    """
    from pasta.data.tokenizers import read_tokenizer
    from pasta.engine.families import check_architecture, check_vocabulary, read_model_config
    from pasta.lang import Codec

    folder = Path(model.location)
    if not folder.is_absolute():
        folder = hub.download(model.path, key, weights=False)
    try:
        # First: transformers reads it for the tokenizer too.
        found = read_model_config(folder)
        check_architecture(found, model.path)
    except UserError as error:
        raise UserError(f"{key}: {error}") from None
    tokenizer = read_tokenizer(key, folder)
    try:
        codec = Codec(tokenizer, sequential=True)
        check_vocabulary(codec, getattr(found, "vocab_size", None), model.path)
    except UserError as error:
        raise UserError(f"{key}: {error}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{key}: {model.path!r} cannot be loaded ({first_line(error)})") from None
    if model.mode == "parallel" and not codec.parallel:
        missing = " ".join(token for token in CONTROL_TOKENS if token not in tokenizer.get_vocab())
        raise UserError(
            f"{key}: the tokenizer of {model.path!r} lacks control tokens ({missing}), which jobs.sft adds; expected a "
            "model that PASTA has trained, or mode: sequential"
        )
    return codec


def _check_slot(config: ServeConfig, name: str, codec: "Codec") -> None:
    """Raise ``UserError`` if a slot or the admission budget is too small for the model's shortest chat, or a slot
    smaller than the prompts that the limits allow."""
    slot, longest = config.engine.slot_tokens, config.limits.max_prompt_tokens
    try:
        shortest = len(codec.encode_prompt([{"role": "user", "content": "a"}]))
    except CodecError:  # a model without a chat template, for completions
        shortest = 1
    if slot < shortest + ANSWER_ROOM:
        raise UserError(
            f"engine.slot_tokens: {slot}, but the shortest prompt of {name} takes {shortest} tokens, and a slot "
            f"holds prompt and answer; expected at least {shortest + ANSWER_ROOM}"
        )
    _check_budget(config, name, shortest)
    if longest is not None and slot < longest + ANSWER_ROOM:
        raise UserError(
            f"limits.max_prompt_tokens: {longest}, but a slot holds {slot} tokens, prompt and answer "
            f"(engine.slot_tokens); expected at most {slot - ANSWER_ROOM}"
        )


def _check_budget(config: ServeConfig, name: str, shortest: int) -> None:
    """Raise ``UserError`` if the admission budget never has room for a request, not even for one token after the
    ``shortest`` prompt."""
    budget, share = config.admission.budget_tokens, config.admission.most_of_one_kind
    needed = shortest + ANSWER_ROOM - SCRATCH
    if budget is not None and int(budget * share) < needed:
        least = math.ceil(needed / share)
        least += int(least * share) < needed  # a product may be rounded down
        raise UserError(
            f"admission.budget_tokens: {budget}, of which a request may hold {int(budget * share)} "
            f"(admission.most_of_one_kind {share:g}), but the shortest one for {name} holds {needed}; expected at "
            f"least {least}"
        )


def download_weights(config: ServeConfig, progress: Callable[[str], None]) -> None:
    """Download the models that neither this machine's disk nor its Hugging Face cache has. Raises ``UserError``."""
    if config.decoder.stand_in_ms is not None:
        return
    for name, model in config.models.items():
        if not Path(model.location).is_absolute():
            progress(f"downloading {model.path}")
            hub.download(model.path, f"models.{name}.path", weights=True)
            _check_heads(config, model, f"models.{name}.path")
