"""The Interpreter deployment: owns a request from its messages to its result."""

import dataclasses
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ray.serve.handle import DeploymentHandle
from transformers import AutoConfig, AutoTokenizer

from pasta.errors import UserError
from pasta.interpreter import Limits
from pasta.lang import Codec
from serve.config import ModelConfig, ServeConfig
from serve.dispatch import Dispatcher, Run
from serve.session import Session
from serve.transport import Caller
from serve.wire import Accepted, ChatOrder, Decoded, DecodeOrder, Refused, Update


class Interpreter:
    """Encodes prompts, has them decoded, and assembles the answers in reading order."""

    def __init__(self, config: ServeConfig, decoders: DeploymentHandle) -> None:
        self._config = config
        self._decoders = Caller(decoders)
        self._dispatcher = Dispatcher(self._decoders, config)
        self._models = {name: _Served(model, config) for name, model in config.models.items()}

    async def chat(self, order: ChatOrder) -> AsyncGenerator[Update, None]:
        """``Accepted``, then ``Progress`` as tokens come, then ``Finished``; or only ``Refused``."""
        served = self._models[order.model]
        try:
            decode_order = served.decode_order(order)
        except RequestRefused as error:
            yield error.refused
            return
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
                    if (rest := session.rest()).text or rest.events:
                        yield rest
                    finished = session.finish(update, wants_document=order.wants_document)
                    finished.pasta.update(run.figures())
                    yield finished
                elif isinstance(update, Refused) or update.text or update.events:
                    yield update

    def counts(self) -> dict[str, int]:
        """What placement has done since this replica started."""
        return dict(self._dispatcher.counts)

    async def stats(self) -> list[dict[str, Any]]:
        """What each Decoder is doing. Raises if one does not answer."""
        return await self._decoders.broadcast("stats", timeout_s=5.0)


class RequestRefused(Exception):
    """A request that cannot be served; ``refused`` says why."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.refused = Refused(message, param=param, code=code)


class _Served:
    """What the Interpreter knows of a model: its codec and its context, not its weights."""

    def __init__(self, model: ModelConfig, config: ServeConfig) -> None:
        self.model = model
        self._placement = config.placement
        self.codec = Codec(AutoTokenizer.from_pretrained(model.location))
        positions = int(AutoConfig.from_pretrained(model.location).max_position_embeddings)
        self.context = min(config.engine.slot_tokens, positions)
        limits = config.limits
        self.limits = Limits(
            max_threads=limits.max_threads,
            max_depth=limits.max_depth,
            max_chunk_tokens=limits.max_chunk_tokens,
            max_positions=positions,
        )

    def decode_order(self, order: ChatOrder) -> DecodeOrder:
        """The request in tokens, within the model's context. Raises :class:`RequestRefused`."""
        if self.model.mode == "sequential" and order.mode == "parallel":
            raise RequestRefused(
                f"pasta.mode: the model {order.model!r} only decodes sequentially; leave it out or name another model.",
                param="pasta.mode",
                code="unsupported_value",
            )
        try:
            prompt_ids = self.codec.encode_prompt(order.messages)
        except UserError as error:
            raise RequestRefused(f"messages: {error}.", param="messages") from None
        # One place is the engine's scratch, one the end of text, which nobody asks for but every answer has.
        room = self.context - len(prompt_ids) - 2
        if room < 1 or (order.max_tokens or 1) > room:
            asked = f" and {order.max_tokens} were asked for" if order.max_tokens else ""
            raise RequestRefused(
                f"The prompt has {len(prompt_ids)} tokens{asked}, but this model's context holds {self.context}; "
                "shorten the messages" + (" or lower max_tokens." if order.max_tokens else "."),
                param="messages" if room < 1 else "max_tokens",
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
            placement=order.placement or self._placement,
        )
