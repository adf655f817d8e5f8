"""The teacher against a real HTTP server that answers well, badly, or not at all."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pasta.data.annotate.annotator import Proposal, TeacherUsage
from pasta.data.annotate.independence import IndependenceSection
from pasta.data.annotate.prompt import EXAMPLES
from pasta.data.annotate.teacher import Keys, Teacher, TeacherSection
from pasta.data.annotate.validator import ChecksSection, Validator
from pasta.data.endpoint import EndpointSection
from pasta.data.instructions import Instruction
from pasta.errors import UserError
from pasta.lang import Codec, strip
from pasta.stages.records import RecordFile
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
    temperature: float = 0.0,
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
        options = TeacherSection(section, temperature=temperature, attempts=attempts)
        teacher = Teacher(options, validator, keys=Keys(KEY))
        teacher.annotate(records, lambda record, proposal: found.__setitem__(record.id, proposal))
    return found, server.requests


@pytest.mark.slow
def test_every_record_is_annotated_and_counted() -> None:
    found, requests = ask(lambda body, _: completion(truth(body)))
    assert {found[record.id].annotated for record in RECORDS} == set(TRUTH.values())
    assert all(proposal.usage.prompt_tokens == 7 for proposal in found.values())
    assert {request["authorization"] for request in requests} == {f"Bearer {KEY}"}


@pytest.mark.parametrize(("concurrency", "workers", "allowed"), [(4, 2, 2), (3, 2, 1), (8, 3, 2)])
def test_no_more_requests_at_once_than_allowed(concurrency: int, workers: int, allowed: int) -> None:
    def slow(body: dict[str, Any], number: int) -> Answer:
        time.sleep(0.03)
        return completion(truth(body))

    with endpoint_server(slow) as server:
        section = EndpointSection(base_url=server.url, model="m", concurrency=concurrency)
        validator = Validator(ChecksSection(), Codec(byte_level()))
        Teacher(TeacherSection(section), validator, share=1 / workers).annotate(RECORDS, lambda *_: None)
    assert server.most_at_once == allowed


def test_a_proposal_that_cannot_be_written_is_one_clear_line() -> None:
    def deliver(record: Instruction, proposal: Proposal) -> None:
        raise UserError("cannot be written (No space left on device)")

    with endpoint_server(lambda body, _: completion(truth(body))) as server:
        validator = Validator(ChecksSection(), Codec(byte_level()))
        teacher = Teacher(TeacherSection(EndpointSection(server.url, "m")), validator)
        with pytest.raises(UserError, match="No space left on device"):
            teacher.annotate(RECORDS, deliver)


def test_a_faulty_annotation_is_asked_for_again_with_its_fault() -> None:
    def answer(body: dict[str, Any], number: int) -> Answer:
        return completion(truth(body) if len(body["messages"]) > 16 else "Something else.")

    found, requests = ask(answer, RECORDS[:1])
    assert found["0"].annotated == TRUTH[RECORDS[0].answer]
    assert found["0"].usage.requests == 2
    assert "without its tags it is not the answer" in requests[1]["body"]["messages"][-1]["content"]


def test_a_fault_that_stays_is_refused_with_what_was_said() -> None:
    found, requests = ask(lambda *_: completion("Something else."), RECORDS[:1], attempts=3)
    assert (found["0"].annotated, found["0"].reason) == (None, "differs")
    assert [refused.annotated for refused in found["0"].refused] == ["Something else."]
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


def test_replies_that_cannot_be_read_are_in_what_a_record_has_cost() -> None:
    """Also those of a record that is given up."""
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}

    def answer(body: dict[str, Any], number: int) -> Answer:
        if is_probe(body):
            return completion("yes")
        if truth(body) != TRUTH[RECORDS[0].answer] and number != 0:
            return completion(truth(body))
        return 200, {"choices": [], "usage": usage}

    found, _ = ask(answer, RECORDS[:1])
    assert found["0"].reason == "no answer"
    assert found["0"].usage == TeacherUsage(1, 3 * 100 + 7, 3 * 10 + 1)
    found, _ = ask(answer, RECORDS[1:2])
    assert found["1"].annotated is not None
    assert found["1"].usage == TeacherUsage(1, 100 + 7, 10 + 1)


def test_a_refused_record_is_given_up_alone_by_a_model_that_takes_one_temperature() -> None:
    """As reasoning models of OpenAI's do, which take 1 only."""

    def answer(body: dict[str, Any], number: int) -> Answer:
        if body["temperature"] != 1.0:
            return 400, {"error": {"message": "temperature: only 1 is supported"}}
        return completion("yes") if is_probe(body) else (400, {"error": {"message": "content policy"}})

    found, _ = ask(answer, RECORDS[:1], temperature=1.0)
    assert found["0"].reason == "refused"
    assert "content policy" in found["0"].detail


