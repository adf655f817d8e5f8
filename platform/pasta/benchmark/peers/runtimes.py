"""OpenVINO GenAI and ONNX Runtime GenAI as decoders (extra ``peers``), in the formats of at most 8 bits."""

import importlib
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pasta.benchmark.peers.decoders import Timing
from pasta.benchmark.peers.process import PeerProcess, last_words, run_python, versions_of, why_missing
from pasta.benchmark.peers.settings import FORMATS
from pasta.benchmark.peers.weights import Weights, bits_of
from pasta.benchmark.widening import make_directory
from pasta.errors import UserError

#: The packages of each, by module.
_PACKAGES = {
    "OpenVINO": {"openvino_genai": "openvino-genai", "gguf": "gguf"},
    "ONNX Runtime": {"onnxruntime_genai": "onnxruntime-genai", "onnx": "onnx", "onnx_ir": "onnx-ir"},
}

#: Tokens that ONNX Runtime's cache has room for at least: it refuses less than a sliding window.
_LEAST_ROOM = 256


def why_left_out() -> dict[str, str]:
    """For each of the two that cannot be measured, by name, why not, in one line."""
    return {name: why for name, packages in _PACKAGES.items() if (why := why_missing(packages))}


def runtime_versions() -> dict[str, dict[str, str]]:
    """The versions of those that can be measured, by name."""
    missing = why_left_out()
    return {
        name: versions_of(packages.values()) for name, packages in _PACKAGES.items() if name not in missing
    }


def runtimes(
    weights: Weights, dtypes: Sequence[str], threads: Sequence[int], context: int, say: Callable[[str], None]
) -> "list[Runtime]":
    """Those that are installed, in each of our formats that they have and can be given the weights in."""
    out, missing = [], why_left_out()
    for dtype in dtypes:
        if bits_of(dtype) <= 8 and "OpenVINO" not in missing:
            theirs = FORMATS[dtype][1]
            path = weights.gguf(theirs, context, say)
            out.append(Runtime(f"OpenVINO {theirs}", OpenVinoDecoder, path, threads))
        if bits_of(dtype) <= 8 and "ONNX Runtime" not in missing:
            path = weights.made / f"{weights.name}-onnx-{dtype}-{weights.fingerprint}"
            what = f"{weights.name} for ONNX Runtime, {dtype}"
            try:
                make_directory(path, what, say, partial(_export, weights, dtype))
            except _NotConverted as error:
                say(f"ONNX Runtime {dtype} is left out, it {error}")
                continue
            out.append(Runtime(f"ONNX Runtime {dtype}", OnnxDecoder, path, threads))
    return out


class _NotConverted(UserError):
    """A converter that is installed cannot convert a model."""


class Runtime(PeerProcess):
    """A ``Peer``: a model that one of the two has loaded, in a process of its own."""

    def __init__(self, name: str, make: Callable[[Path], Any], path: Path, threads: Sequence[int]) -> None:
        super().__init__(name, [{"threads": count} for count in threads], make, path.absolute())

    def decode(self, prompt: Sequence[int], count: int) -> Timing:
        """Decode ``count`` tokens greedily after ``prompt``."""
        timing: Timing = self.call(_decode, self._setup["threads"], prompt, count)
        return timing


class OpenVinoDecoder:
    """Decodes a GGUF file with OpenVINO GenAI; loads it once for each number of threads."""

    def __init__(self, path: Path) -> None:
        self._path, self._models = path, dict[int, Any]()

    def decode(self, threads: int, prompt: Sequence[int], count: int) -> list[float]:
        """Decode so many tokens; returns when each was there."""
        genai, openvino = (importlib.import_module(name) for name in ("openvino_genai", "openvino"))
        if threads not in self._models:
            once = genai.SchedulerConfig()
            once.enable_prefix_caching = False  # prompts of several lengths begin alike
            self._models[threads] = genai.LLMPipeline(
                str(self._path), "CPU", scheduler_config=once, INFERENCE_NUM_THREADS=threads
            )
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
        times: list[float] = []

        class Times(genai.StreamerBase):  # type: ignore[name-defined]
            def write(self, token: Any) -> Any:
                times.append(time.perf_counter())
                return genai.StreamingStatus.RUNNING

            def end(self) -> None:
                pass

        self._models[threads].generate(openvino.Tensor(np.array([prompt])), config, Times())
        return times


class OnnxDecoder:
    """Decodes a directory of ONNX Runtime GenAI; loads it once for each number of threads."""

    def __init__(self, path: Path) -> None:
        self._path, self._models = path, dict[int, Any]()

    def decode(self, threads: int, prompt: Sequence[int], count: int) -> list[float]:
        """Decode so many tokens; returns when each was there."""
        genai = importlib.import_module("onnxruntime_genai")
        if threads not in self._models:
            config = genai.Config(str(self._path))
            options = {"intra_op_num_threads": threads}
            config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
            self._models[threads] = genai.Model(config)
        params = genai.GeneratorParams(self._models[threads])
        length = max(len(prompt) + count, _LEAST_ROOM)
        params.set_search_options(max_length=length, min_length=length, do_sample=False)
        generator = genai.Generator(self._models[threads], params)
        generator.append_tokens(np.array([prompt], dtype=np.int32))
        times: list[float] = []
        while len(times) < count:
            generator.generate_next_token()
            times.append(time.perf_counter())
        return times


def _decode(
    decoder: OpenVinoDecoder | OnnxDecoder, threads: int, prompt: Sequence[int], count: int
) -> Timing:
    """In the peer's process: decode, and time it."""
    begun = time.perf_counter()
    return Timing.of(begun, decoder.decode(threads, prompt, count))


def _export(weights: Weights, dtype: str, directory: Path) -> None:
    """Write the weights as ONNX Runtime GenAI's own converter does. Raises ``_NotConverted`` with its last words."""
    options = ["-i", str(weights.directory), "-o", str(directory), "-p", dtype, "-e", "cpu"]
    cache = ["-c", str(directory / "cache")]
    done = run_python("-m", "onnxruntime_genai.models.builder", *options, *cache)
    if done.returncode:
        raise _NotConverted(f"cannot convert {str(weights.directory)!r}: {last_words(done)}")
