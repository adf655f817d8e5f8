"""Plays the large models that a run asks, so that a run can be tried and tested without them: ``pasta stand-in``.

It knows the atlas only. As a teacher it annotates by layout (``pasta.data.annotate.imperfect``). As a judge of
independence it knows which statements need which, and errs with a set probability. As a judge of two answers it prefers
the one with more right statements.
"""

import json
import random
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pasta.data.annotate import independence, prompt
from pasta.data.annotate.imperfect import ImperfectSection, guessed
from pasta.data.annotate.independence import Stretch, says_something, stretches_of
from pasta.data.atlas.grading import grade
from pasta.data.atlas.plan import to_document
from pasta.data.atlas.tasks import task_for_prompt
from pasta.data.atlas_keys import ATLAS
from pasta.data.tokenizers import find_tokenizer
from pasta.errors import UserError
from pasta.lang import Codec, Document, Text, to_text

_STRETCH = re.compile(r'<stretch number="\d+">(.*?)</stretch>', re.DOTALL)
_QUESTION = re.compile(r"^(\d+): hidden from it: ([\d, ]+)$", re.MULTILINE)
_PAIR = re.compile(
    r"<request>\n\[user\] (?P<asked>.*)\n</request>\n\n<answer_a>\n(?P<a>.*)\n</answer_a>\n\n"
    r"<answer_b>\n(?P<b>.*)\n</answer_b>",
    re.DOTALL,
)


@dataclass(frozen=True)
class StandIn:
    """``errors`` are the teacher's. Each verdict on independence is wrong with probability ``judge_error``.

    Its replies follow from the request and ``seed``: the same request gets the same reply.
    """

    errors: ImperfectSection = field(default_factory=ImperfectSection)
    judge_error: float = 0.1

    @cached_property
    def _codec(self) -> Codec:
        return Codec(find_tokenizer(ATLAS))

    def reply(self, body: Mapping[str, Any]) -> str:
        """The text of the answer to a chat completion request."""
        messages = body["messages"]
        system = messages[0]["content"]
        tasks = [task for message in messages if (task := prompt.read_task(message["content"])) is not None]
        if tasks and system == prompt.SYSTEM:
            return self._annotation(*tasks[-1], seed=body.get("seed") or 0)
        if tasks and system == independence.SYSTEM:
            return self._verdicts(*tasks[-1])
        pair = _PAIR.search(messages[-1]["content"])
        return "yes" if pair is None else _better(pair["asked"], pair["a"], pair["b"])

    def _annotation(self, asked: str, answer: str, seed: int) -> str:
        task = task_for_prompt(asked)
        if task is None or task.answer != answer:
            return to_text(Document((Text(answer),)))
        return to_text(to_document(guessed(task, f"{asked}:{seed}", self.errors)))

    def _verdicts(self, asked: str, written: str) -> str:
        task = task_for_prompt(asked)
        truth = stretches_of(task.document, self._codec) if task is not None else None
        texts = _STRETCH.findall(written)
        lines = []
        for number, hidden in _QUESTION.findall(written.rpartition("\n\nQUESTIONS\n\n")[2]):
            others = [int(each) - 1 for each in hidden.split(",")]
            is_needy = truth is not None and needs_hidden(truth, texts, int(number) - 1, others)
            rng = random.Random(f"stand-in:{asked}:{number}:{texts[int(number) - 1]}")
            is_wrong = rng.random() < self.judge_error
            lines.append(f"{number}: {'yes' if is_needy != is_wrong else 'no'}")
        return "\n".join(lines)


def needs_hidden(truth: Sequence[Stretch], texts: Sequence[str], number: int, hidden: Sequence[int]) -> bool:
    """Whether stretch ``number`` of an answer needs one of the ``hidden`` ones, by the true annotation's stretches.

    ``texts`` are stretches that follow one another and make up the answer. What a segment of the true annotation sees
    counts as needed; where nothing is independent each step so needs those before it.
    """
    owners = [index for index, stretch in enumerate(truth) for _ in stretch.text]

    def touched(stretch: int) -> set[int]:
        begin = sum(len(text) for text in texts[:stretch])
        found = set(owners[begin : begin + len(texts[stretch])])
        return {index for index in found if says_something(truth[index].text)}

    needed = {
        seen for index in touched(number) for seen in range(index + 1) if seen not in truth[index].hidden
    }
    return any(needed & touched(stretch) for stretch in hidden)


def _better(asked: str, a: str, b: str) -> str:
    task = task_for_prompt(asked)
    if task is None:
        return "A"
    first, second = (grade(task, answer) for answer in (a, b))
    return "A" if first.right * second.total >= second.right * first.total else "B"


class StandInServer(ThreadingHTTPServer):
    """A stand-in behind OpenAI's chat completions on 127.0.0.1; port 0 takes a free one. ``serve_forever`` serves."""

    daemon_threads = True

    def __init__(self, stand_in: StandIn, port: int = 0) -> None:
        self.stand_in = stand_in
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        """The address for a configuration's ``base_url``."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the error of a request, unless its client has gone: a job that was stopped, or waits no longer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StandInServer

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/v1/chat/completions":
            self._send(404, {"error": {"message": f"{self.path}: expected /v1/chat/completions"}})
            return
        try:
            body = json.loads(raw)
            text = self.server.stand_in.reply(body)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            self._send(400, {"error": {"message": f"no chat completion request: {error!r}"}})
            return
        read, written = (len(part.split()) for part in (json.dumps(body["messages"]), text))
        self._send(
            200,
            {
                "id": "stand-in",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": str(body.get("model", "stand-in")),
                "choices": [
                    {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
                ],
                # counted in words: the stand-in has no tokenizer
                "usage": {
                    "prompt_tokens": read,
                    "completion_tokens": written,
                    "total_tokens": read + written,
                },
            },
        )

    def _send(self, status: int, body: Mapping[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Print nothing a request."""


def serve_stand_in(port: int, judge_error: float) -> int:
    """``pasta stand-in``: serve until Ctrl-C; returns the exit code. Raises UserError for a port that is taken."""
    stand_in = StandIn(judge_error=judge_error)
    try:
        server = StandInServer(stand_in, port)
    except (OSError, OverflowError) as error:
        raise UserError(f"stand-in on port {port}: {error}") from None
    with server:
        print(f"teacher and judges at {server.url}; Ctrl-C ends it", flush=True)
        server.serve_forever()
    return 0
