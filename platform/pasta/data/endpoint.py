"""A language model behind an OpenAI-compatible endpoint. Keeps rate limits, retries failures, counts tokens and cost.

The official client does the HTTP. Transient failures (429, 5xx, timeouts, a broken connection, a body that is no chat
completion) are retried with exponential backoff. Permanent ones (a refused key, an unknown model, no quota) raise at
once, in one line.
"""

import asyncio
import ipaddress
import math
import random
import re
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from pasta.bounds import check_at_most, check_not_negative, check_positive
from pasta.config import to_dict
from pasta.data.replies import NO_COMPLETION, NO_TOKENS, Reply, Tokens, read_reply, tokens_of
from pasta.errors import UserError, first_line
from pasta.lang.tokenizer import without_halves

if TYPE_CHECKING:
    import openai

T = TypeVar("T")
_CHARS_A_TOKEN = 4  # an estimate for the token limit only: the endpoint reports what a request really cost
_TRANSIENT = (408, 409, 425, 429)
#: Statuses that may concern one request only: it is too long, or its content is refused.
REFUSED_REQUEST = (400, 413, 422)
_PROBE = [{"role": "user", "content": "Answer with the word yes."}]
_PROBE_TOKENS = 16
_LOOK_AGAIN_S = 0.1
#: Of a pause; more of them than a number can hold would be an error.
_MOST_DOUBLINGS = 1000
_SHOWN = 160
#: Temperatures that OpenAI's API takes.
TEMPERATURES = (0.0, 2.0)
_NUMBERS = re.compile(r"[0-9]+(\.[0-9]+){3}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class EndpointError(UserError):
    """An endpoint gave no answer; the message has its address, its error and what to do. ``status`` is HTTP's, if any;
    ``wasted`` as a ``Reply``'s."""

    def __init__(self, message: str, status: int | None = None, wasted: Tokens = NO_TOKENS) -> None:
        super().__init__(message)
        self.status = status
        self.wasted = wasted


class _Failure(Exception):
    """A request failed as another try may not: why, the seconds that the endpoint asks to wait, if it does, and the
    tokens that it counts all the same."""


@dataclass(frozen=True, slots=True)
class EndpointSection:
    """The ``endpoint`` section of a configuration.

    ``base_url`` ends where ``/chat/completions`` begins. ``api_key_env`` names the environment variable that holds the
    key (never put the key itself into a file; ``null``: the endpoint needs none). ``concurrency``,
    ``requests_per_minute`` and ``tokens_per_minute`` (read and written) bound the whole run; annotation starts no more
    workers than ``concurrency``. A whole answer may take ``timeout_s``. A failure is tried again ``retries`` times,
    after ``backoff_s`` seconds, twice that, and so on up to ``max_backoff_s``, or after what the endpoint asks for.
    ``price_read`` and ``price_written`` are what a million tokens cost. ``extra_body`` is sent with every request as it
    is.
    """

    base_url: str
    model: str
    api_key_env: str | None = "OPENAI_API_KEY"
    max_tokens_key: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    concurrency: int = 8
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    timeout_s: float = 120.0
    retries: int = 6
    backoff_s: float = 1.0
    max_backoff_s: float = 60.0
    price_read: float = 0.0
    price_written: float = 0.0
    extra_body: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _is_address(self.base_url):
            raise ValueError(
                f"base_url {self.base_url!r}: expected an address such as https://api.openai.com/v1"
            )
        if self.api_key_env is not None and not _VARIABLE.fullmatch(self.api_key_env):
            # The value may be the key itself: the message must not repeat it.
            raise ValueError(
                "api_key_env: expected the name of an environment variable such as OPENAI_API_KEY, or null"
            )
        check_positive(self, "concurrency")
        check_at_most(self, concurrency=10_000)
        for name in ("requests_per_minute", "tokens_per_minute", "timeout_s", "backoff_s", "max_backoff_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} {value}: expected a positive number")
        check_not_negative(self, "retries", "price_read", "price_written")

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """What so many tokens cost."""
        return (prompt_tokens * self.price_read + completion_tokens * self.price_written) / 1e6

    def share(self, fraction: float) -> "EndpointSection":
        """One worker's share of the run's limits: this ``fraction`` of each.

        Requests are rounded down, so that all workers together keep the limit; a third of three is still one.
        """
        return replace(
            self,
            concurrency=max(1, int(self.concurrency * fraction + 1e-9)),
            requests_per_minute=self.requests_per_minute and self.requests_per_minute * fraction,
            tokens_per_minute=self.tokens_per_minute and self.tokens_per_minute * fraction,
        )


def answers_identity(asks: Any) -> dict[str, Any]:
    """The keys of a section that answers depend on, one of which is its ``endpoint``: of that the model alone, and what
    is sent with every request."""
    values = to_dict(asks)
    endpoint = values.pop("endpoint")
    return {**values, "model": endpoint["model"], "extra_body": endpoint["extra_body"]}


@dataclass(slots=True)
class EndpointUsage:
    """Usage of an endpoint so far: requests answered, failed attempts, tokens as it counts them, those of answers that
    cannot be read too."""

    requests: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0


class Endpoint:
    """Sends requests to one model within its rate limits. Use it from one event loop."""

    def __init__(self, section: EndpointSection, api_key: str | None) -> None:
        # imported late: it takes a second, and a configuration that only names an endpoint does not need it
        import openai

        self.section = section
        self.usage = EndpointUsage()
        # Typed as Any: the client's overloads take no options by name, and ``_reply`` checks what it returns.
        self._client: Any
        try:
            self._client = openai.AsyncOpenAI(
                base_url=section.base_url,
                api_key=api_key or "none",
                timeout=section.timeout_s,
                # retried here instead: attempts are counted, and wait as long as the endpoint asks
                max_retries=0,
            )
        except Exception as error:  # an ImportError for SOCKS, else httpx's own: the section is valid
            raise UserError(
                f"endpoint {section.base_url}: requests cannot take the environment's proxy ({first_line(error)}); "
                "expected http_proxy, https_proxy and all_proxy to be http://HOST:PORT, or not set"
            ) from None
        self._running, self._turn = asyncio.Semaphore(section.concurrency), asyncio.Lock()
        self._requests = _Pace(section.requests_per_minute)
        self._tokens = _Pace(section.tokens_per_minute)
        self._not_before = 0.0
        self._api_key = api_key

    async def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        **options: Any,
    ) -> Reply:
        """One chat completion; ``options`` are the API's own. Raises EndpointError when it cannot be had."""
        section, wasted = self.section, NO_TOKENS
        for attempt in range(section.retries + 1):
            try:
                reply = await self._try(messages, max_tokens=max_tokens, temperature=temperature, **options)
                return replace(reply, wasted=wasted)
            except _Failure as error:
                failure, pause, tokens = error.args
                wasted += tokens
            if attempt < section.retries:
                self.usage.retries += 1
                await self._back_off(attempt, pause)
        tries = f"{section.retries + 1} tries in a row" if section.retries else "asked once"
        raise EndpointError(
            f"endpoint {section.base_url}: {failure}, {tries}; what is finished is kept: the same command, without "
            "--restart if it has that, goes on from there",
            wasted=wasted,
        )

    async def why_silent(self, *, temperature: float = 0.0) -> str | None:
        """Ask a trivial question once. Returns why there is no answer now, None if there is one.

        Raises EndpointError if the endpoint refuses its key, its model or the question: later tries end alike.
        """
        try:
            await self._try(_PROBE, max_tokens=_PROBE_TOKENS, temperature=temperature)
        except _Failure as error:
            return str(error.args[0])
        return None

    async def _try(
        self, messages: Sequence[Mapping[str, str]], *, max_tokens: int, temperature: float, **options: Any
    ) -> Reply:
        """One request. Raises _Failure if another try may end otherwise, else EndpointError."""
        import openai

        section = self.section
        expected_tokens = sum(len(m["content"]) for m in messages) / _CHARS_A_TOKEN + max_tokens
        await self._take_turn(expected_tokens)
        tokens = NO_TOKENS
        try:
            # The client's own limit is on each piece of an answer, and some proxies send a space now and then.
            async with self._running, asyncio.timeout(section.timeout_s):
                completion = await self._client.chat.completions.create(
                    model=section.model,
                    messages=list(messages),
                    temperature=temperature,
                    extra_body=section.extra_body or None,
                    **{section.max_tokens_key: max_tokens},
                    **options,
                )
            tokens = self._counted(tokens_of(completion))
            reply = read_reply(completion, tokens)
        except openai.APIStatusError as error:
            pause = retry_after_s(error.response.headers)
            raise _Failure(self._status_failure(error) + self._proxy_remark(), pause, NO_TOKENS) from error
        except (openai.APITimeoutError, TimeoutError) as error:
            raise _Failure(f"no answer within {section.timeout_s:g} s", None, NO_TOKENS) from error
        except (openai.APIError, *NO_COMPLETION) as error:
            raise _Failure(self._reason(error) + self._proxy_remark(), None, tokens) from error
        self.usage.requests += 1
        if taken := tokens.prompt + tokens.completion:  # not every server counts
            self._tokens.give_back(expected_tokens - taken)
        return reply

    async def blame_request(self, error: EndpointError, *, temperature: float = 0.0) -> Reply:
        """Find out whether a request that failed was itself at fault: the endpoint then answers a trivial question.

        Returns that answer, with the tokens that were wasted on both. Raises ``error`` again if there is none, or if
        its status concerns every request.
        """
        if error.status is not None and error.status not in REFUSED_REQUEST:
            raise error
        try:
            reply = await self.chat(_PROBE, max_tokens=_PROBE_TOKENS, temperature=temperature)
            return replace(reply, wasted=reply.wasted + error.wasted)
        except EndpointError:
            raise error from None

    async def _take_turn(self, tokens: float) -> None:
        """Wait until the limits allow a request of so many tokens, those that came before it first."""
        async with self._turn:
            while (
                pause := max(self._requests.pause, self._tokens.pause, self._not_before - time.monotonic())
            ) > 0:
                # What others took beyond their need may be given back meanwhile, or an endpoint ask to wait.
                await asyncio.sleep(min(pause, _LOOK_AGAIN_S))
            self._requests.take(1.0)
            self._tokens.take(tokens)

    async def close(self) -> None:
        """Close connections."""
        await self._client.close()

    def _status_failure(self, error: "openai.APIStatusError") -> str:
        """Describe a transient HTTP status. Raises EndpointError for a permanent one."""
        section, status = self.section, error.status_code
        where = f"endpoint {section.base_url}"
        if status in (401, 403):
            key = f"the key in {section.api_key_env}" if section.api_key_env else "a request without a key"
            hint = "check it" if section.api_key_env else "name the variable that holds it as api_key_env"
            raise EndpointError(f"{where}: refused {key} (HTTP {status}); {hint}", status) from None
        if error.code == "insufficient_quota":
            raise EndpointError(f"{where}: the account's quota is used up (HTTP {status})", status) from None
        if status < 500 and status not in _TRANSIENT:
            raise EndpointError(
                f"{where}: refused the request for model {section.model!r} (HTTP {status}: {self._reason(error)})",
                status,
            ) from None
        return f"HTTP {status}: {self._reason(error)}"

    def _reason(self, error: Exception) -> str:
        """The first line of an error, cut short, with the API key removed if the endpoint repeats it."""
        import openai

        body = getattr(error, "body", None)
        message = body.get("message") if isinstance(body, dict) else body
        line = first_line(Exception(message) if isinstance(message, str) and message.strip() else error)
        if isinstance(error, openai.APIConnectionError) and error.__cause__ is not None:
            line = f"{line.rstrip('.')} ({first_line(error.__cause__)})"
        return without_halves(line.replace(self._api_key, "***") if self._api_key else line)[:_SHOWN]

    def _proxy_remark(self) -> str:
        """A remark for messages, if requests take a proxy that the environment names, which may have no way to the
        endpoint; empty if they take none. Its address may hold a password."""
        address = urlsplit(self.section.base_url)
        host, proxies = address.hostname or "", getproxies()
        if not (proxies.get(address.scheme) or proxies.get("all")) or proxy_bypass(host):
            return ""
        return f" (requests take the environment's proxy; export no_proxy={host} if it knows no way there)"

    async def _back_off(self, attempt: int, asked: float | None) -> None:
        section = self.section
        doubled = 2.0 ** min(attempt, _MOST_DOUBLINGS)
        pause = min(section.backoff_s * doubled, section.max_backoff_s) * random.uniform(0.5, 1.0)
        if asked is not None:
            # A rate limit holds for all requests to the endpoint: the others wait too.
            pause = min(asked, section.max_backoff_s)
            self._not_before = max(self._not_before, time.monotonic() + pause)
        await asyncio.sleep(pause)

    def _counted(self, tokens: Tokens) -> Tokens:
        usage = self.usage
        usage.prompt_tokens += tokens.prompt
        usage.completion_tokens += tokens.completion
        usage.cost += self.section.cost(tokens.prompt, tokens.completion)
        return tokens


