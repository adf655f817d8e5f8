"""The comparison with peers: weights are converted as they are, records resume, tables and errors are right."""

import contextlib
import copy
import inspect
import json
import os
import statistics
import sys
from types import SimpleNamespace

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig

from jobs.benchmark import MODELS, main
from pasta.benchmark.peers import bench, comparison, decoders, engine, llama, process, runtimes
from pasta.benchmark.peers.answers import answers_report, measure_answers
from pasta.benchmark.peers.check import check_tokens
from pasta.benchmark.peers.comparison import ShapeComparison
from pasta.benchmark.peers.decoders import Chosen, Timing, fastest_setup, step_ms, time_steps
from pasta.benchmark.peers.engine import Ours, OurSession
from pasta.benchmark.peers.gguf_file import add_vocabulary, interleaved, read_weights, write_gguf
from pasta.benchmark.peers.llama import Llama, LlamaDecoder
from pasta.benchmark.peers.llama_drafts import DraftingLlama, Speculation
from pasta.benchmark.peers.plot import draw_growth
from pasta.benchmark.peers.process import INSTALL
from pasta.benchmark.peers.report import decode_report, growth_report, prefill_report, replay_report
from pasta.benchmark.peers.settings import PeerSettings
from pasta.benchmark.peers.weights import Weights, formats_that_fit, make_weights
from pasta.engine import TokenEvent, random_model, read_model_config
from pasta.errors import UserError
from tests.support.documents import ROW
from tests.support.models import CONFIGS, SMALL, tiny
from tests.support.options import with_options
from tests.support.tokenizers import byte_level, sentencepiece_bpe

