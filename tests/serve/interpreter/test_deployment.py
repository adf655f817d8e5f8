"""What the Interpreter does before anything is decoded: encoding, and refusing what is too much."""

import asyncio
import json
import threading
from contextlib import AsyncExitStack, aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta.engine import SamplingParams
from pasta.engine.structure import Grammar
from pasta.interpreter import RepetitionDetection
from pasta.lang import encode_start
from pasta.lang.positions import Positions
from serve.calls.replicas import CompatibleReplicas
from serve.config import AdmissionSettings, LimitSettings, ServeConfig
from serve.interpreter import encoding
from serve.interpreter.deployment import InterpreterDeployment
from serve.interpreter.dispatch import Dispatcher
from serve.interpreter.encoding import RequestEncoder, RequestRefused
from serve.wire import Order, Refused, Told
from tests.support.service import save_plain_model, save_tiny_model
from tests.support.tokenizers import TEMPLATE

HELLO = [{"role": "user", "content": "Hello"}]
#: As Qwen 3's chat template does with earlier answers.
LEAVES_OUT_REASONING = TEMPLATE.replace("m['content']", "m['content'].split('</think>')[-1].lstrip('\\n')")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    model = save_tiny_model(tmp_path_factory.mktemp("model") / "model")
    return ServeConfig(
        models={"tiny": {"path": str(model), "device": "cpu"}},
        engine={"num_slots": 2, "slot_tokens": 512},
        admission={"budget_tokens": 4000, "short_tokens": 100},
    )


@pytest.fixture(scope="module")
def encoder(config):
    return RequestEncoder(config.models["tiny"], config)


def test_the_service_reads_the_rule_of_positions_from_the_model(tmp_path, config):
    model = save_tiny_model(tmp_path / "model")
    file = model / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pasta_positions": "shared"}))
    other = ServeConfig(models={"tiny": {"path": str(model), "device": "cpu"}})
    assert RequestEncoder(other.models["tiny"], other).codec.grammar.positions == Positions("shared")
    assert RequestEncoder(config.models["tiny"], config).codec.grammar.positions == Positions()


def test_the_service_reads_the_ends_of_answers_of_a_model_that_pasta_has_not_trained(tmp_path):
    model = save_plain_model(tmp_path / "model")
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    config = ServeConfig(models={"plain": {"path": str(model), "device": "cpu", "mode": "sequential"}})
    assert RequestEncoder(config.models["plain"], config).codec.eos_ids == {0, 2}


@pytest.fixture
def interpreter(config, monkeypatch):
    """Made on the event loop that uses it, as Serve does; there are no Decoders here, so it does not wait for any."""

    async def ready(dispatcher):
        pass

    async def make():
        made = InterpreterDeployment.__new__(InterpreterDeployment)
        await made.__init__(config, None)
        return made

    monkeypatch.setattr(Dispatcher, "ready", ready)
    return make


def order(**changes):
    fields = {
        "request_id": "r",
        "model": "tiny",
        "prompts": [HELLO],
        "n": 1,
        "logprobs": None,
        "max_tokens": None,
        "temperature": None,
        "sampling": SamplingParams(),
        "mode": None,
        "max_threads": None,
        "wants_events": False,
        "wants_document": False,
    }
    return Order(**{**fields, **changes})


prompts = st.one_of(
    st.just(HELLO), st.text(min_size=1, max_size=40), st.lists(st.just(1), min_size=1, max_size=9)
)


@settings(deadline=None)
@given(
    st.lists(prompts, min_size=1, max_size=3), st.integers(1, 3), st.one_of(st.none(), st.integers(1, 2000))
)
def test_no_request_comes_to_less_than_is_known_before_it_is_encoded(encoder, prompts, n, max_tokens):
    wanted = order(prompts=prompts, n=n, max_tokens=max_tokens)
    try:
        orders = encoder.decode_orders(wanted)
    except RequestRefused:
        return
    assert encoder.min_tokens(wanted) <= sum(len(o.prompt_ids) + o.limits.max_tokens for o in orders)


