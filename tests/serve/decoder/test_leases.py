"""Leases end what nobody claims."""

import asyncio

import pytest

from serve.decoder.leases import Leases


@pytest.mark.parametrize(("renewed", "expired"), [(["a"], ["b"]), ([], ["a", "b"])])
def test_what_is_not_renewed_expires(renewed, expired):
    async def scenario():
        leases, ended = Leases(0.2), []
        for name in ("a", "b", "c"):
            leases.open(name, lambda name=name: ended.append(name))
        assert leases.close("c")
        for _ in range(6):
            await asyncio.sleep(0.05)
            leases.renew([*renewed, "c", "unknown"])
        return ended

    assert asyncio.run(scenario()) == expired
