"""Skeleton-of-Thought on the shipped sequential model and through endpoints, well-behaved ones and others."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pasta.data import atlas
from pasta.data.endpoint import EndpointError, EndpointSection
from pasta.data.prompts import Prompt
from pasta.data.skeletons import PROMPTED, SkeletonPrompts
from pasta.engine import Engine, EngineConfig, Request, load_model
from pasta.errors import UserError
from pasta.evaluation.config import SotSection
from pasta.evaluation.methods.answers import Answer
from pasta.evaluation.methods.sot import SotEndpointMethod, SotMethod
from pasta.interpreter import Limits
from tests.support.endpoint import completion, endpoint_server

TWIN = Path(atlas.__file__).parent / "models" / "twin"
# The shipped model knows no skeletons, but its numbered lists can be read as such.
WORDS = SkeletonPrompts(skeleton="{request}", point="{request} {point}", item="{text}", separator="|")
LIST = "Tell me about Italy, Norway and Chile. Use a numbered list."
PARAGRAPH = "Tell me about Italy, Norway and Chile. Use a single paragraph."
LIMITS = Limits(max_tokens=400)
SECTION = SotSection(prompts=WORDS)
Parts = tuple[Any, list[str], list[Any]]


def prompt(text: str) -> Prompt:
    return Prompt([{"role": "user", "content": text}])


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(load_model(TWIN, device="cpu"), EngineConfig(num_slots=10, slot_tokens=768, drafts=0))


def alone(engine: Engine, text: str, max_tokens: int = 400) -> Any:
    """The plain greedy answer to a text."""
    ids = engine.codec.encode_prompt([{"role": "user", "content": text}])
    return engine.generate(Request(prompt_ids=ids, limits=Limits(max_tokens=max_tokens), parallel=False))


@pytest.fixture(scope="module")
def listed(engine: Engine) -> Answer:
    return SotMethod(engine, LIMITS, SECTION).answer(prompt(LIST))


@pytest.fixture(scope="module")
def parts(engine: Engine) -> Parts:
    """Skeleton, points and expansions of ``LIST``, each decoded by itself."""
    skeleton = alone(engine, LIST, SECTION.max_skeleton_tokens)
    points = WORDS.read(skeleton.text)
    assert len(points) == 3
    return skeleton, points, [alone(engine, f"{LIST} {point}") for point in points]


@pytest.mark.slow
def test_points_are_decoded_together_as_they_would_be_alone(
    engine: Engine, listed: Answer, parts: Parts
) -> None:
    _, _, texts = parts
    assert listed.text == "|".join(part.text.strip() for part in texts)
    assert listed.fallback is None
    assert listed.finish_reason == "stop"
    assert engine.num_active == engine.num_waiting == 0


@pytest.mark.slow
def test_the_critical_path_is_the_skeleton_and_the_longest_point(listed: Answer, parts: Parts) -> None:
    skeleton, _, texts = parts
    assert listed.critical_path == skeleton.num_tokens + max(part.num_tokens for part in texts)
    # The engine prefills one prompt a step, so that points may begin some steps after the first one.
    assert listed.steps is not None
    assert listed.critical_path <= listed.steps <= listed.critical_path + len(texts)


@pytest.mark.slow
def test_every_token_of_every_request_is_counted(listed: Answer, parts: Parts) -> None:
    skeleton, _, texts = parts
    assert listed.budget == {
        "skeleton": skeleton.num_tokens,
        "text": sum(part.num_tokens for part in texts),
    }
    assert listed.tokens == sum(listed.budget.values())


@pytest.mark.slow
def test_threads_are_the_skeleton_and_then_its_points(listed: Answer, parts: Parts) -> None:
    skeleton, points, texts = parts
    main, *others = listed.threads
    assert (main.start, main.end, main.parent) == (0, skeleton.num_tokens, None)
    assert [thread.topic for thread in others] == points
    assert {thread.parent for thread in others} == {0}
    assert [(thread.start, thread.end - thread.start) for thread in others] == [
        (skeleton.num_tokens, part.num_tokens) for part in texts
    ]


def test_time_runs_over_both_stages(engine: Engine) -> None:
    begun = time.perf_counter()
    answer = SotMethod(engine, LIMITS, SECTION).answer(prompt(LIST))
    spent = time.perf_counter() - begun
    assert answer.ttft_s is not None
    assert 0 < answer.ttft_s < answer.seconds[0] < spent


def test_an_answer_becomes_a_record_that_is_json(listed: Answer) -> None:
    record = listed.to_record()
    assert record["annotated"] is None
    assert len(record["threads"]) == 4


@pytest.mark.slow
def test_without_a_skeleton_the_answer_is_sequential_and_the_attempt_is_counted(engine: Engine) -> None:
    answer = SotMethod(engine, LIMITS, SECTION).answer(prompt(PARAGRAPH))
    plain = alone(engine, PARAGRAPH)
    assert answer.fallback == "no skeleton"
    assert answer.text == plain.text
    assert answer.budget["text"] == plain.num_tokens
    assert answer.budget["skeleton"] > 1
    assert answer.critical_path == answer.tokens == sum(answer.budget.values())
    assert [thread.topic for thread in answer.threads] == [None, None]


def test_a_skeleton_that_is_cut_is_none(engine: Engine) -> None:
    answer = SotMethod(engine, LIMITS, replace(SECTION, max_skeleton_tokens=60)).answer(prompt(LIST))
    assert answer.fallback == "skeleton cut at its limit"
    assert answer.budget["skeleton"] == 60
    assert answer.text == alone(engine, LIST).text


@pytest.mark.slow
def test_points_without_room_are_answered_sequentially(engine: Engine) -> None:
    words = replace(WORDS, point="{request} {point}" + " and so on" * 400)
    answer = SotMethod(engine, LIMITS, SotSection(prompts=words)).answer(prompt(LIST))
    assert answer.fallback == "no room for the requests of the points"
    assert answer.text == alone(engine, LIST).text


def test_a_point_that_is_cut_shows(engine: Engine) -> None:
    answer = SotMethod(engine, LIMITS, replace(SECTION, max_point_tokens=8)).answer(prompt(LIST))
    assert answer.finish_reason == "length"
    assert answer.budget["text"] == 24


def test_a_prompt_without_room_is_refused(engine: Engine) -> None:
    with pytest.raises(UserError, match="the context holds 768"):
        SotMethod(engine, LIMITS, SECTION).answer(prompt("Tell me more. " * 400))
    assert engine.num_active == engine.num_waiting == 0


# -- through an endpoint -----------------------------------------------------------------------------


def section(url: str, **values: Any) -> EndpointSection:
    options = {"base_url": url, "model": "m", "backoff_s": 0.01, "retries": 2, "concurrency": 10, **values}
    return EndpointSection(**options)


def ask(answer: Callable[[dict[str, Any], int], Any], **values: Any) -> tuple[Answer, Any]:
    with endpoint_server(answer) as server:
        method = SotEndpointMethod(section(server.url, **values), "key", LIMITS, SotSection())
        return method.answer(prompt("Which drinks are hot?")), server


def drinks(body: dict[str, Any], _: int) -> Any:
    """A skeleton of three drinks, and a text about each."""
    content = body["messages"][-1]["content"]
    if "numbered list" in content:
        return completion("1. Tea\n2. Coffee\n3. Cocoa")
    (named,) = [name for name in ("Tea", "Coffee", "Cocoa") if f": {name}\n" in content] or ["All"]
    return completion(f"{named} is hot.\n")


def test_an_endpoint_is_asked_for_all_points_at_once() -> None:
    all_points = threading.Barrier(3)

    def together(body: dict[str, Any], number: int) -> Any:
        if number > 0:  # the skeleton comes first
            all_points.wait(20)
        return drinks(body, number)

    answer, server = ask(together)
    assert answer.text == "1. Tea: Tea is hot.\n2. Coffee: Coffee is hot.\n3. Cocoa: Cocoa is hot."
    assert answer.fallback is None
    assert server.most_at_once == 3
    assert answer.budget == {"skeleton": 1, "text": 3}
    assert (answer.critical_path, answer.steps, answer.threads, answer.ttft_s) == (None, None, (), None)
    assert len(answer.seconds) == 1
    first, *others = [request["body"]["messages"][-1]["content"] for request in server.requests]
    words = PROMPTED.skeleton_messages([{"role": "user", "content": "Which drinks are hot?"}])
    assert first == words[0]["content"]
    assert all("1. Tea\n2. Coffee\n3. Cocoa" in content for content in others)


@pytest.mark.parametrize(
    ("skeleton", "why"),
    [
        ("Drinks that are hot are tea and coffee.", "no skeleton"),
        ("- Tea\n- Coffee", "no skeleton"),
        ("", "no skeleton"),
        ("1. Tea", "skeleton of one point"),
    ],
)
def test_garbage_for_a_skeleton_is_paid_for_and_the_prompt_asked_plainly(skeleton: str, why: str) -> None:
    answer, server = ask(lambda body, number: completion("Tea is." if number else skeleton))
    assert (answer.text, answer.fallback) == ("Tea is.", why)
    assert answer.budget == {"skeleton": 1, "text": 1}
    assert server.requests[-1]["body"]["messages"] == [{"role": "user", "content": "Which drinks are hot?"}]


def test_points_that_the_endpoint_has_no_room_for_are_answered_sequentially() -> None:
    def answer(body: dict[str, Any], number: int) -> Any:
        is_point = "Your part is point" in body["messages"][-1]["content"]
        return (400, {"error": {"message": "maximum context length"}}) if is_point else drinks(body, number)

    found, server = ask(answer)
    assert (found.text, found.fallback) == ("All is hot.\n", "no room for the requests of the points")
    assert found.budget == {"skeleton": 1, "text": 1}
    # Another point's request may still come after it.
    asked = [request["body"]["messages"][-1]["content"] for request in server.requests]
    assert asked.count("Which drinks are hot?") == 1


@pytest.mark.parametrize("bad", [(429, {"error": {"message": "slow down"}}), (500, {}), None])
def test_what_may_pass_is_tried_again(bad: Any) -> None:
    answer, server = ask(lambda body, number: bad if number in (0, 2) else drinks(body, number))
    assert answer.text.startswith("1. Tea: Tea is hot.")
    assert len(server.requests) == 6


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        ((401, {"error": {"message": "bad key"}}), "refused the key in OPENAI_API_KEY"),
        ((500, {"error": {"message": "boom"}}), "HTTP 500: boom, 3 tries in a row"),
        (None, "3 tries in a row"),
    ],
)
def test_an_endpoint_that_fails_for_good_ends_the_run(bad: Any, expected: str) -> None:
    with pytest.raises(EndpointError, match=expected):
        ask(lambda body, number: bad if number else completion("1. Tea\n2. Coffee"))


def test_an_endpoint_without_room_refuses_the_prompt_alone() -> None:
    body = {"error": {"message": "This model's maximum context length is 16 tokens."}}
    with pytest.raises(UserError, match="the endpoint has no room for it") as caught:
        ask(lambda *_: (400, body))
    assert not isinstance(caught.value, EndpointError)
