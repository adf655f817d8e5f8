"""What is sent to a cluster: checked here first, without junk, secrets by name. No cluster is needed for any of it."""

import os
import shlex
import sys
import zipfile

import pytest
import yaml

from jobs import submission, submit
from jobs.cluster import code_version
from jobs.job_server import API_SERVER, JobServer, _line, _Log, exit_code, outcome
from jobs.storage import SENT
from jobs.submission import prepare_submission
from pasta.core_yaml import parse_yaml
from pasta.entrypoint import run_main
from pasta.errors import UserError
from tests.support.paths import ROOT

EVALUATE = ROOT / "configs/evaluate/atlas.yaml"
PIPELINE = ROOT / "configs/pipelines/atlas.yaml"
STORAGE = "/mnt/pasta"


def command(entrypoint: str) -> list[str]:
    """What the cluster's shell will run."""
    return shlex.split(entrypoint)


def sets(entrypoint: str) -> dict[str, str]:
    """The keys that the command sets."""
    words = command(entrypoint)
    pairs = [words[number + 1] for number, word in enumerate(words) if word == "--set"]
    return dict(pair.split("=", 1) for pair in pairs)


def mistake(*arguments, **keywords) -> str:
    with pytest.raises(UserError) as caught:
        prepare_submission(*arguments, **{"environ": {}, **keywords})
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    # Ray's own packing, as its client calls it: there is no public name for it.
    from ray._private.ray_constants import get_runtime_env_default_excludes
    from ray._private.runtime_env.packaging import create_package

    package = tmp_path_factory.mktemp("package") / "working_dir.zip"
    create_package(
        str(ROOT),
        package,
        include_gitignore=True,
        include_parent_dir=False,
        excludes=get_runtime_env_default_excludes(),
    )
    return package


class TestPacking:
    """Ray packs the working directory by .rayignore and .gitignore, for our command and for its own."""

    def test_only_what_a_job_runs_from_is_sent(self, packed):
        names = zipfile.ZipFile(packed).namelist()
        assert {name.partition("/")[0] for name in names} == set(SENT)
        for needed in (
            "jobs/sft.py",
            "configs/deepspeed/zero2.json",
            "platform/pasta/__init__.py",
            "platform/pasta/data/atlas/models/pasta/model.safetensors",
            "serve/app.py",
        ):
            assert needed in names

    def test_no_caches_are_sent(self, packed):
        junk = ("__pycache__", ".egg-info", ".pyc", ".git/")
        assert not [name for name in zipfile.ZipFile(packed).namelist() if any(each in name for each in junk)]

    def test_the_package_is_small_enough_for_ray(self, packed):
        assert packed.stat().st_size < 100 * 1024 * 1024

    def test_all_folders_that_are_sent_are_named_in_rayignore(self):
        lines = (ROOT / ".rayignore").read_text().splitlines()
        assert {line.strip("!/") for line in lines if line.startswith("!")} == set(SENT)

    @pytest.mark.timeout(20)
    def test_a_pipe_is_left_out_and_told(self, tmp_path, monkeypatch):
        """Ray would wait for its writer for ever."""
        from ray._private.runtime_env.packaging import get_uri_for_directory

        monkeypatch.setattr(submission, "ROOT", tmp_path)
        config = tmp_path / "configs" / "evaluate.yaml"
        config.parent.mkdir()
        config.write_text(EVALUATE.read_text())
        for name in ("pipe", "a [*] pipe"):
            os.mkfifo(config.with_name(name))
        sent = prepare_submission("evaluate", [], config=config, storage=STORAGE, environ={})
        assert sent.notes == tuple(
            f"configs/{name}: is a pipe, a socket or a device, and is not sent"
            for name in ("a [*] pipe", "pipe")
        )
        environment = sent.runtime_env
        # Ray's own, as its client calls it before it sends.
        assert get_uri_for_directory(environment["working_dir"], True, environment["excludes"])


