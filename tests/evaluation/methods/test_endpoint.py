"""Plain answers of an endpoint: what it says, what it counts, and what happens when it does not."""

from typing import Any

import pytest

from pasta.data.endpoint import EndpointError, EndpointSection
from pasta.data.prompts import Prompt
from pasta.errors import UserError
from pasta.evaluation.methods.answers import Answer
from pasta.evaluation.methods.endpoint import EndpointMethod
from pasta.interpreter import Limits
from tests.support.endpoint import completion, endpoint_server

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is tea hot?"}]


def ask(answer: Any, **values: Any) -> tuple[Answer, Any]:
    with endpoint_server(answer) as server:
        section = EndpointSection(server.url, "m", backoff_s=0.01, retries=2, **values)
        method = EndpointMethod(section, "key", Limits(max_tokens=32))
        return method.answer(Prompt(MESSAGES)), server


def test_the_prompt_is_sent_as_it_is_and_the_answer_kept_as_it_is() -> None:
    answer, server = ask(lambda *_: completion(" It is.\n"))
    assert answer.text == " It is.\n"
    assert (answer.tokens, answer.budget) == (1, {"text": 1})
    assert (answer.critical_path, answer.steps, answer.ttft_s, answer.threads) == (None, None, None, ())
    assert (answer.finish_reason, answer.fallback, len(answer.seconds)) == ("stop", None, 1)
    (request,) = server.requests
    assert request["body"]["messages"] == MESSAGES
    assert (request["body"]["max_tokens"], request["body"]["temperature"]) == (32, 0.0)
    assert request["authorization"] == "Bearer key"


def test_a_prompt_that_an_endpoint_refuses_while_it_answers_others_is_refused_by_itself() -> None:
    def answer(body: dict[str, Any], _: int) -> Any:
        refused = (400, {"error": {"message": "the prompt triggered the content policy"}})
        return refused if body["messages"] == MESSAGES else completion("yes")

    with pytest.raises(UserError, match=r"does not take it .*content policy") as caught:
        ask(answer)
    assert not isinstance(caught.value, EndpointError)


def test_one_method_answers_prompt_after_prompt() -> None:
    with endpoint_server(lambda _, number: completion(f"Answer {number}.")) as server:
        method = EndpointMethod(EndpointSection(server.url, "m"), None, Limits())
        assert [method.answer(Prompt(MESSAGES)).text for _ in range(3)] == [
            "Answer 0.",
            "Answer 1.",
            "Answer 2.",
        ]


def test_an_answer_that_is_cut_shows() -> None:
    status, body = completion("It")  # type: ignore[misc]
    body["choices"][0]["finish_reason"] = "length"
    assert ask(lambda *_: (status, body))[0].finish_reason == "length"


def test_half_of_a_character_that_a_limit_cut_can_be_recorded() -> None:
    # as a server sends it that counts in UTF-16
    answer, _ = ask(lambda *_: completion("Hot \ud83c\udf75, and hot \ud83c"))
    assert answer.text == "Hot 🍵, and hot \ufffd"
    assert answer.text.encode()


def test_an_endpoint_that_counts_nothing_has_no_tokens() -> None:
    status, body = completion("It is.")  # type: ignore[misc]
    del body["usage"]
    assert ask(lambda *_: (status, body))[0].tokens == 0


def test_what_may_pass_is_tried_again() -> None:
    answer, server = ask(lambda _, number: completion("It is.") if number > 1 else (503, "busy"))
    assert answer.text == "It is."
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        ((401, {"error": {"message": "bad key"}}), "refused the key"),
        ((404, {"error": {"message": "no such model"}}), "no such model"),
        ((400, {"error": {"message": "temperature is not supported"}}), "temperature is not supported"),
        ((429, {"error": {"message": "slow down"}}), "3 tries in a row"),
        ((500, {}), "3 tries in a row"),
        ((200, "<html>"), "no chat completion"),
        (None, "3 tries in a row"),
    ],
)
def test_what_does_not_pass_ends_the_run(bad: Any, expected: str) -> None:
    with pytest.raises(EndpointError, match=expected):
        ask(lambda *_: bad)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "This model's maximum context length is 4096 tokens. However, you requested 5000."),
        (400, "The prompt has 3000 tokens, but this model's context holds 2048; shorten the messages."),
        (422, "Input is too long."),
        (413, "Payload"),
    ],
)
def test_a_prompt_that_is_too_long_is_refused_by_itself(status: int, message: str) -> None:
    with pytest.raises(UserError, match="the endpoint has no room for it") as caught:
        ask(lambda *_: (status, {"error": {"message": message}}))
    assert not isinstance(caught.value, EndpointError)
    assert "\n" not in str(caught.value)
