"""The stand-in for large models, asked over HTTP as they are."""

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pasta.data.annotate.annotator import Proposal
from pasta.data.annotate.independence import IndependenceSection
from pasta.data.annotate.teacher import Teacher, TeacherSection
from pasta.data.annotate.truth import TruthTally
from pasta.data.annotate.validator import ChecksSection, Validator
from pasta.data.atlas import heldout_prompts
from pasta.data.atlas_keys import ATLAS
from pasta.data.endpoint import EndpointSection
from pasta.data.instructions import Instruction
from pasta.data.tokenizers import find_tokenizer
from pasta.judges.config import TeacherJudgeSection as PairSection
from pasta.judges.judge import Case
from pasta.judges.teacher import TeacherJudge
from pasta.lang import Codec
from tests.support.stand_in import stand_in_url

TASKS = heldout_prompts(24)
RECORDS = [Instruction(task.prompt, "x", tuple(task.messages), task.answer) for task in TASKS]
CHECKS = ChecksSection("exact", 8, 1, 2000, 1000, min_speedup=0.0)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with stand_in_url() as url:
        yield url


def taken(url: str, proposals: int, *, judged: bool) -> tuple[TruthTally, dict[str, int]]:
    """How the annotations that a teacher's checked work leaves compare with the truth; refusals by reason."""
    endpoint = EndpointSection(base_url=url, model="stand-in", api_key_env=None)
    judge = IndependenceSection(endpoint) if judged else None
    section = TeacherSection(endpoint, temperature=1.0, seed=0, proposals=proposals, independence_judge=judge)
    tally, refused = TruthTally(), dict.fromkeys(("dependent", "differs", "malformed", "not judged"), 0)

    def deliver(record: Instruction, proposal: Proposal) -> None:
        for each in proposal.refused:
            refused[each.reason] += 1
        if proposal.annotated is not None:
            tally.add(record.messages, proposal.annotated, record.answer)

    Teacher(section, Validator(CHECKS, Codec(find_tokenizer(ATLAS)))).annotate(RECORDS, deliver)
    return tally, refused


@pytest.mark.slow
def test_checked_proposals_mark_what_is_independent_more_precisely_than_one_unchecked(url: str) -> None:
    one, none_refused = taken(url, 1, judged=False)
    best, refused = taken(url, 4, judged=True)
    assert (one.num_answers, sum(none_refused.values())) == (len(RECORDS), 0)
    assert best.num_answers > 0.8 * len(RECORDS)
    assert refused["dependent"] > 0
    before, after = one.marks(), best.marks()
    assert (after["precision"] or 0) > (before["precision"] or 0) + 0.05
    assert (after["wrong_forks"] or 0) < (before["wrong_forks"] or 0)


def test_the_judge_of_two_answers_prefers_the_one_with_more_right_statements(
    url: str, tmp_path: Path
) -> None:
    task = TASKS[0]
    half = task.answer[: len(task.answer) // 2]
    section = PairSection(EndpointSection(base_url=url, model="stand-in", api_key_env=None))
    judge = TeacherJudge(section, tmp_path / "journal.jsonl", None)
    (better,), (worse,), (unknown,) = judge.judge(
        [
            Case(task.messages, half, (task.answer,)),
            Case(task.messages, task.answer, (half,)),
            Case([{"role": "user", "content": "Who?"}], "One.", ("Two.",)),
        ]
    )
    assert (better.quality, worse.quality, unknown.quality) == (1.0, 0.0, 0.5)


def test_another_path_and_a_body_that_is_no_request_are_refused(url: str) -> None:
    assert httpx.post(f"{url}/completions", json={}).status_code == 404
    for body in ({}, {"messages": [{"role": "user", "content": None}]}):
        assert httpx.post(f"{url}/chat/completions", json=body).status_code == 400


def test_a_job_that_goes_away_is_nothing_to_report(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C in the job's terminal printed a stack trace of each of its requests in the stand-in's."""
    address = (httpx.URL(url).host, httpx.URL(url).port)
    for sent in (b"POST /v1/chat", b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\n{}"):
        with socket.create_connection(address) as connection:
            connection.sendall(sent)
            # closing resets the connection, as the end of a process that has not read its answers does
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert httpx.post(f"{url}/chat/completions", content=b"{}").status_code == 400
    time.sleep(0.2)
    assert capfd.readouterr().err == ""
