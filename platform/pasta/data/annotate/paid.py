"""Keeps what an endpoint was paid for, until the record that it was asked for is finished."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pasta.data.endpoint import Endpoint
from pasta.data.replies import Reply, Tokens
from pasta.stages.records import RecordFile


class PaidEndpoint:
    """An endpoint whose replies go to ``journal``, if there is one, as they come: a run that goes on where it was cut
    between the replies to one record does not ask for the first ones again."""

    def __init__(self, endpoint: Endpoint, journal: RecordFile | None) -> None:
        self.endpoint, self._journal = endpoint, journal

    async def chat(self, place: str, messages: Sequence[Mapping[str, str]], **options: Any) -> Reply:
        """``Endpoint.chat`` for the record at ``place``, or what it said before. Raises EndpointError."""
        if self._journal is None:
            return await self.endpoint.chat(messages, **options)
        key = hashlib.sha256(json.dumps([place, list(messages), options]).encode()).hexdigest()
        if key in self._journal:
            kept = dict(self._journal.records[key]["reply"])
            return Reply(**{**kept, "alternatives": (), "wasted": Tokens(**kept["wasted"])})
        reply = await self.endpoint.chat(messages, **options)
        self._journal.add(key, {"reply": asdict(reply)})
        return reply