def test_an_annotation_that_was_cut_off_is_not_used() -> None:
    def answer(body: dict[str, Any], number: int) -> Answer:
        cut = completion("Two small")
        assert cut is not None
        cut[1]["choices"][0]["finish_reason"] = "length"
        return cut

    found, requests = ask(answer, RECORDS[:1])
    assert (found["0"].annotated, found["0"].reason) == (None, "cut off")
    assert len(requests) == 1


TEA, COFFEE, COCOA = (f"{name} is made of {part}. " * 3 for name, part in
                     (("Tea", "leaves"), ("Coffee", "beans"), ("Cocoa", "seeds")))  # fmt: skip
PLAIN = Instruction("plain", "x:1", ({"role": "user", "content": "?"},), TEA + COFFEE + COCOA)
ONE = f'<promise topic="tea" tokens="80"/><async>{TEA}</async>{COFFEE}{COCOA}'
TWO = ONE.replace(COFFEE, f'<promise topic="coffee" tokens="80"/><async>{COFFEE}</async>')


def propose(
    proposals: list[str], verdict: Callable[[str], str] | None = None, **options: Any
) -> tuple[Proposal, list[dict[str, Any]]]:
    """What becomes of a record for which the teacher says one of ``proposals`` after another, and the judge
    ``verdict`` of the questions; and the teacher's requests."""
    found: list[Proposal] = []
    with (
        endpoint_server(lambda _, number: completion(proposals[number])) as server,
        endpoint_server(
            lambda body, _: completion((verdict or str)(body["messages"][1]["content"]))
        ) as judge,
    ):
        sections = [EndpointSection(base_url=each.url, model="m", backoff_s=0.01) for each in (server, judge)]
        section = TeacherSection(
            sections[0],
            temperature=1.0,
            attempts=1,
            proposals=len(proposals),
            independence_judge=IndependenceSection(sections[1]) if verdict else None,
            **options,
        )
        validator = Validator(ChecksSection(min_speedup=0.0), Codec(byte_level()))
        Teacher(section, validator).annotate([PLAIN], lambda _, proposal: found.append(proposal))
    return found[0], server.requests


def test_the_most_parallel_valid_proposal_is_taken() -> None:
    found, requests = propose([ONE, "Something else.", TWO, PLAIN.answer], seed=7)
    assert found.annotated == TWO
    assert [refused.reason for refused in found.refused] == ["differs"]
    assert found.usage.requests == 4
    assert [request["body"]["seed"] for request in requests] == [7, 8, 9, 10]
    assert {request["body"]["temperature"] for request in requests} == {1.0}


