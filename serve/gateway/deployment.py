"""The Gateway deployment: the HTTP routes. Each reads a request, has an Interpreter answer it, writes the response."""

import asyncio
import contextvars
import dataclasses
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import pasta
from pasta.engine.section import AS_CONFIGURED
from serve import priority
from serve.calls.ray_serve import DeploymentClient, reuse_addresses
from serve.calls.replicas import known_replicas
from serve.config import ServeConfig
from serve.errors import ApiError, failed, unavailable, unknown_model
from serve.gateway import answers, exposition, openapi, playground, schemas
from serve.gateway.api import (
    ChatRequest,
    CompletionRequest,
    read_chat_request,
    read_completion_request,
)
from serve.gateway.body import Turns, read_body
from serve.gateway.guard import Client, Guard, NoRoomCache, OpenRequests
from serve.gateway.pace import PacedStream, unread_event
from serve.gateway.proxy import AnswerHead, TakeBody
from serve.gateway.responses import ChatWriter, CompletionWriter, Writer, model_object
from serve.gateway.tokens import (
    DetokenizeText,
    TokenizeText,
    read_detokenize_request,
    read_tokenize_request,
)
from serve.ingress import check_started
from serve.observe import logs
from serve.observe.event_loop import LoopWatch
from serve.observe.watch import CountResponses, Watch, watched
from serve.wire import Finished, Order, UpdateBatches

logger = logging.getLogger("ray.serve")

app = openapi.Application(title="PASTA", version=pasta.__version__, description=schemas.DESCRIPTION)
app.include_router(playground.router)
app.add_middleware(CountResponses)
app.add_middleware(TakeBody)
app.add_middleware(AnswerHead)
T = TypeVar("T")
#: The status of a request whose client left while it sent it, as in Ray Serve's metrics.
_LEFT = 499
#: How long an Interpreter may take to tell the Decoders' statistics: longer than it waits for each of them itself.
_STATS_S = 10.0
_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


@app.exception_handler(ApiError)
async def _on_api_error(_: Request, error: ApiError) -> JSONResponse:
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers)


@app.exception_handler(HTTPException)
async def _on_http_error(request: Request, error: HTTPException) -> JSONResponse:
    what = ApiError(f"{request.method} {request.url.path}: {error.detail}.", status=error.status_code)
    return JSONResponse(what.body(), status_code=error.status_code, headers=error.headers)


@app.exception_handler(ClientDisconnect)
async def _on_left(_: Request, __: ClientDisconnect) -> Response:
    return Response(status_code=_LEFT)  # for the metrics: nobody reads it


@app.exception_handler(Exception)
async def _on_failure(_: Request, error: Exception) -> JSONResponse:
    logger.exception("request failed", exc_info=error)
    return JSONResponse(failed().body(), status_code=500)


@dataclass(frozen=True)
class _Held:
    """The holdings of an open request since ``since`` (seconds since the epoch): a place in this Gateway, and one of
    its key's running requests."""

    since: float
    key: str | None
    place: ExitStack
    running: ExitStack


def _interpreters() -> frozenset[str]:
    return known_replicas("Interpreter").replicas


