"""Captured steps, with a stand-in for a CUDA graph: tokens as without, fixed addresses, nothing read from padding."""

import functools

import pytest
import torch

from pasta.engine import Engine, EngineConfig, Request, SamplingParams
from pasta.engine.graphs import GraphShapes, recorder_for
from pasta.engine.shapes import Shape
from pasta.errors import UserError
from pasta.interpreter import Limits
from tests.support.models import CONFIGS, UNRECORDED, tiny

LOADED = tiny()
CODEC = LOADED.codec
SIZES = {**UNRECORDED, "num_slots": 3, "slot_tokens": 320}


class StandIn:
    """Stands in for what captures CUDA graphs: a replay runs the step again, with garbage wherever it must not look."""

    def __init__(self):
        self.runner, self.addresses = None, None
        self.num_recorded = self.num_replayed = 0
        self.memory = 1 << 30

    def record(self, run):
        if self.num_recorded == self.memory:
            raise torch.OutOfMemoryError
        run()
        self.num_recorded += 1

        def replay():
            self.num_replayed += 1
            self.addresses = self.addresses or self.now()
            assert self.now() == self.addresses
            guesses = "GuessGraphs" in run.__qualname__
            self.spoil(self.runner._guess_graphs._outputs if guesses else self.runner._graphs._outputs)
            if not guesses:
                self.poison()
            run()

        return replay

    def tensors(self):
        r, s = self.runner, self.runner.state
        own = (s.key_segments, s.key_positions, s.sees, s.slot_starts, r.constraints.forbidden)
        graphs = (r._graphs._inputs, *r._graphs._outputs)
        if r._guess_graphs is not None:
            graphs += (*r._guess_graphs._inputs, *r._guess_graphs._outputs)
        return (*own, *graphs, *r.cache.keys, *r.cache.values, *r.model.parameters())

    def now(self):
        return [tensor.data_ptr() for tensor in self.tensors()]

    def spoil(self, tensors):
        for tensor in tensors:
            tensor.fill_(-7 if tensor.dtype == torch.long else float("nan"))

    def poison(self):
        r = self.runner
        if r._guess_graphs is not None:
            self.spoil(r._guess_graphs._inputs)  # its rows are copied there later, the padding is not
        width = r._scratch + 1
        for slot, used in enumerate(r.num_tokens):
            for block in (*r.cache.keys, *r.cache.values):
                block[:, slot * width + used : (slot + 1) * width] = 1e4
            r.state.key_positions[slot, used:] = 1 << 40


def captured(loaded=LOADED, **sizes):
    """An engine whose steps are captured, and what stands in for the graphs."""
    stand_in = StandIn()
    engine = Engine(loaded, EngineConfig(**{**SIZES, **sizes}), stand_in)
    stand_in.runner = engine.runner
    return engine, stand_in


def requests(max_tokens=70, **sampling):
    limits = Limits(max_tokens=max_tokens, max_chunk_tokens=25, max_threads=12)
    return [
        Request(
            CODEC.encode_prompt([{"role": "user", "content": text}]),
            sampling=SamplingParams(promise_bias=6.0, seed=n, **sampling),
            limits=limits,
            request_id=str(n),
        )
        for n, text in enumerate(["hello", "a b a b a b", "Name three rivers.", "x"])
    ]


def decode(engine, asked):
    return {result.request_id: result.response_ids for result in engine.decode(asked)}


@functools.cache
def plain_answers(**sampling):
    """To ``requests(**sampling)``, by steps that are not captured, without drafts."""
    return decode(Engine(LOADED, EngineConfig(**SIZES, drafts=0)), requests(**sampling))


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "top_p": 0.9, "top_k": 50}])
@pytest.mark.parametrize("drafts", [0, 4])
def test_captured_steps_choose_the_same_tokens(sampling, drafts):
    asked, plain = requests(**sampling), plain_answers(**sampling)
    engine, stand_in = captured(drafts=drafts)
    assert decode(engine, asked) == plain
    assert stand_in.num_replayed > 0.8 * engine.num_steps
    assert any(CODEC.control.async_open in ids for ids in plain.values())


@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_decodes_the_same_in_captured_steps(family, few):
    loaded, asked = tiny(family), requests(30)[:1]
    engine, stand_in = captured(loaded, drafts=0)
    assert decode(engine, asked) == decode(Engine(loaded, EngineConfig(**SIZES, drafts=0)), asked)
    assert stand_in.num_replayed > 0.5 * engine.num_steps


def test_a_shape_is_captured_at_its_second_use():
    engine, stand_in = captured()
    graphs, wide = engine.runner._graphs, Shape(0, 2, 9, 64, 18, biased=False)
    at_start = stand_in.num_recorded
    assert graphs.find(wide) is None
    assert graphs.find(wide._replace(lanes=16, keys=200)).shape == Shape(
        0, 2, 16, 256, 32, biased=True, padded=True
    )
    assert stand_in.num_recorded == at_start + 1


def test_all_is_captured_anew_when_a_table_has_moved(few):
    asked, plain = requests(), plain_answers()
    engine, stand_in = captured()
    recorded = stand_in.num_recorded
    engine.runner.state.sees = torch.zeros(3, 600, 600, dtype=torch.bool)
    assert decode(engine, asked) == plain
    assert stand_in.num_recorded > recorded


def test_without_memory_for_more_graphs_steps_run_eagerly(caplog):
    stand_in = StandIn()
    stand_in.memory = 2
    engine = Engine(LOADED, EngineConfig(**SIZES), stand_in)
    stand_in.runner = engine.runner
    assert "no memory is left" in caplog.text
    assert decode(engine, requests()) == plain_answers()


def test_what_is_captured_anew_has_the_memory_of_what_it_replaces():
    stand_in = StandIn()
    stand_in.memory = 2
    engine = Engine(LOADED, EngineConfig(**SIZES), stand_in)
    stand_in.runner = engine.runner
    graphs, step = engine.runner._graphs, Shape(0, 1, 1, 64, 1, biased=False)
    graphs.find(step)
    engine.runner.state.sees = torch.zeros(3, 600, 600, dtype=torch.bool)
    stand_in.memory += 2
    assert graphs.find(step) is not None


def test_the_least_shape_that_holds_a_step_is_taken():
    shapes = GraphShapes(num_slots=6, slot_tokens=700)
    step = Shape(1, 2, 3, 300, 5, biased=False)
    assert shapes.padded(step) == Shape(0, 4, 4, 512, 16, biased=True, padded=True)
    assert shapes.padded(step._replace(first=4, keys=513)) == Shape(
        0, 6, 4, 700, 24, biased=True, padded=True
    )
    assert shapes.padded(step._replace(lanes=65)) is None
    assert GraphShapes(64, 700).padded(Shape(0, 33, 5, 64, 33, biased=False)) is None  # 512 rows


def test_those_that_decoding_begins_with_are_captured_widest_first():
    common = GraphShapes(num_slots=8, slot_tokens=2048).common()
    assert len(common) == len(set(common)) == 4 * 4 * 3
    assert [shape.rows for shape in common] == sorted((shape.rows for shape in common), reverse=True)


def test_on_a_cpu_captured_steps_are_off_or_an_error():
    assert recorder_for(LOADED, EngineConfig()) is None
    with pytest.raises(UserError, match="cuda_graphs: 'on', but the model runs on cpu; expected auto or off"):
        Engine(LOADED, EngineConfig(cuda_graphs="on"))
    with pytest.raises(ValueError, match="cuda_graphs: 'yes', expected auto, on or off"):
        EngineConfig(cuda_graphs="yes")