WIDE = {**SMALL, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with models/twin, models/pasta, replay-small.json and documents.jsonl."""
    root = tmp_path_factory.mktemp("peers")
    loaded = random_model(LlamaConfig(**WIDE), byte_level(), device="cpu", packed=False)
    for name in ("twin", "pasta"):
        loaded.model.save_pretrained(root / "models" / name)
        loaded.tokenizer.save_pretrained(root / "models" / name)
    (root / "replay-small.json").write_text(json.dumps({"model_type": "llama", **WIDE}))
    (root / "documents.jsonl").write_text((json.dumps(ROW) + "\n") * 2)
    return root


def saved(directory, family, config=None):
    """A tiny model of this family in a directory, as weights under comparison."""
    config = copy.deepcopy(config or CONFIGS[family])
    config.intermediate_size = 64  # a multiple of q8_0's blocks
    loaded = random_model(config, byte_level(), device="cpu", packed=False)
    loaded.model.save_pretrained(directory / family)
    loaded.tokenizer.save_pretrained(directory / family)
    return Weights(family, directory / family, directory)


def run(place, out, *options):
    """The command's exit code and the JSON that it wrote."""
    small = [
        "--threads",
        "1",
        "--rounds",
        "2",
        "--tokens",
        "6",
        "--prompt-tokens",
        "16",
        "--formats",
        "float32",
    ]
    points = ["--lanes", "1,3", "--requests", "1,2", "--contexts", "64,96", "--prefills", "8,32"]
    points += ["--answer-prompts", "2", "--answer-tokens", "24"]
    given = ["--models", str(place / "models"), "--out", str(out / "peers.json"), *small, *points]
    given += ["--shapes", f"shipped,{place / 'replay-small.json'}"]
    code = main(["peers", *with_options(given, options)])
    return code, json.loads((out / "peers.json").read_text())


@pytest.fixture
def no_llama(monkeypatch):
    """A machine where neither llama.cpp nor another runtime is installed."""
    for module in (llama, runtimes):
        monkeypatch.setattr(module, "why_missing", lambda packages: f"it is missing: {INSTALL}")


@pytest.mark.slow
def test_every_part_runs_without_llama_and_resumes(place, tmp_path, capsys, no_llama):
    code, written = run(place, tmp_path, "--documents", str(place / "documents.jsonl"))
    assert code == 0
    told = capsys.readouterr()
    assert (
        told.err.count("llama.cpp is left out, it is missing: CMAKE_ARGS=-DGGML_NATIVE=ON pip install") == 1
    )
    titles = [*written["tables"]]
    assert titles[0] == "Sequential decoding, shipped"
    assert sum(title.startswith("least ms a step (÷ the first row), small") for title in titles) == 3
    assert written["tables"]["ms until the first token, small"].count("\n") == 3
    assert "Replay of documents, small" in titles
    assert "Replay of documents, shipped" not in titles
    assert "Answers to 2 held-out prompts, shipped" in titles
    assert "Answers to 2 held-out prompts, small" not in titles
    assert (tmp_path / "peers.png").stat().st_size > 1000
    before = (tmp_path / "peers.small.decode.jsonl").read_text()
    assert {"code", "weights", "threads", "wait_policy", "formats", "tokens"} <= {
        *json.loads(before.splitlines()[0])["config"]
    }
    code, again = run(place, tmp_path, "--documents", str(place / "documents.jsonl"))
    assert code == 0
    assert "2 rounds, 2 found from an earlier run" in capsys.readouterr().err
    assert (tmp_path / "peers.small.decode.jsonl").read_text() == before
    assert again["tables"] == written["tables"]


def test_a_run_that_goes_on_keeps_the_formats_that_had_room_as_it_began(place, tmp_path, monkeypatch, capsys):
    """Else one that goes on when memory is short, or is free again, would begin anew."""
    from pasta.benchmark.peers import weights as module

    made = []
    monkeypatch.setattr(
        bench.PeerBenchmark, "_measure", lambda _, comparison, *__: made.append(comparison.formats)
    )
    shapes = ["--shapes", str(place / "replay-small.json"), "--formats", "float32,bfloat16"]
    for free, fresh in ((1 << 10, []), (1 << 40, []), (1 << 40, ["--fresh"]), (1 << 10, [])):
        monkeypatch.setattr(module, "_available_bytes", lambda free=free: free)
        run(place, tmp_path, "--parts", "decode", *shapes, *fresh)
    assert made == [["bfloat16"]] * 2 + [["float32", "bfloat16"]] * 2
    assert capsys.readouterr().err.count("small: float32 is left out, three copies of it take ") == 2


@pytest.mark.parametrize("part", ["decode", "prefill"])
@pytest.mark.parametrize(("module", "peer"), [(llama, "llama.cpp f32"), (runtimes, "OpenVINO q8_0")])
def test_a_peer_that_is_removed_or_installed_meanwhile_is_not_mixed_with_the_rounds_before(
    place, tmp_path, monkeypatch, no_llama, part, module, peer
):
    """Else the rounds of one table would have different decoders, and one installed later would never be measured."""
    found, measured = {"version": "1"}, []

    class Steady:
        def decode(self, prompt, count):
            return Timing(0.1, count, 0.1 * count, 0.1, 0.1, count)

    @contextlib.contextmanager
    def steady(self, formats, **_):
        names = ["ours float32", *[peer] * bool(found["version"])]
        measured.append(names)
        yield {name: SimpleNamespace(use=Steady) for name in names}

    monkeypatch.setattr(ShapeComparison, "decoders", steady)
    monkeypatch.setattr(module, "why_missing", lambda _: "" if found["version"] else "missing")
    monkeypatch.setattr(module, "versions_of", lambda _: {"package": found["version"]}, raising=False)
    for count, found["version"] in enumerate(["1", "", "2"], start=1):
        for _ in range(2):  # with the same peers it resumes
            _, written = run(place, tmp_path, "--parts", part, "--shapes", str(place / "replay-small.json"))
            (table,) = written["tables"].values()
            assert (peer in table) == bool(found["version"])
            assert len(measured) == count


@pytest.mark.parametrize("part", ["decode", "prefill"])
def test_rounds_with_a_compiled_peer_are_not_those_without(place, tmp_path, monkeypatch, no_llama, part):
    """A table of both would have rows of two lengths."""
    identities = []

    def opened(self, name, identity):
        identities.append(identity)
        raise LookupError(name)

    monkeypatch.setattr(ShapeComparison, "open", opened)
    for compiled in ([], ["--compiled"]):
        with pytest.raises(LookupError):
            run(place, tmp_path, "--parts", part, *compiled)
    assert identities[0] != identities[1]


@pytest.mark.slow
def test_the_prompt_that_settings_are_chosen_with_may_be_longer_than_those_that_are_timed(
    place, tmp_path, no_llama
):
    options = ["--parts", "prefill", "--shapes", str(place / "replay-small.json"), "--prompt-tokens", "600"]
    assert run(place, tmp_path, *options)[0] == 0


@pytest.mark.slow
def test_a_replay_reports_the_documents_that_are_drawn_not_those_of_an_earlier_run(
    place, tmp_path, monkeypatch, no_llama
):
    reported = []

    def noted(shape, records):
        reported.append(len(records))
        return replay_report(shape, records)

    monkeypatch.setattr(bench, "replay_report", noted)
    (tmp_path / "documents.jsonl").write_text((json.dumps(ROW) + "\n") * 9)
    options = ["--parts", "replay", "--shapes", str(place / "replay-small.json")]
    options += ["--documents", str(tmp_path / "documents.jsonl")]
    for count, seed in (("4", "0"), ("2", "0"), ("3", "1")):
        run(place, tmp_path, *options, "--replay-prompts", count, "--replay-seed", seed)
    assert reported == [4, 2, 3]


@pytest.mark.slow
def test_growth_and_prefill_report_the_points_that_are_asked_for_not_those_of_an_earlier_run(
    place, tmp_path, no_llama
):
    options = ["--parts", "lanes,prefill", "--shapes", str(place / "replay-small.json")]

    def first_columns(*points):
        _, written = run(place, tmp_path, *options, *points)
        return [[row.split("|")[1].strip() for row in t.splitlines()[2:]] for t in written["tables"].values()]

    assert first_columns("--lanes", "1,3", "--prefills", "8,32") == [["1", "3"], ["8", "32"]]
    assert first_columns("--lanes", "1,2", "--prefills", "8,16") == [["1", "2"], ["8", "16"]]


def test_answers_to_another_number_of_prompts_are_measured_anew(place):
    """They are other prompts: of records by number some would be of the one list, some of the other."""

    def identity(count):
        def stop(_, identity, *rest):
            raise LookupError(identity)

        settings = PeerSettings(place / "models", ("shipped",), place / "out", place, answer_prompts=count)
        weights = SimpleNamespace(parallel=place / "models" / "pasta")
        with pytest.raises(LookupError) as opened:
            measure_answers(SimpleNamespace(settings=settings, weights=weights, part=stop))
        return opened.value.args[0]

    assert identity(24) == identity(24) != identity(48)


def test_transformers_still_compiles_on_a_cpu_where_it_is_told_to():
    """Else the peer that is called compiled would be measured uncompiled."""
    gone = (
        f"transformers {transformers.__version__} has no CompileConfig._compile_all_devices that generate reads: "
        "pasta/benchmark/peers/comparison.py was written against 5.17 to 5.23. Adapt that module."
    )
    assert hasattr(transformers.CompileConfig(), "_compile_all_devices"), gone
    assert "_compile_all_devices" in inspect.getsource(transformers.GenerationMixin), gone


def test_a_decoder_is_measured_when_the_threads_of_the_one_before_have_gone_to_sleep(monkeypatch):
    done = []
    monkeypatch.setattr(decoders.time, "sleep", lambda seconds: done.append(seconds >= 0.1))
    peer = SimpleNamespace(use=done.append)
    assert Chosen(peer, {"threads": 2}).use() is peer
    assert done == [{"threads": 2}, True]


def test_why_a_peer_cannot_be_measured_is_one_line_with_the_command(monkeypatch):
    monkeypatch.setattr(process.importlib.util, "find_spec", lambda name: None)
    reasons = {"llama.cpp": llama.why_no_llama(), **runtimes.why_left_out()}
    packages = {"llama.cpp": "llama-cpp-python and gguf", "OpenVINO": "openvino-genai and gguf"}
    packages["ONNX Runtime"] = "onnxruntime-genai and onnx and onnx-ir"
    install = "CMAKE_ARGS=-DGGML_NATIVE=ON pip install -e '.[peers]'"
    assert reasons == {name: f"{missing} not installed: {install}" for name, missing in packages.items()}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--parts", ""], "--parts: '', expected some of check,decode"),
        (["--formats", ","], "--formats: '', expected some of float32,bfloat16,int8"),
        (["--shapes", ""], "--shapes: '', expected at least one"),
        (
            ["--shapes", "a/config.json,b/config.json"],
            "--shapes: a/config.json and b/config.json are both called 'c",
        ),
        (["--parts", "decode,fast"], "--parts: 'fast', expected some of check,decode"),
        (["--formats", "int3"], "--formats: 'int3', expected some of float32,bfloat16,int8,int4"),
        (["--formats", "float16"], "--formats: 'float16', expected some of float32,bfloat16,int8"),
        (["--rounds", "1"], "--rounds: 1, expected at least 2"),
        (["--threads", "0"], "--threads: 0, expected a positive integer"),
        (["--lanes", "2,8"], "--lanes: 2,8, expected integers from 1 to 64, 1 among them"),
        (["--requests", "1,99"], "--requests: 1,99, expected integers from 1 to 64, 1 among them"),
        (["--contexts", "8"], "--contexts: 8, expected integers of at least 64"),
        (["--contexts", "64", "--rounds", "15"], "--contexts: 64, expected at least 68 with --rounds 15"),
        (["--prefills", "1,64"], "--prefills: 1,64, expected integers of at least 2"),
        (["--answer-prompts", "1"], "--answer-prompts: 1, expected at least 2"),
        (["--answer-tokens", "2047"], "--answer-tokens: 2047, expected at most 2046: "),
        (["--draft-acceptance", "1.5"], "--draft-acceptance: 1.5, expected a number from 0 to 1"),
        (["--draft-acceptance", "nan"], "--draft-acceptance: nan, expected a number from 0 to 1"),
        (["--models", "nowhere"], "--models 'nowhere': no model in twin/"),
        (["--shapes", "none.json"], "model configuration: none.json: no such file"),
        (["--documents", "none.jsonl"], "--documents: none.jsonl: no such file"),
    ],
)
def test_bad_input_is_one_clear_line_and_leaves_nothing(place, tmp_path, options, expected):
    out = tmp_path / "out" / "peers.json"
    given = ["--models", str(place / "models"), "--shapes", "shipped", "--out", str(out)]
    with pytest.raises(UserError) as caught:
        main(["peers", *with_options(given, options)])
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)
    assert not out.parent.exists()


