"""Requests are read strictly: what is not supported is refused by name, what asks for nothing is accepted."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta.interpreter import RepetitionDetection
from serve.errors import ApiError
from serve.gateway.api import MAX_SEED, read_chat_request, read_completion_request
from serve.gateway.options import PastaOptions

HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
CODES = ("invalid_value", "unsupported_parameter", "unknown_parameter", "missing_required_parameter")


def read(**fields):
    return read_chat_request(json.dumps({**HELLO, **fields}).encode())


def refusal(**fields):
    with pytest.raises(ApiError) as caught:
        read(**fields)
    assert caught.value.status == 400
    assert "\n" not in caught.value.message
    return caught.value


def test_a_minimal_request_takes_the_defaults():
    order = read().order("id")
    assert (order.max_tokens, order.temperature, order.sampling.top_p, order.sampling.stop) == (
        None,
        None,
        1.0,
        (),
    )
    assert (order.mode, order.wants_events, order.wants_document) == (None, False, False)
    assert 0 <= order.sampling.seed <= MAX_SEED


def test_two_requests_without_a_seed_are_two_samples():
    assert read().order("a").sampling.seed != read().order("b").sampling.seed


def test_every_supported_parameter_arrives():
    order = read(
        max_completion_tokens=5,
        temperature=1,
        top_p=0.5,
        seed=7,
        stop=["a", "b", "a"],
        stream=True,
        n=3,
        logprobs=True,
        top_logprobs=4,
        user="u",
        pasta={
            "mode": "sequential",
            "placement": "local",
            "max_threads": 2,
            "promise_bias": 1.5,
            "drafts": False,
            "events": True,
            "document": True,
        },
    ).order("id")
    assert (order.max_tokens, order.temperature, order.sampling.top_p, order.sampling.seed) == (5, 1, 0.5, 7)
    assert (order.n, order.logprobs) == (3, 4)
    assert order.sampling.stop == ("a", "b")
    assert (order.mode, order.max_threads, order.sampling.promise_bias) == ("sequential", 2, 1.5)
    assert not order.drafts
    assert (order.wants_events, order.wants_document) == (True, True)


def test_the_parameters_of_sampling_arrive():
    sampling = (
        read(
            top_k=-1,
            min_p=0.1,
            frequency_penalty=1,
            presence_penalty=-0.5,
            repetition_penalty=1.1,
            logit_bias={"7": -100, "9": 2.5},
            stop_token_ids=[4, 5, 4],
            min_tokens=3,
            ignore_eos=True,
        )
        .order("id")
        .sampling
    )
    assert (sampling.top_k, sampling.min_p, sampling.min_tokens, sampling.ignore_eos) == (0, 0.1, 3, True)
    assert sampling.frequency_penalty == 1
    assert sampling.presence_penalty == -0.5
    assert sampling.repetition_penalty == 1.1
    assert sampling.logit_bias == ((7, -100), (9, 2.5))
    assert sampling.stop_token_ids == (4, 5)


def test_biases_of_one_token_do_not_add_up_beyond_what_a_bias_may_be():
    assert read(logit_bias={"5": 100, "7": 1, "05": 60}).order("id").sampling.logit_bias == ((5, 60), (7, 1))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"max_pattern_size": 64}, (64, 1, 2)),
        ({"max_pattern_size": 64, "min_pattern_size": 0, "min_count": 3}, (64, 1, 3)),
        ({"max_pattern_size": 64, "min_pattern_size": 8, "min_count": 3}, (64, 8, 3)),
        ({"max_pattern_size": 0, "min_pattern_size": 8}, (0, 1, 2)),
        ({"max_same_topic": 3}, (0, 1, 2, 3)),
        ({"max_pattern_size": 64, "min_count": 3, "max_same_topic": 2}, (64, 1, 3, 2)),
        ({}, (0, 1, 2)),
    ],
)
def test_a_request_says_when_a_thread_repeats_itself(given, expected):
    order = read(repetition_detection=given).order("id")
    assert order.repetition_detection == RepetitionDetection(*expected)


@pytest.mark.parametrize(
    "name",
    ["repetition_detection", "pasta", "stream_options", "logit_bias", "metadata", "response_format"],
)
def test_what_is_no_object_is_refused_by_a_plain_word(name):
    assert refusal(**{name: [4]}).message == f"{name}: expected an object, got [4]."


def test_without_a_word_of_the_request_the_service_says_when_a_thread_repeats_itself():
    assert read().order("id").repetition_detection is None
    assert read(repetition_detection=None).order("id").repetition_detection is None


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("fields", "kind", "text", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", {"type": "object"}, "response_format"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "strict": True, "schema": SCHEMA},
                }
            },
            "json_schema",
            SCHEMA,
            "response_format",
        ),
        ({"guided_json": SCHEMA}, "json_schema", SCHEMA, "guided_json"),
        ({"guided_json": json.dumps(SCHEMA)}, "json_schema", SCHEMA, "guided_json"),
        (
            {"structured_outputs": {"json": json.dumps(SCHEMA)}},
            "json_schema",
            SCHEMA,
            "structured_outputs.json",
        ),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA, "structured_outputs.json"),
        ({"structured_outputs": {"choice": ["a.b", "c"]}}, "regex", r"a\.b|c", "structured_outputs.choice"),
        ({"guided_regex": "a+"}, "regex", "a+", "guided_regex"),
    ],
)
def test_a_structure_arrives_as_one_grammar(fields, kind, text, param):
    grammar = read(**fields).order("id").grammar
    assert (grammar.kind, grammar.param) == (kind, param)
    assert (json.loads(grammar.text) if kind == "json_schema" else grammar.text) == text


def test_no_structure_is_no_grammar():
    assert read(response_format={"type": "text"}).order("id").grammar is None


def test_hints_are_accepted():
    named = [{"role": "user", "content": "Hello", "name": "Ann"}]
    hints = {"prompt_cache_key": "a", "safety_identifier": "b", "metadata": {"c": "d"}, "store": False}
    assert read(messages=named, **hints).order("id").prompts == [[{"role": "user", "content": "Hello"}]]


def test_parts_of_a_content_are_joined_and_developers_are_the_system():
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    assert read(messages=messages).order("id").prompts == [
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "ab"}]
    ]


def test_an_assistant_s_turn_can_be_sent_back_as_it_came():
    turn = {
        "role": "assistant",
        "content": "Hi",
        "refusal": None,
        "annotations": [],
        "tool_calls": None,
        "audio": None,
    }
    assert read(messages=[*HELLO["messages"], turn]).messages[1].plain() == {
        "role": "assistant",
        "content": "Hi",
    }


@pytest.mark.parametrize("content", [{"content": None}, {}])
def test_an_assistant_s_turn_without_content_is_an_empty_one(content):
    """Clients send back what another service answered: a tool's call or nothing at all."""
    turn = {"role": "assistant", **content}
    assert read(messages=[*HELLO["messages"], turn]).order("id").prompts == [
        [*HELLO["messages"], {"role": "assistant", "content": ""}]
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {
            "n": 1,
            "logprobs": False,
            "presence_penalty": 0,
            "frequency_penalty": 0.0,
            "tools": [],
            "logit_bias": {},
        },
        {"response_format": {"type": "text"}, "tool_choice": "none", "store": False, "service_tier": "auto"},
        {
            "temperature": None,
            "stop": None,
            "stream": None,
            "max_tokens": None,
            "seed": None,
            "logprobs": None,
        },
        {"max_tokens": 5, "max_completion_tokens": 5},
    ],
)
def test_values_that_ask_for_nothing_are_accepted(fields):
    read(**fields)


