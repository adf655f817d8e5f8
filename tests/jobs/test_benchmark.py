"""The benchmark command: every part of it on tiny random models, going on after an interruption, bad input."""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from jobs.benchmark import MODELS, main
from pasta.benchmark import benchmark
from pasta.benchmark.benchmark import Benchmark
from pasta.benchmark.calibrate import calibration_of
from pasta.benchmark.settings import Settings
from pasta.engine import kernels, read_model_config
from pasta.engine.formats import NumberFormat, fastest_of, formats_here
from pasta.errors import UserError
from pasta.simulation.config import read_calibration
from pasta.stages.lock import sole_writer
from tests.support.documents import ROW
from tests.support.models import save_misfit_heads, tiny
from tests.support.options import with_options
from tests.support.paths import ROOT

SMALL = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 8192}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with models/twin, models/pasta, large.json and documents.jsonl."""
    root = tmp_path_factory.mktemp("benchmark")
    for seed, name in enumerate(("twin", "pasta")):
        loaded = tiny(seed=seed)
        loaded.model.save_pretrained(root / "models" / name)
        loaded.tokenizer.save_pretrained(root / "models" / name)
    (root / "large.json").write_text(json.dumps(SMALL))
    (root / "documents.jsonl").write_text((json.dumps(ROW) + "\n") * 2)
    return root


#: Options that make a part small, by the parts that read them.
SMALL_OPTIONS = {
    ("--rounds", "1"): {"step", "generate", "calibrate", "prefix"},
    ("--prompts", "3"): {"accuracy", "speed", "formats", "help", "replay"},
    ("--max-tokens", "24"): {"accuracy", "speed", "generate", "formats", "prefix", "help", "replay"},
}


def run(place, out, what, *options):
    """The command's exit code and the JSON that it wrote."""
    path = out / f"{what}.json"
    given = ["--models", str(place / "models"), "--out", str(path), "--threads", "1"]
    if what != "formats":
        given += ["--dtype", "float32"]
    if what in ("step", "generate", "calibrate", "replay"):
        given += ["--model-config", str(place / "large.json")]
    for option, parts in SMALL_OPTIONS.items():
        given += option if what in parts else ()
    code = main([what, *with_options(given, options)])
    return code, json.loads(path.read_text())


def keys(written):
    return {metric["key"] for metric in written["figures"]}


@pytest.mark.slow
def test_accuracy_grades_answers_and_checks_random_weights(place, tmp_path, capsys):
    code, written = run(place, tmp_path, "accuracy")
    assert code == 0
    assert {"statements.twin", "structure.annotated", "well_formed.shipped", "well_formed.random"} <= keys(
        written
    )
    metrics = {metric["key"]: metric for metric in written["figures"]}
    assert metrics["well_formed.shipped"]["value"] == metrics["well_formed.random"]["value"] == 1.0
    assert written["complete"]
    assert written["settings"]["threads"] == 1
    assert written["command"].startswith("python -m jobs.benchmark accuracy --models")
    assert "| statement accuracy, sequential twin" in capsys.readouterr().out


@pytest.mark.slow
def test_speed_times_both_models(place, tmp_path):
    code, written = run(place, tmp_path, "speed", "--repeats", "2")
    assert code == 0
    assert {"speedup.cut", "statements.ratio"} <= keys(written), "random models do not end their answers"
    lines = [json.loads(line) for line in (tmp_path / written["records"]["speed"]).read_text().splitlines()]
    assert [line["key"] for line in lines[1:]] == ["0", "1", "2"]
    assert all(len(line["pasta"]["seconds"]) == 2 for line in lines[1:])


@pytest.mark.slow
def test_step_times_lanes_on_both_sizes(place, tmp_path):
    code, written = run(place, tmp_path, "step", "--lanes", "1,2", "--cache-tokens", "128")
    assert code == 0
    assert keys(written) == {"step.shipped.2", "step.large.2"}


@pytest.mark.slow
def test_prefix_holds_conversations_with_and_without_reuse(place, tmp_path, capsys):
    code, written = run(place, tmp_path, "prefix", "--rounds", "2", "--max-tokens", "30")
    assert code == 0
    figures = {metric["key"]: metric["value"] for metric in written["figures"]}
    assert figures.keys() == {"prefix.turns.reused", "prefix.turns.computed", "prefix.candidates"}
    assert figures["prefix.candidates"] == 1.0
    assert "| turn " in capsys.readouterr().out


