"""Measures all decoders on the weights of one shape, in turn."""

import contextlib
import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

import torch

from pasta.benchmark.machine import code_fingerprint, machine_identity
from pasta.benchmark.measurement import MeasuredPart, Measurement
from pasta.benchmark.peers.check import check_tokens
from pasta.benchmark.peers.decoders import Chosen, Peer, PeerSession, fastest_setup, time_steps
from pasta.benchmark.peers.engine import Generate, Ours
from pasta.benchmark.peers.llama import Llama, llama_versions, why_no_llama
from pasta.benchmark.peers.llama_drafts import DraftingLlama
from pasta.benchmark.peers.process import PeerProcess
from pasta.benchmark.peers.runtimes import runtime_versions, runtimes
from pasta.benchmark.peers.settings import FORMATS, STEPS, PeerSettings
from pasta.benchmark.peers.weights import Weights, bits_of, formats_that_fit
from pasta.data.atlas import heldout_prompts
from pasta.engine.supported import why_not_format
from pasta.stages.records import Record, RecordFile

K = TypeVar("K")
#: Tokens of a run that chooses settings.
_TUNING_TOKENS = 12
_GENERATE: dict[str, dict[str, Any]] = {
    "dynamic cache": {},
    "static cache": {"cache_implementation": "static"},
}


