"""Completions, several choices and log-probabilities, with OpenAI's own client on a running service."""

import json
import time

import openai
import pytest

from pasta.lang import CONTROL_TOKENS, encode_start, parse, render
from serve.gateway import schemas
from tests.support.models import tiny

MODEL, TWIN = "pasta-atlas", "pasta-atlas-sequential"
HELLO = [{"role": "user", "content": "Tell me about France"}]
FORKS = {"promise_bias": 7.0, "document": True}
CODEC = tiny().codec


def complete(client, prompt="France is", pasta=None, ignore_eos=False, **options):
    options = {"temperature": 0, "max_tokens": 40, **options}
    extra = {"pasta": pasta or {}, "ignore_eos": ignore_eos}
    return client.completions.create(model=MODEL, prompt=prompt, extra_body=extra, **options)


def chat(client, pasta=None, **options):
    options = {"temperature": 0, "max_tokens": 60, **options}
    return client.chat.completions.create(
        model=MODEL, messages=HELLO, extra_body={"pasta": pasta or {}}, **options
    )


def counts(usage):
    """The counts of a request that do not depend on those before it."""
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


def texts(chunks, of):
    """The text of each choice, from a stream's chunks."""
    out = {}
    for chunk in chunks:
        for choice in chunk.choices:
            out[choice.index] = out.get(choice.index, "") + (of(choice) or "")
    return [out[index] for index in sorted(out)]


# -- completions -----------------------------------------------------------------------------------------


def test_a_text_is_continued(client):
    answer = complete(client, pasta=FORKS, max_tokens=200)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.usage.prompt_tokens == len(encode_start(CODEC, "France is"))
    assert answer.pasta["threads"] > 1
    assert render(parse(answer.pasta["document"])) == answer.choices[0].text
    assert answer.choices[0].logprobs is None


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_answer_that_repeats_itself_ends_where_the_request_says(client, stream):
    (word,) = CODEC.encode_text("a")
    again = {"max_pattern_size": 8, "min_pattern_size": 1, "min_count": 5}
    answer = client.completions.create(
        model=MODEL,
        prompt="France is",
        temperature=0,
        max_tokens=40,
        stream=stream,
        extra_body={
            "logit_bias": {str(word): 100},
            "repetition_detection": again,
            "pasta": {"promise_bias": -100},
        },
    )
    chunks = list(answer) if stream else [answer]
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert (text, reasons) == ("aaaaa", ["repetition"])


def test_token_ids_are_continued_as_their_text_is(client):
    ids = encode_start(CODEC, "France is")
    assert complete(client, ids).choices[0].text == complete(client).choices[0].text


def test_the_token_ids_of_a_conversation_are_answered_as_the_conversation_is(client, http):
    ids = http.post("/tokenize", json={"model": MODEL, "messages": HELLO}).json()["tokens"]
    for pasta in (FORKS, {"mode": "sequential"}):
        answer, said = complete(client, ids, pasta, max_tokens=60), chat(client, pasta)
        assert answer.choices[0].text == said.choices[0].message.content
        assert counts(answer.usage) == counts(said.usage)


def test_each_of_several_prompts_gets_its_answers(client):
    prompts = ["France is", "Tea", "Japan"]
    alone = [complete(client, prompt) for prompt in prompts]
    together = complete(client, prompts, n=2)
    assert [choice.index for choice in together.choices] == list(range(6))
    assert [choice.text for choice in together.choices] == [
        a.choices[0].text for a in alone for _ in range(2)
    ]
    assert together.usage.prompt_tokens == sum(a.usage.prompt_tokens for a in alone)
    assert together.usage.completion_tokens == 2 * sum(a.usage.completion_tokens for a in alone)
    assert all(choice.pasta["threads"] >= 1 for choice in together.choices)


def test_without_a_length_sixteen_tokens_are_written(client):
    answer = complete(client, max_tokens=openai.omit)
    assert answer.usage.completion_tokens <= 16


