"""The Interpreter deployment: owns a request from its messages to its result."""

import dataclasses
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from typing import Any, cast

from ray.serve.handle import DeploymentHandle
from transformers import AutoConfig, AutoTokenizer

from pasta.errors import UserError
from pasta.interpreter import Limits
from pasta.lang import Codec, check_start, encode_messages, encode_start
from serve.admission import Admission, Overloaded, TooLarge
from serve.choices import merge
from serve.config import ModelConfig, ServeConfig
from serve.dispatch import Dispatcher, Run
from serve.session import Session
from serve.transport import Caller
from serve.wire import Accepted, Decoded, DecodeOrder, Order, Prompt, Refused, Update

_SEEDS = 2**63
#: Odd, so that no two choices of a request share a seed.
_SEED_STEP = 0x9E3779B97F4A7C15


class Interpreter:
    """Encodes prompts, has them decoded, and assembles the answers in reading order."""

    def __init__(self, config: ServeConfig, decoders: DeploymentHandle) -> None:
        self._config = config
        self._decoders = Caller(decoders)
        self._dispatcher = Dispatcher(self._decoders, config)
        self._admission = Admission(config.admission, config.budget_tokens)
        self._models = {name: _Served(model, config) for name, model in config.models.items()}

    async def answer(self, order: Order) -> AsyncGenerator[Update, None]:
        """``Accepted``, then ``Progress`` as tokens come and ``Finished``, of each choice; or only ``Refused``."""
        served = self._models[order.model]
        try:
            with self._admitted(decode_orders := served.decode_orders(order)):
                choices = [self._choice(served, order, decode_order) for decode_order in decode_orders]
                prompt_tokens = sum(len(o.prompt_ids) for o in decode_orders[:: order.n])
                async with aclosing(merge(choices)) as updates:
                    accepted = False
                    async for index, update in updates:
                        if isinstance(update, Accepted):
                            if not accepted:
                                accepted = True
                                yield Accepted(prompt_tokens)
                        elif isinstance(update, Refused):
                            yield update
                            return
                        else:
                            yield dataclasses.replace(update, index=index) if index else update
        except RequestRefused as error:
            yield error.refused

    @contextmanager
    def _admitted(self, orders: list[DecodeOrder]) -> Iterator[None]:
        """Hold what the orders may grow to. Raises :class:`RequestRefused`."""
        tokens = sum(len(order.prompt_ids) + order.limits.max_tokens for order in orders)
        with ExitStack() as stack:
            try:
                stack.enter_context(self._admission.hold(tokens))
            except Overloaded as error:
                raise RequestRefused(
                    "The service has as much to do as it takes on; try again later.",
                    status=429,
                    code="overloaded",
                    retry_after_s=error.retry_after_s,
                ) from None
            except TooLarge as error:
                raise RequestRefused(
                    f"The request asks for {tokens} tokens (prompts and longest answers, of all choices), but "
                    f"this service holds {error.most} at most; lower n or max_tokens.",
                    param="max_tokens",
                    code="request_too_large",
                ) from None
            yield

    async def _choice(
        self, served: "_Served", order: Order, decode_order: DecodeOrder
    ) -> AsyncGenerator[Update, None]:
        """One choice: ``Accepted``, ``Progress``, ``Finished``; or only ``Refused``."""
        session = Session(
            served.codec,
            decode_order.prompt_ids,
            decode_order.limits,
            parallel=decode_order.parallel,
            stop=order.stop,
            wants_events=order.wants_events,
        )
        run = Run(self._dispatcher, decode_order, session)
        async with aclosing(run.updates()) as updates:
            # Accepted only once a Decoder has taken the request: until then it may still be refused.
            accepted = False
            async for update in updates:
                if not accepted and not isinstance(update, Refused):
                    accepted = True
                    yield Accepted(len(decode_order.prompt_ids))
                if isinstance(update, Decoded):
                    if rest := session.rest():
                        yield rest
                    finished = session.finish(update, wants_document=order.wants_document)
                    finished.pasta.update(run.figures())
                    yield finished
                elif update:  # a refusal, or progress that shows something
                    yield update

    def counts(self) -> dict[str, int]:
        """What placement has done since this replica started."""
        return dict(self._dispatcher.counts)

    async def stats(self) -> list[dict[str, Any]]:
        """What each Decoder is doing. Raises if one does not answer."""
        return await self._decoders.broadcast("stats", timeout_s=5.0)


