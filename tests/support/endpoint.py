"""A small HTTP server that speaks, or fails to speak, OpenAI's chat completions."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: Status and body (a JSON value, text, bytes or an iterator of them, a piece at a time), headers too; None closes the
#: connection.
Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]] | None


def completion(text: str, logprobs: Mapping[str, float] | None = None) -> Answer:
    """A well-formed chat completion of one token, with its alternatives if they are given."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    choice["message"] = {"role": "assistant", "content": text}
    if logprobs is not None:
        top = [{"token": token, "logprob": value, "bytes": None} for token, value in logprobs.items()]
        choice["logprobs"] = {"content": [{**top[0], "top_logprobs": top}]}
    return 200, {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "judge",
        "choices": [choice],
        "usage": {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8},
    }


class EndpointServer:
    """Answers with what ``answer(body, number)`` gives; ``requests`` are those that came, in order."""

    def __init__(self, answer: Callable[[dict[str, Any], int], Answer]) -> None:
        self.requests: list[dict[str, Any]] = []
        self.most_at_once = 0
        self._answer = answer
        self._at_once = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer._handle(self)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self._lock:
            number = len(self.requests)
            self.requests.append({"body": body, "authorization": handler.headers.get("Authorization")})
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            answer = self._answer(body, number)
        finally:
            with self._lock:
                self._at_once -= 1
        with contextlib.suppress(OSError):
            self._send(handler, answer)

    def _send(self, handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        if answer is None:
            handler.close_connection = True
            return
        status, body, *headers = answer
        if isinstance(body, Iterator):
            handler.send_response(status)
            handler.send_header("Content-Type", "application/json")
            handler.end_headers()
            for piece in body:
                handler.wfile.write(piece)
            return
        kind = "text/html" if isinstance(body, str) else "application/json"
        data = (
            body
            if isinstance(body, bytes)
            else (body if isinstance(body, str) else json.dumps(body)).encode()
        )
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(data)))
        for name, value in (headers[0] if headers else {}).items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)


@contextlib.contextmanager
def endpoint_server(answer: Callable[[dict[str, Any], int], Answer]) -> Iterator[EndpointServer]:
    """The server for the time of the block."""
    server = EndpointServer(answer)
    thread = threading.Thread(target=server.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.server.shutdown()
        server.server.server_close()
        thread.join()