def test_formats_of_which_none_runs_here_are_one_clear_line(place, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "why_not_format", lambda name, _: f"{name} is not built", raising=False)
    monkeypatch.setattr(comparison, "why_not_format", lambda name, _: f"{name} is not built")
    with pytest.raises(UserError, match=r"^--formats: int8,int4: none runs here: int8 is not built$"):
        run(place, tmp_path, "--formats", "int8,int4", "--parts", "decode")


@pytest.mark.slow
def test_a_shape_that_has_no_room_for_any_of_the_formats_is_left_out(
    place, tmp_path, monkeypatch, no_llama, capsys
):
    monkeypatch.setattr(
        comparison, "formats_that_fit", lambda weights, formats, _: formats if weights.name == "small" else []
    )
    code, written = run(place, tmp_path, "--parts", "decode")
    assert code == 0
    assert [*written["tables"]] == ["Sequential decoding, small"]
    assert "shipped is left out: no other format is in --formats" in capsys.readouterr().err


def test_a_family_that_llama_cannot_compute_is_one_clear_line(place, tmp_path):
    (tmp_path / "gemma.json").write_text(json.dumps({"model_type": "gemma", **WIDE}))
    with pytest.raises(UserError, match=r"llama.cpp: 'gemma' is not converted; expected llama or qwen3"):
        run(place, tmp_path, "--shapes", str(tmp_path / "gemma.json"))