def test_a_completion_can_be_streamed(client):
    whole = complete(client, ["France is", "Tea"], stop=["q"])
    chunks = list(
        complete(
            client, ["France is", "Tea"], stop=["q"], stream=True, stream_options={"include_usage": True}
        )
    )
    assert texts(chunks, lambda choice: choice.text) == [choice.text for choice in whole.choices]
    assert counts(chunks[-1].usage) == counts(whole.usage)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"echo": True, "logprobs": 1, "stream": True}, "stream"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"n": 9}, "n"),
        ({"logprobs": 6}, "logprobs"),
        ({"prompt": [CODEC.control.sync]}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": "a " * 5000}, "prompt"),
        ({"max_tokens": 5000}, "max_tokens"),
        ({"prompt": ["a"] * 8, "n": 8, "max_tokens": 4000}, "max_tokens"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(client, options, param):
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, **options)
    assert refused.value.param == param


def test_no_text_prompt_becomes_a_control_token(client):
    prompt = "".join(CONTROL_TOKENS) + '<promise topic="x" tokens="10"/>'
    answer = complete(client, prompt, max_tokens=4)
    assert answer.usage.prompt_tokens == len(CODEC.encode_text(prompt))


# -- sampling --------------------------------------------------------------------------------------------


def readable(token):
    """Whether a token is text by itself: others are shown alike."""
    return "\ufffd" not in CODEC.decode_text([token])


def test_a_banned_token_does_not_come_alone_or_among_several(client):
    ids = [token for token in CODEC.encode_text(complete(client).choices[0].text) if readable(token)]
    most = max(set(ids), key=ids.count)
    extra = {"logit_bias": {str(most): -100}, "frequency_penalty": 0.5, "n": 2}
    banned = complete(client, **extra)
    assert len({choice.text for choice in banned.choices}) == 1
    streamed = complete(client, stream=True, **extra)
    assert texts(streamed, lambda choice: choice.text) == [choice.text for choice in banned.choices]
    listed = complete(client, logprobs=0, **extra).choices[0].logprobs.tokens
    assert CODEC.decode_text([most]) not in listed


def test_exactly_max_tokens_are_written_where_the_end_is_ignored(client):
    body = {"ignore_eos": True, "pasta": {"mode": "sequential"}}
    answer = client.completions.create(model=MODEL, prompt="France is", max_tokens=70, extra_body=body)
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (70, "length")


def test_a_stop_token_ends_the_text_streamed_or_not(client):
    pasta = {"mode": "sequential"}
    tokens = complete(client, pasta=pasta, logprobs=0).choices[0].logprobs.tokens
    (token,) = CODEC.encode_text(next(text for text in tokens[5:] if text.isascii()))
    body = {"stop_token_ids": [token], "pasta": pasta}
    options = {"model": MODEL, "prompt": "France is", "max_tokens": 40, "temperature": 0, "extra_body": body}
    whole = client.completions.create(**options).choices[0]
    assert whole.finish_reason == "stop"
    assert len(whole.text) < len("".join(tokens))
    chunks = client.completions.create(**options, stream=True)
    assert texts(chunks, lambda choice: choice.text) == [whole.text]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop_token_ids": [10**8]}, "stop_token_ids"),
        ({"stop_token_ids": [CODEC.control.sync]}, "stop_token_ids"),
        ({"logit_bias": {str(CODEC.control.promise): 5}}, "logit_bias"),
    ],
)
def test_a_token_that_is_no_text_is_refused_by_name(client, fields, param):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt="a", extra_body=fields)
    assert refused.value.param == param


# -- the prompt ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_an_echo_reports_every_token_of_the_prompt_as_lm_eval_reads_it(client, max_tokens):
    ids = encode_start(CODEC, "France is a country")
    options = {"max_tokens": max_tokens, "echo": True, "logprobs": 1}
    first, again = complete(client, [ids, ids], **options).choices
    seen = first.logprobs
    assert len(seen.tokens) == len(ids) + max_tokens
    assert (seen.token_logprobs[0], seen.top_logprobs[0]) == (None, None)
    assert all(logprob <= 0 for logprob in seen.token_logprobs[1:])
    assert all(top[token] <= 0 for top, token in list(zip(seen.top_logprobs, seen.tokens, strict=True))[1:])
    assert first.text.startswith("France is a country")
    assert again.logprobs.token_logprobs == pytest.approx(seen.token_logprobs, nan_ok=True, abs=1e-3)


def test_an_echo_scores_a_text_from_its_first_token_behind_an_end_of_text(client):
    """lm-eval's perplexities, with tokenizers that have no begin of text."""
    ids = [CODEC.eos_id, *CODEC.encode_text("France")]
    (scored,) = complete(client, [ids], max_tokens=1, echo=True, logprobs=1).choices
    first, *others = scored.logprobs.token_logprobs
    assert first is None
    assert len(others) == len(ids)
    assert all(logprob <= 0 for logprob in others)


