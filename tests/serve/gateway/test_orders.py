"""What a Gateway tells an Interpreter beside the request itself."""

import asyncio

import httpx

from serve.calls import replicas
from serve.calls.replicas import KnownReplicas
from serve.wire import Accepted, Finished

CHAT = {"model": "m", "messages": [{"role": "user", "content": "a"}]}


def test_an_interpreter_learns_how_many_take_requests(served, monkeypatch):
    known, orders = KnownReplicas(), []
    monkeypatch.setitem(replicas._KNOWN, "Interpreter", known)

    def note(order):
        orders.append(order)
        return [[Accepted(3)], [Finished("stop", 3, 5, {})]]

    async def scenario():
        async with served({}, answer=note) as port, httpx.AsyncClient() as http:
            for names in ({"a", "b"}, {"b"}):
                known.update(frozenset(names))
                await http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=CHAT)

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert [order.num_interpreters for order in orders] == [2, 1]