@pytest.mark.slow
def test_help_compares_each_help_and_counts_changed_answers(place, tmp_path, capsys):
    _, written = run(place, tmp_path, "help", "--prompts", "3", "--max-tokens", "40")
    figures = {metric["key"]: metric for metric in written["figures"]}
    # Random weights end no answer, and what a limit cut says another part of its answer in each model.
    assert figures.keys() == {"help.changed", "help.twin", "help.pasta"}
    # Three prompts, greedy and sampled: five sets of helps for PASTA, four for the twin, in which nothing is forced.
    assert (figures["help.changed"]["value"], figures["help.changed"]["count"]) == (0, 3 * 2 * (5 + 4))
    assert re.search(r"\| pasta +\| all help +\| 0.8 ", capsys.readouterr().out)


def test_auto_is_labelled_by_the_format_that_was_chosen(place, tmp_path, capsys):
    given = ["--only", "shipped", "--dtype", "auto", "--lanes", "1,2", "--cache-tokens", "128"]
    _, written = run(place, tmp_path, "step", *given)
    (metric,) = written["figures"]
    chosen = metric["label"].rpartition(", ")[2]
    assert written["formats"] == {"shipped": chosen}
    assert chosen in ("float32", "bfloat16")
    assert f"shipped model: computes in {chosen}, " in capsys.readouterr().err


@pytest.mark.slow
def test_formats_compares_every_format_that_runs_here_with_float32(place, tmp_path, capsys):
    code, written = run(place, tmp_path, "formats", "--prompts", "2")
    assert code == 0
    names = formats_here(torch.device("cpu"))
    assert names[0] == "float32"
    assert "fp8: left out, fp8 runs on CUDA GPUs, not on cpu" in capsys.readouterr().err
    expected = {
        f"formats.{name}.{what}" for name in names for what in ("quality", "formed", "rows", "beside")
    }
    assert keys(written) == expected | {f"formats.{name}.kl" for name in names[1:]}
    figures = {metric["key"]: metric["value"] for metric in written["figures"]}
    assert figures["formats.float32.rows"] == 1.0
    # Random weights make a wilder model than a trained one. A step of 4 bits is 16 times as long as one of 8.
    bounds = {"int4": 2.0}
    assert all(0 < figures[f"formats.{name}.kl"] < bounds.get(name, 0.1) for name in names[1:])
    # Another run measures nothing again.
    capsys.readouterr()
    assert run(place, tmp_path, "formats", "--prompts", "2")[1]["figures"] == written["figures"]
    assert "2 found from an earlier run" in capsys.readouterr().err


@pytest.mark.slow
def test_calibrate_counts_as_many_rounds_as_it_is_asked_for(place, tmp_path, monkeypatch):
    given = ["--only", "large", "--lanes", "1", "--requests", "1", "--cache-tokens", "64"]
    run(place, tmp_path, "calibrate", *given, "--rounds", "2")
    counted = []

    def noted(rounds, **rest):
        counted.append(len(rounds))
        return calibration_of(rounds, **rest)

    monkeypatch.setattr(benchmark, "calibration_of", noted)
    run(place, tmp_path, "calibrate", *given, "--rounds", "1")
    assert counted == [1]


@pytest.mark.slow
@pytest.mark.parametrize("fastest", [False, True])
def test_calibrate_writes_what_a_simulation_reads(place, tmp_path, fastest):
    given = ["--only", "large", "--lanes", "1,2", "--requests", "1,3", "--cache-tokens", "128"]
    code, written = run(place, tmp_path, "calibrate", *given, *["--fastest"] * fastest)
    assert code == 0
    (title,) = written["tables"]
    assert title == "A step, large, float32"
    calibration = read_calibration(tmp_path / "calibrate.calibration-large.json")
    assert calibration.model == "large"
    assert {(p.requests, p.lanes, p.cache_tokens) for p in calibration.steps} == {
        (requests, lanes, cached) for requests in (1, 3) for lanes in (1, 2) for cached in (128, 512)
    }
    assert {(p.tokens, p.cache_tokens - p.tokens) for p in calibration.prefill} == {
        (tokens, before) for tokens in (16, 64, 256) for before in (0, 1024)
    }
    assert calibration.overhead_s >= 0
    assert bool(calibration.note) == fastest
    assert calibration.machine["cores"] >= 1


def test_generate_compares_with_transformers(place, tmp_path):
    code, written = run(place, tmp_path, "generate", "--only", "large")
    assert code == 0
    assert keys(written) == {"generate.large.dynamic", "generate.large.static"}


