"""One response over several decoders, real engines in this process: same text wherever its chunks run, whoever dies.

Only the way between replicas is not Ray's here, so that a replica can be lost at any token.
"""

import asyncio
import dataclasses
import functools
import logging
import threading
from collections import Counter
from contextlib import aclosing
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from ray.exceptions import RayActorError

from pasta.engine import Engine, EngineConfig, LaneCosts, Request, SamplingParams
from pasta.engine.device import DeviceState
from pasta.engine.head_files import weights_fingerprint
from pasta.interpreter import Limits
from serve.calls.replicas import ReplicaLost, known_replicas
from serve.config import ServeConfig
from serve.decoder.deployment import Decoder
from serve.interpreter.dispatch import Dispatcher, Lanes
from serve.interpreter.response import DistributedResponse
from serve.interpreter.session import Session
from serve.wire import Decoded, DecodeOrder, Delta
from tests.support.models import tiny
from tests.support.service import save_tiny_model

CODEC = tiny().codec
PROMPT = CODEC.encode_prompt([{"role": "user", "content": "Tell me about France"}])
LIMITS = Limits(max_tokens=900, max_chunk_tokens=20, max_threads=9, max_depth=2)
NAMES = ("a", "b")
#: As it is, without the check that the fixture below adds.
COUNTS = Lanes.counts


def pieces(message):
    """One token at a time, so that how many come together, which is the machine's affair, loses no replica later."""
    for item in message:
        yield from [[[token]] for token in item] if isinstance(item, list) and item else [[item]]


class Replicas:
    """Decoders by name, called as a handle calls them; ``kill`` loses one with all that it holds."""

    def __init__(self, decoders):
        self.decoders = dict(decoders)
        self.lose_at = {}  # name: after how many batches
        self.unsaid = []  # the batch that it did not send any more
        self.lose_with = {}  # name: once so many streams have begun; until then they say nothing
        self.begun = Counter()
        self.batches = dict.fromkeys(decoders, 0)
        self.held = []  # (name, whether the main thread)
        self.frozen = set()  # as a node without power: it says nothing, and closes nothing
        self.freeze_at = {}  # name: after how many batches
        self.slips = {}  # name: how many streams break that could go on
        # What waits for a change is to wait on this test's event loop.
        known_replicas("Decoder").update(frozenset())
        self._update()

    def _update(self):
        known_replicas("Decoder").update(frozenset(self.decoders))

    def open(self):
        pass

    def kill(self, name):
        self.decoders.pop(name, None)
        self._update()

    def _of(self, name):
        if name not in self.decoders:
            raise ReplicaLost(name)
        return self.decoders[name]

    async def stream(self, method, order, replica):
        self.held.append((replica, order.snapshot is None))
        async with aclosing(self._of(replica).decode(order)) as items:
            async for item in (piece async for message in items for piece in pieces(message)):
                self.batches[replica] += 1
                if replica in self.lose_with:
                    await self._lose_together(replica)
                if self.batches[replica] > self.freeze_at.get(replica, 1 << 30):
                    self.frozen.add(replica)
                await self._thaw(replica)
                if self.slips.get(replica):
                    self.slips[replica] -= 1
                    raise RayActorError()
                if self.batches[replica] > self.lose_at.get(replica, 1 << 30):
                    self.unsaid = self.unsaid or item
                    self.kill(replica)
                if replica not in self.decoders:
                    raise RayActorError()
                yield item

    async def _lose_together(self, name):
        self.begun[name] += 1
        while name in self.decoders and self.begun[name] < self.lose_with[name]:
            await asyncio.sleep(0.001)
        self.kill(name)

    async def _thaw(self, name):
        while name in self.frozen:
            await asyncio.Event().wait()

    async def call(self, method, *args, replica):
        decoder = self._of(replica)
        await self._thaw(replica)
        result = getattr(decoder, method)(*args)
        return await result if asyncio.iscoroutine(result) else result