class RequestRefused(Exception):
    """A request that cannot be served; ``refused`` says why, in the fields of :class:`Refused`."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.refused = Refused(message, **fields)


class _Served:
    """What the Interpreter knows of a model: its codec and its context, not its weights."""

    def __init__(self, model: ModelConfig, config: ServeConfig) -> None:
        self.model = model
        self._placement = config.placement
        self.codec = Codec(AutoTokenizer.from_pretrained(model.location))
        positions = int(AutoConfig.from_pretrained(model.location).max_position_embeddings)
        self.context = min(config.engine.slot_tokens, positions)
        self.max_prompt_tokens = config.limits.max_prompt_tokens or self.context
        limits = config.limits
        self.limits = Limits(
            max_threads=limits.max_threads,
            max_depth=limits.max_depth,
            max_chunk_tokens=limits.max_chunk_tokens,
            max_positions=positions,
        )

    def decode_orders(self, order: Order) -> list[DecodeOrder]:
        """One order for each choice, prompt by prompt. Raises :class:`RequestRefused`.

        The first choice is what the seed gives alone; the others have seeds that follow from it.
        """
        if self.model.mode == "sequential" and order.mode == "parallel":
            raise RequestRefused(
                f"pasta.mode: the model {order.model!r} only decodes sequentially; leave it out or name another model.",
                param="pasta.mode",
                code="unsupported_value",
            )
        first = [self._decode_order(order, prompt) for prompt in order.prompts]
        return [
            dataclasses.replace(
                each,
                request_id=f"{order.request_id}-{number * order.n + copy}"
                if number or copy
                else each.request_id,
                seed=(order.seed + copy * _SEED_STEP) % _SEEDS if copy else order.seed,
            )
            for number, each in enumerate(first)
            for copy in range(order.n)
        ]

    def _encode(self, prompt: Prompt) -> tuple[list[int], str]:
        """The prompt's token ids, and the name of the parameter that it came in."""
        name = "prompt" if isinstance(prompt, str) or isinstance(prompt[0], int) else "messages"
        try:
            if isinstance(prompt, str):
                return encode_start(self.codec, prompt), name
            if name == "prompt":
                ids = cast("list[int]", prompt)
                check_start(self.codec, ids)
                return ids, name
            return encode_messages(self.codec, cast("list[dict[str, str]]", prompt)), name
        except UserError as error:
            raise RequestRefused(f"{name}: {error}.", param=name) from None

    def _decode_order(self, order: Order, prompt: Prompt) -> DecodeOrder:
        """A prompt in tokens, within the model's context."""
        prompt_ids, name = self._encode(prompt)
        if not prompt_ids:
            raise RequestRefused("prompt: it is empty; expected at least one token.", param="prompt")
        if len(prompt_ids) > self.max_prompt_tokens:
            raise RequestRefused(
                f"The prompt has {len(prompt_ids)} tokens, but this service takes {self.max_prompt_tokens}; "
                f"shorten the {name}.",
                param=name,
                code="context_length_exceeded",
            )
        # One place is the engine's scratch, one the end of text, which nobody asks for but every answer has.
        room = self.context - len(prompt_ids) - 2
        if room < 1 or (order.max_tokens or 1) > room:
            asked = f" and {order.max_tokens} were asked for" if order.max_tokens else ""
            raise RequestRefused(
                f"The prompt has {len(prompt_ids)} tokens{asked}, but this model's context holds {self.context}; "
                f"shorten the {name}" + (" or lower max_tokens." if order.max_tokens else "."),
                param=name if room < 1 else "max_tokens",
                code="context_length_exceeded",
            )
        limits = dataclasses.replace(
            self.limits,
            max_tokens=(order.max_tokens or room) + 1,
            max_threads=min(order.max_threads or self.limits.max_threads, self.limits.max_threads),
        )
        return DecodeOrder(
            request_id=order.request_id,
            model=order.model,
            prompt_ids=prompt_ids,
            limits=limits,
            parallel=(order.mode or self.model.mode) == "parallel",
            temperature=self.model.temperature if order.temperature is None else order.temperature,
            top_p=order.top_p,
            seed=order.seed,
            stop=order.stop,
            promise_bias=order.promise_bias,
            logprobs=order.logprobs,
            placement=order.placement or self._placement,
        )