def test_an_activation_that_llama_does_not_compute_is_one_clear_line(place, tmp_path):
    """The file was written, and llama.cpp computed another function."""
    (tmp_path / "gelu.json").write_text(json.dumps({"model_type": "llama", "hidden_act": "gelu", **WIDE}))
    with pytest.raises(UserError, match=r"llama.cpp: hidden_act 'gelu' is not converted; expected 'silu'"):
        run(place, tmp_path, "--shapes", str(tmp_path / "gelu.json"))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("format_name", ["f32", "bf16", "q8_0", "q4_0"])
def test_a_gguf_file_holds_the_weights(tmp_path, family, format_name):
    gguf = pytest.importorskip("gguf")
    weights = saved(tmp_path, family)
    path = tmp_path / "model.gguf"
    write_gguf(weights.config, read_weights(weights.directory), byte_level(), path, format_name, 512)
    reader = gguf.GGUFReader(path)
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    state = read_weights(weights.directory)
    assert len(tensors) == len(state)
    close = {"f32": 0.0, "bf16": 4e-3, "q8_0": 1e-2, "q4_0": 0.13}[format_name]
    pairs = [
        ("blk.0.ffn_up.weight", "model.layers.0.mlp.up_proj.weight", close),
        ("token_embd.weight", "model.embed_tokens.weight", min(close, 1e-2)),
    ]
    for theirs, ours, bound in pairs:
        wanted = state[ours].float()
        found = torch.from_numpy(tensors[theirs].reshape(wanted.shape).copy())
        assert float((found - wanted).abs().max() / wanted.abs().max()) <= bound
    assert tensors["output_norm.weight"].dtype == "float32"
    assert reader.fields["general.architecture"].contents() == family
    assert reader.fields[f"{family}.attention.head_count_kv"].contents() == 2
    assert reader.fields[f"{family}.vocab_size"].contents() == 512


class Written:
    """In a GGUF writer's place: what was added, by name."""

    def __init__(self):
        self.added = {}

    def __getattr__(self, name):
        return lambda value: self.added.__setitem__(name.removeprefix("add_"), value)


def test_a_gguf_file_has_the_tokenizer_and_ids_without_a_token_are_unused():
    tokenizer, writer = byte_level(), Written()
    add_vocabulary(writer, tokenizer, len(tokenizer) + 3)
    tokens, kinds = writer.added["token_list"], writer.added["token_types"]
    assert tokens[: len(tokenizer)] == tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert kinds[len(tokenizer) :] == [5, 5, 5]
    assert len({*tokens}) == len(tokens) == len(kinds)
    assert {kinds[number] for number in tokenizer.all_special_ids} == {3}
    assert writer.added["eos_token_id"] == tokenizer.eos_token_id
    assert writer.added["chat_template"] == tokenizer.chat_template


