"""Keeps Ctrl-C from getting lost in code of other libraries, and makes an exception of SIGTERM too."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def handling(number: signal.Signals, handler: Any) -> Iterator[None]:
    """Install a signal handler for the time of the block; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, previous)


class Terminated(SystemExit):
    """SIGTERM. The exit code is the one that a shell tells of a process that the signal has ended."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Raise Terminated for a SIGTERM within the block, and at its end: code of others may make another exit of it, as
    Ray does where it waits. So with SIGHUP, which a closed terminal sends, unless it is ignored (``nohup``)."""
    ended = False

    def end(number: int, frame: Any) -> None:
        nonlocal ended
        ended = True
        raise Terminated

    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    with handling(signal.SIGTERM, end), handling(signal.SIGHUP, signal.SIG_IGN if is_ignored else end):
        try:
            yield
        finally:
            if ended:
                raise Terminated


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Raise the ``KeyboardInterrupt`` of a Ctrl-C at the end of the block, however the block ends.

    For short blocks that fork or call back from C: Python prints and forgets what is raised in a finalizer or in a
    function that runs around a fork, so that the interrupt would be lost. A second Ctrl-C is not deferred.
    """
    seen = False

    def remember(number: int, frame: Any) -> None:
        nonlocal seen
        if seen:
            raise KeyboardInterrupt
        seen = True

    with handling(signal.SIGINT, remember):
        try:
            yield
        finally:
            if seen:
                raise KeyboardInterrupt


@contextlib.contextmanager
def kept_interrupt() -> Iterator[Callable[[], None]]:
    """Raise ``KeyboardInterrupt`` for a Ctrl-C within the block as Python does, and once more if it got lost.

    A finalizer or another library's ``except:`` that happens to run just then swallows it. Yields a function that
    raises it again, to be called between steps of long work; the end of the block raises it too, instead of an error
    that has come of it.
    """
    seen = False

    def interrupt(number: int, frame: Any) -> None:
        nonlocal seen
        seen = True
        raise KeyboardInterrupt

    def check() -> None:
        if seen:
            raise KeyboardInterrupt

    with handling(signal.SIGINT, interrupt):
        try:
            yield check
        except Exception:
            check()
            raise
        check()


@contextlib.contextmanager
def interrupted_by(check: Callable[[], None], every_s: float = 1.0) -> Iterator[None]:
    """Raise what ``check`` raises within the block, which waits in code of others; asked in another thread.

    A signal wakes the main thread there: SIGUSR1, so that nobody takes it for a Ctrl-C. Nothing is asked for a block in
    another thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over, found = threading.Event(), []

    def ask() -> None:
        while not over.wait(every_s):
            try:
                check()
            except Exception as error:
                found.append(error)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                return

    def wake(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    thread = threading.Thread(target=ask, daemon=True)
    with handling(signal.SIGUSR1, wake):
        thread.start()
        try:
            try:
                yield
            finally:
                over.set()
                thread.join()
        except BaseException:
            if found:
                raise found[0] from None
            raise