# serve.ingress pickles the class here: all that it uses must be defined above it, or in other modules.
@serve.ingress(app)
class Gateway:
    """Serves the HTTP API: reads requests, forwards them to an Interpreter, writes responses."""

    @logs.log_failed_start(logger)
    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: ServeConfig, interpreter: DeploymentHandle
    ) -> None:
        check_started(config)
        reuse_addresses()
        priority.set_batch()
        self._config = config
        self._interpreter = DeploymentClient(interpreter)
        self.allowed_origins = config.cors.allow_origins
        self.needs_keys = config.keys.file is not None
        self._guard = Guard(config.keys, config.front.gateways, origins=self.allowed_origins)
        self._requests = OpenRequests(config.max_ongoing_requests)
        self._turns = Turns()
        self._no_room = NoRoomCache(_interpreters)
        self._started = int(time.time())
        #: The number format of each model whose Decoders have chosen one, and why.
        self._chosen: dict[str, tuple[str, str]] = {}
        self._asking: asyncio.Task[list[dict[str, Any]]] | None = None
        self._loop = LoopWatch()
        self._watching = asyncio.get_running_loop().create_task(self._loop.watch())
        # Rolling update: the old Gateway serves until an Interpreter of this version is ready. Others are asked too.
        while (contexts := await self._interpreter.call("contexts", config.version)) is None:
            await asyncio.sleep(0.1)
        self._contexts: dict[str, int] = contexts

    @app.get("/health", summary="Whether the service is alive", responses=schemas.HEALTH)
    async def health(self) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    @app.get(
        "/ready",
        summary="Whether requests are taken, and what each decoder that answers is doing",
        responses=schemas.READY,
    )
    async def ready(self) -> JSONResponse:
        self._requests.check()
        try:
            decoders = await self._decoders()
        except (RayError, RayServeException, TimeoutError) as error:
            raise unavailable("The interpreter does not answer.") from error
        if not decoders:
            raise unavailable("No decoder answers.")
        held = self._loop.longest()
        state = {"late_ms": round(1000 * held.late_s, 3), "busy_ms": round(1000 * held.busy_s, 3)}
        return JSONResponse(
            {
                "status": "ready",
                "models": list(self._config.models),
                "gateway": {"pid": os.getpid(), **state},
                "decoders": decoders,
            }
        )

    @app.get("/metrics", include_in_schema=False)
    async def metrics(self, request: Request) -> Response:
        if not self._config.metrics:
            raise HTTPException(404)
        self._client(request)
        return Response(await exposition.gather(), media_type=exposition.CONTENT_TYPE)

    @app.get("/v1/models", summary="The served models", responses=schemas.MODELS, dependencies=openapi.KEY)
    async def models(self, request: Request) -> JSONResponse:
        self._client(request)
        models = [await self._model(name) for name in self._config.models]
        return JSONResponse({"object": "list", "data": models})

    @app.get(
        "/v1/models/{name:path}",
        summary="One served model",
        responses=schemas.MODEL,
        dependencies=openapi.KEY,
    )
    async def model(self, name: str, request: Request) -> JSONResponse:
        self._client(request)
        self._check_model(name)
        return JSONResponse(await self._model(name))

    @app.post(
        "/v1/chat/completions",
        summary="Answer a conversation",
        responses=schemas.CHAT,
        dependencies=openapi.KEY,
        openapi_extra=openapi.body_of(ChatRequest, openapi.TIMEOUT),
    )
    async def chat_completions(self, request: Request) -> Response:
        def read(body: bytes) -> tuple[Writer, Order, bool]:
            chat = read_chat_request(body)
            writer = ChatWriter(
                chat.model,
                chat.num_choices,
                logprobs=bool(chat.logprobs),
                include_usage=chat.include_usage,
                continuous_usage=chat.continuous_usage,
            )
            return writer, chat.order(writer.request_id), bool(chat.stream)

        with self._open(request) as held:
            return await self._answer(request, held, *await self._read(request, read))

    @app.post(
        "/v1/completions",
        summary="Continue texts",
        responses=schemas.COMPLETION,
        dependencies=openapi.KEY,
        openapi_extra=openapi.body_of(CompletionRequest, openapi.TIMEOUT),
    )
    async def completions(self, request: Request) -> Response:
        def read(body: bytes) -> tuple[Writer, Order, bool]:
            completion = read_completion_request(body)
            writer = CompletionWriter(
                completion.model,
                completion.num_choices,
                logprobs=completion.logprobs is not None,
                include_usage=completion.include_usage,
                continuous_usage=completion.continuous_usage,
            )
            return writer, completion.order(writer.request_id), bool(completion.stream)

        with self._open(request) as held:
            return await self._answer(request, held, *await self._read(request, read))

    @app.post(
        "/tokenize",
        summary="The token ids of a text or a conversation",
        responses=schemas.TOKENIZED,
        dependencies=openapi.KEY,
        openapi_extra=openapi.body_of(TokenizeText),
    )
    async def tokenize(self, request: Request) -> Response:
        with self._open(request):
            given = await self._read(request, read_tokenize_request)
            found = await self._encoded(
                given.model,
                "tokenize",
                given.input,
                given.add_special_tokens,
                given.chat_template_kwargs or {},
                given.return_token_strs,
            )
            most = self._contexts[given.model]
            body = b'{"count":%d,"max_model_len":%d,"tokens":%b,"token_strs":%b}'
            body %= found.count, most, found.tokens, found.strings
            return Response(body, media_type="application/json")

    @app.post(
        "/detokenize",
        summary="The text of token ids",
        responses=schemas.DETOKENIZED,
        dependencies=openapi.KEY,
        openapi_extra=openapi.body_of(DetokenizeText),
    )
    async def detokenize(self, request: Request) -> JSONResponse:
        with self._open(request):
            given = await self._read(request, read_detokenize_request)
            text = await self._encoded(given.model, "detokenize", given.tokens)
            return JSONResponse({"prompt": text})

    async def _answer(
        self, request: Request, held: "_Held", writer: Writer, order: Order, streams: bool
    ) -> Response:
        self._check_model(order.model)
        # A key's requests share prefixes with each other only: else one tenant could time another one's prompts.
        order = dataclasses.replace(
            order,
            http_request_id=logs.request_id(request.headers),
            cache_salt=held.key or "",
            marks=(("body", held.since), ("to the Interpreter", time.time())),
            num_interpreters=len(_interpreters()),
        )
        mode = order.decoding_mode(self._config.models[order.model].mode)
        watch = Watch(order.http_request_id, order, mode, key=held.key, stream=streams)
        updates = watched(self._updates(held, order, self._timeout_s(request), streams), watch)
        within_s = self._config.write_timeout_s
        paced = partial(PacedStream, within_s=within_s, gave_up=partial(watch.unread, within_s))
        if streams:
            # Wait for the first update before sending the head: a refusal must still become a status code.
            events = answers.stream(writer, await anext(updates), updates)
            last = unread_event(within_s)
            return paced(events, last=last, media_type="text/event-stream", headers=_STREAM_HEADERS)
        blocks = answers.written(await answers.collect(writer, updates), held.place.pop_all())
        first, second = await anext(blocks), await anext(blocks, None)
        if second is None:
            return Response(first, media_type="application/json")
        return paced(answers.resumed((first, second), blocks), media_type="application/json")

    async def _updates(self, held: "_Held", order: Order, timeout_s: float, streams: bool) -> UpdateBatches:
        def ask(interpreter: str | None) -> UpdateBatches:
            return self._interpreter.stream("answer", order, replica=interpreter)

        items = answers.retried(lambda: self._no_room.ask(order, ask), _interpreters)
        unfinished = order.num_choices
        # A stream outlives the call that began it.
        place = held.place.pop_all() if streams else ExitStack()
        with place, held.running.pop_all() as running:
            async with aclosing(answers.checked(items, timeout_s, self._requests)) as batches:
                async for batch in batches:
                    unfinished -= sum(isinstance(update, Finished) for update in batch)
                    if not unfinished:
                        running.close()  # before the client gets this: it may send its next request at once
                    yield batch

    async def drain(self, within_s: float) -> None:
        """Refuse new requests and finish the open ones (serve/launch.py calls it on SIGTERM)."""
        await self._requests.drain(within_s)

    # -- steps of every request ------------------------------------------------------------------------

    def _client(self, request: Request) -> Client:
        return self._guard.client(request.headers, request.client.host if request.client else None)

    async def _decoders(self) -> list[dict[str, Any]]:
        """The statistics of each Decoder that answers. Asking costs every Decoder a call, so callers at the same time
        share one answer. Raises ``TimeoutError`` if the Interpreter does not answer within ``_STATS_S``."""
        if self._asking is None or self._asking.done():
            # An empty context: Serve cancels the calls that a request has made when that request ends.
            self._asking = asyncio.get_running_loop().create_task(
                asyncio.wait_for(self._interpreter.call("stats"), _STATS_S), context=contextvars.Context()
            )
        return await asyncio.shield(self._asking)

    @contextmanager
    def _open(self, request: Request) -> Iterator["_Held"]:
        """Count a request as open, and as one of its client's, for the block. The block begins with the request's head,
        so that a slow upload counts. Raises ``ApiError`` if the client is unknown or over its limits, or if this
        Gateway has no place free."""
        since, client = time.time(), self._client(request)
        with ExitStack() as place, ExitStack() as running:
            place.enter_context(self._requests.request())
            running.enter_context(self._guard.running(client))
            self._guard.count(client)  # last: what is refused for another reason costs nothing of the rate
            yield _Held(since, client.name, place, running)

    def _timeout_s(self, request: Request) -> float:
        """The configured time-out, or the request's own if that is shorter."""
        given = request.headers.get("x-request-timeout")
        if given is None:
            return self._config.timeout_s
        try:
            seconds = float(given)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < float("inf"):
            raise ApiError(
                f"X-Request-Timeout: expected a number of seconds above 0, got {given[:60]!r}.",
                param="X-Request-Timeout",
            )
        return min(seconds, self._config.timeout_s)

    async def _encoded(self, model: str, method: str, *what: Any) -> Any:
        """Have an Interpreter's tokenizer answer. Raises ``ApiError`` for a refusal."""
        self._check_model(model)
        try:
            return await answers.told(lambda: self._interpreter.call(method, model, *what), _interpreters)
        except (RayError, RayServeException) as error:
            raise unavailable("A part of the service was lost; send the request again.") from error

    async def _model(self, name: str) -> dict[str, Any]:
        model = self._config.models[name]
        dtype, why = await self._format(name, model.dtype)
        processes = self._config.decoder.tensor_parallel
        return model_object(name, self._started, self._contexts[name], model.mode, dtype, why, processes)

    async def _format(self, name: str, dtype: str) -> tuple[str, str]:
        """The number format of a model, and why: ``auto`` until the Decoders have reported the one they chose."""
        if dtype != "auto":
            return dtype, AS_CONFIGURED
        if name not in self._chosen:
            try:
                decoders = await self._decoders()
            except (RayError, RayServeException, TimeoutError):
                decoders = []
            # In a rolling update Decoders of the old version, and of its models, are among them.
            ours = [each for each in decoders if each.get("version") == self._config.version]
            # Several formats only where the Decoders' machines differ; each Decoder has timings of its own.
            if found := {each["formats"][name]["name"]: each["formats"][name]["why"] for each in ours}:
                names = sorted(found)
                self._chosen[name] = ", ".join(names), "; ".join(found[each] for each in names)
        return self._chosen.get(name, (dtype, "not chosen yet"))

    def _check_model(self, name: str) -> None:
        if name not in self._config.models:
            raise unknown_model(name, list(self._config.models))

    async def _read(self, request: Request, how: Callable[[bytes], T]) -> T:
        body = await read_body(request, self._config.max_body_bytes, self._config.body_timeout_s)
        return await self._turns.read(body, how)