class ShapeComparison:
    """All decoders of one shape. Every method measures what its record file lacks, and returns the records."""

    def __init__(self, weights: Weights, settings: PeerSettings, kept: Measurement) -> None:
        self.weights, self.settings, self.kept = weights, settings, kept
        self.has_llama = not why_no_llama()
        self.formats = self._formats(
            [f for f in settings.formats if not why_not_format(f, torch.device("cpu"))]
        )
        self._context = max(settings.prompt_tokens + max(settings.tokens, _TUNING_TOKENS), 256)

    # -- parts -----------------------------------------------------------------------------------------

    def check(self) -> Record | None:
        """Greedy tokens and log-probabilities of llama.cpp in f32 against the engine's in float32; None where one of
        them is left out."""
        file = self.open("check", {})
        if self.has_llama and "tokens" not in file and "float32" in self.formats:
            file.add("tokens", check_tokens(self.weights, self._prompts(4, 48), self.kept.say))
            gc.collect()
        return file.records.get("tokens")

    def decode(self) -> list[Record]:
        """Rounds in which every decoder decodes the same number of tokens after the same prompt, in turn."""
        settings = self.settings
        asked: Record = {"tokens": settings.tokens, "prompt": settings.prompt_tokens}
        asked |= {"compiled": settings.compiled, "runtimes": runtime_versions()}
        part = self.part("decode", asked, range(settings.rounds), "rounds")
        if part.missing:
            prompts = self._prompts(settings.rounds, settings.prompt_tokens)
            with self.decoders(self.formats, stock=True) as chosen:
                for number in part.missing:
                    record = {
                        name: each.use().decode(prompts[number], settings.tokens).to_dict()
                        for name, each in chosen.items()
                    }
                    part.add(number, record)
        return part.records

    def prefill(self) -> list[Record]:
        """One record for each length of a prompt: milliseconds until the first token, round by round."""
        settings = self.settings
        asked = {"rounds": settings.rounds, "compiled": settings.compiled, "runtimes": runtime_versions()}
        part = self.part("prefill", asked, settings.prefills, "points")
        if part.missing:
            prompts = self._prompts(settings.rounds, max(settings.prefills))
            with self.decoders(self.narrow, stock=True, prefill=True) as chosen:
                for count in part.missing:
                    rounds = [
                        {
                            name: [1e3 * each.use().decode(prompt[:count], 2).first_s]
                            for name, each in chosen.items()
                        }
                        for prompt in prompts
                    ]
                    part.add(count, {"rounds": rounds})
        return part.records

    def lanes(self) -> list[Record]:
        """Single steps with several lanes of one request; llama.cpp: so many sequences that share a prompt."""
        prompt = self._prompts(1, 256)
        return self._grow("lanes", self.settings.lanes, lambda lanes, steps: (prompt, lanes))

    def requests(self) -> list[Record]:
        """Single steps with several requests, each after a prompt of its own."""
        prompts = self._prompts(max(self.settings.requests), self.settings.prompt_tokens)
        return self._grow("requests", self.settings.requests, lambda count, steps: (prompts[:count], 1))

    def context(self) -> list[Record]:
        """Single steps of one request after so many tokens."""
        prompt = self._prompts(1, max(self.settings.contexts))[0]
        return self._grow(
            "context", self.settings.contexts, lambda tokens, steps: ([prompt[: tokens - steps // 2]], 1)
        )

    def _grow(
        self, name: str, points: Sequence[int], held: Callable[[int, int], tuple[list[list[int]], int]]
    ) -> list[Record]:
        """One record a point: the milliseconds of each session's steps, round by round. ``held`` gives the prompts and
        the lanes of a point's sessions, which take so many steps."""
        settings = self.settings
        asked = {"rounds": settings.rounds, "prompt": settings.prompt_tokens}
        part = self.part(name, asked, points, "points")
        if not part.missing:
            return part.records
        with self.decoders(self.narrow) as chosen:
            for point in part.missing:
                prompts, lanes = held(point, settings.steps)
                with contextlib.ExitStack() as stack:
                    sessions: dict[str, tuple[PeerSession, Callable[[], Any]]] = {}
                    for decoder_name, each in chosen.items():
                        decoder: Any = each.use()
                        opened = decoder.session(prompts, settings.steps, lanes)
                        stack.callback(opened.close)
                        sessions[decoder_name] = (opened, each.use)
                    rounds = [time_steps(sessions, STEPS) for _ in range(settings.rounds)]
                part.add(point, {"rounds": rounds})
        return part.records

    # -- decoders --------------------------------------------------------------------------------------

    @property
    def narrow(self) -> list[str]:
        """The formats in which growth and replay are measured: those of at most 16 bits, or all if there are none."""
        return [name for name in self.formats if bits_of(name) <= 16] or self.formats

    @contextlib.contextmanager
    def decoders(
        self, formats: Sequence[str], stock: bool = False, drafts: bool = False, prefill: bool = False
    ) -> Iterator[dict[str, Chosen]]:
        """The decoders in these formats by name, each with the settings in which it decodes fastest, or prefills
        (``prefill``). ``stock``: transformers', OpenVINO's and ONNX Runtime's too; ``drafts``: llama.cpp also with a
        draft model, if there is one."""
        # The settings are chosen after a prompt of ``prompt_tokens``, which may be longer than all that are timed.
        context = (
            max(max(self.settings.prefills) + _TUNING_TOKENS, self._context) if prefill else self._context
        )
        made: list[Any] = []
        try:
            made += [self.ours(name, context) for name in formats]
            if self.has_llama:
                made += [self.llama(name, context) for name in formats]
            if stock:
                made += self._generates([name for name in formats if bits_of(name) >= 16])
                made += runtimes(
                    self.weights, formats, self._threads, self.settings.longest_text, self.kept.say
                )
            chosen = {decoder.name: Chosen(decoder, self._setup(decoder, prefill)) for decoder in made}
            if drafts:
                for drafting in self._drafting(chosen):
                    chosen[drafting.name] = Chosen(drafting, self._setup(drafting))
            yield chosen
        finally:
            for decoder in made:
                if isinstance(decoder, PeerProcess):
                    decoder.close()
            made.clear()
            gc.collect()

    def ours(self, dtype: str, context: int) -> Ours:
        """Our engine in this format, with room for so many tokens."""
        loaded = self.weights.load(dtype, context=self.settings.longest_text)
        return Ours(loaded, f"ours {dtype}", self._threads, context)

    def llama(self, dtype: str, context: int) -> Llama:
        """llama.cpp in the format of as many bits, with room for so many tokens."""
        _, theirs = FORMATS[dtype]
        path = self.weights.gguf(theirs, self.settings.longest_text, self.kept.say)
        return Llama(path, theirs, self._threads, context)

    def _drafting(self, chosen: dict[str, Chosen]) -> list[DraftingLlama]:
        """llama.cpp with a draft model in the format of the large one."""
        if not (
            self.has_llama and self.settings.draft_acceptance and (draft := self.weights.draft(self.kept.say))
        ):
            return []
        return [
            DraftingLlama(
                each.decoder,
                draft.gguf(each.decoder.format_name, self.settings.longest_text, self.kept.say),
                self.settings.draft_acceptance,
                each.setup,
            )
            for each in chosen.values()
            if isinstance(each.decoder, Llama)
        ]

    def _generates(self, formats: Sequence[str]) -> list[Generate]:
        variants = dict(_GENERATE)
        if self.settings.compiled:
            variants["static cache, compiled"] = {
                "cache_implementation": "static",
                "compile_config": _compile_everywhere(),
            }
        out = []
        for dtype in formats:
            loaded = self.weights.load(dtype, context=self._context, packed=False)
            for name, options in variants.items():
                threads = self._threads[-1:] if "compiled" in name else self._threads
                out.append(Generate(loaded, f"generate {dtype}, {name}", threads, options))
        return out

    def setups(self) -> RecordFile:
        """The fastest settings of each decoder, by name."""
        asked = {"prompt": self.settings.prompt_tokens, "draft_acceptance": self.settings.draft_acceptance}
        return self.open("settings", asked)

    def _setup(self, decoder: Peer, prefill: bool = False) -> Record:
        """Its fastest settings, found once."""
        file = self.setups()
        name = f"{decoder.name}, prefill" if prefill else decoder.name
        if name not in file:
            begun = time.perf_counter()
            prompt = self._prompts(1, self.settings.prompt_tokens)[0]
            setup = fastest_setup(decoder, prompt, _TUNING_TOKENS, prefill)
            file.add(name, {"setup": setup})
            self.kept.say(
                f"{name}, {self.weights.name}: fastest with {setup} (tried in {time.perf_counter() - begun:.0f} s)"
            )
        return dict(file.records[name]["setup"])

    @property
    def _threads(self) -> list[int]:
        return sorted({1, self.settings.threads})

    # -- files -----------------------------------------------------------------------------------------

    def _prompts(self, count: int, tokens: int) -> list[list[int]]:
        """Different prompts of exactly so many tokens: held-out prompts of the atlas, one after another."""
        codec = self._codec
        texts = [codec.encode_prompt(task.messages) for task in heldout_prompts(200)]
        out = []
        for number in range(count):
            ids: list[int] = []
            for offset in range(tokens):
                ids += texts[(number + offset) % len(texts)]
                if len(ids) >= tokens:
                    break
            out.append(ids[:tokens])
        return out

    @cached_property
    def _codec(self) -> Any:
        from transformers import AutoTokenizer

        from pasta.lang import Codec

        return Codec(AutoTokenizer.from_pretrained(self.weights.directory))

    def open(self, part: str, identity: Record) -> RecordFile:
        """The records of a part; ``identity`` is what they depend on besides."""
        return self.kept.open(f"{self.weights.name}.{part}", self._identity | identity)

    def part(self, name: str, identity: Record, keys: Iterable[K], unit: str) -> MeasuredPart[K]:
        """``open`` the records of a part that has one for each of ``keys``."""
        return MeasuredPart(
            self.open(name, identity), keys, unit, f"{name}, {self.weights.name}", self.kept.say
        )

    def _formats(self, formats: list[str]) -> list[str]:
        """Those of ``formats`` that fit. This is found out once: a run that goes on keeps them, whatever is free by
        then."""
        file = self.kept.open(
            f"{self.weights.name}.formats", self._identity_but_formats | {"formats": formats}
        )
        if "chosen" not in file:
            told: list[str] = []
            file.add(
                "chosen", {"formats": formats_that_fit(self.weights, formats, told.append), "told": told}
            )
        for line in file.records["chosen"]["told"]:
            self.kept.say(f"{line} (--fresh looks again)")
        return list(file.records["chosen"]["formats"])

    @cached_property
    def _identity(self) -> Record:
        return self._identity_but_formats | {"formats": list(self.formats)}

    @cached_property
    def _identity_but_formats(self) -> Record:
        return machine_identity() | {
            "code": code_fingerprint(),
            "weights": self.weights.fingerprint,
            # Without a peer, or with another version of it, rounds are others: one that is installed later is measured.
            "llama.cpp": llama_versions(),
            "threads": self.settings.threads,
            "wait_policy": self.settings.wait_policy,
        }


def _compile_everywhere() -> Any:
    """A compile configuration with which ``generate`` compiles on a CPU too; by default it compiles nothing there."""
    from transformers import CompileConfig

    config = CompileConfig(mode="default")
    config._compile_all_devices = True
    return config
