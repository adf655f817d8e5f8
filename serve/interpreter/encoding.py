"""Turns a request into orders to decode: encodes its prompts, and checks them against the model's context. No I/O."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

from pasta.engine import SamplingParams
from pasta.engine.families import context_positions, generation_ends, pretrained_config
from pasta.engine.structure import Grammar, Structures
from pasta.errors import UserError
from pasta.interpreter import Limits, RepetitionDetection
from pasta.lang import Codec, check_start, encode_messages, encode_start
from pasta.lang.contents import without_reasoning
from pasta.rows import short_repr
from serve.config import ANSWER_ROOM, ModelConfig, ServeConfig
from serve.interpreter.lengths import LeastTokens
from serve.interpreter.template import variables
from serve.wire import DecodeOrder, DecodingMode, Order, PromptInput, PromptTokens, Refused

_SEEDS = 2**63
#: Odd, so that no two choices of a request share a seed.
_SEED_STEP = 0x9E3779B97F4A7C15


#: Prompts of more characters are encoded in the thread for long ones. Encoding takes about a second a megabyte.
_LONG_CHARS = 32_768
#: Tokens that are written as JSON at once, for about a millisecond.
_PIECE = 10_000


def _texts(prompt: PromptInput) -> list[str]:
    """The texts that a prompt is made of; none if it is token ids."""
    if isinstance(prompt, str):
        return [prompt]
    return [] if _is_ids(prompt) else [message["content"] for message in cast("list[dict[str, str]]", prompt)]


def _is_ids(prompt: PromptInput) -> bool:
    return not isinstance(prompt, str) and bool(prompt) and isinstance(prompt[0], int)


def _parameter(prompt: PromptInput) -> str:
    """The request's parameter that holds the prompt."""
    return "prompt" if isinstance(prompt, str) or _is_ids(prompt) else "messages"


def _json_list(ids: Sequence[int], shown: Callable[[int], str]) -> bytes:
    """A list in JSON of what is shown for each token. Made piece by piece, so that other threads have their turns."""
    pieces = (ids[at : at + _PIECE] for at in range(0, len(ids), _PIECE))
    return f"[{','.join(','.join(map(shown, piece)) for piece in pieces)}]".encode()


def _load(model: ModelConfig) -> tuple[Any, Codec]:
    """A tokenizer of the model's, and a codec that uses it."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model.location)
    sequential = model.mode == "sequential"
    ends = generation_ends(model.location) if sequential else ()
    return tokenizer, Codec(tokenizer, sequential=sequential, ends=ends)


class RequestRefused(Exception):
    """The request cannot be served; ``refused`` is what the client is told."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.refused = Refused(message, **fields)