@pytest.fixture(autouse=True)
def costs(monkeypatch):
    """Where a chunk goes must not depend on how fast this machine is today."""
    monkeypatch.setattr(
        "serve.decoder.deployment._costs",
        lambda *_: LaneCosts(step_s=0.01, knee=1, lane_s=1.0, prefill_s=1e-6),
    )


@pytest.fixture(autouse=True)
def counts_are_those_of_a_scan(monkeypatch):
    """In every scenario here, whatever is lost or handed back: the counters equal a count over all responses."""

    def checked(self):
        counts = COUNTS(self)
        scan = Counter(replica for response in self.responses for replica in response.lanes())
        assert +counts == scan
        return counts

    monkeypatch.setattr(Lanes, "counts", checked)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    model = save_tiny_model(tmp_path_factory.mktemp("model") / "model")
    return ServeConfig(
        models={"tiny": {"path": str(model), "device": "cpu", "dtype": "float32"}},
        # Replicas are lost after so many batches: steps that run together would leave too few of them.
        engine={"num_slots": 8, "slot_tokens": 1024, "multi_step": False},
        decoder={"lease_s": 600.0},  # on a busy machine nothing may be taken for lost
    )


def order(placement, **changes):
    fields = {
        "request_id": "r",
        "model": "tiny",
        "prompt_ids": PROMPT,
        "limits": LIMITS,
        "parallel": True,
        "placement": placement,
    }
    sampling = SamplingParams(promise_bias=7.0, stop=changes.pop("stop", ()))
    return DecodeOrder(**{**fields, "sampling": sampling, **changes})


@functools.cache
def expected(stop=(), limits=LIMITS, **fields):
    engine = Engine(tiny(), EngineConfig(num_slots=1, slot_tokens=1024))
    sampling = SamplingParams(promise_bias=7.0, stop=stop)
    return engine.generate(Request(PROMPT, sampling=sampling, limits=limits, **fields))


def with_replicas(config, scenario):
    async def run():
        decoders = {}
        for name in NAMES:
            decoders[name] = Decoder.__new__(Decoder)
            await decoders[name].__init__(config)
        try:
            replicas = Replicas(decoders)
            dispatcher = Dispatcher(replicas, config)
            await dispatcher.ready()
            return await asyncio.wait_for(scenario(replicas, dispatcher), 900)
        finally:
            for decoder in decoders.values():
                await decoder._engines["tiny"].stop()

    return asyncio.run(run())


def home(dispatcher, wanted, lost):
    return dispatcher.home(wanted, dispatcher.prefixes(wanted), lost)


async def answer(dispatcher, wanted, tokens=None):
    session = Session(CODEC, PROMPT, wanted.limits, parallel=True, sampling=wanted.sampling)
    response, text, done = DistributedResponse(dispatcher, wanted, session), "", None
    async with aclosing(response.updates()) as updates:
        async for update in (update async for batch in updates for update in batch):
            if isinstance(update, Delta):
                text += update.text
                if tokens is not None:
                    tokens += update.logprobs
            else:
                done = update
    assert isinstance(done, Decoded), done
    return text + session.rest().text, done, response.placement()


@pytest.mark.slow
def test_an_answer_is_the_same_wherever_its_chunks_are_decoded(config):
    async def scenario(replicas, dispatcher):
        found = {}
        for placement in ("local", "spread", "auto"):
            replicas.held.clear()
            text, done, figures = await answer(dispatcher, order(placement, request_id=placement))
            assert (text, done.finish_reason) == (expected().text, expected().finish_reason)
            assert figures["redispatches"] == 0
            found[placement] = figures["spills"], {name for name, _ in replicas.held}
        return found

    found = with_replicas(config, scenario)
    assert found["local"][0] == 0
    assert len(found["local"][1]) == 1
    assert found["spread"][0] > 0
    assert found["auto"][0] > 0
    assert found["spread"][1] == set(NAMES)