def test_a_tokenizer_that_is_no_byte_level_bpe_is_one_clear_line():
    with pytest.raises(
        UserError, match=r"llama\.cpp: the tokenizer is not converted; expected byte-level BPE"
    ):
        add_vocabulary(Written(), sentencepiece_bpe(), 600)


def test_llama_reads_and_writes_text_by_the_same_tokens(tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp")
    weights, tokenizer, path = saved(tmp_path, "llama"), byte_level(), tmp_path / "model.gguf"
    write_gguf(weights.config, read_weights(weights.directory), tokenizer, path, "f32", 512)
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    ids = tokenizer.encode("Tell me about Zürich, please.", add_special_tokens=False)
    assert model.tokenize("Tell me about Zürich, please.".encode(), add_bos=False) == ids
    assert model.detokenize(ids).decode() == "Tell me about Zürich, please."


def test_rows_that_q8_0_cannot_hold_are_one_clear_line(place, tmp_path):
    (tmp_path / "odd.json").write_text(json.dumps({"model_type": "llama", **WIDE, "intermediate_size": 100}))
    with pytest.raises(UserError, match=r"intermediate_size 100, expected a multiple of 32"):
        run(place, tmp_path, "--shapes", str(tmp_path / "odd.json"))


def test_rows_of_a_head_are_interleaved():
    rows = torch.arange(8.0).reshape(8, 1)  # two heads of four rows: halves 0 1 | 2 3
    assert interleaved(rows, 2).flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_llama_computes_the_same_function(tmp_path, family):
    pytest.importorskip("llama_cpp")
    weights = saved(tmp_path, family)
    record = check_tokens(weights, [[5, 6, 7, 8] * 10, [9, 20, 31]], lambda line: None)
    assert record["same"] == record["tokens"] > 40
    assert record["difference"] < 1e-3


def test_float32_is_left_out_where_three_copies_do_not_fit(tmp_path, monkeypatch):
    from pasta.benchmark.peers import weights as module

    weights, told = saved(tmp_path, "llama"), []
    monkeypatch.setattr(module, "_available_bytes", lambda: 1 << 10)
    assert formats_that_fit(weights, ["float32", "int8"], told.append) == ["int8"]
    assert told[0].startswith("llama: float32 is left out, three copies of it take ")


# -- decoders --------------------------------------------------------------------------------------------


def test_our_side_decodes_exactly_as_many_tokens_as_asked():
    ours = Ours(tiny(), "ours float32", [1], 256)
    timing = ours.decode([5] * 20, 12)
    assert timing.tokens == 11
    assert timing.first_s > 0


def test_what_our_engine_does_between_two_forwards_is_part_of_a_token_s_time(monkeypatch):
    """A clock that advances by one with each call of the engine: n tokens of a call take 1 / n each."""
    ours = Ours(tiny(), "ours float32", [1], 256)
    ours.decode([5] * 20, 100)  # the engine has to know what its steps take
    counts, step = [], ours.engine.step

    def counted():
        events = step()
        counts.append(sum(isinstance(event, TokenEvent) for event in events))
        return events

    monkeypatch.setattr(ours.engine, "step", counted)
    monkeypatch.setattr(engine, "time", SimpleNamespace(perf_counter=lambda: len(counts)))
    timing = ours.decode([5] * 20, 100)
    assert timing.first_s + timing.seconds == pytest.approx(len(counts))
    each = sorted(1 / count for count in counts for _ in range(count))
    assert timing.least_s == pytest.approx(each[0])
    assert timing.median_s == pytest.approx(
        statistics.median(each), rel=0.3
    )  # all tokens but the first are counted


@pytest.mark.parametrize(("prompts", "lanes"), [(1, 1), (3, 1), (1, 5)])
def test_a_session_decodes_a_token_in_every_row_in_every_step(prompts, lanes):
    session = OurSession(tiny(), [[5 + n] * 300 for n in range(prompts)], 10, lanes)
    engine = session.engine
    before, tokens = engine.num_steps, 0
    while engine.num_steps < before + 10:
        tokens += sum(isinstance(event, TokenEvent) for event in engine.step())
        assert tokens == prompts * lanes * (engine.num_steps - before)


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 5])
def test_a_session_times_as_many_steps_as_it_is_asked_for_however_many_run_together(lanes):
    session = OurSession(tiny(), [[5] * 300], 10, lanes)
    assert [len(session.step_ms(10)) for _ in range(8)] == [10] * 8


