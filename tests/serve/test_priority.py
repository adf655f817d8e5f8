"""Who gives way on a machine with fewer cores than threads (serve/priority.py)."""

import os
import subprocess
import sys
import threading

import pytest

from serve import priority


def can_give_way():
    with priority.starting(batch=True):
        return priority.is_batch()


pytestmark = pytest.mark.skipif(not can_give_way(), reason="this system has no SCHED_BATCH, or forbids it")


@pytest.fixture(autouse=True)
def leave_this_process_as_it_is():
    with priority.starting(batch=False):
        yield
    for thread in os.listdir("/proc/self/task"):
        priority._set(int(thread), batch=False)


def in_a_new_thread(question):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(question()))
    thread.start()
    thread.join()
    return answers[0]


def test_all_threads_of_a_process_give_way_and_those_that_come_later():
    ready, end = threading.Event(), threading.Event()
    policies = []

    def older():
        ready.set()
        end.wait()
        policies.append(priority.is_batch())

    thread = threading.Thread(target=older)
    thread.start()
    ready.wait()
    priority.set_batch()
    end.set()
    thread.join()
    assert policies == [True]
    assert priority.is_batch()
    assert in_a_new_thread(priority.is_batch)


def test_a_thread_that_is_started_as_first_does_not_give_way():
    priority.set_batch()
    with priority.starting(batch=False):
        assert in_a_new_thread(priority.is_batch) is False
    assert priority.is_batch()


def test_a_process_that_is_started_giving_way_does_and_the_one_that_starts_it_does_not():
    ask = [sys.executable, "-c", "import os; print(os.sched_getscheduler(0) == os.SCHED_BATCH)"]
    with priority.starting(batch=True):
        answer = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
    assert answer.strip() == "True"
    assert not priority.is_batch()


@pytest.mark.parametrize("error", [PermissionError(1, "not permitted"), OSError(22, "invalid argument")])
def test_a_system_that_forbids_it_changes_nothing(monkeypatch, error):
    def forbidden(*_):
        raise error

    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    priority.set_batch()
    with priority.starting(batch=True):
        assert not priority.is_batch()