def test_replay_takes_a_users_documents(place, tmp_path):
    code, written = run(place, tmp_path, "replay", "--documents", str(place / "documents.jsonl"))
    assert code == 0
    names = {"replay.realised", "replay.theoretical", "replay.ratio"}
    both = {f"{name}.large" for name in names} | {f"{name}.large.annotated" for name in names}
    assert keys(written) == both | {"replay.skipped.large"}


@pytest.mark.slow
def test_replay_goes_on_with_more_of_an_annotate_stage_s_documents(place, tmp_path, capsys):
    stage = tmp_path / "annotated"
    stage.mkdir()
    records = []
    for n in range(40):
        plain = f"It is a number, and a {'very ' * n}good one."
        annotated = ROW["annotated"] if n % 2 else plain
        asked = [{"role": "user", "content": f"About number {n}?"}]
        source = f"model-{n % 2}.json:record {n}"
        records.append({"messages": asked, "annotated": annotated, "source": source})
    for shard in (0, 1):
        lines = "".join(json.dumps(record) + "\n" for record in records[shard::2])
        (stage / f"annotated-0000{shard}.jsonl").write_text(lines)
    given = ["--documents", str(stage), "--longest", "45"]
    run(place, tmp_path, "replay", *given, "--replay-prompts", "6")
    code, written = run(place, tmp_path, "replay", *given, "--replay-prompts", "40")
    assert code == 0
    assert "40 documents, 6 found from an earlier run" in capsys.readouterr().err
    metrics = {metric["key"]: metric for metric in written["figures"]}
    left_out = metrics["replay.skipped.large"]["value"]
    assert 0 < left_out < 20
    assert metrics["replay.realised.large"]["count"] == 40 - left_out
    assert metrics["replay.realised.large.annotated"]["count"] == 20
    by_source = next(
        table for title, table in written["tables"].items() if title.startswith("Replay by source")
    )
    assert "model-1.json" in by_source
    assert any("tokens are words" in title for title in written["tables"])


def test_every_prompt_of_generate_is_decoded_once_before_one_is_timed(place, tmp_path, monkeypatch):
    """A static cache is as long as the longest so far: a longer prompt makes a new one, for which a GPU compiles."""
    measured = []

    class Noting:
        def __init__(self, *_):
            pass

        def measure(self, prompt_ids):
            measured.append(tuple(prompt_ids))
            return {"engine": [4, 1.0], "dynamic": [4, 1.0]}

    monkeypatch.setattr("pasta.benchmark.benchmark.GenerateBench", Noting)
    run(place, tmp_path, "generate", "--only", "large", "--rounds", "2")
    first, second = measured[:2]
    assert first != second
    assert measured == [first, second] * 3


@pytest.mark.slow
def test_an_interrupted_run_goes_on_where_it_stopped(place, tmp_path, monkeypatch, capsys):
    decoded = []
    real = sys.modules["pasta.benchmark.benchmark"].decode_pair

    def counted(*arguments, **options):
        if len(decoded) == 3:
            raise KeyboardInterrupt
        decoded.append(None)
        return real(*arguments, **options)

    monkeypatch.setattr("pasta.benchmark.benchmark.decode_pair", counted)
    out = tmp_path / "speed.json"
    given = [
        "speed",
        "--models",
        str(place / "models"),
        "--out",
        str(out),
        "--prompts",
        "3",
        "--max-tokens",
        "24",
    ]
    assert main([*given, "--threads", "1"]) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert not out.exists()
    decoded.clear()
    assert main([*given, "--threads", "1"]) == 0
    assert "3 prompts, 2 found from an earlier run" in capsys.readouterr().err
    # One to warm up, one that was missing.
    assert len(decoded) == 2
    decoded.clear()
    assert main([*given, "--threads", "1", "--fresh"]) == 130
    said = capsys.readouterr().err
    assert "the same command without --fresh goes on" in said
    assert "for parts that had not begun from older ones" in said
    assert json.loads(out.read_text())["complete"]


@pytest.mark.parametrize(
    "given",
    [
        ["step"],
        ["peers", "--shapes", "shipped"],
        ["serve", "--only", "latency", "--url", "http://127.0.0.1:9"],
    ],
    ids=lambda given: given[0],
)
def test_two_runs_do_not_write_the_same_records(tmp_path, given):
    with sole_writer(tmp_path / "out"), pytest.raises(UserError) as caught:
        main([*given, "--out", str(tmp_path / "out.json")])
    assert str(caught.value).startswith(f"--out: {tmp_path}/out: another run is writing its records there; ")
    assert not [*tmp_path.iterdir()]


