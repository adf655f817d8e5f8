"""What follows a request that was read: the Interpreter's updates, within a deadline, as a response."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException

from serve.errors import ApiError, overloaded, timed_out, unavailable
from serve.responses import SSE_DONE, Choice, Writer, sse
from serve.wire import Accepted, Finished, Progress, Refused, Update

logger = logging.getLogger("ray.serve")


async def checked(items: AsyncGenerator[Update, None], timeout_s: float) -> AsyncGenerator[Update, None]:
    """The Interpreter's updates; refusals, lost replicas and a deadline that has passed as ``ApiError``."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    try:
        async with aclosing(items):
            while True:
                try:
                    async with asyncio.timeout_at(deadline) as limit:
                        item = await anext(items)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    if not limit.expired():
                        raise
                    raise timed_out(timeout_s) from None
                if isinstance(item, Refused):
                    raise _refusal(item)
                yield item
    except BackPressureError as error:
        raise overloaded() from error
    except (RayError, RayServeException) as error:
        logger.exception("a replica was lost")
        raise unavailable(
            "A part of the service was lost while it answered; send the request again."
        ) from error


def _refusal(refused: Refused) -> ApiError:
    if refused.status == 429:
        return overloaded(refused.message, refused.retry_after_s or 1)
    return ApiError(refused.message, status=refused.status, param=refused.param, code=refused.code)


async def collect(writer: Writer, updates: AsyncGenerator[Update, None]) -> dict[str, Any]:
    """The whole response."""
    choices = [Choice() for _ in range(writer.num_choices)]
    prompt_tokens = 0
    async with aclosing(updates):
        async for update in updates:
            if isinstance(update, Accepted):
                prompt_tokens = update.prompt_tokens
            elif isinstance(update, Progress):
                choices[update.index].text.append(update.text)
                choices[update.index].logprobs += update.logprobs
            elif isinstance(update, Finished):
                choices[update.index].finished = update
    if any(choice.finished is None for choice in choices):
        raise unavailable("The answer ended early; send the request again.")
    return writer.whole(choices, prompt_tokens)


async def stream(
    writer: Writer, accepted: Accepted, updates: AsyncGenerator[Update, None]
) -> AsyncGenerator[str, None]:
    """The response as server-sent events. What goes wrong on the way is an event too, the last one."""
    unfinished, completion_tokens = writer.num_choices, 0
    async with aclosing(updates):
        for chunk in writer.first_chunks():
            yield sse(chunk)
        try:
            async for update in updates:
                if isinstance(update, Progress):
                    yield sse(writer.progress_chunk(update))
                elif isinstance(update, Finished):
                    unfinished -= 1
                    completion_tokens += update.completion_tokens
                    yield sse(writer.finish_chunk(update))
            if unfinished:
                raise unavailable("The answer ended early; send the request again.")
            for chunk in writer.last_chunks(accepted.prompt_tokens, completion_tokens):
                yield sse(chunk)
            yield SSE_DONE
        except ApiError as error:
            yield sse(error.body())
