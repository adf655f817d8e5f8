"""Answers whose chunks are decoded one by one, each on an engine of its own."""

from collections.abc import Callable

from pasta.engine import DoneEvent, Engine, ForkEvent, Request, Result


def decode_chunks_elsewhere(new_engine: Callable[[], Engine], request: Request) -> Result:
    """Decode on a new engine; every chunk, nested ones too, on one of its own: no two threads share a forward."""
    home = new_engine()
    request_id = home.submit(request.replace(place_locally=lambda live, estimate: False))
    while True:
        for event in home.step():
            if isinstance(event, DoneEvent):
                return event.result
            if isinstance(event, ForkEvent) and event.snapshot:
                chunk = decode_chunks_elsewhere(
                    new_engine, request.replace(prompt_ids=(), snapshot=event.snapshot())
                )
                home.absorb(request_id, event.path, chunk.response_ids)