class TestPaths:
    def test_paths_below_runs_are_moved_to_storage_whether_given_or_by_default(self):
        sent = prepare_submission("evaluate", [], config=EVALUATE, storage=STORAGE, environ={})
        assert sets(sent.entrypoint) == {
            "output_dir": '"/mnt/pasta/runs/evaluations/atlas"',
            "run_dir": '"/mnt/pasta/runs/evaluate"',
        }

    def test_inputs_below_runs_are_moved_too(self):
        options = ["--set", "model.init_from=runs/models/mine", "--set", "data.source=runs/scores/mine"]
        sent = prepare_submission(
            "preference", options, config=ROOT / "configs/preference/atlas.yaml", storage=STORAGE, environ={}
        )
        assert sets(sent.entrypoint)["model.init_from"] == '"/mnt/pasta/runs/models/mine"'
        assert sets(sent.entrypoint)["data.source"] == '"/mnt/pasta/runs/scores/mine"'

    @pytest.mark.parametrize("storage", ["/mnt/our #1", "/mnt/🍵 é"])
    def test_a_pipeline_moves_the_paths_of_its_stages_itself(self, storage):
        sent = prepare_submission("pipeline", ["--dry-run"], config=PIPELINE, storage=storage, environ={})
        ((key, text),) = sets(sent.entrypoint).items()
        assert (key, parse_yaml(text, "override")) == ("storage", storage)

    def test_a_place_to_write_that_the_cluster_would_delete_is_refused(self):
        message = mistake("evaluate", [], config=EVALUATE)
        assert message.startswith("output_dir: 'runs/evaluations/atlas' would be deleted")
        assert "--storage" in message

    def test_storage_does_not_hide_a_place_inside_the_repository(self):
        options = ["--set", "output_dir=platform/pasta/data/mine"]
        message = mistake("sft", options, config=ROOT / "configs/sft/atlas-pasta.yaml", storage=STORAGE)
        assert message.startswith("output_dir: 'platform/pasta/data/mine' would be deleted")

    def test_a_stage_of_a_pipeline_is_named(self):
        options = ["--set", "output_dir=/mnt/out"]
        assert mistake("pipeline", options, config=PIPELINE).startswith("annotate: run_dir: 'runs/annotate'")

    def test_an_input_that_is_here_and_is_not_sent_is_refused(self):
        options = ["--set", "prompts.source=tests/conftest.py"]
        message = mistake("evaluate", options, config=EVALUATE, storage=STORAGE)
        assert message.startswith("prompts.source: 'tests/conftest.py' is not sent to the cluster")

    def test_storage_may_be_named_by_a_url_that_says_the_same_as_a_path(self):
        sent = prepare_submission(
            "evaluate", [], config=EVALUATE, storage="file:///mnt/my%20pasta", environ={}
        )
        assert sets(sent.entrypoint)["run_dir"] == '"/mnt/my pasta/runs/evaluate"'

    @pytest.mark.parametrize(
        ("storage", "says"),
        [
            ("mnt", "expected an absolute path"),
            ("file:mnt", "expected an absolute path"),
            ("file://elsewhere/mnt", "expected a path"),
            ("s3://bucket/pasta", "no bucket can"),
        ],
    )
    def test_other_storage_is_refused(self, storage, says):
        message = mistake("evaluate", [], config=EVALUATE, storage=storage)
        assert message.startswith(f"--storage {storage}: expected a")
        assert says in message

    def test_checkpoints_in_a_bucket_stay_there(self):
        options = ["--set", "checkpoints=s3://bucket/pasta"]
        gemma = ROOT / "configs/sft/gemma-7b.yaml"
        sent = prepare_submission("sft", options, config=gemma, storage=STORAGE, environ={})
        assert sets(sent.entrypoint)["checkpoints"] == "s3://bucket/pasta"