class RequestEncoder:
    """Encodes the requests for one model, with its tokenizer and its context; it loads no weights.

    Prompts are encoded in a thread of their own, long ones in another, so that short ones do not wait for them
    (``is_long``). A tokenizer is not thread-safe, so each of these threads has a codec of its own.
    """

    def __init__(self, model: ModelConfig, config: ServeConfig) -> None:
        self.model = model
        self._placement = config.placement
        tokenizer, self.codec = _load(model)
        _, self._encoder = _load(model)
        self.structures = Structures(self._encoder)
        #: Variables of the chat template that a request may set.
        self.template_options = variables(tokenizer.chat_template)
        self._least = LeastTokens(tokenizer.get_vocab(), self.codec.special_ids, self.codec.decode_text)
        _ = self.codec.grammar  # built at start-up, so that the first request does not wait for it
        positions = context_positions(pretrained_config(model.location))
        #: The most tokens of a prompt and its ``max_tokens`` together.
        self.context = min(config.engine.slot_tokens, positions) - ANSWER_ROOM + 1
        self.max_prompt_tokens = config.limits.max_prompt_tokens or self.context
        limits = config.limits
        self.limits = Limits(
            max_threads=limits.max_threads,
            max_depth=limits.max_depth,
            max_chunk_tokens=limits.max_chunk_tokens,
            max_positions=positions,
            repetition_detection=limits.repetition_detection,
        )

    @cached_property
    def _long_encoder(self) -> Codec:
        """The codec of the thread for long prompts, loaded with the first one."""
        return _load(self.model)[1]

    def _codec(self, long: bool) -> Codec:
        return self._long_encoder if long else self._encoder

    @staticmethod
    def is_long(*prompts: PromptInput) -> bool:
        """Whether the thread for long prompts has to encode these prompts."""
        return sum(len(text) for prompt in prompts for text in _texts(prompt)) > _LONG_CHARS

    def min_tokens(self, order: Order) -> int:
        """A lower bound of the tokens of the request's prompts and longest answers, without encoding anything."""
        most = self.context + 1
        one = most if order.max_tokens is None else min(order.max_tokens + 2, most)
        return one * order.num_choices

    def decode_orders(self, order: Order) -> list[DecodeOrder]:
        """Encode the request: one order for each choice, prompt by prompt. Slow for long prompts.

        The first choice of a prompt has the request's seed, the others seeds derived from it. Raises
        :class:`RequestRefused`.
        """
        if self.model.mode == "sequential" and order.mode == "parallel":
            raise RequestRefused(
                f"pasta.mode: the model {order.model!r} only decodes sequentially; leave it out or name another model.",
                param="pasta.mode",
                code="unsupported_value",
            )
        self._check_tokens(order.sampling)
        long = self.is_long(*order.prompts)
        first = [self._decode_order(order, prompt, long) for prompt in order.prompts]
        return [
            dataclasses.replace(
                each,
                request_id=f"{order.request_id}-{number * order.n + copy}"
                if number or copy
                else each.request_id,
                sampling=dataclasses.replace(
                    each.sampling, seed=(order.sampling.seed + copy * _SEED_STEP) % _SEEDS
                )
                if copy
                else each.sampling,
            )
            for number, each in enumerate(first)
            for copy in range(order.n)
        ]

    def _check_tokens(self, sampling: SamplingParams) -> None:
        """Raise :class:`RequestRefused` if a parameter names a token that is neither text nor an end of the answer."""
        grammar = self.codec.grammar
        for name, tokens in (
            ("logit_bias", [token for token, _ in sampling.logit_bias]),
            ("stop_token_ids", sampling.stop_token_ids),
        ):
            for token in tokens:
                if not (
                    token < grammar.vocab_size and (grammar.text_mask[token] or token in grammar.eos_ids)
                ):
                    raise RequestRefused(
                        f"{name}: {token} is no token of this model's text; expected ids below {grammar.vocab_size}, "
                        "of no special token but the end of text.",
                        param=name,
                    )

    def check_grammar(self, grammar: Grammar, mode: DecodingMode | None) -> None:
        """Raise :class:`RequestRefused` if text in this mode cannot be made to follow the grammar. Slow for large
        ones."""
        name = grammar.param
        if mode == "parallel":
            raise RequestRefused(
                f"pasta.mode: parallel does not go with {name}; a structured answer has no promises. Leave it out.",
                param="pasta.mode",
                code="unsupported_value",
            )
        try:
            self.structures.compile(grammar)
        except UserError as error:
            raise RequestRefused(f"{name}: {error}", param=name) from None

    def tokenize(
        self,
        prompt: PromptInput,
        begin: bool,
        options: Mapping[str, int] | None = None,
        strings: bool | None = None,
    ) -> PromptTokens:
        """The tokens of a text, with what the tokenizer puts before every text if ``begin``, or of a conversation
        under the chat template's ``options``; with the text of each if ``strings``. They may be more than the context
        holds: who counts them wants to know. Raises :class:`RequestRefused`."""
        long = self.is_long(prompt)
        ids, codec = self._encode(prompt, long, options), self._codec(long)
        if isinstance(prompt, str) and not begin:
            ids = ids[len(codec.begin_ids) :]
        texts = b"null"
        if strings:
            shown = {token: json.dumps(codec.decode_text([token]), ensure_ascii=False) for token in {*ids}}
            texts = _json_list(ids, shown.__getitem__)
        return PromptTokens(len(ids), _json_list(ids, str), texts)

    def detokenize(self, tokens: list[int]) -> str:
        """The text of token ids. Raises :class:`RequestRefused` for an id that the model does not have."""
        size = self._encoder.grammar.vocab_size
        for at, token in enumerate(tokens):
            if not 0 <= token < size:
                raise RequestRefused(
                    f"tokens[{at}]: {token}, expected an id below {size}.",
                    param="tokens",
                )
        return self._encoder.decode_beginning(tokens)

    def _least_tokens(self, prompt: PromptInput) -> int:
        """A lower bound of the prompt's tokens, by its text alone."""
        if _is_ids(prompt):
            return len(prompt)
        if isinstance(prompt, str):
            return self._least(prompt)
        messages = cast("list[dict[str, str]]", prompt)
        # A chat template may leave out the reasoning of earlier answers.
        kept = next(without_reasoning(messages), messages)
        return self._least(*(message["content"] for message in kept))

    def _too_long(self, tokens: str, name: str) -> RequestRefused:
        prompts = (
            f", and that of prompts {self.max_prompt_tokens}" if self.max_prompt_tokens < self.context else ""
        )
        return self._exceeds_context(f"{prompts}, but this prompt has {tokens}; shorten the {name}.", name)

    def _exceeds_context(self, why: str, param: str) -> RequestRefused:
        # Clients that know no codes, as litellm, look for the words with which OpenAI's own message begins.
        message = f"This model's maximum context length is {self.context} tokens{why}"
        return RequestRefused(message, param=param, code="context_length_exceeded")

    def _encode(self, prompt: PromptInput, long: bool, options: Mapping[str, int] | None) -> list[int]:
        """The token ids of the prompt; ``long``: in the thread for long ones. Raises :class:`RequestRefused`."""
        name = _parameter(prompt)
        codec = self._codec(long)
        if unknown := sorted({*(options or ())} - self.template_options):
            known = ", ".join(sorted(self.template_options)) or "none"
            raise RequestRefused(
                f"chat_template_kwargs: the chat template of this model has no variable {short_repr(unknown[0])}; "
                f"expected {known}.",
                param="chat_template_kwargs",
            )
        try:
            if isinstance(prompt, str):
                return encode_start(codec, prompt)
            if _is_ids(prompt):
                ids = cast("list[int]", prompt)
                check_start(codec, ids)
                return ids
            return encode_messages(codec, cast("list[dict[str, str]]", prompt), options)
        except UserError as error:
            raise RequestRefused(f"{name}: {error}.", param=name) from None

    def _repetition_detection(self, sampling: SamplingParams) -> RepetitionDetection:
        """The service's own, unless the answer is to go on to its limit."""
        return RepetitionDetection() if sampling.ignore_eos else self.limits.repetition_detection

    def _decode_order(self, order: Order, prompt: PromptInput, long: bool) -> DecodeOrder:
        """The order for one prompt. Raises :class:`RequestRefused` if it and its answer exceed the model's context."""
        name = _parameter(prompt)
        # Encoding is slow and other requests wait for it: refuse a prompt first that cannot be short enough.
        if (least := self._least_tokens(prompt)) > self.max_prompt_tokens:
            raise self._too_long(f"at least {least}", name)
        prompt_ids = self._encode(prompt, long, order.template_options)
        if not prompt_ids:
            raise RequestRefused("prompt: it is empty; expected at least one token.", param="prompt")
        if len(prompt_ids) > self.max_prompt_tokens:
            raise self._too_long(str(len(prompt_ids)), name)
        room = self.context - len(prompt_ids)
        if order.max_tokens:
            limit, least = "max_tokens", order.max_tokens
            asked = f", and {least} were asked for"
        else:  # the Gateway has compared the two
            limit, least = "min_tokens", order.sampling.min_tokens
            asked = f", and at least {least} were asked for" if least else ""
        if max(least, 1) > room:
            lower = f" or lower {limit}" if asked else ""
            raise self._exceeds_context(
                f", but this prompt has {len(prompt_ids)}{asked}; shorten the {name}{lower}.",
                name if room < 1 else limit,
            )
        limits = dataclasses.replace(
            self.limits,
            max_tokens=(room if order.max_tokens is None else order.max_tokens) + 1,
            max_threads=min(order.max_threads or self.limits.max_threads, self.limits.max_threads),
            repetition_detection=order.repetition_detection or self._repetition_detection(order.sampling),
        )
        temperature = self.model.temperature if order.temperature is None else order.temperature
        sampling = dataclasses.replace(order.sampling, temperature=temperature)
        return DecodeOrder(
            request_id=order.request_id,
            model=order.model,
            prompt_ids=prompt_ids,
            limits=limits,
            parallel=order.decoding_mode(self.model.mode) == "parallel",
            grammar=order.grammar,
            prompt_logprobs=order.logprobs if order.echo else None,
            sampling=sampling,
            logprobs=order.logprobs,
            http_request_id=order.http_request_id,
            cache_salt=order.cache_salt,
            drafts=order.drafts,
            conversation=name == "messages",
            placement=order.placement or self._placement,
        )