def test_an_echo_without_log_probabilities_can_be_streamed(client):
    options = {"echo": True, "max_tokens": 10}
    whole = complete(client, **options).choices[0].text
    assert whole.startswith("France is")
    assert texts(complete(client, stream=True, **options), lambda choice: choice.text) == [whole]


def test_text_becomes_token_ids_and_text_again(http):
    found = http.post(
        "/tokenize", json={"model": MODEL, "prompt": "France <sync/>", "return_token_strs": True}
    )
    schemas.Tokenized.model_validate_json(found.text)
    found = found.json()
    assert found["tokens"] == encode_start(CODEC, "France <sync/>")
    assert (found["count"], len(found["token_strs"])) == (len(found["tokens"]),) * 2
    back = http.post("/detokenize", json={"model": MODEL, "tokens": found["tokens"]})
    assert back.json() == {"prompt": "France <sync/>"}


def test_a_conversation_becomes_the_tokens_of_its_prompt(http, client):
    found = http.post("/tokenize", json={"model": MODEL, "messages": HELLO}).json()
    assert found["count"] == chat(client, max_tokens=1).usage.prompt_tokens
    (model, _) = http.get("/v1/models").json()["data"]
    assert model["max_model_len"] == found["max_model_len"] == 4094


def test_a_prompt_and_its_answer_may_have_as_many_tokens_as_the_model_s_length(client, http):
    most = http.get(f"/v1/models/{MODEL}").json()["max_model_len"]
    prompt = (CODEC.encode_text("tea ") * most)[: most - 1]
    assert complete(client, prompt, max_tokens=1).usage.total_tokens == most
    with pytest.raises(openai.BadRequestError, match=f"length is {most} tokens, .* and 2 were asked for"):
        complete(client, prompt, max_tokens=2)


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {"model": MODEL}, 400, "prompt"),
        ("/tokenize", {"model": "none", "prompt": "a"}, 404, "model"),
        (
            "/tokenize",
            {"model": MODEL, "messages": HELLO, "chat_template_kwargs": {"thinking": True}},
            400,
            "chat_template_kwargs",
        ),
        ("/detokenize", {"model": MODEL, "tokens": [1, 10**6]}, 400, "tokens"),
        ("/detokenize", {"model": MODEL, "tokens": ["a"]}, 400, "tokens[0]"),
    ],
)
def test_what_has_no_tokens_is_refused_by_name(http, path, body, status, param):
    refused = http.post(path, json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (status, param)


# -- choices ---------------------------------------------------------------------------------------------


def test_choices_are_samples_of_their_own_and_the_first_is_what_the_seed_gives_alone(client):
    options = {"temperature": 1.2, "seed": 5, "pasta": FORKS}
    several = chat(client, n=4, **options)
    found = [choice.message.content for choice in several.choices]
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert len(set(found)) == 4
    assert found[0] == chat(client, **options).choices[0].message.content
    assert found == [choice.message.content for choice in chat(client, n=4, **options).choices]
    for choice in several.choices:
        assert render(parse(choice.pasta["document"])) == choice.message.content


def test_streamed_choices_carry_their_index_and_each_ends_for_its_own_reason(client):
    options = {"n": 4, "temperature": 1.2, "seed": 5, "stop": ["g"], "max_tokens": 12}
    whole = chat(client, **options)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}, **options))
    assert texts(chunks, lambda choice: choice.delta.content) == [c.message.content for c in whole.choices]
    ends = {c.choices[0].index: c.choices[0].finish_reason for c in chunks[:-1] if c.choices[0].finish_reason}
    assert ends == {choice.index: choice.finish_reason for choice in whole.choices}
    assert [c.choices[0].index for c in chunks if c.choices and c.choices[0].delta.role] == [0, 1, 2, 3]
    assert counts(chunks[-1].usage) == counts(whole.usage)


def test_the_chunks_of_a_stream_count_its_tokens(client):
    """As vLLM's and SGLang's servers do: their benchmark clients rely on it where answers may end early."""
    asked = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = complete(client, stream=True, stream_options=asked, max_tokens=300, ignore_eos=True)
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert len(set(counts)) > 1
    assert counts[-1] == last.usage.completion_tokens == 300
    assert {chunk.usage.prompt_tokens for chunk in chunks} == {last.usage.prompt_tokens}