class TestCommand:
    def test_it_is_the_job_s_own_with_paths_as_the_cluster_sees_them(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        options = ["--set", "prompts.count=5", "--restart"]
        sent = prepare_submission("evaluate", options, config=EVALUATE, storage=STORAGE, environ={})
        assert command(sent.entrypoint)[:8] == [
            *("python", "-m", "jobs.evaluate", "--config", "configs/evaluate/atlas.yaml"),
            *("--set", "prompts.count=5", "--restart"),
        ]

    def test_a_value_reaches_the_job_through_the_shell_as_it_is(self):
        value = 'name=it\'s "$HOME" & more'
        sent = prepare_submission("evaluate", ["--set", value], config=EVALUATE, storage=STORAGE, environ={})
        assert value in command(sent.entrypoint)

    def test_a_wrong_key_is_found_before_anything_is_sent(self):
        message = mistake("evaluate", ["--set", "prompts.cuont=5"], config=EVALUATE)
        assert "'cuont' (did you mean 'count'?)" in message

    def test_a_wrong_key_in_a_stage_of_a_pipeline_is_found_too(self):
        options = ["--set", "stages.annotate.set.wrong=1"]
        assert "'wrong'" in mistake("pipeline", options, config=PIPELINE, storage=STORAGE)

    def test_an_option_the_job_does_not_have_is_refused(self, capsys):
        with pytest.raises(SystemExit) as ended:
            prepare_submission("sft", ["--dry-run"], config=EVALUATE, environ={})
        assert ended.value.code == 2
        assert "unrecognized arguments: --dry-run" in capsys.readouterr().err

    def test_a_configuration_from_elsewhere_is_refused(self, tmp_path):
        path = tmp_path / "mine.yaml"
        path.write_text(EVALUATE.read_text())
        assert f"--config {path}: is not sent" in mistake("evaluate", [], config=path, storage=STORAGE)

    def test_every_job_but_the_benchmark_needs_a_configuration(self):
        assert mistake("sft", []).startswith("--config: sft needs a YAML file")
        assert mistake("benchmark", [], config=EVALUATE).startswith("--config: the benchmark has none")

    def test_the_id_names_job_and_run_and_differs_each_time(self):
        one, two = (
            prepare_submission("evaluate", [], config=EVALUATE, storage=STORAGE, environ={}) for _ in range(2)
        )
        assert one.id.startswith("evaluate-atlas-evaluate-")
        assert one.id != two.id
        assert one.metadata == {"job": "evaluate", "name": "atlas-evaluate"}
        assert "--id 'a b'" in mistake("evaluate", [], config=EVALUATE, storage=STORAGE, id="a b")


class TestVariables:
    def test_values_are_taken_from_the_environment_by_name(self):
        sent = prepare_submission(
            "evaluate",
            [],
            config=EVALUATE,
            storage=STORAGE,
            variables=["KEY"],
            environ={"KEY": "s3cret", "B": "b"},
        )
        assert sent.runtime_env["env_vars"] == {
            "PYTHONPATH": "platform",
            "RAY_JOB_STOP_WAIT_TIME_S": "30",
            "PASTA_CODE_VERSION": code_version(),
            "KEY": "s3cret",
        }
        assert sent.runtime_env["working_dir"] == str(ROOT)

    def test_values_are_not_printed(self, capsys):
        sent = prepare_submission(
            "evaluate", [], config=EVALUATE, storage=STORAGE, variables=["KEY"], environ={"KEY": "s3cret"}
        )
        submit.print_plan(sent, {"entrypoint_num_cpus": 1.0})
        printed = capsys.readouterr().out
        assert "variables  KEY, PASTA_CODE_VERSION, PYTHONPATH" in printed
        assert "s3cret" not in printed + repr(sent)

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("OTHER", "--env OTHER: is not set"),
            ("KEY=s3cret", "--env KEY: expected a variable's name alone"),
            ("OMP_NUM_THREADS", "every job sets this one itself"),
            ("PYTHONPATH", "every job sets this one itself"),
        ],
    )
    def test_what_cannot_be_sent_is_refused_without_its_value(self, name, says):
        message = mistake(
            "evaluate", [], config=EVALUATE, storage=STORAGE, variables=[name], environ={"KEY": "s3cret"}
        )
        assert says in message
        assert "s3cret" not in message

    def test_a_key_that_the_configuration_names_and_nobody_sends_is_pointed_out(self):
        config, environ = ROOT / "configs/score/teacher.yaml", {"OPENAI_API_KEY": "s3cret"}
        sent = prepare_submission("score", [], config=config, storage=STORAGE, environ=environ)
        assert sent.notes == (
            "judge.teacher.endpoint.api_key_env: OPENAI_API_KEY is not sent; the nodes must have it "
            "(or --env OPENAI_API_KEY)",
        )
        sent = prepare_submission(
            "score", [], config=config, storage=STORAGE, variables=["OPENAI_API_KEY"], environ=environ
        )
        assert sent.notes == ()


def run(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["submit", *arguments])
    with pytest.raises(SystemExit) as ended:
        run_main(submit.main)
    return int(ended.value.code)


