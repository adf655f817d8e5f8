"""The simulated replica takes the very steps that the real engine takes."""

import random

import pytest

from pasta.engine import DoneEvent, Engine, EngineConfig, Request
from pasta.lang import annotated_ids, plain_ids
from pasta.simulation.replica import KEY_BUCKET, Piece, Replica, ReplicaSizes
from pasta.simulation.script import UNBOUNDED, Scripts
from pasta.simulation.slots import LiveSlot
from tests.support.documents import random_document
from tests.support.models import tiny

LOADED = tiny()
CODEC = LOADED.codec
SIZES = ReplicaSizes(num_slots=3, slot_tokens=1024, prefill_chunk=16)


class Written:
    """Costs next to nothing, and writes down what it is asked."""

    def __init__(self, among_s=None):
        self.forwards, self._among_s = [], among_s

    def lanes_s(self, requests, lanes, cache_tokens):
        return 1e-6

    def together_s(self, requests, lanes, cache_tokens):
        return self._among_s

    def prefill_s(self, tokens, cache_tokens):
        self.forwards.append((1, tokens, cache_tokens))
        return 0.0

    def covers(self, requests, lanes, cache_tokens):
        return True


def answers(seed, parallel):
    """The tokens of prompts of several lengths, of the answers without tags and with them, and what is to be said."""
    rng = random.Random(seed)
    out = []
    for number in range(7):
        document = random_document(10 * seed + number, depth=3)
        plain, annotated = plain_ids(CODEC, document), annotated_ids(CODEC, document)
        ids = (rng.choice([1, 5, 16, 17, 40]), plain, annotated)
        out.append((ids, annotated if parallel else plain))
    return out


def real_forwards(answers, arrivals, parallel):
    """(slots, padded rows, keys that the mask covers) of each forward of the engine, step by step; steps taken."""
    config = EngineConfig(
        SIZES.num_slots,
        SIZES.slot_tokens,
        SIZES.prefill_chunk,
        reuse_prefixes=False,
        drafts=0,
        multi_step=False,
    )
    engine = Engine(LOADED, config)
    forward, seen, steps = engine.runner.forward, [], {}

    def watched(slots, feeds, *step):
        scores = forward(slots, feeds, *step)
        held = max(engine.runner.num_tokens[slot] for slot in feeds)
        seen[-1].append((len(slots), max(map(len, feeds.values())), -(-held // KEY_BUCKET) * KEY_BUCKET))
        return scores

    engine.runner.forward = watched
    waiting = sorted(zip(arrivals, range(len(answers)), strict=True))
    while waiting or engine.has_work:
        while waiting and waiting[0][0] <= engine.num_steps:
            number = waiting.pop(0)[1]
            ids, forced = answers[number]
            prompt = [CODEC.encode_text("a")[0]] * ids[0]
            request = Request(
                prompt, limits=UNBOUNDED, forced=forced, parallel=parallel, request_id=str(number)
            )
            engine.submit(request)
        seen.append([])
        for event in engine.step():
            if isinstance(event, DoneEvent):
                steps[int(event.request_id)] = event.result.steps
    return seen, steps


def simulated_forwards(answers, arrivals, parallel, among_s=None):
    """The same of the simulated replica; with ``among_s`` it runs steps together."""
    costs = Written(among_s)
    replica, seen, steps, pieces = Replica(SIZES, costs), [], {}, {}
    waiting = sorted(zip(arrivals, range(len(answers)), strict=True))
    while waiting or replica.has_work:
        while waiting and waiting[0][0] <= replica.work.steps:
            number = waiting.pop(0)[1]
            both = Scripts.of(CODEC.grammar, *answers[number][0])
            script = both.parallel if parallel else both.sequential
            piece = Piece(lambda script=script: LiveSlot(script))
            pieces[piece] = number
            replica.submit(piece)
        costs.forwards, before = [], replica.work.shapes.copy()
        replica.begin(0.0)
        lanes = [*(replica.work.shapes - before)]
        seen.append([*costs.forwards, *lanes])
        done, _ = replica.finish(0.0)
        steps |= {pieces[piece]: piece.last_step - piece.first_step + 1 for piece, _ in done}
    return seen, steps


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_forwards_and_steps_are_the_engines(seed, parallel):
    rng = random.Random(seed)
    asked = answers(seed, parallel)
    arrivals = [rng.randint(0, 60) for _ in asked]
    assert simulated_forwards(asked, arrivals, parallel) == real_forwards(asked, arrivals, parallel)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [True, False])
def test_answers_take_as_many_steps_when_these_run_together(parallel):
    asked = answers(0, parallel)
    at_once = [0] * len(asked)
    seen, steps = simulated_forwards(asked, at_once, parallel)
    fewer, same = simulated_forwards(asked, at_once, parallel, among_s=1e-9)
    assert same == steps
    assert len(fewer) < len(seen)
