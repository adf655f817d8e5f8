"""Ctrl-C while other people's code runs."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext

import pytest

from jobs.arguments import run_benchmark
from pasta.signals import (
    Terminated,
    deferred_interrupt,
    ended_by_sigterm,
    handling,
    interrupted_by,
    kept_interrupt,
)
from tests.support.interrupts import press_and_swallow, press_ctrl_c, send_sigterm


@pytest.fixture(autouse=True)
def default_handler():
    with handling(signal.SIGINT, signal.default_int_handler):
        yield


def press_in_a_block(times: int, events: list[str], error: Exception | None = None) -> None:
    with deferred_interrupt():
        for _ in range(times):
            press_ctrl_c()
        events.append("end of the block")
        if error:
            raise error


def test_the_interrupt_is_raised_at_the_end_of_the_block():
    events: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        press_in_a_block(1, events)
    assert events == ["end of the block"]


def test_the_interrupt_wins_over_an_error_of_the_block():
    with pytest.raises(KeyboardInterrupt):
        press_in_a_block(1, [], OSError("timed out during startup"))


def test_the_second_interrupt_is_not_deferred():
    events: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        press_in_a_block(2, events)
    assert not events


def test_without_an_interrupt_nothing_happens_and_the_old_handler_is_back():
    before = signal.getsignal(signal.SIGINT)
    with deferred_interrupt():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_in_a_function_that_runs_around_a_fork_is_neither_printed_nor_lost():
    program = """
import os, signal, subprocess, sys
from pasta.signals import deferred_interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
try:
    with deferred_interrupt():
        if os.fork() == 0:
            os._exit(0)
        os.wait()
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def work_in_steps(events: list[int], press: Callable[[], None]) -> None:
    with kept_interrupt() as check:
        for step in range(5):
            check()
            events.append(step)
            if step == 2:
                press()
                events.append(99)


def work_at_one_go(error: Exception | None, press: Callable[[], None] = press_and_swallow) -> None:
    with kept_interrupt():
        press()
        if error:
            raise error


def test_an_interrupt_that_somebody_swallows_is_raised_between_two_steps_of_the_work():
    events: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        work_in_steps(events, press_and_swallow)
    assert events == [0, 1, 2, 99]


def test_an_interrupt_that_nobody_swallows_comes_where_it_always_has():
    events: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        work_in_steps(events, press_ctrl_c)
    assert events == [0, 1, 2]


@pytest.mark.parametrize("error", [None, RuntimeError("a worker was stopped")])
def test_an_interrupt_that_somebody_swallows_is_raised_at_the_end_of_the_block_at_the_latest(error):
    with pytest.raises(KeyboardInterrupt):
        work_at_one_go(error)


def test_an_error_without_an_interrupt_stays_what_it_is():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(RuntimeError, match="broken"):
        work_at_one_go(RuntimeError("broken"), press=lambda: None)
    assert signal.getsignal(signal.SIGINT) is before


def test_sigterm_ends_a_block_though_other_code_has_made_another_exit_of_it():
    before = signal.getsignal(signal.SIGTERM)

    def wait() -> None:
        try:
            send_sigterm()
        except SystemExit:
            sys.exit(1)

    with pytest.raises(Terminated) as ended, ended_by_sigterm():
        wait()
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("ignored", [False, True], ids=["", "nohup"])
def test_a_terminal_that_is_closed_ends_a_block_as_sigterm_does(ignored):
    """Ray's processes stayed for a minute, and nothing had been closed."""
    before = signal.SIG_IGN if ignored else signal.SIG_DFL
    expected = nullcontext() if ignored else pytest.raises(Terminated)
    with handling(signal.SIGHUP, before), expected, ended_by_sigterm():
        signal.raise_signal(signal.SIGHUP)


def test_a_benchmark_that_sigterm_ends_says_where_the_same_command_goes_on(tmp_path, capsys):
    with pytest.raises(Terminated):
        run_benchmark(send_sigterm, tmp_path / "speed.json", fresh=False)
    assert (
        capsys.readouterr().err == f"interrupted: the same command goes on from the records in {tmp_path}/\n"
    )


def test_a_block_that_waits_is_left_when_what_it_waits_for_has_ended():
    """Ray's raylet was killed: training went on waiting until Ray ended the process, without a word of how to go on."""
    started = time.monotonic()

    def check() -> None:
        if time.monotonic() > started + 0.05:
            raise OSError("it has ended")

    with pytest.raises(OSError, match="it has ended"), interrupted_by(check, every_s=0.01):
        time.sleep(60)


def test_a_block_that_is_asked_about_ends_as_it_would():
    with interrupted_by(lambda: None, every_s=0.001):
        time.sleep(0.01)
    with pytest.raises(KeyboardInterrupt), interrupted_by(lambda: None):
        press_ctrl_c()