def test_overload_is_refused_though_a_long_prompt_is_being_encoded(interpreter):
    async def scenario():
        made, encoded = await interpreter(), threading.Event()
        made._encoding.submit(encoded.wait)
        try:
            async with made._admissions["tiny"].hold(2900), aclosing(made.answer(order())) as updates:
                return [update async for batch in updates for update in batch]
        finally:
            encoded.set()

    (refused,) = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert isinstance(refused, Refused)
    assert (refused.status, refused.code) == (429, "overloaded")
    assert refused.retry_after_s >= 1


def test_an_interpreter_that_takes_no_more_requests_has_no_share_of_the_budget(interpreter):
    """In a rolling update two use the Decoders for a while, the new one before it is known to Gateways, and the old one
    until it has finished, and a lease longer."""

    async def scenario(routed, told):
        made = await interpreter()
        made._dispatcher.hear("decoder", Told({}, 0, told))
        # That it does not fit into the context is found after it is admitted.
        asked = order(prompts=["a" * 2000], num_interpreters=routed)
        async with made._admissions["tiny"].hold(1400), aclosing(made.answer(asked)) as updates:
            (refused,) = [update async for batch in updates for update in batch]
        return refused.code

    found = {(routed, told): asyncio.run(scenario(routed, told)) for routed in (0, 1, 2) for told in (1, 2)}
    assert [each for each, code in found.items() if code == "overloaded"] == [(0, 2), (2, 2)]
    assert {*found.values()} == {"overloaded", "context_length_exceeded"}


def test_a_short_prompt_does_not_wait_for_a_long_one(interpreter):
    """What no length tells is encoded whole, in a thread of its own."""
    long = " ,;" * 20_000

    async def scenario():
        made, encoded = await interpreter(), threading.Event()
        made._encoding_long.submit(encoded.wait)
        waiting = [
            asyncio.ensure_future(made.tokenize("tiny", long, True)),
            asyncio.ensure_future(anext(made.answer(order(prompts=[long], max_tokens=5)))),
        ]
        try:
            tokens = await made.tokenize("tiny", "Hello", True)
            async with aclosing(made.answer(order(prompts=["a" * 2000], max_tokens=5))) as updates:
                answered = [update async for batch in updates for update in batch]
            assert not any(each.done() for each in waiting)
        finally:
            encoded.set()
        return tokens, await waiting[0], answered, await waiting[1]

    short, counted, *refused = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert short.count < 510 < counted.count
    assert [each.code for (each,) in refused] == ["context_length_exceeded"] * 2


def test_a_long_prompt_of_words_is_refused_without_being_encoded(encoder, monkeypatch):
    monkeypatch.setattr(encoder, "_codec", lambda *_: pytest.fail("encoded"))
    text = "the cat sat on the mat " * 10_000
    for prompt in (text, [{"role": "user", "content": text}]):
        with pytest.raises(RequestRefused, match="has at least"):
            encoder.decode_orders(order(prompts=[prompt]))


def test_reasoning_that_the_chat_template_leaves_out_does_not_count(tmp_path, config):
    model = save_tiny_model(tmp_path / "model")
    (model / "chat_template.jinja").write_text(LEAVES_OUT_REASONING)
    config = ServeConfig(
        models={"tiny": {"path": str(model), "device": "cpu"}}, engine={"num_slots": 2, "slot_tokens": 512}
    )
    encoder = RequestEncoder(config.models["tiny"], config)
    thought = {"role": "assistant", "content": "<think>\n" + "Tea or coffee? " * 500 + "</think>\n\nTea."}
    said = {**thought, "content": "Tea."}
    asked = {"role": "user", "content": "Once more."}
    (made,) = encoder.decode_orders(order(prompts=[[*HELLO, thought, asked]]))
    assert made.prompt_ids == encoder.decode_orders(order(prompts=[[*HELLO, said, asked]]))[0].prompt_ids


