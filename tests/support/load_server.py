"""A small ASGI service that answers as the real one does, misbehaves when it is told to, and counts."""

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

MODELS = {"fast": "parallel", "slow": "sequential"}
PIECES = ["One. ", "Two.\u2028", "Three."]


class LoadServer:
    """What a test reads, and sets: pauses in seconds, room for requests, and what goes wrong (by the prompt's text)."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.active = self.most_active = self.abandoned = 0
        self.room = 1000
        self.together = 0  # no answer begins before so many requests have been there at once
        self.broken = False
        self.first_s = self.between_s = self.stopping_s = 0.0
        self.decoders: list[subprocess.Popen[bytes]] = []
        self.pieces = list(PIECES)
        self.headers: list[dict[str, str]] = []
        #: Raised by one, the streams that are open end with an error that says to send their requests again.
        self.lives = 0
        #: What /ready says of the Gateway, and what POST /v1/completions answers.
        self.gateway: dict[str, Any] = {"pid": 1, "busy_ms": 0.5, "late_ms": 1.5}
        self.completion: Callable[[int], Response] = lambda _: refused()
        self.retry_after = "0"
        #: The usage that is reported in a stream.
        self.usage: Callable[[dict[str, Any]], dict[str, int]] = lambda body: {
            "completion_tokens": body["max_tokens"]
        }

    # -- routes ----------------------------------------------------------------------------------------

    async def models(self, _: Request) -> Response:
        told = {"dtype": "float32", "dtype_why": "for a test"}
        return JSONResponse({"object": "list", "data": [{"id": name, "pasta": told} for name in MODELS]})

    async def ready(self, _: Request) -> Response:
        # A dead decoder is replaced at once.
        self.decoders = [d if d.poll() is None else sleeper() for d in self.decoders]
        stats = [{"active": 0, "waiting": 0, "lanes": 0, "pid": decoder.pid} for decoder in self.decoders]
        (stats or [{}])[0] |= {"active": self.active, "lanes": 3 * self.active}
        return JSONResponse({"decoders": stats or [{"active": self.active}], "gateway": self.gateway})

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def openapi(self, _: Request) -> Response:
        schema = {"properties": {"model": {}, "prompt": {}, "guided_json": {}}}
        body = {"requestBody": {"content": {"application/json": {"schema": schema}}}}
        return JSONResponse({"paths": {"/health": {"get": {}}, "/v1/completions": {"post": body}}})

    async def completions(self, request: Request) -> Response:
        self.requests.append({"bytes": len(await request.body())})
        return self.completion(len(self.requests) - 1)

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        said = body["messages"][-1]["content"]
        if said == "fail" or (self.broken and body.get("max_tokens") == 16):
            return JSONResponse({"error": {"message": "no such thing"}}, status_code=500)
        if said == "garbage":
            return Response("<html>", status_code=200)
        if self.active >= self.room:
            error = {"error": {"message": "full"}}
            return JSONResponse(error, status_code=429, headers={"Retry-After": self.retry_after})
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        while self.most_active < self.together:
            await asyncio.sleep(0.01)
        if not body.get("stream"):
            await asyncio.sleep(self.first_s)
            self.active -= 1
            message = {"role": "assistant", "content": "".join(self.pieces)}
            choice = {"message": message, "finish_reason": "stop"}
            return JSONResponse({"choices": [choice], "pasta": self.figures()})
        counts = (body.get("stream_options") or {}).get("include_usage")
        usage = self.usage(body) if counts else None
        return StreamingResponse(self.stream(said, usage), media_type="text/event-stream")

    def figures(self) -> dict[str, Any]:
        return {"tokens": 10, "threads": 3, "spills": 2, "redispatches": 0}

    async def stream(self, said: str, usage: dict[str, int] | None = None) -> AsyncIterator[bytes]:
        ended, life = False, self.lives
        try:
            yield event({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
            await asyncio.sleep(self.first_s)
            for number, piece in enumerate(self.pieces):
                await asyncio.sleep(self.between_s if number else 0)
                if life != self.lives:
                    yield event({"error": {"message": "cut", "code": "service_unavailable"}})
                    return
                # Cut in the middle of an event, as networks do.
                whole = event({"choices": [{"delta": {"content": piece}, "finish_reason": None}]})
                yield whole[:20]
                yield whole[20:]
                if said == "cut":
                    return
                if said == "error":
                    yield event({"error": {"message": "a replica was lost"}})
                    return
                if said == "hang":
                    await asyncio.sleep(60)
            if said != "unfinished":
                last = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
                # A server of another making reports usage, and nothing of its own.
                yield event({**last, "pasta": self.figures()} if usage is None else last)
                if usage is not None:
                    yield event({"choices": [], "usage": usage})
            yield b"data: [DONE]\n\n"
            ended = True
        finally:
            self.abandoned += not ended
            if self.stopping_s and not ended:
                threading.Timer(self.stopping_s, self._left).start()
            else:
                self._left()

    def _left(self) -> None:
        self.active -= 1


def refused() -> Response:
    """An error as OpenAI's."""
    error = {"message": "no", "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": error}, status_code=400)


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event, other scripts left as they are."""
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def sleeper() -> "subprocess.Popen[bytes]":
    """A process to be killed in a decoder's place, running when this returns: one just begun has no command yet."""
    code = "import time; print(flush=True); time.sleep(300)"
    process = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
    return process


@contextlib.contextmanager
def load_server(num_decoders: int = 0) -> Iterator[LoadServer]:
    """Serve on a free port of 127.0.0.1, with so many processes in the place of decoders."""
    state = LoadServer()
    state.decoders = [sleeper() for _ in range(num_decoders)]
    routes = [
        Route("/v1/models", state.models),
        Route("/ready", state.ready),
        Route("/health", state.health),
        Route("/openapi.json", state.openapi),
        Route("/v1/completions", state.completions, methods=["POST"]),
        Route("/v1/chat/completions", state.chat, methods=["POST"]),
    ]
    config = uvicorn.Config(
        Starlette(routes=routes), host="127.0.0.1", port=0, log_level="error", ws="none", lifespan="off"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not server.started:
            assert thread.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        state.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        yield state
    finally:
        server.should_exit = server.force_exit = True
        thread.join(20)
        for decoder in state.decoders:
            decoder.kill()
            decoder.wait()
