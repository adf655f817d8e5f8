"""An evaluation with another judge, or other methods, keeps the answers and the verdicts that do not depend on them."""

import itertools
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from jobs import evaluate, pipeline
from pasta.entrypoint import run_main
from pasta.errors import UserError
from pasta.evaluation.kept import EvaluationOutput
from pasta.evaluation.results.evaluations import Evaluation
from pasta.stages.records import RecordFile
from pasta.stages.stage import read_manifest
from tests.support.endpoint import EndpointServer, completion, endpoint_server
from tests.support.evaluations import answer, cut_short
from tests.support.interrupts import interrupt

PROMPTS = 4
pytestmark = pytest.mark.slow


class Bench:
    """Evaluations of four prompts by methods that are endpoints, whose answers are made up here. ``decoded`` are the
    prompts that were answered since it was read last, each with its methods."""

    def __init__(self, folder: Path, judge: EndpointServer) -> None:
        self.folder, self.judge = folder, judge
        self._decoded: list[tuple[str, str]] = []
        self._count = itertools.count()
        self.cut_after = PROMPTS
        self.out = folder / "evaluation"
        self.write_report: Any = None
        rows = [{"messages": [{"role": "user", "content": f"Question {n}?"}]} for n in range(PROMPTS)]
        (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def run_shards(self, make: Any, left: dict[int, Any], on_result: Callable[..., None], *_: Any) -> None:
        for count, (number, (entry, names)) in enumerate(left.items()):
            if count == self.cut_after:
                raise KeyboardInterrupt
            self._decoded.append((entry.prompt.messages[0]["content"], " ".join(names)))
            record = {
                "messages": entry.prompt.messages,
                "family": None,
                "independent": None,
                # no two runs give the same
                "answers": {name: answer(f"{name} says {next(self._count)}") for name in names},
            }
            on_result(number, (record, {"cpu": "any", "formats": {}}))

    def run(self, *methods: str, judge: str | None = "a", option: str = "", **changes: Any) -> None:
        path = self.config(*methods, judge=judge, **changes)
        assert evaluate.main(["--config", str(path), *([option] if option else [])]) == 0

    def config(self, *methods: str, judge: str | None = "a", asked: Any = (), **changes: Any) -> Path:
        def remote(model: str) -> dict[str, Any]:
            return {"base_url": self.judge.url, "model": model, "api_key_env": None}

        names = methods or ("twin", "pasta")
        config: dict[str, Any] = {
            "name": "kept",
            "output_dir": str(self.out),
            "run_dir": str(self.folder / "runs"),
            "tracking": {"mode": "disabled"},
            "prompts": {"source": str(self.folder / "prompts.jsonl")},
            "baseline": "twin",
            "methods": {name: {"kind": "endpoint", "endpoint": remote(name)} for name in names},
        }
        if judge is not None:
            section = {"endpoint": remote(judge), **dict(asked)}
            config["judge"] = {"kind": "teacher", "teacher": section}
        path = self.folder / "evaluate.yaml"
        path.write_text(yaml.safe_dump(config | changes, sort_keys=False))
        return path

    @property
    def decoded(self) -> list[str]:
        """The methods that were asked, a prompt each; forgotten once read."""
        names = [names for _, names in self._decoded]
        self._decoded.clear()
        return names

    @property
    def judged(self) -> list[str]:
        """The judge of each pair that came; forgotten once read. Whether it answers at all is asked without a system
        message."""
        bodies = [request["body"] for request in self.judge.requests]
        self.judge.requests.clear()
        return [body["model"] for body in bodies if body["messages"][0]["role"] == "system"]

    def forget(self) -> None:
        """Forget what was decoded and judged until now."""
        self._decoded.clear()
        self.judge.requests.clear()

    def report(self) -> str:
        return (self.out / "report.md").read_text()

    def records(self, name: str) -> dict[str, Any]:
        lines = (self.out / name).read_text().splitlines()
        return {record["key"]: record for record in map(json.loads, lines) if "key" in record}


@pytest.fixture
def bench(tmp_path, monkeypatch):
    with endpoint_server(lambda *_: completion("A")) as server:
        made = Bench(tmp_path, server)
        monkeypatch.setattr(evaluate, "run_shards", made.run_shards)
        monkeypatch.setattr(evaluate, "_cluster", lambda *_: nullcontext())
        monkeypatch.setattr(made, "write_report", evaluate._report)
        monkeypatch.setattr(
            evaluate, "_report", lambda *_: SimpleNamespace(headline=dict)
        )  # pictures take seconds
        yield made


def test_another_judge_judges_the_answers_that_are_there(bench, monkeypatch, capsys):
    monkeypatch.setattr(evaluate, "_report", bench.write_report)
    bench.run()
    assert len(bench.decoded) == PROMPTS
    assert bench.judged == ["a"] * 2 * PROMPTS
    answers, first = bench.records("answers.jsonl"), read_manifest(bench.out)
    capsys.readouterr()

    bench.run(judge="b")
    assert (bench.decoded, bench.judged) == ([], ["b"] * 2 * PROMPTS)
    assert bench.records("answers.jsonl") == answers
    assert '"model": "b"' in bench.report()
    aside = bench.folder / f".evaluation.{first.identity}.partial"
    said = capsys.readouterr().out
    assert f"kept: keeps answers to 4 prompts of the evaluation in {bench.out}\n" in said
    assert f"kept: the evaluation in {bench.out} goes to {aside} when this one is finished\n" in said
    assert read_manifest(aside) == first

    # And back: nothing is decoded, judged or lost.
    bench.run()
    assert (bench.decoded, bench.judged) == ([], [])
    assert f"kept: the evaluation in {bench.out} goes to " in capsys.readouterr().out
    assert read_manifest(bench.out).identity == first.identity
    bench.run(judge="b")
    assert (bench.decoded, bench.judged) == ([], [])
    assert len([*bench.folder.glob(".evaluation.*")]) == 1


def test_where_all_is_decoded_only_the_judge_is_needed(bench, monkeypatch):
    """Such as on a machine with a network and without the GPU that decoded."""
    remote = {"base_url": bench.judge.url, "model": "m", "api_key_env": "METHOD_KEY"}
    methods = {name: {"kind": "endpoint", "endpoint": remote} for name in ("twin", "pasta")}
    checked, read_keys = [], evaluate.method_keys
    monkeypatch.setattr(evaluate, "method_keys", lambda given: checked.append(1) or read_keys(given))
    monkeypatch.setenv("METHOD_KEY", "key")
    bench.cut_after = 1
    with pytest.raises(KeyboardInterrupt):
        bench.run(judge=None, methods=methods)
    bench.cut_after = PROMPTS
    monkeypatch.delenv("METHOD_KEY")
    with pytest.raises(UserError, match="METHOD_KEY is not set"):
        bench.run(judge=None, methods=methods)
    monkeypatch.setenv("METHOD_KEY", "key")
    bench.run(judge=None, methods=methods)
    monkeypatch.delenv("METHOD_KEY")
    assert len(checked) == 3
    bench.run(judge="a", methods=methods)
    assert (len(bench.decoded), len(bench.judged), len(checked)) == (PROMPTS, 2 * PROMPTS, 3)
    with pytest.raises(UserError, match="METHOD_KEY is not set"):
        bench.run(judge="a", methods=methods, option="--restart")


@pytest.mark.parametrize(
    "asked", [{"temperature": 0.5}, {"max_tokens": 9}, {"logprobs": "never"}, {"format_retries": 0}]
)
def test_another_setting_of_the_judge_makes_every_verdict_anew(bench, asked):
    bench.run()
    assert (len(bench.decoded), len(bench.judged)) == (PROMPTS, 2 * PROMPTS)
    bench.run(asked=asked)
    assert (len(bench.decoded), len(bench.judged)) == (0, 2 * PROMPTS)


def test_a_judge_that_is_added_or_left_out_costs_no_answer(bench):
    bench.run(judge=None)
    assert (len(bench.decoded), bench.judged) == (PROMPTS, [])
    assert not bench.records("verdicts.jsonl")
    bench.run()
    assert (bench.decoded, len(bench.judged)) == ([], 2 * PROMPTS)
    assert len(bench.records("verdicts.jsonl")) == PROMPTS
    bench.run(judge=None)
    assert (bench.decoded, bench.judged) == ([], [])
    assert not bench.records("verdicts.jsonl")


def test_what_was_decoded_before_ctrl_c_is_kept_whatever_judge_it_had(bench):
    def cut(after: int, judge: str | None) -> None:
        bench.cut_after = after
        with pytest.raises(KeyboardInterrupt):
            bench.run(judge=judge)
        bench.cut_after = PROMPTS

    cut(1, "a")
    cut(2, "b")
    assert len(bench.decoded) == 3
    # The first again: it has an answer of its own, and two that were decoded meanwhile.
    bench.run()
    assert (len(bench.decoded), bench.judged) == (1, ["a"] * 2 * PROMPTS)
    bench.run(judge=None)
    assert bench.decoded == []


def test_verdicts_can_be_made_again_without_the_answers(bench):
    bench.run()
    answers = bench.records("answers.jsonl")
    assert (bench.decoded, bench.judged) == (["twin pasta"] * PROMPTS, ["a"] * 2 * PROMPTS)
    bench.run(option="--rejudge")
    assert (bench.decoded, bench.judged) == ([], ["a"] * 2 * PROMPTS)
    assert bench.records("answers.jsonl") == answers
    assert bench.records("verdicts.jsonl").keys() == answers.keys()
    bench.run()
    assert (bench.decoded, bench.judged) == ([], [])


def test_verdicts_that_are_made_again_go_on_after_ctrl_c(bench, monkeypatch, capsys):
    monkeypatch.setattr(evaluate, "JUDGED", 1)
    bench.run()
    bench.forget()
    add = RecordFile.add

    def cut(file: RecordFile, key: str, record: Any) -> Any:
        kept = add(file, key, record)
        if file.path.name == "verdicts.jsonl" and len(file) == 2:
            raise KeyboardInterrupt
        return kept

    with monkeypatch.context() as patched:
        patched.setattr(RecordFile, "add", cut)
        with pytest.raises(KeyboardInterrupt):
            bench.run(option="--rejudge")
    assert "the same command without --rejudge goes on" in capsys.readouterr().err
    assert bench.judged == ["a"] * 4
    bench.run()
    assert (bench.decoded, bench.judged) == ([], ["a"] * 4)


def test_an_unfinished_evaluation_is_judged_again_from_its_first_verdict(bench, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(evaluate, "_report", interrupt)
        with pytest.raises(KeyboardInterrupt):
            bench.run()
    bench.forget()
    bench.run(option="--rejudge")
    assert (bench.decoded, bench.judged) == ([], ["a"] * 2 * PROMPTS)


@pytest.mark.parametrize(
    "cut", [("answers.jsonl", "verdicts.jsonl"), ("answers.jsonl",), ("verdicts.jsonl",)]
)
def test_what_a_finished_evaluation_has_lost_is_made_again_alone(bench, monkeypatch, capsys, cut):
    monkeypatch.setattr(
        evaluate, "_report", lambda *_: SimpleNamespace(headline=lambda: {"prompts": PROMPTS})
    )
    bench.run()
    answers, verdicts = bench.records("answers.jsonl"), bench.records("verdicts.jsonl")
    for name in cut:
        cut_short(bench.out, name)
    bench.forget()
    capsys.readouterr()
    bench.run()
    is_lost = "answers.jsonl" in cut
    assert "1 of 4 prompts are gone, and made again" in capsys.readouterr().out
    assert len(bench.decoded) == is_lost
    # The journal has what was said of an answer that is still there.
    assert bench.judged == ["a"] * 2 * is_lost
    assert bench.records("verdicts.jsonl").keys() == verdicts.keys() == bench.records("answers.jsonl").keys()
    same = [key for key, record in bench.records("answers.jsonl").items() if record == answers[key]]
    assert len(same) == PROMPTS - is_lost
    bench.run()
    assert "nothing to do" in capsys.readouterr().out


def test_a_finished_evaluation_whose_answers_are_gone_is_made_again(bench, capsys):
    bench.run()
    (bench.out / "answers.jsonl").unlink()
    bench.forget()
    capsys.readouterr()
    bench.run()
    assert "the answers to all prompts are gone, and made again" in capsys.readouterr().out
    assert len(bench.decoded) == PROMPTS
    bench.run()
    assert "nothing to do" in capsys.readouterr().out


def test_judging_again_leaves_a_finished_evaluation_of_other_answers_alone(bench):
    bench.run()
    bench.forget()
    with pytest.raises(UserError, match=r"output_dir: .* holds stage 'evaluate' with"):
        bench.run(option="--rejudge", limits={"max_tokens": 7})
    bench.run(judge="b", option="--rejudge")
    bench.run()
    assert (bench.decoded, bench.judged) == ([], ["b"] * 2 * PROMPTS)


@pytest.mark.parametrize("other", ["--restart", "--report-only"])
def test_verdicts_are_not_made_again_where_nothing_or_everything_is(bench, other):
    with pytest.raises(UserError, match=f"{other}"):
        evaluate.main(["--config", str(bench.config()), "--rejudge", other])


def test_without_a_judge_nothing_is_judged_again(bench):
    with pytest.raises(UserError, match="--rejudge: the configuration has no judge"):
        bench.run(judge=None, option="--rejudge")


def test_a_restart_measures_anew_also_when_it_is_cut(bench):
    bench.run(judge="b")
    bench.run(judge="a")
    assert len(bench.decoded) == PROMPTS
    bench.cut_after = 1
    with pytest.raises(KeyboardInterrupt):
        bench.run(option="--restart")
    bench.cut_after = PROMPTS
    bench.run()
    assert len(bench.decoded) == PROMPTS
    bench.run(judge="b", option="--restart")
    assert len(bench.decoded) == PROMPTS


def test_after_a_restart_another_judge_is_shown_the_new_answers(bench):
    """Else its evaluation from before would come back, with the answers that were to be forgotten."""
    bench.run(judge="b")
    bench.run(judge="a")
    assert (len(bench.decoded), len(bench.judged)) == (PROMPTS, 4 * PROMPTS)
    # A restart that ends before its first answer has forgotten nothing.
    bench.cut_after = 0
    with pytest.raises(KeyboardInterrupt):
        bench.run(judge="a", option="--restart")
    bench.cut_after = PROMPTS
    assert [*bench.folder.glob(".evaluation.*/verdicts.jsonl")]
    bench.run(judge="a", option="--restart")
    assert (len(bench.decoded), len(bench.judged)) == (PROMPTS, 2 * PROMPTS)
    answers = bench.records("answers.jsonl")
    bench.run(judge="b")
    assert (bench.decoded, bench.judged) == ([], ["b"] * 2 * PROMPTS)
    assert bench.records("answers.jsonl") == answers
    bench.run(judge="a")
    assert (bench.decoded, bench.judged) == ([], [])
    assert bench.records("answers.jsonl") == answers


def test_a_method_that_is_left_out_takes_only_its_own_answers(bench):
    bench.run("twin", "pasta", "sot")
    answers, first = bench.records("answers.jsonl"), bench.decoded
    assert (first, len(bench.judged)) == (["twin pasta sot"] * PROMPTS, 4 * PROMPTS)
    bench.run("twin", "pasta")
    assert (bench.decoded, bench.judged) == ([], [])
    for key, record in bench.records("answers.jsonl").items():
        expected = {name: answers[key]["answers"][name] for name in ("twin", "pasta")}
        assert record["answers"] == expected
        assert bench.records("verdicts.jsonl")[key]["verdicts"].keys() == {"pasta"}


def test_a_method_that_is_added_is_decoded_alone_where_nothing_is_timed(bench):
    bench.run("twin", "pasta", repeats=0)
    answers = bench.records("answers.jsonl")
    assert (len(bench.decoded), len(bench.judged)) == (PROMPTS, 2 * PROMPTS)
    bench.cut_after = 1
    with pytest.raises(KeyboardInterrupt):
        bench.run("twin", "sot", "pasta", repeats=0)
    bench.cut_after = PROMPTS
    bench.run("twin", "sot", "pasta", repeats=0)
    assert len((bench.out / "answers.jsonl").read_text().splitlines()) == 1 + PROMPTS  # a prompt a line
    # Of the verdicts, too: the pairs of before are in the judge's journal.
    assert (bench.decoded, len(bench.judged)) == (["sot"] * PROMPTS, 2 * PROMPTS)
    for key, record in bench.records("answers.jsonl").items():
        assert [*record["answers"]] == ["twin", "sot", "pasta"]
        assert answers[key]["answers"].items() <= record["answers"].items()
    assert all(len(each["verdicts"]) == 2 for each in bench.records("verdicts.jsonl").values())


def test_timed_answers_belong_together(bench):
    bench.run("twin", "pasta")
    with pytest.raises(
        UserError, match=r"holds stage 'evaluate' with methods\.sot\..*; name another directory"
    ):
        bench.run("twin", "pasta", "sot")


@pytest.mark.parametrize(
    "changes", [{"limits": {"max_tokens": 300}}, {"repeats": 2}, {"workers": {"threads": 2}}]
)
def test_another_setting_of_decoding_keeps_nothing(bench, changes):
    bench.run()
    with pytest.raises(UserError, match=r"holds stage 'evaluate' with .*; name another directory"):
        bench.run(judge="b", **changes)


def test_a_report_alone_is_of_the_evaluation_that_goes_on_beside_a_finished_one(bench, monkeypatch, capsys):
    bench.run()
    only = ["--config", str(bench.config(judge="b")), "--report-only"]
    with pytest.raises(UserError, match=r"was made with judge\.teacher\.endpoint\.model 'a' instead of 'b'"):
        evaluate.main(only)
    with monkeypatch.context() as patched:
        patched.setattr(evaluate, "_judge", interrupt)
        with pytest.raises(KeyboardInterrupt):
            bench.run(judge="b")
    capsys.readouterr()
    assert evaluate.main(only) == 0
    assert f"report written to {bench.folder}/.evaluation." in capsys.readouterr().out


def test_a_run_that_is_killed_while_it_sets_the_finished_one_aside_loses_neither(bench, monkeypatch):
    bench.run()
    first = read_manifest(bench.out)
    with monkeypatch.context() as patched:
        rename = Path.rename

        def once(path: Path, target: Path) -> Path:
            if path.suffix == ".partial":
                raise KeyboardInterrupt
            return rename(path, target)

        patched.setattr(Path, "rename", once)
        with pytest.raises(KeyboardInterrupt):
            bench.run(judge="b")
    assert not bench.out.exists()
    assert (len(bench.decoded), len(bench.judged)) == (PROMPTS, 4 * PROMPTS)
    bench.run(judge="b")
    bench.run()
    assert (bench.decoded, bench.judged) == ([], [])
    assert read_manifest(bench.out).identity == first.identity


@pytest.fixture
def run_pipeline(bench, monkeypatch):
    """Runs a pipeline of one evaluation, with the judge of that name."""
    recipe = {"name": "recipe", "output_dir": str(bench.folder / "out"), "tracking": "disabled"}
    path = bench.folder / "pipeline.yaml"

    def run(judge: str) -> None:
        stages = {"measure": {"job": "evaluate", "config": str(bench.config(judge=judge))}}
        path.write_text(yaml.safe_dump(recipe | {"stages": stages}))
        monkeypatch.setattr(sys, "argv", ["pipeline", "--config", str(path)])
        assert pipeline.main() == 0

    return run


def test_a_pipeline_s_evaluation_that_was_cut_keeps_its_answers_for_another_judge(
    bench, run_pipeline, capsys
):
    bench.cut_after = 3
    with pytest.raises(KeyboardInterrupt):
        run_pipeline("a")
    bench.forget()
    bench.cut_after = PROMPTS
    run_pipeline("b")
    assert (len(bench.decoded), bench.judged) == (1, ["b"] * 2 * PROMPTS)
    run_pipeline("a")
    assert (bench.decoded, bench.judged) == ([], ["a"] * 2 * PROMPTS)
    assert len(list((bench.folder / "out").glob("measure-*"))) == 1


def test_a_pipeline_s_evaluation_keeps_its_answers_too(bench, run_pipeline, capsys):
    run = run_pipeline
    run("a")
    assert (len(bench.decoded), len(bench.judged)) == (PROMPTS, 2 * PROMPTS)
    run("b")
    assert (bench.decoded, bench.judged) == ([], ["b"] * 2 * PROMPTS)
    run("a")
    assert (bench.decoded, bench.judged) == ([], [])
    run("a")
    (place,) = (bench.folder / "out").glob("measure-*")
    assert f"measure: unchanged, in {place}" in capsys.readouterr().out


def test_a_model_that_has_changed_since_answers_anew(tmp_path):
    """And a judge's model that has changed judges anew."""
    values = {"baseline": "twin", "repeats": 0, "judge": {"kind": "reward", "reward": {"model": "judge"}}}
    values["methods"] = {name: {"kind": "pasta", "model": name} for name in ("twin", "pasta")}
    for name in ("twin", "pasta", "judge"):
        (tmp_path / name).write_text("weights")
    inputs = {f"methods.{name}.model": tmp_path / name for name in ("twin", "pasta")}
    inputs |= {"judge.reward.model": tmp_path / "judge", "prompts.source": tmp_path / "twin"}

    def stage() -> EvaluationOutput:
        return EvaluationOutput(tmp_path / "out", "evaluate", values, inputs)

    before = stage()
    made = Evaluation(tmp_path, (), (), config=before.config, inputs=before.fingerprints)
    assert (before.same_methods(made), before.is_same_judge(made)) == (["twin", "pasta"], True)
    # Unfinished work of a commit that did not write what it had read.
    assert before.same_methods(replace(made, inputs={})) == []
    (tmp_path / "pasta").write_text("other weights")
    (tmp_path / "judge").write_text("other weights")
    assert (stage().same_methods(made), stage().is_same_judge(made)) == (["twin"], False)
    values["repeats"] = 1
    assert stage().same_methods(replace(made, config={**before.config, "repeats": 1})) == []


def test_an_evaluation_whose_prompts_were_moved_is_done_and_gets_its_report_again(bench, capsys):
    bench.run()
    moved = (bench.folder / "prompts.jsonl").rename(bench.folder / "moved.jsonl")
    bench.forget()
    for option, said in (("", "nothing to do"), ("--report-only", "report written to")):
        bench.run(option=option, prompts={"source": str(moved)})
        assert said in capsys.readouterr().out
    assert (bench.decoded, bench.judged) == ([], [])


def test_models_that_were_moved_answer_and_judge_as_before(tmp_path):
    def stage(place: Path, judge: str = "judge") -> EvaluationOutput:
        models = {f"methods.{name}.model": str(place / name) for name in ("twin", "pasta")}
        models["judge.reward.model"] = str(place / judge)
        values = {"baseline": "twin", "repeats": 0}
        values["judge"] = {"kind": "reward", "reward": {"model": models["judge.reward.model"]}}
        values["methods"] = {
            name: {"kind": "pasta", "model": models[f"methods.{name}.model"]} for name in ("twin", "pasta")
        }
        return EvaluationOutput(tmp_path / "out", "evaluate", values, models)

    (tmp_path / "first").mkdir()
    for name in ("twin", "pasta", "judge", "other"):
        (tmp_path / "first" / name).write_text(f"weights of {name}")
    before = stage(tmp_path / "first")
    made = Evaluation(tmp_path, (), (), config=before.config, inputs=before.fingerprints)
    moved = (tmp_path / "first").rename(tmp_path / "moved")
    assert stage(moved).same_methods(made) == ["twin", "pasta"]
    assert stage(moved).is_same_judge(made)
    assert not stage(moved, "other").is_same_judge(made)
    (moved / "pasta").write_text("other weights")
    assert stage(moved).same_methods(made) == ["twin"]


def test_a_judge_that_refuses_a_trivial_question_is_told_before_anything_is_decoded(
    bench, monkeypatch, capsys
):
    refuses = {"error": {"message": "The model `a` does not exist"}}
    monkeypatch.setattr(bench.judge, "_answer", lambda *_: (404, refuses))
    path = bench.config()
    monkeypatch.setattr(sys, "argv", ["evaluate", "--config", str(path)])
    with pytest.raises(SystemExit) as ended:
        run_main(evaluate.main)
    assert ended.value.code == 2
    assert (
        "refused the request for model 'a' (HTTP 404: The model `a` does not exist)"
        in capsys.readouterr().err
    )
    assert bench.decoded == []


def test_a_judge_that_does_not_answer_yet_is_told_while_answers_are_decoded(bench, monkeypatch, capsys):
    server, begun = bench.judge, bench.run_shards
    monkeypatch.setattr(server, "_answer", lambda *_: (503, {"error": {"message": "loading"}}))

    def decode(*arguments):
        begun(*arguments)
        monkeypatch.setattr(server, "_answer", lambda *_: completion("A"))

    monkeypatch.setattr(evaluate, "run_shards", decode)
    bench.run()
    (told,) = [line for line in capsys.readouterr().err.splitlines() if "judge.teacher" in line]
    where = f"kept: judge.teacher.endpoint.base_url {server.url}"
    assert told == f"{where}: HTTP 503: loading; it must answer once the answers are decoded"
    assert len(bench.decoded) == PROMPTS
    assert bench.judged == ["a"] * 2 * PROMPTS
