"""llama.cpp as a decoder, through the low-level interface of the llama-cpp-python package (extra ``peers``).

No Python runs between tokens but what takes the largest logit, as on our side.
"""

import contextlib
import ctypes
import importlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pasta.benchmark.peers.decoders import Timing, step_ms
from pasta.benchmark.peers.process import PeerProcess, versions_of, why_missing
from pasta.errors import UserError
from pasta.stages.records import Record

#: The packages that it takes, by module.
_PACKAGES = {"llama_cpp": "llama-cpp-python", "gguf": "gguf"}
#: Most tokens of a prompt that are fed at once. n_ubatch is the same: it splits no batch further.
_BATCH = 512


def why_no_llama() -> str:
    """Say in one line why llama.cpp cannot be measured; empty if it can."""
    return why_missing(_PACKAGES)


def llama_versions() -> dict[str, str]:
    """The versions of what is measured as llama.cpp; empty if it cannot be measured."""
    return {} if why_no_llama() else versions_of(_PACKAGES.values())


class LlamaModel:
    """A GGUF file in llama.cpp's memory, on the CPU."""

    def __init__(self, path: Path) -> None:
        self.lib: Any = importlib.import_module("llama_cpp")
        self._quiet = self.lib.llama_log_callback(lambda level, text, data: None)
        self.lib.llama_log_set(self._quiet, ctypes.c_void_p(0))
        self.lib.llama_backend_init()
        params = self.lib.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = self.lib.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise UserError(f"llama.cpp cannot load {str(path)!r}; delete it to have it written again")
        self.vocab_size = int(self.lib.llama_vocab_n_tokens(self.lib.llama_model_get_vocab(self.model)))

    @property
    def build(self) -> str:
        """Version of the package, and the instructions that it was built for."""
        found = self.lib.llama_print_system_info().decode()
        used = [part.strip() for part in found.split("|") if part.strip().endswith("= 1")]
        names = [part.partition("=")[0].replace("CPU :", "").strip() for part in used]
        return f"llama-cpp-python {self.lib.__version__} ({', '.join(names)})"

    def close(self) -> None:
        """Free the weights."""
        if self.model:
            self.lib.llama_model_free(self.model)
            self.model = None