def test_a_request_sets_variables_of_the_chat_template(tmp_path, encoder):
    model = save_tiny_model(tmp_path / "model")
    (model / "chat_template.jinja").write_text(TEMPLATE + "{% if not thinking %}Plainly.{% endif %}")
    config = ServeConfig(
        models={"tiny": {"path": str(model), "device": "cpu"}}, engine={"num_slots": 2, "slot_tokens": 512}
    )
    own = RequestEncoder(config.models["tiny"], config)
    plain = encoder.decode_orders(order())[0].prompt_ids
    prompts = {
        thinking: own.decode_orders(order(template_options={"thinking": thinking}))[0].prompt_ids
        for thinking in (True, False)
    }
    assert prompts[True] == plain
    assert own.detokenize(prompts[False]) == own.detokenize(plain) + "Plainly."
    assert json.loads(own.tokenize(HELLO, True, {"thinking": False}).tokens) == prompts[False]


@pytest.mark.parametrize("text", ["", "Hello", 'Hello "you", \u2028é\n' * 900])
def test_tokens_come_as_json_lists(encoder, text, monkeypatch):
    """The Gateway sends them on as they are: a million of them would hold its event loop for half a second."""
    monkeypatch.setattr(encoding, "_PIECE", 10)
    found = encoder.tokenize(text, True, strings=True)
    ids = encode_start(encoder.codec, text)
    assert found.count == len(ids)
    assert json.loads(found.tokens) == ids
    assert json.loads(found.strings) == [encoder.detokenize([token]) for token in ids]
    assert encoder.tokenize(text, True).strings == b"null"


def test_a_variable_that_the_chat_template_lacks_is_refused(encoder):
    for ask in (
        lambda: encoder.decode_orders(order(template_options={"thinking": False})),
        lambda: encoder.tokenize(HELLO, True, {"thinking": False}),
    ):
        with pytest.raises(RequestRefused) as caught:
            ask()
        refused = caught.value.refused
        assert (refused.status, refused.param) == (400, "chat_template_kwargs")
        assert refused.message == (
            "chat_template_kwargs: the chat template of this model has no variable 'thinking'; expected none."
        )


def test_a_model_without_a_chat_template_takes_plain_prompts_alone(tmp_path):
    model = save_tiny_model(tmp_path / "model")
    (model / "chat_template.jinja").unlink()
    config = ServeConfig(
        models={"tiny": {"path": str(model), "device": "cpu"}}, engine={"num_slots": 2, "slot_tokens": 512}
    )
    own = RequestEncoder(config.models["tiny"], config)
    with pytest.raises(RequestRefused) as caught:
        own.decode_orders(order())
    told = "messages: this model has no chat template: it takes plain prompts and no messages."
    assert (caught.value.refused.message, caught.value.refused.param) == (told, "messages")
    assert own.decode_orders(order(prompts=["Hello"]))[0].prompt_ids


def test_a_service_may_take_shorter_prompts_than_the_model(config):
    config = config.model_copy(update={"limits": LimitSettings(max_prompt_tokens=20)})
    with pytest.raises(
        RequestRefused, match="length is 510 tokens, and that of prompts 20, but this prompt has"
    ):
        RequestEncoder(config.models["tiny"], config).decode_orders(order(prompts=["a" * 300]))


def test_more_tokens_at_least_than_the_context_leaves_are_refused(encoder):
    """With ``max_tokens`` the Gateway compares the two."""
    (most,) = encoder.decode_orders(order())
    room = most.limits.max_tokens - 1
    (made,) = encoder.decode_orders(order(sampling=SamplingParams(min_tokens=room)))
    assert made.sampling.min_tokens == room
    with pytest.raises(RequestRefused) as caught:
        encoder.decode_orders(order(sampling=SamplingParams(min_tokens=room + 1)))
    refused = caught.value.refused
    assert (refused.status, refused.param, refused.code) == (400, "min_tokens", "context_length_exceeded")
    assert refused.message.startswith(
        "This model's maximum context length is 510 tokens, but this prompt has "
    )
    assert f", and at least {room + 1} were asked for; " in refused.message
    assert refused.message.endswith("shorten the messages or lower min_tokens.")


def test_a_request_s_own_detection_of_repetition_takes_the_place_of_the_service_s(config):
    service, own = RepetitionDetection(64, 8, 3), RepetitionDetection(4, 1, 2)
    config = config.model_copy(update={"limits": LimitSettings(repetition_detection=service)})
    encoder = RequestEncoder(config.models["tiny"], config)
    for asked, expected in ((None, service), (own, own), (RepetitionDetection(), RepetitionDetection())):
        (made,) = encoder.decode_orders(order(repetition_detection=asked))
        assert made.limits.repetition_detection == expected
    to_its_limit = order(sampling=SamplingParams(ignore_eos=True))
    assert encoder.decode_orders(to_its_limit)[0].limits.repetition_detection == RepetitionDetection()


