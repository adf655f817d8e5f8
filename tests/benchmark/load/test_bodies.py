"""The hostile requests: the same ones for a seed, of every kind, to every route, and never larger than they may be."""

import json

import pytest

from pasta.benchmark.load.bodies import KINDS, hostile_request

ROUTES = {
    "/v1/chat/completions": ["model", "messages", "stop", "guided_json"],
    "/v1/completions": ["model", "prompt", "logit_bias"],
    "/detokenize": ["model", "tokens"],
    "/unheard/of": ["anything"],
}
MOST = 60_000


def made(count, seed=0, most=MOST):
    return [hostile_request(number, seed, "m", ROUTES, most) for number in range(count)]


def test_they_follow_from_the_seed():
    assert made(60) == made(60)
    assert made(60) != made(60, seed=1)
    assert made(60)[41] == hostile_request(41, 0, "m", ROUTES, MOST)


def test_all_kinds_occur_for_all_routes():
    found = made(20 * len(KINDS))
    assert {each.kind for each in found} == {*KINDS}
    assert {each.path for each in found} == {*ROUTES}


@pytest.mark.parametrize("most", [2_000, MOST])
def test_none_is_larger_than_the_service_takes_and_some_are_as_large(most):
    sizes = [len(each.body) for each in made(20 * len(KINDS), most=most)]
    assert max(sizes) <= most
    assert sum(size > 0.8 * most for size in sizes) > len(sizes) / 10


def test_some_of_them_are_right_and_others_are_no_json_and_no_text():
    def kind(body):
        try:
            return type(json.loads(body))
        except (ValueError, RecursionError) as error:
            return type(error)

    found = {kind(each.body) for each in made(20 * len(KINDS))}
    assert found >= {dict, list, json.JSONDecodeError, UnicodeDecodeError, RecursionError}


def test_some_large_bodies_arrive_together():
    found = made(20 * len(KINDS))
    assert {each.copies for each in found} == {1, 8}
    assert min(len(each.body) for each in found if each.copies > 1) > MOST / 2


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_some_of_them_ask_for_a_large_answer(path):
    routes = {path: ["model", "guided_json", *(["top_logprobs"] if "chat" in path else [])]}
    found = [hostile_request(number, 0, "m", routes, MOST).body for number in range(20 * 40)]
    asked = [json.loads(body) for body in found if b'"ignore_eos": true' in body and b'"n": 8' in body]
    assert asked
    for body in asked:
        assert body["n"] * body["max_tokens"] * (body.get("top_logprobs") or body["logprobs"]) >= 20_000