def test_a_null_in_pasta_is_an_option_that_was_not_given():
    nulls = dict.fromkeys(PastaOptions.model_fields)
    assert read(pasta=nulls, seed=1).order("id") == read(seed=1).order("id")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 9}, "n"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"logprobs": 3}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
        ),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_json": 5}, "guided_json"),
        ({"structured_outputs": {"json": [1]}}, "structured_outputs.json"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": "much"}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"repetition_detection": 4}, "repetition_detection"),
        ({"repetition_detection": {"max_pattern_size": 1025}}, "repetition_detection.max_pattern_size"),
        (
            {"repetition_detection": {"max_pattern_size": 4, "min_count": 1}},
            "repetition_detection.min_count",
        ),
        (
            {"repetition_detection": {"max_pattern_size": 4, "min_pattern_size": 5}},
            "repetition_detection.min_pattern_size",
        ),
        ({"repetition_detection": {"max_same_topic": -1}}, "repetition_detection.max_same_topic"),
        ({"repetition_detection": {"size": 4}}, "repetition_detection.size"),
        ({"stop_token_ids": [1, -1]}, "stop_token_ids[1]"),
        ({"stop_token_ids": list(range(65))}, "stop_token_ids"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"no_such_thing": 1}, "no_such_thing"),
        ({"str": 1}, "str"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": [{"role": "wizard", "content": "Hello"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "system"}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "a", "name": 5}]}, "messages[0].name"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"model": 5}, "model"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"seed": 1 << 70}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"speed": 1}}, "stream_options.speed"),
        ({"pasta": {"mode": "fast"}}, "pasta.mode"),
        ({"pasta": {"max_threads": 0}}, "pasta.max_threads"),
        ({"pasta": {"placement": "moon"}}, "pasta.placement"),
        ({"pasta": {"lanes": 4}}, "pasta.lanes"),
        ({"pasta": {"events": True}}, "pasta.events"),
    ],
)
def test_a_refusal_names_the_parameter_and_has_a_code(fields, param):
    refused = refusal(**fields)
    assert (refused.param or "").startswith(param)
    assert refused.code in CODES, "a machine can tell why"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"stop": ""}, 'stop: expected at least 1 character, got "".'),
        ({"stop": 5}, "stop: expected a text or a list of texts, got 5."),
        ({"messages": []}, "messages: expected at least 1 item, got []."),
        ({"logit_bias": {"a": 1}}, "logit_bias.a: expected the pattern '^[0-9]{1,9}$', got \"a\"."),
        ({"response_format": {}}, "response_format: expected an object with a type, got {}."),
        ({"response_format": {"type": "x"}}, "expected a type of 'text', 'json_object', 'json_schema', got"),
    ],
)
def test_a_refusal_says_in_words_what_was_expected(fields, said):
    assert said in str(refusal(**fields))


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (5, "prompt: expected a text, texts, token ids or lists of token ids, got 5."),
        ([], "prompt: expected a text, texts, token ids or lists of token ids, got []."),
        ([-1], "prompt[0]: expected a text, a token id from 0 on or a list of such ids, got -1."),
        ([[]], "prompt[0]: expected a text, a token id from 0 on or a list of such ids, got []."),
        (["a", [1]], 'prompt: expected a text, texts, token ids or lists of token ids, got ["a", [1]].'),
        ([1, "a"], 'prompt: expected a text, texts, token ids or lists of token ids, got [1, "a"].'),
    ],
)
def test_a_refused_prompt_is_told_all_that_a_prompt_may_be(prompt, said):
    with pytest.raises(ApiError) as caught:
        continued(prompt=prompt)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (None, (False, False)),
        ({"include_usage": True}, (True, False)),
        ({"continuous_usage_stats": True}, (False, True)),
        ({"include_usage": True, "continuous_usage_stats": True}, (True, True)),
    ],
)
def test_a_stream_s_usage_comes_at_the_end_or_all_along(options, wanted):
    request = continued(prompt="a", stream=True, stream_options=options)
    assert (request.include_usage, request.continuous_usage) == wanted


