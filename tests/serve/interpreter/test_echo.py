"""An answer that begins with its prompt."""

import pytest

from pasta.lang import Codec, encode_start
from serve.interpreter.echo import Echo
from serve.wire import Decoded, Delta, Finished, Refused
from tests.support.models import tiny
from tests.support.tokenizers import sentencepiece_bpe

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


def test_what_comes_with_log_probabilities_tells_the_answer_s_tokens():
    echo = Echo(CODEC, CODEC.encode_text("a"), logprobs=True)
    deltas = [Delta("b", completion_tokens=2), Delta("c", completion_tokens=3)]
    finished = Finished("length", 1, 3, {})
    echo.passed(deltas[:1], None, None)
    (delta, _) = echo.passed([deltas[1], finished], Decoded("length", 1, 0.0, 0.0, 0.0), None)
    assert (delta.text, delta.completion_tokens) == ("abc", 3)


@pytest.mark.parametrize("logprobs", [False, True])
def test_the_space_that_sentencepiece_puts_before_a_prompt_is_not_shown(logprobs):
    codec = Codec(sentencepiece_bpe())
    ids, answer = encode_start(codec, "The capital"), [Delta("."), Finished("length", 1, 1, {})]
    decoded = Decoded("length", 1, 0.0, 0.0, 0.0, prompt_logprobs=tuple((0.0, ()) for _ in ids[1:]))
    told = Echo(codec, ids, logprobs=logprobs).passed(answer, decoded, None)
    text = "".join(each.text for each in told if isinstance(each, Delta))
    assert text == "The capital."
    if logprobs:
        tokens = told[0].logprobs[len(codec.begin_ids) :]
        assert "".join(each.token for each in tokens) == "The capital"
        assert [text[each.offset :].startswith(each.token) for each in tokens] == [True] * len(tokens)