class Fake:
    """A decoder whose speed its settings give."""

    name = "fake"
    setups = ({"threads": 1}, {"threads": 2})

    def use(self, setup):
        self.threads = setup["threads"]

    def decode(self, prompt, count):
        return Timing(0.1 * self.threads, count, count / self.threads, 1.0, 1.0 / self.threads, count)


@pytest.mark.slow
def test_the_fastest_settings_are_chosen_for_decoding_or_for_prefilling():
    assert fastest_setup(Fake(), [1], 4) == {"threads": 2}
    assert fastest_setup(Fake(), [1], 4, prefill=True) == {"threads": 1}


def test_sessions_step_in_turn_each_with_its_settings():
    done = []

    class Steps:
        def __init__(self, name):
            self.name = name

        def step(self):
            done.append(self.name)
            return 1

        def step_ms(self, count):
            return step_ms(self.step, count)

    record = time_steps({n: (Steps(n), lambda n=n: done.append(f"use {n}")) for n in "ab"}, 2)
    assert done == ["use a", "a", "a", "a", "use b", "b", "b", "b"]
    assert [len(record[name]) for name in "ab"] == [2, 2]


class Cache:
    """In the place of a ``LlamaContext``: the tokens that it holds; after n of them it chooses n."""

    def begin(self, prompts):
        (self.tokens,) = [list(prompt) for prompt in prompts]
        self.last = [len(self.tokens)]

    def extend(self, tokens, wanted):
        self.tokens += tokens
        return [*range(len(self.tokens) + 1 - wanted, len(self.tokens) + 1)]

    def shorten(self, count):
        del self.tokens[len(self.tokens) - count :]


@given(
    drafts=st.lists(st.integers(0, 5), min_size=1, max_size=12), acceptance=st.sampled_from([0.0, 0.5, 1.0])
)
def test_a_draft_model_goes_on_from_what_was_accepted(drafts, acceptance):
    target, draft = Cache(), Cache()
    pair = Speculation(target, draft, acceptance)
    pair.begin([90, 91, 92])
    for count in drafts:
        before, read = len(target.tokens), len(draft.tokens)
        made = pair.step(count)
        assert len(target.tokens) == before + made
        assert made in {0.0: {1}, 0.5: {*range(1, count + 2)}, 1.0: {count + 1}}[acceptance]
        assert target.tokens[: len(draft.tokens)] == draft.tokens
        assert len(draft.tokens) >= len(target.tokens) - 1 or (count == 0 and len(draft.tokens) == read)


def test_llama_decodes_the_same_text_with_a_draft_model_that_is_always_right(tmp_path):
    pytest.importorskip("llama_cpp")
    weights = saved(tmp_path, "llama")
    path, setup = weights.gguf("f32", 512, lambda line: None), {"threads": 1, "flash": False}
    decoder = LlamaDecoder(path, 64)
    alone, target = decoder.context(setup, 64), decoder.context(setup, 64)
    alone.begin([[5, 6, 7]])
    expected = [alone.last[0], *(alone.step()[0] for _ in range(12))]
    pair = Speculation(target, decoder.context(setup, 64), 1.0)
    pair.begin([5, 6, 7])
    assert [pair.step(3) for _ in range(3)] == [4, 4, 4]
    assert pair.last == expected[12]


def test_llama_with_a_draft_model_decodes_as_many_tokens_as_asked(tmp_path):
    pytest.importorskip("llama_cpp")
    path = saved(tmp_path, "llama").gguf("f32", 512, lambda line: None)
    peer = Llama(path, "f32", [1], 64)
    try:
        drafting = DraftingLlama(peer, path, 1.0, {"threads": 1, "flash": False})
        drafting.use(drafting.setups[2])
        timing = drafting.decode([5, 6, 7], 14)
    finally:
        peer.close()
    assert drafting.setups[2]["drafts"] == 3
    assert (timing.tokens, timing.steps) == (13, 4)  # 1, then 4, 4, 4 and the last


# -- tables ----------------------------------------------------------------------------------------------


def timing(rate):
    return {"first_s": 0.1, "tokens": 10, "seconds": 10 / rate, "median_s": 1 / rate, "least_s": 1 / rate}


