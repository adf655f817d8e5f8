"""A Ray cluster's job server, through Ray's client. Whatever goes wrong is reported in one line."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from jobs.storage import SENT
from jobs.submission import Submission
from pasta.errors import UserError
from serve.ray_start import environment_with

API_SERVER = "RAY_API_SERVER_ADDRESS"
EXIT_FAILED = 1
#: The exit code of a process that SIGTERM ended: the job server sends SIGTERM.
EXIT_STOPPED = 143
_CONNECT_S = 10.0
#: If a job's log says nothing for this long, ask the server for its state: a lost cluster is silent too.
_SILENCE_S = 60.0
#: How often to look for a lost log, at growing intervals, before giving up: about five minutes.
_ATTEMPTS = 14
_LONGEST_PAUSE_S = 30.0
#: What the server answers when the head node's agent, which starts a little later, has not come within seconds, and
#: how often to send a job before giving up: about two minutes.
_NO_AGENT, _SUBMIT_ATTEMPTS, _AGENT_PAUSE_S = "No available agent", 8, 5.0
#: What it answers if code and configurations are too large for one request: Ray 2.60.0 takes 100 MiB.
_TOO_LARGE = "status code 413"
#: What the server answers about an unknown job.
_UNKNOWN = "does not exist"

#: Modules of Ray 2.60.0 whose loggers tell what this module tells better.
RAYS_LOGGERS = (
    "ray.dashboard.modules.job.sdk",
    "ray.dashboard.modules.dashboard_sdk",
    "ray._private.authentication.http_token_authentication",
    "ray._private.runtime_env.packaging",
    "ray._private.runtime_env.working_dir",
)

Say = Callable[[str], None]


class JobServer:
    """The job server at ``address``, which is its dashboard's (``http://127.0.0.1:8265``).

    A token is found as Ray finds it (RAY_AUTH_MODE=token with RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH). Every method
    raises UserError for what the server refuses, and if it cannot be reached.
    """

    def __init__(self, address: str | None, environ: Mapping[str, str]) -> None:
        self.address = _checked(address or environ.get(API_SERVER) or environ.get("RAY_ADDRESS"))
        _quiet()
        # Ray lets this variable win over the address that its client is given.
        with self._in_one_line(), environment_with({API_SERVER: self.address}):
            import requests
            from ray.job_submission import JobSubmissionClient

            # Ray's own requests wait for ever.
            version = requests.get(f"{self.address}/api/version", timeout=_CONNECT_S)
            if version.status_code == requests.codes.not_found:
                raise self._no_dashboard()
            self._client = JobSubmissionClient(self.address)

    def submit(self, submission: Submission, resources: Mapping[str, Any], say: Say) -> None:
        """Send code and command; returns when the cluster has taken the job on. ``resources`` are the driver's.

        A cluster that has just started is asked again, with a line to ``say``, until it takes jobs on.
        """
        for attempt in range(1, _SUBMIT_ATTEMPTS + 1):
            try:
                with self._in_one_line():
                    self._client.submit_job(
                        entrypoint=submission.entrypoint,
                        submission_id=submission.id,
                        runtime_env=submission.runtime_env,
                        metadata=submission.metadata,
                        **resources,
                    )
                return
            except UserError as error:
                if _TOO_LARGE in str(error):
                    raise UserError(
                        f"{self.address} takes no job this large; expected less in {', '.join(SENT)}: keep models and "
                        "data on storage that all nodes share, or name them in .gitignore"
                    ) from None
                if _NO_AGENT not in str(error) or attempt == _SUBMIT_ATTEMPTS:
                    raise
                say(f"job {submission.id}: the cluster takes no jobs on yet; trying again")
                time.sleep(_AGENT_PAUSE_S)

    def info(self, job: str) -> Any:
        """Ray's JobDetails of a submitted job."""
        with self._in_one_line():
            return self._client.get_job_info(job)

    def jobs(self) -> list[Any]:
        """Ray's JobDetails of all submitted jobs, the oldest first."""
        with self._in_one_line():
            jobs = [job for job in self._client.list_jobs() if job.type == "SUBMISSION"]
        return sorted(jobs, key=lambda job: job.start_time or 0)

    def stop(self, job: str, wait: bool, say: Say) -> Any:
        """Ask the job to end, which it must within RAY_JOB_STOP_WAIT_TIME_S of its environment, and return its
        JobDetails. With ``wait``, when it has."""
        info = self.info(job)
        if info.status.is_terminal():
            return info
        with self._in_one_line():
            self._client.stop_job(job)
        say(f"job {job}: asked to stop")
        while wait and not (info := self.info(job)).status.is_terminal():
            time.sleep(1)
        return info

    def follow(self, job: str, write: Callable[[str], object], say: Say) -> Any:
        """Pass the job's log to ``write`` as it comes, from its beginning, and return its JobDetails when it has ended.

        Calls ``say`` with a line about what it waits for before there is a log, and when the connection is lost: the
        log then continues where it broke off. Raises UserError when it stays lost; the job does not end with it.
        """
        log, attempts = _Log(write), 0
        while True:
            heard = log.length
            try:
                self._wait_for_start(job, say)
                asyncio.run(self._tail(job, log))
                info = self.info(job)
                if info.status.is_terminal():
                    return info
                reason = "its log ended before it did"
            except UserError as error:
                reason = str(error)
                if _UNKNOWN in reason:  # mistyped, or the cluster is a new one
                    raise
            attempts = 0 if log.length > heard else attempts + 1
            if attempts >= _ATTEMPTS:
                raise UserError(f"job {job}: lost ({reason}); it may be running still")
            say(f"job {job}: {reason}; trying again")
            time.sleep(min(2.0**attempts, _LONGEST_PAUSE_S))

    def _wait_for_start(self, job: str, say: Say) -> None:
        message = None
        while (info := self.info(job)).status == "PENDING":
            if info.message != message:
                message = info.message
                say(f"job {job}: {_line(message or 'waiting')}")
            time.sleep(1)

    async def _tail(self, job: str, log: "_Log") -> None:
        stream = aiter(self._client.tail_job_logs(job))
        log.rewind()
        with self._in_one_line():
            while True:
                waiting = asyncio.ensure_future(anext(stream, None))
                while not (await asyncio.wait({waiting}, timeout=_SILENCE_S))[0]:
                    self.info(job)
                text = waiting.result()
                if text is None:
                    return
                log.add(text)

    def _proxy_remark(self) -> str:
        """A remark for messages, if requests take an HTTP proxy that the environment names; empty if they take none.

        The proxy's address is not shown, since it may hold a password.
        """
        import requests

        if not requests.utils.get_environ_proxies(self.address):
            return ""
        host = urlsplit(self.address).hostname
        return f" (requests take the environment's proxy; export no_proxy={host} if it knows no way there)"

    def _no_dashboard(self) -> UserError:
        expected = "expected an address such as http://HEAD:8265"
        return UserError(f"{self.address} is no Ray dashboard; {expected}{self._proxy_remark()}")

    @contextlib.contextmanager
    def _in_one_line(self) -> Iterator[None]:
        import aiohttp
        import requests
        from ray.exceptions import AuthenticationError

        try:
            yield
        except AuthenticationError as error:
            if "required" in str(error).partition("\n")[0]:
                reason = (
                    "asks for a token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH)"
                )
            else:
                reason = "refuses this token; RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) must hold the cluster's"
            raise UserError(f"{self.address} {reason}") from None
        except (requests.JSONDecodeError, KeyError):
            raise self._no_dashboard() from None
        except (requests.RequestException, aiohttp.ClientError, OSError) as error:
            if "BadStatusLine" in str(error):  # another protocol, such as gRPC at Ray's own port
                raise self._no_dashboard() from None
            kind = "timed out" if isinstance(error, requests.Timeout) else _line(_cause(str(error)))
            raise UserError(
                f"{self.address} cannot be reached ({kind}); is the cluster running?{self._proxy_remark()}"
            ) from None
        except (RuntimeError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{self.address}: {_line(str(error))}") from None


class _Log:
    """A log that the server sends from its beginning each time; passes each part on once."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._read = 0
        #: Characters passed on.
        self.length = 0

    def rewind(self) -> None:
        self._read = 0

    def add(self, text: str) -> None:
        new = text[max(0, self.length - self._read) :]
        self._read += len(text)
        self.length = max(self.length, self._read)
        if new:
            self._write(new)


def exit_code(info: Any) -> int:
    """The exit code that stands for a job's end: its own where it has one (128 + N for signal N)."""
    if info.status == "SUCCEEDED":
        return 0
    if info.status == "STOPPED":
        return EXIT_STOPPED
    code = info.driver_exit_code
    return 128 - code if code is not None and code < 0 else code or EXIT_FAILED


def outcome(info: Any) -> str:
    """How a job has ended, in one line."""
    took = f" after {(info.end_time - info.start_time) / 60_000:.1f} min" if info.end_time else ""
    if info.status == "FAILED" and info.driver_exit_code is None:
        return f"failed{took}: {_line(info.message or 'no reason given')}"
    if info.status == "FAILED":
        return f"failed with exit code {exit_code(info)}{took}"
    return f"{str(info.status).lower()}{took}"


def _cause(text: str) -> str:
    """What the operating system said, without what its callers have put around it."""
    return text.rpartition("[Errno")[2].partition("] ")[2].rstrip(")'\" ") or text


def _line(text: str, width: int = 300) -> str:
    """The most telling line of an error's text: the last of a stack trace, the first of anything else."""
    # Ray puts a full stop, after a line break for stack traces, at the end of what it quotes.
    lines = [line.strip() for line in text.splitlines() if line.strip(" .")] or ["no reason given"]
    line = lines[-1] if "Traceback" in text else lines[0]
    return line if len(line) <= width else line[: width - 1] + "…"


def _checked(address: str | None) -> str:
    example = "expected the address of a cluster's dashboard, such as http://127.0.0.1:8265"
    if not address:
        raise UserError(f"--address: is missing ({API_SERVER} is not set either); {example}")
    parts = urlsplit(address)
    try:
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        valid = False
    if not valid or parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
        # Text before the host may be a password: do not repeat it.
        shown = address.rpartition("@")[2]
        raise UserError(f"--address {shown}: {example}, and nothing before or after it")
    return address.rstrip("/")


def _quiet() -> None:
    """Keep Ray's own lines about connections and large files off the terminal: this module reports what matters."""
    for name in RAYS_LOGGERS:
        logger = logging.getLogger(name)
        # These loggers set their level when they are imported: only a filter outlasts that.
        logger.addFilter(lambda record: record.levelno >= logging.ERROR)