def test_a_format_that_cannot_run_leaves_the_records_of_an_earlier_run_as_they_are(place, tmp_path):
    run(place, tmp_path, "step", "--only", "shipped", "--lanes", "1,2", "--cache-tokens", "128")
    files = {file: file.read_bytes() for file in tmp_path.iterdir()}
    for _ in range(2):
        with pytest.raises(UserError, match="--dtype: 'fp8', but fp8 runs on CUDA GPUs, not on cpu"):
            run(place, tmp_path, "step", "--only", "shipped", "--device", "cpu", "--dtype", "fp8")
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == files


def test_draft_heads_that_do_not_fit_are_named_before_anything_is_written(place, tmp_path):
    models = shutil.copytree(place / "models", tmp_path / "models")
    said = save_misfit_heads(models / "pasta")
    with pytest.raises(UserError) as caught:
        main(["step", "--models", str(models), "--out", str(tmp_path / "out" / "step.json")])
    assert str(caught.value) == f"--models: {said}"
    assert not (tmp_path / "out").exists()


def test_a_run_that_goes_on_keeps_the_format_that_auto_has_chosen(place, tmp_path, monkeypatch):
    settings = Settings(place / "models", place / "large.json", tmp_path / "out.json", device="cpu")

    def identities(chosen):
        fastest = NumberFormat(chosen, "for a test")
        monkeypatch.setattr("pasta.benchmark.benchmark.fastest_of", lambda *_: fastest)
        benchmark = Benchmark(settings, "command")
        return [benchmark._identity(size)["dtype"] for size in ("shipped", "large")]

    assert identities("bfloat16") == ["bfloat16"] * 2
    assert identities("float32") == ["bfloat16"] * 2
    was_ready = kernels.ready()
    monkeypatch.setattr(kernels, "ready", lambda: not was_ready)
    assert identities("float32") == ["float32"] * 2


@pytest.mark.parametrize("config", [MODELS / "pasta", ROOT / "configs/models/replay-llama-30m.json"], ids=str)
def test_one_layer_tells_the_fastest_format_of_a_model(config):
    assert fastest_of(read_model_config(config), torch.device("cpu")).name in ("float32", "bfloat16")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--models", "nowhere"], "--models 'nowhere': no model in twin/"),
        (["--dtype", "int3"], "--dtype: 'int3', expected one of auto, float32"),
        (["--device", "gpu"], "--device: 'gpu', expected auto, cpu, cuda or cuda:N"),
        (["--prompts", "1"], "--prompts: 1, expected at least 2"),
        (["--prompts", "10000000000"], "--prompts: 10000000000, expected at most 1,048,576"),
        (["--threads", "100000"], "--threads: 100000, expected at most 1,024"),
        (["--large-threads", "100000"], "--large-threads: 100000, expected at most 1,024"),
        (["--threads", "0"], "--threads: 0, expected a positive integer"),
        (
            ["--max-tokens", "2047"],
            "--max-tokens: 2047, expected at most 2046: an engine's slot holds 2048 tokens, the prompt among them",
        ),
        (["--lanes", "2,8"], "--lanes: 2,8, expected positive integers, 1 among them"),
        (["--requests", "2"], "--requests: 2, expected positive integers, 1 among them"),
        (["--model-config", "none.json"], "model configuration: none.json: no such file"),
        (["--documents", "none.jsonl"], "--documents: none.jsonl: no such file"),
        (["--widened", "none.json"], "model configuration: none.json: no such file"),
        (["--widened", str(ROOT / "configs/models/wide-400m.json")], "--widened: the model in "),
        (["--tokenizer", "words"], "--tokenizer: words, expected with --documents only"),
        (["--documents", "none.jsonl", "--longest", "0"], "--longest: 0, expected a positive integer"),
    ],
)
def test_bad_input_is_one_clear_line_and_leaves_nothing(place, tmp_path, options, expected):
    out = tmp_path / "out" / "all.json"
    with pytest.raises(UserError) as caught:
        main(["all", *with_options(["--models", str(place / "models"), "--out", str(out)], options)])
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)
    assert not out.parent.exists()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            ["speed", "--only", "large"],
            "--only: has no effect on speed; expected it with all, step, generate, calibrate",
        ),
        (
            ["accuracy", "--repeats", "3"],
            "--repeats: has no effect on accuracy; expected it with all, speed, replay",
        ),
        (["all", "--requests", "1,2"], "--requests: has no effect on all; expected it with calibrate"),
        (["step", "--fastest"], "--fastest: has no effect on step; expected it with calibrate"),
        (["formats", "--dtype", "int8"], "--dtype: has no effect on formats; expected it with all, "),
        (
            ["help", "--model-config", "x"],
            "--model-config: has no effect on help; expected it with all, step, ",
        ),
    ],
)
def test_an_option_that_a_part_does_not_read_is_refused(given, expected):
    with pytest.raises(UserError) as caught:
        main(given)
    assert str(caught.value).startswith(expected)