def test_a_format_is_compared_with_llamas_best_of_no_more_bits():
    rates = {
        "ours bfloat16": 50,
        "ours int8": 90,
        "llama.cpp f32": 400,
        "llama.cpp bf16": 40,
        "llama.cpp q8_0": 100,
    }
    rounds = [
        {"key": str(n), **{name: timing(rate * (1 + 0.01 * n)) for name, rate in rates.items()}}
        for n in (0, 1)
    ]
    metrics, tables = decode_report("llama-400m", rounds, {"llama.cpp q8_0": {"threads": 2, "flash": True}})
    found = {metric.key: metric for metric in metrics}
    assert found["peers.sequential.llama-400m.int8"].value == pytest.approx(0.9)
    assert found["peers.sequential.llama-400m.int8"].target == 1.0
    assert "÷ llama.cpp q8_0" in found["peers.sequential.llama-400m.bfloat16"].label
    assert found["peers.sequential.llama-400m.bfloat16"].target is None
    (table,) = tables.values()
    assert "| llama.cpp q8_0" in table
    assert "2, flash attention" in table
    assert "0.90 (0.90 to 0.90)" in table


def test_growth_is_told_as_milliseconds_and_as_multiples_of_the_first_row():
    records = [
        {"key": str(n), "rounds": [{"ours int8": [10.0 + n, 11.0 + n]}, {"ours int8": [12.0 + n]}]}
        for n in (1, 8)
    ]
    metrics, tables = growth_report("llama-400m", "lanes", records)
    assert metrics[0].value == pytest.approx(18 / 11)
    assert (metrics[0].target, metrics[0].passed) == (1.35, False)
    (table,) = tables.values()
    assert "11.00 (1.00)" in table
    assert "18.00 (1.64)" in table


def test_a_first_token_is_compared_with_that_of_llamas_best_format():
    rounds = [{"ours int8": [10.0], "llama.cpp q8_0": [30.0], "llama.cpp bf16": [5.0]}] * 2
    metrics, tables = prefill_report("wide-400m", [{"key": "64", "rounds": rounds}])
    (metric,) = metrics
    assert metric.label == "first token after 64 tokens, llama.cpp q8_0 ÷ ours int8, wide-400m"
    assert metric.value == pytest.approx(3.0)
    (table,) = tables.values()
    assert "| 64 " in table
    assert "10.0" in table


def test_replay_counts_the_plain_answers_tokens_on_all_sides():
    seconds = {"ours int8": 2.0, "ours int8, threads": 1.0, "llama.cpp q8_0": 1.5}
    records = [{"key": str(n), "tokens": 100 + n, "seconds": seconds, "threads": 3} for n in range(3)]
    metrics, tables = replay_report("llama-400m", records)
    assert [metric.value for metric in metrics] == [pytest.approx(1.5), pytest.approx(2.0)]
    assert [metric.target for metric in metrics] == [1.3, None]
    assert "| ours int8, threads | 101.0" in next(iter(tables.values()))


def answered(number, seconds, *, independent=True, cut=False):
    """The record of a prompt: every answer has 100 tokens, in 100 steps."""
    counts = dict.fromkeys(seconds, 100)
    record = {"key": str(number), "independent": independent, "cut": cut}
    return record | {"seconds": seconds, "tokens": counts, "steps": counts}


def test_an_answer_is_compared_with_the_twin_s_and_with_llama_s_best_of_no_more_bits():
    seconds = {
        "ours int8, twin": 2.0,
        "ours int8, twin, all help": 1.0,
        "ours int8, PASTA": 1.0,
        "ours int8, PASTA, all help": 0.5,
        "llama.cpp bf16": 2.5,
        "llama.cpp q8_0": 3.0,
        "llama.cpp bf16, drafts": 0.25,
        "llama.cpp q8_0, drafts": 1.5,
    }
    records = [answered(n, seconds, independent=n != 1) for n in range(3)]
    metrics, tables = answers_report("wide", records)
    found = {metric.key.removeprefix("peers.answers.wide.int8."): metric.value for metric in metrics}
    assert found == pytest.approx(
        {
            "twin": 2.0,
            "threads": 2.0,
            "plain": 4.0,
            "plain_independent": 4.0,
            "same_independent": 2.0,
            "llama": 6.0,
            "llama_independent": 6.0,
            "llama_drafts_twin": 1.5,
            "llama_drafts": 3.0,
            "llama_drafts_independent": 3.0,
        }
    )
    assert "| ours int8, PASTA, all help | 0.500" in next(iter(tables.values()))


def test_each_help_is_compared_with_none_on_the_same_model():
    seconds = {"ours int8, twin": 2.0, "ours int8, twin, all help": 1.0, "ours int8, twin, drafts": 1.25}
    seconds |= {"ours int8, PASTA": 1.0, "ours int8, PASTA, all help": 0.5}
    seconds |= {"ours int8, PASTA, jump-forward": 0.8}
    metrics, _ = answers_report("wide", [answered(0, seconds)])
    found = {metric.key.rpartition(".")[2]: metric.value for metric in metrics}
    assert (found["twin_drafts"], found["pasta_jump-forward"]) == pytest.approx((1.6, 1.25))