class _Pace:
    """Rate limiter: at most ``per_minute`` in each minute; None is no limit."""

    def __init__(self, per_minute: float | None) -> None:
        self._seconds_each = 60.0 / per_minute if per_minute else 0.0
        self._free_at = 0.0

    @property
    def pause(self) -> float:
        """The seconds until more may be taken; not above 0 if it may be now."""
        return self._free_at - time.monotonic()

    def take(self, amount: float) -> None:
        """Take an amount."""
        self._free_at = max(time.monotonic(), self._free_at) + amount * self._seconds_each

    def give_back(self, amount: float) -> None:
        """Give back ``amount`` of what was taken (take more if negative)."""
        self._free_at -= amount * self._seconds_each


async def all_of(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all awaitables, in order. The first failure cancels the others and is raised."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _is_address(url: str) -> bool:
    if not url.startswith(("http://", "https://")):
        return False
    try:
        address = urlsplit(url)
        host, _ = address.hostname or "", address.port
        if ":" in host or _NUMBERS.fullmatch(host):
            ipaddress.ip_address(host)
    except ValueError:  # a port that is no number, an address without its end
        return False
    return bool(host)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The seconds that the headers of a response (names in lower case) ask to wait: ``Retry-After`` is a number of them
    or a date, which counts from the ``Date`` of the response. ``None`` if it asks for no pause, or for none that can be
    read."""
    given = headers.get("retry-after", "")
    try:
        seconds = float(given)
    except ValueError:
        until, now = _seconds(given), _seconds(headers.get("date", ""))
        seconds = math.nan if until is None else until - (time.time() if now is None else now)
    return seconds if 0 < seconds < math.inf else None  # 0 is less than a second, rounded down


def _seconds(date: str) -> float | None:
    """The seconds since the epoch of an HTTP date, which is in GMT; ``None`` if it is none."""
    try:
        return parsedate_to_datetime(date).replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return None