@pytest.mark.slow
def test_what_placement_did_is_marked_for_the_trace(config):
    async def scenario(replicas, dispatcher):
        replicas.lose_at["b"] = 8
        session = Session(CODEC, PROMPT, LIMITS, parallel=True)
        response = DistributedResponse(dispatcher, order("spread"), session)
        async with aclosing(response.updates()) as updates:
            async for _ in updates:
                pass
        return response, session

    response, session = with_replicas(config, scenario)
    counted = Counter(event.what for event in response.placement_events)
    figures = response.placement()
    assert (counted["spill"], counted["return"], counted["redispatch"]) == (
        figures["spills"],
        figures["returns"],
        figures["redispatches"],
    )
    assert counted["redispatch"] > 0
    assert {event.path for event in response.placement_events} <= {
        thread.path for thread in session._mirror.threads
    }
    assert [event.time_s for event in response.placement_events] == sorted(
        event.time_s for event in response.placement_events
    )


@pytest.mark.slow
def test_many_answers_at_once_are_what_they_are_alone(config):
    short = dataclasses.replace(LIMITS, max_positions=300)

    async def scenario(replicas, dispatcher):
        wanted = [order("spread", request_id=f"r{n}", limits=short) for n in range(20)]
        answers = await asyncio.gather(*(answer(dispatcher, each) for each in wanted))
        return {text for text, _, _ in answers}, dispatcher.counts

    # Twenty homes want more slots than there are: none may wait for another for ever. In a crowd chunks come back
    # late, and what their homes have lent them meanwhile must not show.
    texts, counts = with_replicas(config, scenario)
    assert texts == {expected(limits=short).text}
    assert counts["spills"] > 0
    assert counts["redispatches"] == 0, "nobody was lost, and no engine failed"


@pytest.mark.slow
@pytest.mark.parametrize("batches", [1, 3, 8, 20, 40])
@pytest.mark.parametrize("lost", NAMES)
def test_an_answer_is_the_same_whichever_replica_is_lost_whenever(config, lost, batches):
    async def scenario(replicas, dispatcher):
        replicas.lose_at[lost] = batches
        text, done, figures = await answer(dispatcher, order("spread"))
        assert (text, done.finish_reason) == (expected().text, expected().finish_reason)
        # Every token had arrived if only the message that says so was lost: nothing is done again.
        missed = not all(isinstance(each, Decoded) for each in replicas.unsaid)
        assert figures["redispatches"] > 0 or lost in replicas.decoders or not missed
        assert dispatcher.counts["redispatches"] == figures["redispatches"]

    with_replicas(config, scenario)


@pytest.mark.slow
@pytest.mark.parametrize("batches", [1, 8, 40])
@pytest.mark.parametrize("frozen", NAMES)
def test_an_answer_goes_on_without_a_replica_that_falls_silent(config, frozen, batches):
    """Its streams stay open: only the leases that it does not renew tell."""
    leases = config.model_copy(update={"decoder": config.decoder.model_copy(update={"lease_s": 0.5})})

    async def scenario(replicas, _):
        replicas.freeze_at[frozen] = batches
        dispatcher = Dispatcher(replicas, leases)
        await dispatcher.ready()
        text, done, figures = await answer(dispatcher, order("spread"))
        assert (text, done.finish_reason) == (expected().text, expected().finish_reason)
        if frozen in replicas.frozen:
            assert figures["redispatches"] > 0
            # Nobody else is sent there, until it answers again.
            assert frozen not in dispatcher.loads()
            replicas.freeze_at, replicas.frozen = {}, set()
            while frozen not in dispatcher.loads():
                await asyncio.sleep(0.01)

    with_replicas(config, scenario)


