"""An answer that begins with its prompt."""

import pytest

from serve.interpreter.echo import Echo
from serve.wire import Refused
from tests.support.models import tiny

CODEC = tiny().codec


@pytest.mark.parametrize("logprobs", [False, True])
def test_a_refusal_stays_the_last_that_is_said(logprobs):
    refused = Refused("no slot", status=503)
    echo = Echo(CODEC, CODEC.encode_text("France"), logprobs=logprobs)
    assert echo.passed([refused], None, None)[-1] is refused
