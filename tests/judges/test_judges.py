"""Judges: exact grading, a teacher behind a real HTTP endpoint, reward models with every kind of head."""

import copy
import json
import math
import random
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForSequenceClassification

from pasta.data.endpoint import EndpointError, EndpointSection
from pasta.errors import UserError
from pasta.judges import Case, judge_records
from pasta.judges.config import JudgeSection, RewardModelSection, TeacherJudgeSection
from pasta.judges.grader import GraderJudge
from pasta.judges.make import make_judge, metered
from pasta.judges.reward import RewardJudge
from pasta.judges.tally import VerdictTally
from pasta.judges.teacher import TeacherJudge, share_of_a
from tests.support.endpoint import completion, endpoint_server
from tests.support.models import SMALL, tiny
from tests.support.samples import record, tasks, variations
from tests.support.service import save_tiny_model
from tests.support.tokenizers import byte_level, byte_level_without_system

ASK = [{"role": "user", "content": "Name a river."}]
CASE = Case(ASK, "The Seine.", ("The Nile.", "A river is wet."))


# -- the grader ----------------------------------------------------------------------------------------


def test_the_grader_gives_the_share_of_right_statements():
    task = tasks(1)[0]
    full, half = GraderJudge().judge(
        [Case(task.messages, "", (task.answer, task.answer[: len(task.answer) // 2]))]
    )[0]
    assert full.quality == 1.0
    assert 0 < half.quality < 1
    assert half.quality == half.note["right"] / half.note["total"]


def test_the_grader_refuses_other_prompts():
    with pytest.raises(UserError, match=r"'Name a river\.' is no atlas prompt; use teacher or reward"):
        GraderJudge().judge([CASE])


def test_only_answers_are_judged_and_equal_texts_once():
    task = tasks(1)[0]
    seen = []

    class Watching(GraderJudge):
        def judge(self, cases):
            seen.extend(cases)
            return super().judge(cases)

    skipped = {"id": "x", "messages": ASK, "skipped": "too long"}
    cut = record(tasks(2)[1], variations(tasks(2)[1]), twin_reason="length")
    judged = judge_records(Watching(), [skipped, record(task, variations(task)), cut])
    assert [len(entry["verdicts"]) for entry in judged] == [0, 5, 0]
    # The first two candidates differ in their tags alone; the last two are no answers.
    assert [len(case.answers) for case in seen] == [2]
    first, second, half, *unfit = judged[1]["verdicts"]
    assert first == second != half
    assert unfit == [None, None]


# -- the teacher ---------------------------------------------------------------------------------------


def prefers(*answers):
    """A judge that prefers ``answers`` to anything else, with probability 0.9."""

    def answer(body, _):
        content = body["messages"][1]["content"]
        first = content.partition("<answer_a>\n")[2].partition("\n</answer_a>")[0]
        letters = "AB" if first in answers else "BA"
        return completion(letters[0], {letters[0]: math.log(0.9), letters[1]: math.log(0.1)})

    return answer


def teacher(server, folder, **values):
    endpoint = EndpointSection(server.url, "judge", api_key_env=None, backoff_s=0.01, retries=1)
    return TeacherJudge(TeacherJudgeSection(endpoint, **values), folder / "replies.jsonl", None)


def test_the_teacher_compares_in_both_orders_and_weighs_by_confidence(tmp_path):
    with endpoint_server(prefers("The Nile.")) as server:
        judge = teacher(server, tmp_path)
        nile, wet = judge.judge([Case(ASK, "The Seine.", ("The Nile.", "The Seine."))])[0]
        (worse,) = judge.judge([Case(ASK, "The Nile.", ("The Seine.",))])[0]
    assert nile.quality == pytest.approx(0.9)
    assert nile.note["orders"] == pytest.approx([0.9, 0.9])
    assert wet.quality == 0.5  # equal to the baseline: not asked
    assert worse.quality == pytest.approx(0.1)
    assert len(server.requests) == 2  # the second comparison is the first, seen from the other side
    assert judge.usage()["judge_requests"] == 2


def test_a_judge_that_always_takes_the_first_place_says_nothing(tmp_path):
    with endpoint_server(lambda *_: completion("A")) as server:
        (verdict, _) = teacher(server, tmp_path).judge([CASE])[0]
    assert verdict.quality == 0.5
    assert verdict.note == {"orders": [1.0, 0.0], "weighted": False}


def test_an_endpoint_without_log_probabilities_is_asked_without(tmp_path):
    def answer(body, _):
        if "logprobs" in body:
            return 400, {"error": {"message": "logprobs are not supported by this model"}}
        return completion("A.")

    with endpoint_server(answer) as server:
        judge = teacher(server, tmp_path)
        verdicts = judge.judge([CASE])[0]
    assert all(verdict.note["weighted"] is False for verdict in verdicts)
    assert judge.usage()["judge_unweighted"] == 4


def test_a_reply_out_of_format_is_asked_for_again_and_then_invalid(tmp_path):
    def answer(body, _):
        rambles = "A river is wet." in body["messages"][1]["content"]
        return completion("Both have merits." if rambles or len(body["messages"]) == 2 else "**B**")

    with endpoint_server(answer) as server:
        judge = teacher(server, tmp_path, format_retries=2)
        good, bad = judge.judge([CASE])[0]
    assert good.quality == 0.5
    assert bad.quality is None
    assert bad.note == {"invalid": "Both have merits."}
    assert judge.usage()["judge_asked_again"] == 2 * 1 + 2 * 2
    assert len(server.requests) == 2 * 2 + 2 * 3
    assert server.requests[-1]["body"]["messages"][-1]["content"].startswith("That is not a verdict")


@pytest.mark.parametrize("failure", [(400, {"error": {"message": "content policy"}}), (500, {})])
def test_a_case_that_the_endpoint_cannot_take_is_invalid_and_the_others_are_judged(tmp_path, failure):
    def answer(body, number):
        wet = "A river is wet." in body["messages"][-1]["content"]
        return (
            failure
            if wet
            else prefers("The Nile.")(body, number)
            if len(body["messages"]) > 1
            else completion("yes")
        )

    with endpoint_server(answer) as server:
        nile, wet = teacher(server, tmp_path).judge([CASE])[0]
    assert nile.quality == pytest.approx(0.9)
    assert wet.quality is None
    assert f"HTTP {failure[0]}" in wet.note["invalid"]


def test_what_was_said_before_a_failure_is_not_asked_twice(tmp_path):
    def answer(body, number):
        return (401, {}) if number == 3 else prefers("The Nile.")(body, number)

    with endpoint_server(answer) as server:
        prices = {"price_read": 1.0, "price_written": 2.0}
        endpoint = EndpointSection(server.url, "judge", api_key_env=None, concurrency=1, **prices)
        section, journal = TeacherJudgeSection(endpoint), tmp_path / "replies.jsonl"
        with pytest.raises(EndpointError, match=r"refused a request without a key \(HTTP 401\)"):
            TeacherJudge(section, journal, None).judge([CASE])
        said = len(journal.read_text().splitlines()) - 1
        assert said == 3
        again = TeacherJudge(section, journal, None)
        assert again.judge([CASE])[0][0].quality == pytest.approx(0.9)
        assert len(server.requests) == 4 + 1
        third = TeacherJudge(section, journal, None, {"judge_requests": 3.0})
        third.judge([CASE])
    # What a batch that was cut has paid for is counted by the next run, and once.
    assert again.usage()["judge_requests"] == 4
    assert again.usage()["judge_cost"] == pytest.approx(4 * (7 * 1.0 + 1 * 2.0) / 1e6)
    assert third.usage()["judge_requests"] == 1


def test_the_usage_of_verdicts_that_are_counted_is_not_counted_again(tmp_path):
    with endpoint_server(prefers("The Nile.")) as server:
        endpoint = EndpointSection(server.url, "judge", api_key_env=None)
        section = JudgeSection("teacher", TeacherJudgeSection(endpoint))
        tally = VerdictTally(tmp_path)
        for answer in ("The Nile.", "A river is wet."):
            judge = make_judge(section, tmp_path)  # as after a worker has died
            judge.judge([Case(ASK, "The Seine.", (answer,))])
            tally.spend(judge.usage())
        make_judge(section, tmp_path).judge([Case(ASK, "The Rhine.", ("The Nile.",))])
        assert make_judge(section, tmp_path).usage()["judge_requests"] == 2
    assert tally.figures()["judge_requests"] == 4


def test_of_a_journal_that_does_not_say_what_was_spent_nothing_is_counted(tmp_path):
    with endpoint_server(prefers("The Nile.")) as server:
        first = teacher(server, tmp_path)
        first.judge([CASE])
        journal = tmp_path / "replies.jsonl"
        rows = [json.loads(line) for line in journal.read_text().splitlines()]
        for row in rows:
            row.pop("spent", None)
        journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
        again = teacher(server, tmp_path)
        again.judge([CASE])
    assert first.usage()["judge_requests"] == 4
    assert again.usage()["judge_requests"] == 0


@pytest.mark.parametrize(
    ("alternatives", "expected"),
    [
        ([{"A": math.log(0.6), "B": math.log(0.2), "x": math.log(0.2)}], 0.75),
        ([{"\n": 0.0}, {" A": math.log(0.5), "A": math.log(0.25), " B": math.log(0.25)}], 0.75),
        ([{"A": math.log(0.99)}], 1.0),
        ([{"A": 1000.0, "B": math.log(0.25)}], 0.8),
        ([{"B": 0.0}], None),
        ([], None),
    ],
)
def test_a_share_is_taken_where_the_verdict_is_said(alternatives, expected):
    share = share_of_a("A", alternatives)
    assert share == (None if expected is None else pytest.approx(expected))


# -- the reward model ----------------------------------------------------------------------------------


def reward_model(folder, *, labels=1, head=True, **config):
    """A sequence classifier with random weights, as such models are published."""
    torch.manual_seed(0)
    model = LlamaForSequenceClassification(LlamaConfig(**SMALL | config, num_labels=labels, pad_token_id=3))
    model.save_pretrained(folder)
    tokenizer = byte_level()
    tokenizer.save_pretrained(folder)
    if not head:
        body = tiny().model
        body.save_pretrained(folder)
        written = json.loads((folder / "config.json").read_text())
        changed = {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
        (folder / "config.json").write_text(json.dumps(written | changed))
    return RewardModelSection(str(folder), dtype="float32", device="cpu", batch_size=2)


def test_a_reward_model_s_quality_is_the_chance_to_beat_the_baseline(tmp_path):
    judge = RewardJudge(reward_model(tmp_path))
    (nile, wet), (alone,) = judge.judge([CASE, Case(ASK, "The Nile.", ("The Nile.",))])
    for verdict in (nile, wet):
        gap = verdict.note["reward"] - verdict.note["baseline_reward"]
        assert verdict.quality == pytest.approx(1 / (1 + math.exp(-gap)))
    assert nile.quality != wet.quality
    assert alone.quality == pytest.approx(0.5, abs=1e-5)
    assert alone.note["reward"] == pytest.approx(nile.note["reward"], abs=1e-4)


def test_an_answer_equal_to_the_baseline_s_is_exactly_as_good(tmp_path):
    judge = RewardJudge(replace(reward_model(tmp_path), dtype="bfloat16", batch_size=8))
    rng = random.Random(0)
    texts = ["".join(rng.choices("abcdefgh ", k=rng.randint(5, 80))) for _ in range(60)]
    found = judge.judge([Case(ASK, text, (text, f"other {text}")) for text in texts])
    assert {same.quality for same, _ in found} == {0.5}


def test_a_reward_model_that_takes_no_system_message_reads_it_before_the_user_s(tmp_path):
    section = reward_model(tmp_path)
    byte_level_without_system().save_pretrained(section.model)
    judge = RewardJudge(section)
    system = {"role": "system", "content": "Be brief."}
    joined = {"role": "user", "content": f"Be brief.\n\n{ASK[0]['content']}"}
    apart, together = judge.judge([replace(CASE, messages=[system, *ASK]), replace(CASE, messages=[joined])])
    for one, other in zip(apart, together, strict=True):
        assert one.note == pytest.approx(other.note, abs=1e-4)
    with pytest.raises(UserError, match="no system"):
        judge.judge([replace(CASE, messages=[system, system, *ASK])])


def test_a_row_s_reward_does_not_depend_on_its_batch_where_the_end_token_fills_rows_up(tmp_path):
    """A classifier that takes the token for padding would read the row before its end token."""
    torch.manual_seed(0)
    LlamaForSequenceClassification(LlamaConfig(**SMALL, num_labels=1)).save_pretrained(tmp_path)
    tokenizer = copy.deepcopy(byte_level())
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(tmp_path)
    alone, batched = (
        RewardJudge(RewardModelSection(str(tmp_path), dtype="float32", device="cpu", batch_size=size))
        for size in (1, 4)
    )
    (found,), (expected,) = batched.judge([CASE]), alone.judge([CASE])
    assert [v.quality for v in found] == pytest.approx([v.quality for v in expected], abs=1e-5)


def test_an_answer_longer_than_the_model_reads_is_invalid(tmp_path):
    judge = RewardJudge(reward_model(tmp_path, max_position_embeddings=40))
    short, long = judge.judge([Case(ASK, "Yes.", ("No.", "no " * 60))])[0]
    assert short.quality is not None
    assert long.quality is None
    assert "but the reward model reads 40" in long.note["invalid"]


def test_a_wrong_head_is_refused(tmp_path):
    with pytest.raises(UserError, match="a LlamaForSequenceClassification with 3 outputs; expected"):
        RewardJudge(reward_model(tmp_path / "three", labels=3))
    causal = save_tiny_model(tmp_path / "causal")
    with pytest.raises(
        UserError, match=r"is a LlamaForCausalLM with \d outputs; expected a sequence classifier"
    ):
        RewardJudge(RewardModelSection(str(causal), device="cpu"))
    with pytest.raises(UserError, match=r"has no weights for score\.weight"):
        RewardJudge(reward_model(tmp_path / "headless", head=False))


def test_a_reward_model_of_another_vocabulary_is_refused(tmp_path):
    with pytest.raises(UserError, match="the weights belong to another vocabulary"):
        RewardJudge(reward_model(tmp_path, vocab_size=64))


def test_a_missing_reward_model_is_named():
    with pytest.raises(
        UserError, match=r"judge\.reward\.model: \./gone: no such directory; train that model first"
    ):
        RewardJudge(RewardModelSection("./gone", device="cpu"))


# -- what came out, and what it took -------------------------------------------------------------------


def test_invalid_verdicts_are_counted_and_shown_with_what_the_judge_used(tmp_path):
    tally = VerdictTally(tmp_path)
    tally.count([{"quality": None, "invalid": "Both."}])
    tally.count([{"quality": 0.5}, {"quality": 1.0}])
    tally.spend({"judge_requests": 2.0})
    assert str(tally) == "1 of 3 verdicts invalid  requests 2"
    assert tally.figures() == {"judge_requests": 2.0, "judge_verdicts": 3.0, "judge_invalid": 1.0}


def test_a_judge_that_uses_nothing_leaves_no_file_of_its_usage(tmp_path):
    VerdictTally(tmp_path).spend({})
    assert not list(tmp_path.iterdir())
    VerdictTally(tmp_path).spend({"judge_requests": 2.0})
    assert VerdictTally(tmp_path).figures()["judge_requests"] == 2.0


def test_a_call_is_metered_by_what_it_added_to_the_judge_s_usage():
    class Counting(GraderJudge):
        requests = 0.0

        def usage(self) -> dict[str, float]:
            return {"judge_requests": self.requests}

    def ask(number: int) -> str:
        judge.requests += number
        return "A" * number

    judge = Counting()
    work = metered(judge, ask)
    assert [work(2), work(1)] == [("AA", {"judge_requests": 2.0}), ("A", {"judge_requests": 1.0})]