@pytest.mark.slow
def test_statistics_are_those_of_the_replicas_that_answer(config, monkeypatch):
    """One that has died, or says nothing, hides none of the others."""
    monkeypatch.setattr("serve.interpreter.dispatch.STATS_S", 0.2)

    async def scenario(replicas, dispatcher):
        both = await dispatcher.stats()
        replicas.frozen = {"a"}
        one = await dispatcher.stats()
        known = known_replicas("Decoder").replicas
        replicas.kill("b")
        known_replicas("Decoder").update(known)  # as a router that has not noticed
        return len(both), len(one), await dispatcher.stats()

    assert with_replicas(config, scenario) == (2, 1, [])


@pytest.mark.slow
def test_an_answer_that_nobody_reads_is_kept_no_further_than_its_bound(config, monkeypatch):
    monkeypatch.setattr("serve.interpreter.response.MOST_UNREAD", 4)

    async def scenario(replicas, dispatcher):
        session = Session(CODEC, PROMPT, LIMITS, parallel=True)
        response, text, longest = DistributedResponse(dispatcher, order("spread"), session), "", 0
        async with aclosing(response.updates()) as updates:
            async for batch in updates:
                text += "".join(update.text for update in batch if isinstance(update, Delta))
                await asyncio.sleep(0.05)  # the engines decode several tokens meanwhile
                longest = max(longest, response._inbox.qsize())
        return text + session.rest().text, longest

    text, longest = with_replicas(config, scenario)
    assert text == expected().text
    # One message of each stream comes on top, of tokens and the chunks that they fork.
    assert 0 < longest <= 4 + 3 * LIMITS.max_threads


@pytest.mark.slow
def test_many_chunks_lost_with_one_replica_are_one_loss(config, monkeypatch):
    monkeypatch.setattr("serve.interpreter.response.MAX_LOSSES", 1)
    # Every thread ends by limits of its own. The shared ones go by the order in which threads come to them, and a chunk
    # that comes back late comes to them late (pasta/interpreter/lending.py).
    limits = dataclasses.replace(LIMITS, max_chunk_tokens=60, max_depth=1, max_threads=64, max_positions=560)

    async def scenario(replicas, dispatcher):
        response = DistributedResponse(
            dispatcher, order("spread", limits=limits), Session(CODEC, PROMPT, limits, parallel=True)
        )
        text, replicas.lose_with = "", {"b": 2}
        async with aclosing(response.updates()) as updates:
            async for batch in updates:
                text += "".join(update.text for update in batch if isinstance(update, Delta))
        assert replicas.held[0] == ("a", True)
        return text, response.placement()["redispatches"]

    text, redispatches = with_replicas(config, scenario)
    assert text == expected(limits=limits).text
    assert redispatches >= 2


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["local", "spread"])
def test_an_answer_that_fails_by_itself_costs_no_replica(config, monkeypatch, placement):
    """Logits that are no numbers, as of a model whose float16 overflows: once they ended one engine after another."""
    forward = DeviceState._run

    def spoilt(*step, **options):
        (logits,) = forward(*step, **options)
        good_steps[:] = [left - 1 for left in good_steps]
        return (torch.full_like(logits, float("nan")) if good_steps and good_steps[0] < 0 else logits,)

    monkeypatch.setattr(DeviceState, "_run", spoilt)
    monkeypatch.setattr(DeviceState, "loops", False)  # steps that run together do not pass through it
    good_steps = []

    async def scenario(replicas, dispatcher):
        response = DistributedResponse(
            dispatcher, order(placement), Session(CODEC, PROMPT, LIMITS, parallel=True)
        )
        num_tokens = 0
        good_steps.append(20)
        async with aclosing(response.updates()) as updates:
            async for update in (update async for batch in updates for update in batch):
                num_tokens += isinstance(update, Delta)
        assert num_tokens > 0
        assert (update.status, response.placement()["redispatches"]) == (500, 0)
        good_steps.clear()
        for decoder in replicas.decoders.values():
            decoder.check_health()
        text, _, _ = await answer(dispatcher, order(placement, request_id="next"))
        assert text == expected().text

    with_replicas(config, scenario)