def continued(**fields):
    return read_completion_request(json.dumps({"model": "m", **fields}).encode())


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]]), ("", [""])],
)
def test_a_completion_takes_texts_and_token_ids(prompt, prompts):
    request = continued(prompt=prompt, n=2, logprobs=3)
    order = request.order("id")
    assert (order.prompts, order.logprobs, order.max_tokens) == (prompts, 3, 16)
    assert request.num_choices == 2 * len(prompts)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": ["a"] * 33}, "prompt"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "logprobs": 6}, "logprobs"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
        ({"prompt": "a", "messages": []}, "messages"),
        ({"prompt": "a", "max_completion_tokens": 5}, "max_completion_tokens"),
    ],
)
def test_what_completions_lack_is_refused_by_name(fields, param):
    with pytest.raises(ApiError) as caught:
        continued(**fields)
    assert caught.value.status == 400
    assert (caught.value.param or "").startswith(param)


NEUTRAL = {
    "bad_words": [],
    "include_stop_str_in_output": False,
    "length_penalty": 1.0,
    "priority": 0,
    "return_token_ids": False,
    "return_tokens_as_token_ids": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "use_beam_search": False,
}
OTHERWISE = {
    "bad_words": ["a"],
    "include_stop_str_in_output": True,
    "length_penalty": 2.0,
    "priority": 1,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "skip_special_tokens": False,
    "use_beam_search": True,
}