def test_replies_to_a_record_that_was_cut_are_not_paid_for_again(tmp_path: Path) -> None:
    """Proposals of one record were asked for anew, and their first replies were in no cost."""
    is_refused = True

    def answer(body: dict[str, Any], number: int) -> Answer:
        return (401, {}) if number == 2 and is_refused else completion(ONE if number < 2 else TWO)

    def judged(body: dict[str, Any], number: int) -> Answer:
        return (401, {}) if is_refused else completion("2: no\n3: no")

    with endpoint_server(answer) as server, endpoint_server(judged) as judge:
        asked = IndependenceSection(EndpointSection(judge.url, "m"))
        section = TeacherSection(
            EndpointSection(server.url, "m"), temperature=1.0, proposals=3, independence_judge=asked
        )
        teacher = Teacher(section, Validator(ChecksSection(min_speedup=0.0), Codec(byte_level())))
        found: list[Proposal] = []

        def annotate() -> None:
            journal = RecordFile(tmp_path / "journal.jsonl", {})
            teacher.annotate([PLAIN], lambda _, proposal: found.append(proposal), journal)

        with pytest.raises(UserError, match="refused the key"):
            annotate()  # at the third proposal
        with pytest.raises(UserError, match="refused the key"):
            annotate()  # at the judge
        is_refused = False
        annotate()
    assert [proposal.annotated for proposal in found] == [TWO]
    assert (found[0].usage.requests, found[0].judged.requests) == (3, 1)
    assert len(server.requests) == 3 + 1
    assert len(judge.requests) == 1 + 1


def test_a_proposal_whose_parts_need_each_other_gives_way_to_the_next() -> None:
    # Neither in TWO nor in ONE does the second stretch see the first.
    found, _ = propose([TWO, PLAIN.answer, ONE], lambda _: "2: yes\n3: no")
    assert found.annotated == PLAIN.answer
    assert [(refused.annotated, refused.reason) for refused in found.refused] == [
        (TWO, "dependent"),
        (ONE, "dependent"),
    ]
    assert "'Coffee is made of beans." in found.refused[0].detail
    assert (found.usage.requests, found.judged.requests) == (3, 2)


def test_alike_proposals_are_judged_once_and_a_record_without_a_good_one_has_all_reasons() -> None:
    found, _ = propose([TWO, TWO, "Something else."], lambda _: "2: yes\n3: no")
    assert (found.annotated, found.reason) == (None, "dependent")
    assert [refused.reason for refused in found.refused] == ["differs", "dependent"]
    assert found.judged.requests == 1


def test_a_verdict_that_cannot_be_read_is_asked_for_again_and_then_refuses() -> None:
    found, _ = propose([TWO], lambda _: "Well, it depends.")
    assert (found.reason, found.judged.requests) == ("not judged", 2)
    assert "Well, it depends." in found.detail


def test_what_a_judge_was_paid_before_it_refused_to_be_asked_again_is_counted() -> None:
    def judged(body: dict[str, Any], number: int) -> Answer:
        if number == 0:
            return completion("Well, it depends.")
        return completion("yes") if is_probe(body) else (400, {"error": {"message": "too long"}})

    found: list[Proposal] = []
    with endpoint_server(lambda *_: completion(TWO)) as server, endpoint_server(judged) as judge:
        asked = IndependenceSection(EndpointSection(judge.url, "m"))
        section = TeacherSection(EndpointSection(server.url, "m"), independence_judge=asked)
        validator = Validator(ChecksSection(min_speedup=0.0), Codec(byte_level()))
        Teacher(section, validator).annotate([PLAIN], lambda _, proposal: found.append(proposal))
    assert found[0].reason == "not judged"
    assert "too long" in found[0].detail
    assert found[0].judged == TeacherUsage(2, 14, 2)


def test_a_proposal_survives_the_journal() -> None:
    found, _ = propose([TWO, ONE], lambda _: "2: yes\n3: no")
    assert Proposal.of(json.loads(json.dumps(asdict(found)))) == found


def test_proposals_that_would_be_alike_are_refused() -> None:
    with pytest.raises(ValueError, match="proposals 4: expected a temperature above 0"):
        TeacherSection(EndpointSection(base_url="http://x", model="m"), proposals=4)
