"""Where threads are decoded.

``local``: the whole answer on one Decoder, its home, every chunk a lane there. Serve's router picks the less
busy of two replicas.
"""

from collections.abc import AsyncGenerator
from typing import Protocol

from serve.transport import Caller
from serve.wire import Decoded, DecodeOrder, Refused, TokenItem

Item = list[TokenItem] | Decoded | Refused


class Placement(Protocol):
    """Decodes a response somewhere; thread numbers are those of the response's own interpreter."""

    def decode(self, order: DecodeOrder) -> AsyncGenerator[Item, None]:
        """Batches of tokens in the order of decoding, ``Decoded`` (or only ``Refused``) last."""
        ...


class LocalPlacement:
    """All threads of an answer on its home replica."""

    def __init__(self, decoders: Caller) -> None:
        self._decoders = decoders

    def decode(self, order: DecodeOrder) -> AsyncGenerator[Item, None]:
        """One stream from one replica."""
        return self._decoders.stream("decode", order)