@pytest.mark.slow
def test_a_replica_that_only_seemed_lost_is_better_than_none(config, monkeypatch):
    monkeypatch.setattr("serve.interpreter.dispatch.OTHER_REPLICA_S", 0.01)

    async def scenario(replicas, dispatcher):
        replicas.kill("b")
        replicas.slips["a"] = 2
        text, _, figures = await answer(dispatcher, order("local"))
        return text, figures["redispatches"]

    assert with_replicas(config, scenario) == (expected().text, 2)


@pytest.mark.slow
@pytest.mark.parametrize("batches", [None, 3, 12])
def test_each_token_has_its_log_probability_once_wherever_it_was_decoded(config, batches):
    async def scenario(replicas, dispatcher):
        at_home, elsewhere = [], []
        await answer(dispatcher, order("local", request_id="at-home", logprobs=1), at_home)
        if batches is not None:
            replicas.lose_at["a"] = replicas.batches["a"] + batches
        await answer(dispatcher, order("spread", request_id="elsewhere", logprobs=1), elsewhere)
        return at_home, elsewhere

    at_home, elsewhere = with_replicas(config, scenario)
    assert [(t.offset, t.token) for t in elsewhere] == [(t.offset, t.token) for t in at_home]
    assert [t.logprob for t in elsewhere] == pytest.approx([t.logprob for t in at_home], abs=1e-4)


