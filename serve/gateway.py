"""The Gateway deployment: HTTP and server-sent events, nothing else."""

import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.exceptions import HTTPException

import pasta
from serve import page
from serve.api import SSE_DONE, ChatRequest, Writer, model_object, new_id, read_chat_request, sse
from serve.config import ServeConfig
from serve.errors import ApiError, unavailable, unknown_model
from serve.transport import Caller
from serve.wire import Accepted, Finished, Progress, Refused, Update

logger = logging.getLogger("ray.serve")

app = FastAPI(title="PASTA", version=pasta.__version__, description="OpenAI-compatible chat completions.")
app.include_router(page.router)
_CHAT_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": ChatRequest.model_json_schema()}},
    }
}
_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


@app.exception_handler(ApiError)
async def _on_api_error(_: Request, error: ApiError) -> JSONResponse:
    return JSONResponse(error.body(), status_code=error.status)


@app.exception_handler(HTTPException)
async def _on_http_error(request: Request, error: HTTPException) -> JSONResponse:
    what = ApiError(f"{request.method} {request.url.path}: {error.detail}.", status=error.status_code)
    return JSONResponse(what.body(), status_code=error.status_code, headers=error.headers)


@app.exception_handler(Exception)
async def _on_failure(_: Request, error: Exception) -> JSONResponse:
    logger.exception("request failed", exc_info=error)
    what = ApiError("The server had an error while processing your request.", status=500, kind="server_error")
    return JSONResponse(what.body(), status_code=500)


# serve.ingress pickles the class as it stands: what it uses must be defined above it.


async def _updates(items: AsyncGenerator[Update, None]) -> AsyncGenerator[Update, None]:
    """The Interpreter's updates; refusals and lost replicas as ``ApiError``."""
    try:
        async with aclosing(items):
            async for item in items:
                if isinstance(item, Refused):
                    raise ApiError(item.message, status=item.status, param=item.param, code=item.code)
                yield item
    except BackPressureError as error:
        busy = ApiError(
            "Too many requests; try again later.", status=429, code="overloaded", kind="rate_limit"
        )
        raise busy from error
    except (RayError, RayServeException) as error:
        logger.exception("a replica was lost")
        raise unavailable(
            "A part of the service was lost while it answered; send the request again."
        ) from error


async def _collect(writer: Writer, updates: AsyncGenerator[Update, None]) -> dict[str, Any]:
    text = []
    async with aclosing(updates):
        async for update in updates:
            if isinstance(update, Progress):
                text.append(update.text)
            elif isinstance(update, Finished):
                return writer.completion("".join(text), update)
    raise unavailable("The answer ended early; send the request again.")


async def _stream(writer: Writer, updates: AsyncGenerator[Update, None]) -> AsyncGenerator[str, None]:
    async with aclosing(updates):
        yield sse(writer.first_chunk())
        try:
            async for update in updates:
                if isinstance(update, Progress):
                    yield sse(writer.progress_chunk(update))
                elif isinstance(update, Finished):
                    for chunk in writer.last_chunks(update):
                        yield sse(chunk)
                    yield SSE_DONE
        except ApiError as error:
            yield sse(error.body())


@serve.ingress(app)
class Gateway:
    """Reads requests, follows their updates, writes responses."""

    def __init__(self, config: ServeConfig, interpreter: DeploymentHandle) -> None:
        self._config = config
        self._interpreter = Caller(interpreter)
        self._started = int(time.time())

    @app.get("/health", summary="Whether the service answers, and what its decoders are doing")
    async def health(self) -> JSONResponse:
        try:
            decoders = await self._interpreter.call("stats")
        except (RayError, RayServeException, TimeoutError) as error:
            raise unavailable("The decoders do not answer.") from error
        return JSONResponse({"status": "ok", "models": list(self._config.models), "decoders": decoders})

    @app.get("/v1/models", summary="The served models")
    async def models(self) -> dict[str, Any]:
        models = [
            model_object(name, self._started, model.mode) for name, model in self._config.models.items()
        ]
        return {"object": "list", "data": models}

    @app.get("/v1/models/{name:path}", summary="One served model")
    async def model(self, name: str) -> dict[str, Any]:
        self._check_model(name)
        return model_object(name, self._started, self._config.models[name].mode)

    @app.post("/v1/chat/completions", summary="Answer a conversation", openapi_extra=_CHAT_BODY)
    async def chat_completions(self, request: Request) -> Response:
        chat = read_chat_request(await self._body(request))
        self._check_model(chat.model)
        request_id = new_id()
        writer = Writer(request_id, chat.model, include_usage=chat.include_usage)
        updates = _updates(self._interpreter.stream("chat", chat.order(request_id)))
        headers = {"X-Request-Id": request_id}
        if not chat.stream:
            return JSONResponse(await _collect(writer, updates), headers=headers)
        # A refusal must still become a status code: nothing is sent before the first update is there.
        first = await anext(updates)
        assert isinstance(first, Accepted)
        stream = _stream(writer, updates)
        return StreamingResponse(
            stream, media_type="text/event-stream", headers={**headers, **_STREAM_HEADERS}
        )

    def _check_model(self, name: str) -> None:
        if name not in self._config.models:
            raise unknown_model(name, list(self._config.models))

    async def _body(self, request: Request) -> bytes:
        """The body, unless it is larger than the configuration allows."""
        most = self._config.max_body_bytes
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > most:
                raise ApiError(
                    f"The body of your request is larger than {most} bytes.",
                    status=413,
                    code="request_too_large",
                )
        return bytes(body)
