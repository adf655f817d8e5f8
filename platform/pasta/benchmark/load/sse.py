"""Server-sent events out of bytes, however the network has cut them."""

import re

# A carriage return at the end may be half of a line's end.
_LINE_END = re.compile(rb"\r\n|\n|\r(?=[^\n])")


class EventReader:
    """Reads one stream (https://html.spec.whatwg.org/multipage/server-sent-events.html); only data is kept.

    httpx's ``aiter_lines`` would also cut at characters that end lines in Unicode and mean nothing here.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[str]:
        """The data of each event that is whole with this piece."""
        *lines, self._rest = _LINE_END.split(self._rest + piece)
        events = []
        for line in lines:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data).decode())
                self._data = []
        return events