class TestCommandLine:
    ARGUMENTS = ("evaluate", "--config", str(EVALUATE), "--storage", "/mnt/pasta")

    @pytest.fixture(autouse=True)
    def no_cluster(self, monkeypatch):
        for name in (API_SERVER, "RAY_ADDRESS"):
            monkeypatch.delenv(name, raising=False)

    def test_check_says_what_would_be_sent_and_needs_no_cluster(self, monkeypatch, capsys):
        options = ("--check", "--entrypoint-num-cpus", "2", "--entrypoint-resources", "fast=0.5", "--restart")
        assert run(monkeypatch, *self.ARGUMENTS, *options) == 0
        printed = capsys.readouterr().out
        assert (
            "command    python -m jobs.evaluate --config configs/evaluate/atlas.yaml --restart --set"
            in printed
        )
        assert "driver     num_cpus 2.0, resources {'fast': 0.5}" in printed

    def test_resources_reach_the_client_by_its_names(self):
        options, rest = submit.parser().parse_known_args(
            [
                "sft",
                "--entrypoint-num-gpus",
                "1",
                "--entrypoint-memory",
                "1000",
                "--entrypoint-resources",
                "a=2",
            ]
        )
        assert rest == []
        assert submit.resources(options) == {
            "entrypoint_num_gpus": 1.0,
            "entrypoint_memory": 1000,
            "entrypoint_resources": {"a": 2.0},
        }

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ((), "--address: is missing"),
            (("--address", "127.0.0.1:8265"), "--address 127.0.0.1:8265: expected"),
            (("--address", "ray://127.0.0.1:10001"), "expected the address of a cluster's dashboard"),
            (("--address", "http://user:s3cret@host:8265"), "--address host:8265: expected"),
            (("--address", "http://host:eight"), "--address http://host:eight: expected"),
            (("--entrypoint-num-cpus", "-1"), "--entrypoint-num-cpus -1.0: expected a positive number"),
            (("--entrypoint-num-gpus", "inf"), "--entrypoint-num-gpus inf: expected a positive number"),
        ],
    )
    def test_a_mistake_is_one_line_and_exit_code_2(self, monkeypatch, capsys, options, says):
        assert run(monkeypatch, *self.ARGUMENTS, *options) == 2
        error = capsys.readouterr().err
        assert says in error
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        assert "s3cret" not in error

    def test_an_address_that_nobody_answers_at_is_one_line(self, monkeypatch, capsys):
        assert run(monkeypatch, "list", "--address", "http://127.0.0.1:9") == 2
        error = capsys.readouterr().err
        assert error.startswith("error: http://127.0.0.1:9 cannot be reached (Connection refused); is the")
        assert error.count("\n") == 1

    def test_what_list_does_not_have_is_refused(self, monkeypatch, capsys):
        assert run(monkeypatch, "list", "--sett", "a=b") == 2
        assert "unrecognized arguments: --sett a=b" in capsys.readouterr().err


def details(**values):
    """A job's details as the server gives them."""
    from ray.dashboard.modules.job.pydantic_models import JobDetails

    given = {"type": "SUBMISSION", "entrypoint": "x", "start_time": 0, "end_time": 90_000, **values}
    return JobDetails(**given)


@pytest.mark.parametrize(
    ("values", "code", "says"),
    [
        ({"status": "SUCCEEDED", "driver_exit_code": 0}, 0, "succeeded after 1.5 min"),
        ({"status": "FAILED", "driver_exit_code": 2}, 2, "failed with exit code 2 after 1.5 min"),
        ({"status": "FAILED", "driver_exit_code": -9}, 137, "failed with exit code 137 after 1.5 min"),
        ({"status": "FAILED", "message": "no such\npackage"}, 1, "failed after 1.5 min: no such"),
        ({"status": "STOPPED"}, 143, "stopped after 1.5 min"),
    ],
)
def test_a_job_s_end_becomes_an_exit_code_and_a_line(values, code, says):
    info = details(**values)
    assert exit_code(info) == code
    assert outcome(info) == says


def test_a_log_that_is_read_again_is_passed_on_once():
    passed: list[str] = []
    log = _Log(passed.append)
    for texts in (["one\n", "two\n"], ["one\ntwo\nth"], ["one\n", "two\nthree\n"]):
        log.rewind()
        for text in texts:
            log.add(text)
    assert "".join(passed) == "one\ntwo\nthree\n"


def test_of_a_stack_trace_the_last_line_is_told():
    trace = 'Traceback (most recent call last):\n  File "x"\nValueError: Job with submission_id a already exists.\n.'
    assert _line(trace) == "ValueError: Job with submission_id a already exists."


def test_the_environment_of_jobs_is_one_file_for_both_commands():
    environment = yaml.safe_load((ROOT / "configs/cluster/runtime_env.yaml").read_text())
    variables = {"PYTHONPATH": "platform", "RAY_JOB_STOP_WAIT_TIME_S": "30"}
    assert environment == {"working_dir": ".", "env_vars": variables}


@pytest.mark.slow
def test_a_server_that_is_not_ray_s_is_one_line(tmp_path):
    import functools
    import http.server
    import threading

    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        with pytest.raises(UserError, match="is no Ray dashboard") as caught:
            JobServer(f"http://127.0.0.1:{other.server_port}", {})
        other.shutdown()
    assert "\n" not in str(caught.value)