def test_a_grammar_that_compiles_slowly_delays_no_other_request(interpreter):
    async def scenario():
        made, compiled = await interpreter(), threading.Event()
        structures = made._encoders["tiny"].structures
        structures.compile = lambda grammar: compiled.wait()
        slow = order(grammar=Grammar("regex", "a*", "guided_regex"), max_tokens=5)
        async with aclosing(made.answer(slow)) as waiting:
            first = asyncio.ensure_future(anext(waiting))
            await asyncio.sleep(0)
            try:
                async with aclosing(made.answer(order(prompts=["a" * 2000], max_tokens=5))) as updates:
                    answered = [update async for batch in updates for update in batch]
                assert not first.done()
            finally:
                compiled.set()
                first.cancel()
                await asyncio.wait([first])
        return answered

    (refused,) = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert refused.code == "context_length_exceeded"


def test_what_was_held_while_a_prompt_was_encoded_is_free_again_if_it_is_refused(interpreter):
    async def scenario():
        made = await interpreter()
        async with aclosing(made.answer(order(prompts=["a" * 2000], max_tokens=5))) as updates:
            return [update async for batch in updates for update in batch], made._admissions["tiny"].held

    (refused,), held = asyncio.run(scenario())
    assert (refused.status, refused.code) == (400, "context_length_exceeded")
    assert refused.message.startswith("This model's maximum context length is 510 tokens")  # as OpenAI's does
    assert sum(held.values()) == 0


def test_a_model_that_it_does_not_have_is_for_another_interpreter(interpreter):
    """While a service is updated, a Gateway may ask the Interpreter of the other version."""

    async def scenario():
        made = await interpreter()
        async with aclosing(made.answer(order(model="newer"))) as updates:
            answered = [update async for batch in updates for update in batch]
        return made._name, *answered, await made.tokenize("newer", "a", begin=False)

    name, *refused = asyncio.run(scenario())
    for each in refused:
        assert (each.status, each.superseded, each.no_model, each.by) == (503, True, True, name)


@pytest.mark.parametrize(
    ("wanted", "for_all"),
    [({"max_tokens": 120}, True), ({"max_tokens": 1, "prompts": ["a" * 300]}, False)],
    ids=["by what it asks for", "by its prompt, once that is encoded"],
)
def test_a_refusal_for_want_of_room_says_whether_it_holds_for_all_requests_like_it(
    interpreter, wanted, for_all
):
    async def scenario():
        made = await interpreter()
        async with AsyncExitStack() as others:
            for tokens in (2900, *[90] * 11):  # a long one and short ones: 110 of 4,000 tokens are left
                await others.enter_async_context(made._admissions["tiny"].hold(tokens))
            async with aclosing(made.answer(order(**wanted))) as updates:
                return [update async for batch in updates for update in batch]

    (refused,) = asyncio.run(scenario())
    assert (refused.status, refused.code) == (429, "overloaded")
    assert (refused.full, refused.no_room) == (True, for_all), "another Interpreter may have room for it"


def test_each_model_has_a_budget_of_its_own_by_the_decoders_that_are_there(config, interpreter, monkeypatch):
    two = config.model_copy(
        update={"models": config.models | {"other": config.models["tiny"]}, "admission": AdmissionSettings()}
    )
    there = {"a", "b"}

    async def scenario():
        monkeypatch.setattr(CompatibleReplicas, "replicas", property(lambda _: frozenset(there)))
        made = InterpreterDeployment.__new__(InterpreterDeployment)
        await made.__init__(two, None)
        async with made._admissions["tiny"].hold(1500):
            assert sum(made._admissions["other"].held.values()) == 0
        budgets = [made._admissions["other"].budget_tokens]
        there.remove("b")
        return [*budgets, made._admissions["other"].budget_tokens]

    # Twice two slots of 512 tokens, for each Decoder.
    assert asyncio.run(scenario()) == [4096, 2048]