@pytest.mark.slow
def test_helps_are_measured_on_the_shipped_models_widened(tmp_path):
    config = read_model_config(MODELS / "pasta")
    config.hidden_size = 320
    config.save_pretrained(tmp_path / "wide")
    shape, out = tmp_path / "wide" / "config.json", tmp_path / "out.json"
    given = ["help", "--out", str(out), "--dtype", "float32", "--prompts", "2", "--max-tokens", "24"]
    # Eleven engines take more memory than all other tests here: in a process of their own they give it back.
    done = subprocess.run(
        [sys.executable, "-m", "jobs.benchmark", *given, "--widened", str(shape)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "making the pasta widened to config in " in done.stderr
    assert "shipped model, widened to config, float32" in done.stdout
    written = json.loads(out.read_text())
    assert next(each for each in written["figures"] if each["key"] == "help.changed")["value"] == 0


@pytest.mark.slow
def test_the_command_needs_torch_and_transformers_alone_and_exits_with_2_on_bad_input(tmp_path):
    show = (
        "import runpy, sys\n"
        "sys.argv = ['benchmark', 'step', '--models', 'nowhere']\n"
        "try:\n    runpy.run_module('jobs.benchmark', run_name='__main__')\n"
        "except SystemExit as end:\n    print('code', end.code)\n"
        "for m in list(sys.modules.values()):\n"
        "    if m.__name__.split('.')[0] == 'pasta':\n        print(m.__file__)\n"
    )
    done = subprocess.run([sys.executable, "-c", show], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: --models 'nowhere'")
    code, *files = done.stdout.splitlines()
    assert code == "code 2"
    imported = {
        name for file in [*files, str(ROOT / "jobs" / "benchmark.py")] for name in _imports(Path(file))
    }
    allowed = {
        *sys.stdlib_module_names,
        "pasta",
        "torch",
        "transformers",
        "huggingface_hub",
        "numpy",
        "tokenizers",
        "safetensors",
    }
    # The tracker asks for wandb when a run starts; the benchmark records none. jobs: the service's benchmark, if asked.
    # serve: where the repository's root is named (serve/ray_start.py, which imports Ray only to start one).
    # torchao: asked for a number format on a GPU, if one is named.
    assert imported - allowed == {"wandb", "jobs", "serve", "torchao"}


@pytest.mark.slow
def test_the_comparison_with_peers_needs_no_pydantic_either(tmp_path):
    show = (
        "import runpy, sys\n"
        "sys.modules |= dict.fromkeys(['pydantic', 'ray', 'wandb', 'datasets'])\n"
        "sys.argv = ['benchmark', 'peers', '--models', 'nowhere']\n"
        "runpy.run_module('jobs.benchmark', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", show], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.stderr.startswith("error: --models 'nowhere': no model in twin/"), done.stderr


def _imports(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def test_every_stage_that_a_command_names_exists():
    from pasta.benchmark.settings import COMMANDS

    assert all(hasattr(Benchmark, f"_{stage}") for stages in COMMANDS.values() for stage in stages)


def test_calibrate_names_a_missing_model_configuration_before_it_starts(place, tmp_path):
    options = [
        "--models",
        str(place / "models"),
        "--out",
        str(tmp_path / "x.json"),
        "--model-config",
        "none.json",
    ]
    with pytest.raises(UserError, match=r"^model configuration: none\.json: no such file"):
        main(["calibrate", *options])


@pytest.mark.parametrize("part", ["serve", "front", "peers", "people"])
def test_a_part_with_its_own_options_comes_before_them(tmp_path, part):
    with pytest.raises(
        UserError, match=f"^{part}: expected before all options: python -m jobs.benchmark {part}"
    ):
        main(["--out", str(tmp_path / "x.json"), part])