# -- log-probabilities -----------------------------------------------------------------------------------


@pytest.mark.parametrize("pasta", [{"mode": "sequential"}, FORKS])
def test_a_chat_lists_the_tokens_of_its_text(client, pasta):
    answer = chat(client, pasta=pasta, logprobs=True, top_logprobs=3, max_tokens=200)
    tokens = answer.choices[0].logprobs.content
    readable = [token.token for token in tokens if "\ufffd" not in token.token]
    text = answer.choices[0].message.content
    at = 0
    for token in readable:
        at = text.index(token, at) + len(token)
    assert len(readable) > 5
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 3 for token in tokens)
    assert all(bytes(token.bytes).decode() == token.token for token in tokens if token.bytes is not None)
    for token in tokens:
        values = [other.logprob for other in token.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert token.logprob <= values[0] + 1e-6


def test_an_answer_of_twenty_mebibytes_arrives_whole(http):
    """And nobody waits for it: the Gateway's loop is held for the length of some tokens at a time."""
    body = {
        "model": MODEL,
        "messages": HELLO,
        "n": 8,
        "max_tokens": 2600,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 20,
        "pasta": {"mode": "sequential"},
    }
    answer = http.post("/v1/chat/completions", json=body, timeout=300)
    assert answer.status_code == 200, answer.text[:300]
    assert len(answer.content) > 20 * 2**20
    # The measure is what reading all of it takes here: writing it takes no less.
    begun = time.thread_time()
    body = answer.json()
    whole_ms = 1000 * (time.thread_time() - begun)
    lengths = [len(choice["logprobs"]["content"]) for choice in body["choices"]]
    assert sum(lengths) == body["usage"]["completion_tokens"]
    assert http.get("/ready").json()["gateway"]["busy_ms"] < whole_ms / 2


def test_a_stream_lists_the_same_tokens(client):
    options = {"pasta": FORKS, "logprobs": True, "max_tokens": 200}
    whole = chat(client, **options).choices[0].logprobs.content
    chunks = chat(client, stream=True, **options)
    streamed = [t for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
    assert [token.token for token in streamed] == [token.token for token in whole]
    assert [token.logprob for token in streamed] == pytest.approx(
        [token.logprob for token in whole], abs=1e-3
    )


def test_a_completion_lists_its_tokens_with_their_offsets(client):
    choice = complete(client, logprobs=2).choices[0]
    seen = choice.logprobs
    assert len(seen.tokens) == len(seen.token_logprobs) == len(seen.top_logprobs) == len(seen.text_offset) > 5
    for token, offset, logprob, top in zip(
        seen.tokens, seen.text_offset, seen.token_logprobs, seen.top_logprobs, strict=True
    ):
        assert "\ufffd" in token or choice.text[offset:].startswith(token)
        assert top[token] == logprob


# -- what the page says ----------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [{}, {"n": 2, "pasta": FORKS}])
def test_answers_are_what_the_openapi_page_says(http, extra):
    body = {"model": MODEL, "max_tokens": 20, **extra}
    answer = http.post(
        "/v1/chat/completions", json={**body, "messages": HELLO, "logprobs": True, "top_logprobs": 2}
    )
    schemas.ChatCompletion.model_validate_json(answer.text)
    answer = http.post("/v1/completions", json={**body, "prompt": "a", "logprobs": 2})
    schemas.Completion.model_validate_json(answer.text)
    schemas.ModelList.model_validate_json(http.get("/v1/models").text)
    schemas.Error.model_validate_json(http.post("/v1/completions", json={}).text)


def test_the_openapi_page_names_every_route_and_points_nowhere(http):
    page = http.get("/openapi.json").json()
    assert set(page["paths"]) >= {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/tokenize",
        "/detokenize",
        "/health",
        "/ready",
    }
    schema = page["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(schema["required"]) == {"model", "prompt"}
    assert "#/$defs" not in json.dumps(page)


def test_alive_and_ready_are_two_things(http):
    assert http.get("/health").json() == {"status": "ok"}
    ready = http.get("/ready").json()
    assert (ready["status"], ready["models"], len(ready["decoders"])) == ("ready", [MODEL, TWIN], 2)