def test_an_answer_that_a_limit_cut_is_not_compared():
    seconds = {"ours int8, twin": 2.0, "ours int8, PASTA": 1.0, "ours int8, PASTA, all help": 0.5}
    seconds |= {"ours int8, twin, all help": 1.0}
    whole = answered(0, seconds)
    cut = answered(1, seconds | {"ours int8, PASTA, all help": 5.0}, cut=True)
    found = {
        metric.key.rpartition(".")[2]: metric.value for metric in answers_report("wide", [whole, cut])[0]
    }
    assert (found["plain"], found["plain_independent"], found["cut"]) == (4.0, 4.0, 1)
    assert "cut" not in {metric.key.rpartition(".")[2] for metric in answers_report("wide", [whole])[0]}


@pytest.mark.slow
def test_other_runtimes_decode_as_many_tokens_as_asked(tmp_path):
    pytest.importorskip("openvino_genai")
    pytest.importorskip("onnxruntime_genai")
    weights = saved(tmp_path, "wide", LlamaConfig(**WIDE))
    made = runtimes.runtimes(weights, ["bfloat16", "int8"], [1, 2], 256, print)
    assert [peer.name for peer in made] == ["OpenVINO q8_0", "ONNX Runtime int8"]
    for peer in made:
        for setup in peer.setups:
            peer.use(setup)
            assert peer.decode([1, 2, 3], 5).tokens == 4
        peer.close()


@pytest.fixture
def onnx(tmp_path, monkeypatch):
    """The directory of an ``onnxruntime_genai`` that an installation was cut in; the packages beside it are whole."""
    for name in ("onnx", "onnx_ir", "onnxruntime_genai/models"):
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").touch()
    path = os.pathsep.join([str(tmp_path / "site"), *sys.path])
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", path)
    process._why_not_imported.cache_clear()
    yield tmp_path / "site" / "onnxruntime_genai"
    process._why_not_imported.cache_clear()


def test_a_package_of_which_only_a_directory_is_left_is_not_installed(onnx):
    assert runtimes.why_left_out()["ONNX Runtime"].startswith("onnxruntime-genai not installed: ")


def test_a_package_that_cannot_be_imported_is_left_out_with_its_reason(onnx):
    (onnx / "__init__.py").write_text("raise ImportError('libonnx.so: cannot open')")
    told = (
        "onnxruntime-genai and onnx and onnx-ir cannot be imported (ImportError: libonnx.so: cannot open): "
    )
    assert runtimes.why_left_out()["ONNX Runtime"] == told + INSTALL


@pytest.mark.slow
def test_a_model_that_onnx_runtime_cannot_convert_is_left_out_with_the_converter_s_reason(
    onnx, tmp_path, monkeypatch
):
    (onnx / "__init__.py").touch()
    (onnx / "models" / "builder.py").write_text("raise SystemExit('ValueError: no such family')")
    monkeypatch.setitem(runtimes._PACKAGES, "OpenVINO", {"no_such_module": "openvino-genai"})
    weights, told = saved(tmp_path, "qwen3"), list[str]()
    assert runtimes.runtimes(weights, ["int8"], [1], 256, told.append) == []
    directory = str(weights.directory)
    assert told[1:] == [
        f"ONNX Runtime int8 is left out, it cannot convert {directory!r}: ValueError: no such family"
    ]


@pytest.mark.slow
def test_a_configuration_of_the_shipped_models_kind_is_made_by_widening_them(tmp_path):
    config = read_model_config(MODELS / "twin")
    config.hidden_size, config.vocab_size = 320, 2100
    config.save_pretrained(tmp_path / "wide")
    told: list[str] = []
    shape = str(tmp_path / "wide" / "config.json")
    made = make_weights(shape, MODELS, tmp_path / "made", told.append)
    assert [each.split(" in ")[0] for each in told] == [
        "making the twin widened to config",
        "making the pasta widened to config",
    ]
    assert made.parallel == made.directory.parent / "pasta"
    assert read_model_config(made.parallel).hidden_size == 320
    assert make_weights(shape, MODELS, tmp_path / "made", pytest.fail).directory == made.directory
    draft = made.draft(told.append)
    assert told[2].startswith("making a draft model for config in ")
    assert (draft.config.vocab_size, draft.config.hidden_size) == (2100, 256)


def test_a_picture_needs_two_points(tmp_path):
    one = {"tiny": {"lanes": {1: {"ours int8": 1.0}}}}
    assert not draw_growth(one, tmp_path / "growth.png")
    one["tiny"]["lanes"][2] = {"ours int8": 1.1}
    assert draw_growth(one, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
