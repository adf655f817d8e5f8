"""The weights under comparison, on disk: one model directory a shape, and the GGUF files made of it."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pasta.benchmark.machine import model_fingerprint
from pasta.benchmark.peers.gguf_file import read_weights, write_gguf
from pasta.benchmark.peers.settings import FORMATS, SHIPPED, shape_name
from pasta.benchmark.widening import copy_tokenizer, make_directory, why_not_widened, widen, widened_models
from pasta.engine import LoadedModel, read_model_config
from pasta.engine.loading import load_model


@dataclass(frozen=True)
class Weights:
    """A shape's weights in ``directory``; ``made`` holds what is derived from them. ``parallel`` is the PASTA model of
    this shape, if there is one, ``small`` the model that was widened to it.

    All decoders load the same numbers: those of a random model are rounded to bfloat16, as published ones are.
    """

    name: str
    directory: Path
    made: Path
    parallel: Path | None = None
    small: Path | None = None

    @cached_property
    def config(self) -> Any:
        """The model's configuration."""
        return read_model_config(self.directory)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the model directory."""
        return model_fingerprint(self.directory)

    @cached_property
    def num_parameters(self) -> int:
        """Parameters that the model directory holds."""
        return sum(tensor.numel() for tensor in read_weights(self.directory).values())

    def load(self, dtype: str, *, context: int, packed: bool | None = None) -> LoadedModel:
        """The model in this format, with room for ``context`` positions."""
        loaded = load_model(self.directory.absolute(), dtype=dtype, device="cpu", packed=packed)
        loaded.model.config.max_position_embeddings = max(loaded.max_positions, context)
        return loaded

    def gguf(self, format_name: str, context: int, say: Callable[[str], None]) -> Path:
        """The GGUF file in this format of llama.cpp, written on first use."""
        path = self.made / f"{self.name}-{format_name}-{self.fingerprint}.gguf"
        if not path.exists():
            say(f"writing {path}")
            tokenizer = AutoTokenizer.from_pretrained(self.directory)
            write_gguf(self.config, read_weights(self.directory), tokenizer, path, format_name, context)
        return path

    def draft(self, say: Callable[[str], None]) -> "Weights | None":
        """The small model with the vocabulary of this one: what llama.cpp can draft with. Made on first use."""
        if self.small is None:
            return None
        config = read_model_config(self.small)
        config.vocab_size = self.config.vocab_size
        name = f"{self.name}-draft"
        directory = self.made / f"{name}-{self.fingerprint}"
        make_directory(directory, f"a draft model for {self.name}", say, partial(widen, self.small, config))
        return Weights(name, directory, self.made)


def make_weights(shape: str, models: Path, made: Path, say: Callable[[str], None]) -> Weights:
    """The shipped models, or those of this configuration, made on first use: the shipped ones widened to it if they can
    be, else one with random weights."""
    if shape == SHIPPED:
        return Weights(shape, models / "twin", made, models / "pasta")
    name, config = shape_name(shape), read_model_config(shape)
    if not any(why_not_widened(read_model_config(models / each), config) for each in ("twin", "pasta")):
        both = widened_models(models, Path(shape), made, say)
        return Weights(name, both / "twin", made, both / "pasta", models / "twin")
    digest = hashlib.sha256(config.to_json_string().encode()).hexdigest()[:12]
    directory = made / f"{name}-{digest}"
    what = f"{name} with random weights"
    make_directory(directory, what, say, partial(_random, models / "twin", config))
    return Weights(name, directory, made)


def _random(twin: Path, config: Any, directory: Path) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.to(torch.bfloat16).save_pretrained(directory)
    copy_tokenizer(twin, directory)


def formats_that_fit(weights: Weights, formats: Iterable[str], say: Callable[[str], None]) -> list[str]:
    """The formats, without float32 where its copies (ours, llama.cpp's, transformers') do not fit into memory."""
    needed = 3 * 4 * weights.num_parameters
    chosen = list(formats)
    if "float32" in chosen and needed > (left := _available_bytes()):
        say(
            f"{weights.name}: float32 is left out, three copies of it take {needed / 2**30:.1f} GiB "
            f"of {left / 2**30:.1f} GiB that are free"
        )
        chosen.remove("float32")
    return chosen


def bits_of(dtype: str) -> int:
    """Bits of a weight in one of our formats."""
    return FORMATS[dtype][0]


def _available_bytes() -> int:
    told = Path("/proc/meminfo")
    for line in told.read_text().splitlines() if told.exists() else ():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return 1 << 62