class LlamaContext:
    """The cache of ``sequences`` sequences over a model; keys and values are kept in float16, its default, or
    ``exact`` in float32."""

    def __init__(
        self,
        loaded: LlamaModel,
        tokens: int,
        sequences: int,
        threads: int,
        flash: bool,
        exact: bool = False,
    ) -> None:
        lib = self._lib = loaded.lib
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = tokens, sequences
        params.n_batch = params.n_ubatch = _BATCH
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = (
            lib.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        if exact:
            params.type_k = params.type_v = lib.GGML_TYPE_F32
        params.kv_unified = True  # sequences may share a prompt's tokens
        params.no_perf = True
        self._context = lib.llama_init_from_model(loaded.model, params)
        if not self._context:
            raise UserError(f"llama.cpp: no context of {tokens} tokens can be made; lower --contexts")
        self._batch = lib.llama_batch_init(_BATCH, 0, 1)
        self._memory = lib.llama_get_memory(self._context)
        self._vocab = loaded.vocab_size
        #: The tokens chosen last.
        self.last: list[int] = []
        self._lengths: list[int] = []

    def begin(self, prompts: Sequence[Sequence[int]], shared: int = 1) -> None:
        """Forget everything and prefill each prompt; with ``shared`` the one prompt belongs to so many sequences."""
        self._lib.llama_memory_clear(self._memory, False)
        self.last, self._lengths = [], []
        for number, prompt in enumerate(prompts):
            for start in range(0, len(prompt), _BATCH):
                piece = prompt[start : start + _BATCH]
                ends = start + len(piece) == len(prompt)
                self._feed(
                    piece,
                    range(start, start + len(piece)),
                    [number] * len(piece),
                    [False] * (len(piece) - 1) + [ends],
                )
            self.last += [int(self.logits(1)[0].argmax())] * shared
            self._lengths += [len(prompt)] * shared
        for number in range(1, shared):
            self._lib.llama_memory_seq_cp(self._memory, 0, number, -1, -1)

    def step(self) -> list[int]:
        """Feed the last token of every sequence and choose the next ones; returns them."""
        count = len(self.last)
        self._feed(self.last, self._lengths, range(count), [True] * count)
        self._lengths = [length + 1 for length in self._lengths]
        self.last = [int(token) for token in self.logits(count).argmax(axis=1)]
        return self.last

    def extend(self, tokens: Sequence[int], wanted: int) -> list[int]:
        """Feed tokens to the first sequence; returns what would follow each of the last ``wanted``."""
        count, start = len(tokens), self._lengths[0]
        rows = [i >= count - wanted for i in range(count)]
        self._feed(tokens, range(start, start + count), [0] * count, rows)
        self._lengths[0] += count
        return [int(token) for token in self.logits(wanted).argmax(axis=1)]

    def shorten(self, count: int) -> None:
        """Forget the last ``count`` tokens of the first sequence."""
        if count:
            self._lengths[0] -= count
            self._lib.llama_memory_seq_rm(self._memory, 0, self._lengths[0], -1)

    def logits(self, rows: int) -> NDArray[np.float32]:
        """[rows, vocabulary] of the last tokens that wanted them; overwritten by the next step."""
        pointer = self._lib.llama_get_logits(self._context)
        return np.ctypeslib.as_array(pointer, shape=(rows, self._vocab))

    def close(self) -> None:
        """Free the cache."""
        if self._context:
            self._lib.llama_batch_free(self._batch)
            self._lib.llama_free(self._context)
            self._context = None

    def _feed(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[int],
        wanted: Sequence[bool],
    ) -> None:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, positions[i]
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequences[i]
            batch.logits[i] = wanted[i]
        if code := self._lib.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode returned {code}")


class LlamaDecoder:
    """Decodes with one GGUF file; of sessions it tells the number."""

    def __init__(self, path: Path, tokens: int) -> None:
        self.model = LlamaModel(path)
        self._tokens = tokens
        self._setup: Record = {}
        self._context: LlamaContext | None = None
        self._sessions: dict[int, LlamaContext] = {}

    def decode(self, setup: Record, prompt: Sequence[int], count: int) -> Timing:
        """Decode ``count`` tokens greedily after ``prompt``."""
        needed = len(prompt) + count
        if self._context is None or needed > self._tokens or setup != self._setup:
            if self._context is not None:
                self._context.close()
            self._setup, self._tokens = setup, max(self._tokens, needed)
            self._context = self.context(setup, self._tokens)
        begun = time.perf_counter()
        self._context.begin([prompt])
        times = [time.perf_counter()]
        for _ in range(count - 1):
            self._context.step()
            times.append(time.perf_counter())
        return Timing.of(begun, times)

    def begin(self, setup: Record, prompts: Sequence[Sequence[int]], steps: int, shared: int) -> int:
        """Begin a session whose sequences follow ``prompts``, or of ``shared`` sequences after one prompt."""
        sequences = len(prompts) * shared
        context = self.context(setup, sum(map(len, prompts)) + sequences * (steps + 1), sequences)
        with contextlib.ExitStack() as undo:
            undo.callback(context.close)
            context.begin(prompts, shared)
            undo.pop_all()
        number = max(self._sessions, default=0) + 1
        self._sessions[number] = context
        return number

    def step_ms(self, session: int, count: int) -> list[float]:
        """Milliseconds of so many steps of a session."""
        context = self._sessions[session]

        def step() -> int:
            context.step()
            return 1

        return step_ms(step, count)

    def end(self, session: int) -> None:
        """End a session."""
        self._sessions.pop(session).close()

    def context(
        self, setup: Record, tokens: int, sequences: int = 1, of: LlamaModel | None = None
    ) -> LlamaContext:
        """An empty cache for so many tokens, with these settings, of another model if one is given."""
        return LlamaContext(of or self.model, tokens, sequences, setup["threads"], setup["flash"])


class LlamaSession:
    """A ``PeerSession``."""

    def __init__(self, llama: "Llama", number: int) -> None:
        self._llama, self._number = llama, number

    def step_ms(self, count: int) -> list[float]:
        """Milliseconds of so many steps."""
        found: list[float] = self._llama.call(LlamaDecoder.step_ms, self._number, count)
        return found

    def close(self) -> None:
        """Free the cache."""
        self._llama.call(LlamaDecoder.end, self._number)


class Llama(PeerProcess):
    """A ``Peer``: one GGUF file, in a process of its own."""

    def __init__(self, path: Path, format_name: str, threads: Sequence[int], tokens: int) -> None:
        setups = [{"threads": count, "flash": flash} for count in threads for flash in (True, False)]
        super().__init__(f"llama.cpp {format_name}", setups, LlamaDecoder, path, tokens)
        self.format_name = format_name

    def decode(self, prompt: Sequence[int], count: int) -> Timing:
        """Decode ``count`` tokens greedily after ``prompt``."""
        timing: Timing = self.call(LlamaDecoder.decode, self._setup, prompt, count)
        return timing

    def session(self, prompts: Sequence[Sequence[int]], steps: int, shared: int = 1) -> LlamaSession:
        """A session whose sequences follow ``prompts``, or of ``shared`` sequences after one prompt."""
        return LlamaSession(self, self.call(LlamaDecoder.begin, self._setup, prompts, steps, shared))