def test_the_neutral_values_that_clients_of_vllm_send_are_accepted():
    assert read(seed=1, **NEUTRAL).order("id") == read(seed=1).order("id")
    chat = {"add_generation_prompt": True, "chat_template_kwargs": {}, "continue_final_message": False}
    chat |= {"add_special_tokens": False, "echo": False, "include_reasoning": True}
    assert read(seed=1, **chat).order("id") == read(seed=1).order("id")
    written = continued(prompt="a", seed=1, suffix="", add_special_tokens=True, **NEUTRAL).order("id")
    assert written == continued(prompt="a", seed=1).order("id")


def test_the_best_of_as_many_answers_as_are_asked_for_are_all_of_them():
    assert read(seed=1, n=3, best_of=3).order("id") == read(seed=1, n=3).order("id")
    assert continued(prompt="a", seed=1, n=8, best_of=8).order("id") == continued(
        prompt="a", seed=1, n=8
    ).order("id")
    assert read(seed=1, best_of=None).order("id") == read(seed=1, best_of=1).order("id")


def test_variables_of_the_chat_template_are_numbers_and_truth_values():
    given = {"enable_thinking": False, "budget": 512}
    assert read(seed=1, chat_template_kwargs=given).order("id").template_options == given
    for wrong in ("<|end|>", None, 1.5, [1], 2**40):
        with pytest.raises(
            ApiError, match=r"\.a: expected true, false or an integer below 2147483648"
        ) as caught:
            read(chat_template_kwargs={"a": wrong})
        assert caught.value.param == "chat_template_kwargs.a"
    with pytest.raises(ApiError, match=r'^chat_template_kwargs: expected an object, got "a"'):
        read(chat_template_kwargs="a")


@pytest.mark.parametrize(
    "fields", [{"best_of": 2}, {"best_of": 3, "n": 2}, {"best_of": 2, "n": 3}, {"best_of": 1, "n": 2}]
)
def test_the_best_of_another_number_of_answers_is_refused(fields):
    for refused in (lambda: read(**fields), lambda: continued(prompt="a", **fields)):
        with pytest.raises(ApiError, match="is not supported by this service") as caught:
            refused()
        assert (caught.value.param, caught.value.code) == ("best_of", "unsupported_parameter")


@pytest.mark.parametrize("name", OTHERWISE)
def test_their_other_values_are_refused_by_name(name):
    for refused in (
        lambda: read(**{name: OTHERWISE[name]}),
        lambda: continued(prompt="a", **{name: OTHERWISE[name]}),
    ):
        with pytest.raises(ApiError) as caught:
            refused()
        assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    "call",
    [
        lambda: read(min_tokens=6, max_tokens=5),
        lambda: read(min_tokens=6, max_completion_tokens=5),
        lambda: continued(prompt="a", min_tokens=6, max_tokens=5),
        lambda: continued(prompt="a", min_tokens=17),
    ],
)
def test_more_tokens_than_there_may_be_are_refused(call):
    with pytest.raises(ApiError, match="expected at most max_tokens, which is") as caught:
        call()
    assert (caught.value.status, caught.value.param) == (400, "min_tokens")


def test_as_many_tokens_as_there_may_be_can_be_asked_for():
    assert read(min_tokens=5, max_tokens=5).order("id").sampling.min_tokens == 5
    assert read(min_tokens=5000).order("id").sampling.min_tokens == 5000


def test_a_missing_parameter_is_named():
    with pytest.raises(ApiError) as caught:
        read_chat_request(b'{"messages": [{"role": "user", "content": "a"}]}')
    assert caught.value.param == "model"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"a"', b"\xff", b'{"a": NaN}', b"[" * 100_000, b"1" * 5000]
    + ['{"a": 1}'.encode("utf-16"), b'{"a": "\xff"}', b'{"a":' + b"[" * 2500],
)
def test_a_body_that_is_no_json_object_is_refused(body):
    with pytest.raises(ApiError) as caught:
        read_chat_request(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(
    [*read().model_fields_set, "stop", "seed", "pasta", "stream", "n", "tools", "temperature"]
)


@settings(deadline=None)
@given(st.dictionaries(names | st.text(max_size=6), plain, max_size=5))
def test_any_body_is_read_or_refused_and_every_refusal_can_be_written(fields):
    error = None
    try:
        read_chat_request(json.dumps({**HELLO, **fields}).encode())
    except ApiError as caught:
        error = caught
    if error is not None:
        assert error.status == 400
        assert json.loads(json.dumps(error.body()))["error"]["message"] == error.message
