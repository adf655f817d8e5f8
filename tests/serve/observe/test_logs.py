"""Log lines: a closed list of fields, one line each, a request's id in all of them."""

import asyncio
import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray._common.formatters import JSONFormatter

from pasta.errors import UserError
from serve.errors import ApiError
from serve.observe.logs import FIELDS, log, log_failed_start, request_id


class Lines(logging.Handler):
    """Keeps what Ray Serve's formatter makes of records."""

    def __init__(self):
        super().__init__()
        self.setFormatter(JSONFormatter())
        self.lines = []

    def emit(self, record):
        self.lines.append(self.format(record))


@pytest.fixture
def lines():
    handler, logger = Lines(), logging.getLogger("test.logs")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler.lines
    logger.removeHandler(handler)


def write(event="answered", request="r-1", **fields):
    log(logging.getLogger("test.logs"), event, request, **fields)


def test_a_line_is_json_with_its_event_request_and_fields(lines):
    write(model="pasta-atlas", tokens=3, total_ms=1.5, stream=True, code=None)
    (line,) = map(json.loads, lines)
    assert (line["message"], line["request"], line["levelname"]) == ("answered", "r-1", "INFO")
    assert (line["model"], line["tokens"], line["total_ms"], line["stream"]) == ("pasta-atlas", 3, 1.5, True)
    assert "code" not in line


def test_there_is_no_field_for_what_must_not_be_logged():
    assert not FIELDS & {
        "prompt",
        "messages",
        "text",
        "content",
        "body",
        "authorization",
        "api_key",
        "headers",
    }
    with pytest.raises(ValueError, match="prompt is not a field of log lines"):
        write(prompt="a secret")


@settings(deadline=None)
@given(st.text())
def test_text_from_outside_stays_short_and_on_its_line(text):
    handler, logger = Lines(), logging.getLogger("test.logs.text")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO)
    log(logger, "refused", "r-1", reason=text)
    (line,) = handler.lines
    kept = json.loads(line)["reason"]
    assert "\n" not in line
    assert len(kept) <= 200
    assert kept.isprintable()


@pytest.mark.parametrize("given_id", ["req-1", "a" * 128, "0f8fad5b-d9cb-469f-a165-70867728950e", "a.b:c_d"])
def test_a_client_s_id_is_kept(given_id):
    assert request_id({"x-request-id": given_id}) == given_id


def test_a_request_without_an_id_gets_one_of_its_own():
    assert request_id({}) != request_id({})


@pytest.mark.parametrize("given_id", ["", "a b", "a\nb", "é", "a" * 129, "<script>", "\x1b[31m", '"'])
def test_an_id_that_is_none_is_refused_by_name(given_id):
    with pytest.raises(ApiError) as refused:
        request_id({"x-request-id": given_id})
    assert (refused.value.status, refused.value.param) == (400, "X-Request-Id")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UserError("keys.yaml: no such file"), "cannot start: keys.yaml: no such file"),
        (MemoryError(), "cannot start: MemoryError"),
        (KeyError("a"), "cannot start: KeyError: 'a'"),
        (RuntimeError("out of memory\nat 0x7f"), "cannot start: RuntimeError: out of memory"),
        (None, None),
    ],
    ids=["a user's mistake", "without a message", "a key", "several lines", "nothing"],
)
def test_a_replica_that_cannot_start_says_why_in_its_own_log(lines, error, said):
    """Ray Serve writes it to the log of its controller, which may be on another node."""

    class Replica:
        @log_failed_start(logging.getLogger("test.logs"))
        async def __init__(self, value):
            self.value = value
            if error is not None:
                raise error

    async def start():
        made = Replica.__new__(Replica)
        await made.__init__(value=3)
        return made.value

    if error is None:
        assert asyncio.run(start()) == 3
        assert not lines
    else:
        with pytest.raises(type(error)):
            asyncio.run(start())
        (line,) = map(json.loads, lines)
        assert (line["message"], line["levelname"], line["log_to_stderr"]) == (said, "ERROR", False)
