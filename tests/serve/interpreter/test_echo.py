"""An answer that begins with its prompt."""

import pytest

from serve.interpreter.echo import Echo
from serve.wire import Decoded, Finished, Refused
from tests.support.models import tiny

CODEC = tiny().codec


@pytest.mark.parametrize("logprobs", [False, True])
def test_a_refusal_stays_the_last_that_is_said(logprobs):
    refused = Refused("no slot", status=503)
    echo = Echo(CODEC, CODEC.encode_text("France"), logprobs=logprobs)
    assert echo.passed([refused], None, None)[-1] is refused


def test_a_prompt_of_one_token_is_reported_too():
    (token,) = CODEC.encode_text("a")
    echo = Echo(CODEC, [token], logprobs=True)
    finished = Finished("length", 1, 0, {})
    (delta, last) = echo.passed([finished], Decoded("length", 1, 0.0, 0.0, 0.0), None)
    assert (delta.text, last) == ("a", finished)
    assert [(each.token, each.logprob, each.offset) for each in delta.logprobs] == [("a", None, 0)]