@pytest.mark.slow
def test_a_stop_string_cuts_an_answer_whose_home_was_lost_where_it_cuts_any(config):
    whole = expected().text
    stop = (whole[len(whole) // 2 :][:4],)

    async def scenario(replicas, dispatcher):
        replicas.lose_at["a"] = 15
        return (await answer(dispatcher, order("spread", stop=stop)))[0]

    assert with_replicas(config, scenario) == expected(stop).text


def test_leaving_an_answer_ends_all_of_its_threads(config):
    async def scenario(replicas, dispatcher):
        response = DistributedResponse(
            dispatcher, order("spread"), Session(CODEC, PROMPT, LIMITS, parallel=True)
        )
        async with aclosing(response.updates()) as updates:
            async for _ in updates:
                if len(response.attempts) > 1:
                    break
        for _ in range(1000):
            stats = [await decoder.stats() for decoder in replicas.decoders.values()]
            if not any(s["active"] + s["waiting"] + s["open"] for s in stats):
                return dispatcher.lanes.responses
            await asyncio.sleep(0.01)
        raise AssertionError(stats)

    assert with_replicas(config, scenario) == set()


def test_what_no_interpreter_claims_is_reaped(config):
    short = config.model_copy(update={"decoder": config.decoder.model_copy(update={"lease_s": 0.01})})

    async def scenario(replicas, dispatcher):
        decoder = replicas.decoders["a"]
        items = [item async for item in decoder.decode(order("local"))]
        return items, await decoder.stats()

    items, stats = with_replicas(short, scenario)
    assert not any(isinstance(item, Decoded) for item in items)
    assert (stats["reaped"], stats["active"], stats["open"]) == (1, 0, 0)


class Busy:
    """A response with threads on these replicas."""

    attempts: ClassVar[dict] = {}
    prefixes = ()

    def __init__(self, *replicas):
        self.replicas, self.times_counted = replicas, 0

    def lanes(self):
        self.times_counted += 1
        return list(self.replicas)


def test_a_placement_counts_no_response_that_has_not_changed():
    lanes, responses = Lanes(), [Busy("a", "b"), Busy("a")]
    for response in responses:
        lanes.responses.add(response)
        lanes.changed(response)
    before = [response.times_counted for response in responses]
    counted = [Counter(COUNTS(lanes)) for _ in range(3)]
    assert counted == [Counter(a=2, b=1)] * 3
    assert [response.times_counted for response in responses] == [times + 1 for times in before]
    responses[1].replicas = ("c",)
    lanes.changed(responses[1])
    lanes.responses.discard(responses[0])
    lanes.changed(responses[0])
    assert +COUNTS(lanes) == Counter(c=1)


@pytest.mark.slow
def test_a_home_is_the_replica_that_holds_the_prompt_and_none_that_has_forgotten_it(config):
    async def scenario(replicas, dispatcher):
        busy = Busy("a")
        dispatcher.lanes.opened(busy)
        await answer(dispatcher, order("local"))
        assert replicas.held == [("b", True)]
        dispatcher.lanes.closed(busy)
        # Of equally busy replicas the first by name is taken where nobody holds the prompt.
        assert await home(dispatcher, order("local"), set()) == "b"
        assert await home(dispatcher, order("local"), {"b"}) == "a"
        assert await home(dispatcher, order("local", cache_salt="somebody else"), set()) == "a"
        replicas.decoders["b"]._engines["tiny"].engine.prefixes.forget()
        await dispatcher.ask("b")
        assert await home(dispatcher, order("local"), set()) == "a"

    with_replicas(config, scenario)


@pytest.fixture(
    params=[{"formats": {"tiny": "bfloat16"}}, {"weights": {"tiny": "others"}}], ids=["format", "weights"]
)
def b_computes_otherwise(monkeypatch, request):
    """Decoder b is on a machine where ``dtype: auto`` has chosen another number format, or it started after other
    weights were put in the place of the model's."""
    version, seen = Decoder.version, []

    async def told(self):
        found = await version(self)
        seen.extend([] if self in seen else [self])
        return found if seen[0] is self else dataclasses.replace(found, **request.param)

    monkeypatch.setattr(Decoder, "version", told)


def test_a_decoder_tells_the_weights_that_it_has_read(config, caplog):
    async def scenario(replicas, _):
        decoders = [replicas.decoders[name] for name in NAMES]
        return [
            told
            for each in decoders
            for told in ((await each.version()).weights, (await each.stats())["weights"])
        ]

    here = {"tiny": weights_fingerprint(Path(config.models["tiny"].path))}
    assert with_replicas(config, scenario) == [here] * 2 * len(NAMES)
    assert "other weights" not in caplog.text


def test_decoders_that_have_read_other_weights_are_told_to_the_operator(
    config, b_computes_otherwise, caplog, request
):
    async def scenario(_, dispatcher):
        assert set(dispatcher.loads()) == set(NAMES)

    with caplog.at_level(
        logging.WARNING, "ray.serve"
    ):  # a service that was started here quietly has raised it
        with_replicas(config, scenario)
    said = [each for each in caplog.records if each.levelname == "WARNING"]
    if "format" in request.node.callspec.id:  # machines of several kinds
        assert not said
    else:
        (line,) = (each.getMessage() for each in said)
        assert "has read other weights of the model tiny than" in line
        assert all(name in line for name in NAMES)


@pytest.mark.slow
def test_no_chunk_goes_where_another_number_format_or_other_weights_would_write_it(
    config, b_computes_otherwise
):
    async def scenario(replicas, dispatcher):
        assert set(dispatcher.loads()) == set(NAMES), "both take requests"
        text, _, figures = await answer(dispatcher, order("spread"))
        return text, figures["spills"], {name for name, _ in replicas.held}

    text, spills, used = with_replicas(config, scenario)
    assert (text, spills, len(used)) == (expected().text, 0, 1)


def test_an_answer_that_has_begun_is_not_continued_in_another_number_format_or_by_other_weights(
    config, b_computes_otherwise, monkeypatch
):
    monkeypatch.setattr("serve.interpreter.dispatch.NO_REPLICA_S", 0.05)

    async def scenario(replicas, dispatcher):
        replicas.lose_at["a"] = 5
        with pytest.raises(ReplicaLost, match="there is no decoder that computes in"):
            await answer(dispatcher, order("local"))
        assert list(replicas.decoders) == ["b"]

    with_replicas(config, scenario)


@pytest.mark.slow
def test_an_answer_without_a_token_begins_anew_in_any_number_format_and_by_any_weights(
    config, b_computes_otherwise
):
    async def scenario(replicas, dispatcher):
        replicas.lose_at["a"] = 1  # it has accepted, and said nothing
        text, _, figures = await answer(dispatcher, order("local"))
        return text, figures["redispatches"], replicas.held

    found = with_replicas(config, scenario)
    assert found == (expected().text, 1, [("a", True), ("b", True)])


def test_a_decoder_tells_each_interpreter_what_it_decodes_for_others(config, monkeypatch):
    """Two Interpreters on the same Decoders: the second one keeps away from what the first one has filled."""
    step, holds, is_held, goes_on = Engine.step, threading.Event(), threading.Event(), threading.Event()

    def held(self):
        if holds.is_set() and self.num_lanes > 1:  # or the answer may have ended when they are asked
            is_held.set()
            assert goes_on.wait(60)
        return step(self)

    monkeypatch.setattr(Engine, "step", held)

    async def scenario(replicas, first):
        first.name = "first"
        second = Dispatcher(replicas, config, "second")
        await second.ready()
        assert second.num_interpreters == 1, "as configured, until a Decoder tells"
        holds.set()
        answered = asyncio.create_task(answer(first, order("local")))
        assert await asyncio.to_thread(is_held.wait, 60)
        for dispatcher in (first, second):
            for name in NAMES:
                await dispatcher.ask(name)
        told = {name: await replicas.decoders[name].tell("second") for name in NAMES}
        goes_on.set()
        assert told["a"].other_lanes > 0
        assert told["b"].other_lanes == 0
        assert [[*told[name].other_slots.values()] for name in NAMES] == [[1], [0]]
        others = {name: (told.other_lanes, told.num_interpreters) for name, told in first._told.items()}
        assert others == {"a": (0, 1), "b": (0, 1)}
        assert second.loads()["a"] > second.loads()["b"] == 0
        assert second.num_interpreters == 2
        assert await home(second, order("local"), set()) == "b"
        await answered

    with_replicas(config, scenario)


@pytest.mark.slow
def test_chunks_that_leave_report_nothing_of_the_prompt(config, monkeypatch):
    """An engine scores each token of a prompt that is to be reported, and of a chunk's that is all it sees: also the
    <async> that begins the chunk, whose position may lie before others'. Then nobody decodes it."""
    made, orders = Decoder._request, []

    def noted(self, order, engine):
        orders.append(order)
        return made(self, order, engine)

    monkeypatch.setattr(Decoder, "_request", noted)

    async def scenario(replicas, dispatcher):
        wanted = order("spread", logprobs=0, prompt_logprobs=0)
        return await asyncio.wait_for(answer(dispatcher, wanted), 60)

    text, done, _ = with_replicas(config, scenario)
    assert text == expected().text
    assert len(done.prompt_logprobs) == len(PROMPT) - 1
    chunks = [each for each in orders if each.snapshot is not None]
    assert chunks
    assert {each.prompt_logprobs for each in chunks} == {None}


def test_an_answer_fails_whose_last_message_is_lost_with_the_log_probabilities_of_its_prompt(config):
    limits = Limits(max_tokens=4)
    wanted = order("local", logprobs=0, prompt_logprobs=0, limits=limits, parallel=False)

    async def scenario(replicas, dispatcher):
        await answer(dispatcher, wanted)
        replicas.lose_at["a"] = 2 * replicas.batches["a"] - 1
        with pytest.raises(RayActorError):
            await answer(dispatcher, wanted)
        (unsaid,) = replicas.unsaid
        assert isinstance(unsaid, Decoded)

    with_replicas(config, scenario)
