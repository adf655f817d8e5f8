"""The teacher against a real HTTP server that answers well, badly, or not at all."""

from collections.abc import Callable
from typing import Any

import pytest

from pasta.data.annotate.annotator import Proposal
from pasta.data.annotate.prompt import EXAMPLES
from pasta.data.annotate.teacher import Teacher, TeacherSection
from pasta.data.annotate.validator import ChecksSection, Validator
from pasta.data.endpoint import EndpointSection
from pasta.data.instructions import Instruction
from pasta.errors import UserError
from pasta.lang import Codec, strip
from tests.support.endpoint import Answer, completion, endpoint_server
from tests.support.tokenizers import byte_level

KEY = "sk-very-secret"
TRUTH = {strip(example.annotated): example.annotated for example in EXAMPLES}
RECORDS = [
    Instruction(str(n), f"x:{n}", ({"role": "user", "content": "?"},), answer)
    for n, answer in enumerate(TRUTH)
]


def truth(body: dict[str, Any]) -> str:
    """What a perfect teacher says to a request."""
    asked = next(m["content"] for m in body["messages"][15:] if m["role"] == "user")
    return TRUTH[asked.partition("\n\nANSWER\n\n")[2]]


def is_probe(body: dict[str, Any]) -> bool:
    return len(body["messages"]) == 1


def ask(
    answer: Callable[[dict[str, Any], int], Answer],
    records: list[Instruction] = RECORDS,
    attempts: int = 2,
    **endpoint: Any,
) -> tuple[dict[str, Proposal], list[dict[str, Any]]]:
    """Proposals by record id, and the requests that the server saw."""
    found: dict[str, Proposal] = {}
    with endpoint_server(answer) as server:
        section = EndpointSection(
            **{
                "base_url": server.url,
                "model": "m",
                "retries": 2,
                "backoff_s": 0.01,
                "timeout_s": 20,
                **endpoint,
            }
        )
        validator = Validator(ChecksSection(min_speedup=0.0), Codec(byte_level()))
        teacher = Teacher(TeacherSection(section, attempts=attempts), validator, api_key=KEY)
        teacher.annotate(records, lambda record, proposal: found.__setitem__(record.id, proposal))
    return found, server.requests


def test_every_record_is_annotated_and_counted() -> None:
    found, requests = ask(lambda body, _: completion(truth(body)))
    assert {found[record.id].annotated for record in RECORDS} == set(TRUTH.values())
    assert all(proposal.usage.prompt_tokens == 7 for proposal in found.values())
    assert {request["authorization"] for request in requests} == {f"Bearer {KEY}"}


def test_no_more_requests_at_once_than_allowed() -> None:
    with endpoint_server(lambda body, _: completion(truth(body))) as server:
        section = EndpointSection(base_url=server.url, model="m", concurrency=4)
        validator = Validator(ChecksSection(), Codec(byte_level()))
        # Half of the run's concurrency is this worker's.
        Teacher(TeacherSection(section), validator, share=0.5).annotate(RECORDS, lambda *_: None)
    assert server.most_at_once <= 2


def test_a_faulty_annotation_is_asked_for_again_with_its_fault() -> None:
    def answer(body: dict[str, Any], number: int) -> Answer:
        return completion(truth(body) if len(body["messages"]) > 16 else "Something else.")

    found, requests = ask(answer, RECORDS[:1])
    assert found["0"].annotated == TRUTH[RECORDS[0].answer]
    assert found["0"].usage.requests == 2
    assert "without its tags it is not the answer" in requests[1]["body"]["messages"][-1]["content"]


def test_a_fault_that_stays_is_left_to_the_validator() -> None:
    found, requests = ask(lambda *_: completion("Something else."), RECORDS[:1], attempts=3)
    assert found["0"].annotated == "Something else."
    assert len(requests) == 3


@pytest.mark.parametrize(
    "failure",
    [(429, {"error": {"message": "slow down"}}, {"Retry-After": "0.01"}), (500, {"error": {"message": "oops"}}),
     (200, "<html>garbage</html>"), (200, b"{"), (200, {"choices": []}), None],
)  # fmt: skip
def test_a_failure_that_passes_costs_no_record(failure: Answer) -> None:
    failed: set[str] = set()

    def answer(body: dict[str, Any], number: int) -> Answer:
        asked = body["messages"][-1]["content"]
        if asked not in failed:
            failed.add(asked)
            return failure
        return completion(truth(body))

    found, _ = ask(answer)
    assert {found[record.id].annotated for record in RECORDS} == set(TRUTH.values())


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        ((401, {"error": {"message": f"Incorrect key: {KEY}"}}), "401"),
        ((404, {"error": {"message": "no such model"}}), "no such model"),
        ((500, {"error": {"message": "oops"}}), "oops"),
        ((429, {"error": {"message": "slow down"}}), "slow down"),
        ((200, "<html>garbage</html>"), "garbage"),
        (None, "3 tries"),
    ],
)
def test_an_endpoint_that_answers_nothing_stops_the_run_in_one_line(failure: Answer, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        ask(lambda *_: failure, max_backoff_s=0.02)
    assert expected in str(caught.value)
    assert "127.0.0.1" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        ((500, {"error": {"message": "this one crashes me"}}), "no answer"),
        ((400, {"error": {"message": "content policy"}}), "refused"),
    ],
)
def test_a_record_that_the_endpoint_cannot_take_is_given_up_alone(failure: Answer, reason: str) -> None:
    def answer(body: dict[str, Any], number: int) -> Answer:
        if is_probe(body):
            return completion("yes")
        text = truth(body)
        return failure if text == TRUTH[RECORDS[2].answer] else completion(text)

    found, _ = ask(answer)
    assert [n for n, proposal in found.items() if proposal.annotated is None] == ["2"]
    assert found["2"].reason == reason
    assert failure is not None
    assert failure[1]["error"]["message"] in found["2"].detail


def test_an_annotation_that_was_cut_off_is_not_used() -> None:
    def answer(body: dict[str, Any], number: int) -> Answer:
        cut = completion("Two small")
        assert cut is not None
        cut[1]["choices"][0]["finish_reason"] = "length"
        return cut

    found, requests = ask(answer, RECORDS[:1])
    assert (found["0"].annotated, found["0"].reason) == (None, "cut off")
    assert len(requests) == 1
