"""A body is read within a deadline and within bounds: however it is made, it costs little more than its size."""

import asyncio
import gzip
import json
import time
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from serve.errors import ApiError
from serve.gateway.api import read_chat_request, read_completion_request
from serve.gateway.body import Turns, read_body, read_object

SIZE = 900_000
MESSAGE = '{"role":"user","content":"a"}'


def filled(before: str, item: str, after: str, size: int = SIZE) -> bytes:
    """A body of about ``size`` bytes whose middle is one item over and over."""
    return f"{before}{','.join([item] * (size // (len(item) + 1)))}{after}".encode()


HOSTILE = {
    f"{field} of {item}": filled(f'{{"model":"m","{field}":[', item, "]}")
    for field in ("prompt", "messages", "unknown")
    for item in ("1", "[]", "{}", '""', '"ab"', "1.5", "null", "[1]", '{"a":1}', MESSAGE, "1" * 4000)
} | {
    "parts of a message": filled('{"model":"m","messages":[{"role":"user","content":[', '{"a":1}', "]}]}"),
    "unknown members": b'{"model":"m",' + b",".join(b'"k%d":1' % n for n in range(80_000)) + b"}",
    "unknown members of a message": b'{"model":"m","messages":[{'
    + b",".join(b'"k%d":1' % n for n in range(80_000))
    + b"}]}",
    "nested lists": b"[" * SIZE,
    "a list of nested lists": filled('{"model":"m","prompt":[', "[" * 900 + "]" * 900, "]}"),
    "one long member": filled('{"model":"m","', "k", '":1}'),
    "a quote that never ends": b'{"model":"m","prompt":"' + b'\\"' * (SIZE // 2),
}


def refusal(what) -> ApiError | None:
    try:
        what()
    except ApiError as error:
        return error
    return None


def cost(body: bytes, read) -> int:
    """The most memory that reading the body takes at a time, in bytes."""
    tracemalloc.start()
    try:
        refused = refusal(lambda: read(body).order("id"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused is None or (refused.status == 400 and len(refused.message) < 400)
    return peak


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("read", [read_chat_request, read_completion_request])
def test_no_body_costs_more_than_ten_times_its_size(name, read):
    assert cost(HOSTILE[name], read) < 10 * len(HOSTILE[name])


CHAT = '{"model":"m","messages":[{"role":"user","content":"a"}],'
DENSE = {
    "parts": (read_chat_request, '{"model":"m","messages":[{"role":"user","content":[', "]}]}"),
    "messages": (read_chat_request, '{"model":"m","messages":[', "]}"),
    "a schema": (read_chat_request, CHAT + '"guided_json":{"enum":[', "]}}"),
    "tools": (read_chat_request, CHAT + '"tools":[', "]}"),
    "a prompt": (read_completion_request, '{"model":"m","prompt":[', "]}"),
}
DENSE_ITEMS = {
    "parts": ['{"type":"text","text":""}', '{"type":"text","text":"%s"}' % ("a" * 60), '{"a":1}'],
    "messages": [MESSAGE, MESSAGE.replace('"a"', f'"{"a" * 60}"')],
    "a schema": ["1", "300", "30000", "1.5", '{"a":1}'],
    "tools": ['{"a":1}', '"ab"'],
    "a prompt": ["1", "300", "30000", "[300]", '"ab"'],
}


@pytest.mark.parametrize("size", [60_000, 95_000, 200_000, 320_000, 700_000])
@pytest.mark.parametrize(("field", "item"), [(name, item) for name in DENSE for item in DENSE_ITEMS[name]])
def test_neither_does_one_of_another_size_but_for_a_few_mebibytes(field, item, size):
    read, before, after = DENSE[field]
    body = filled(before, item, after, size)
    assert cost(body, read) < max(10 * len(body), 2.5 * 2**20)


@pytest.mark.parametrize(
    "item", ["30000", "300000"], ids=["token ids of a small vocabulary", "and of a large one"]
)
def test_a_long_prompt_of_token_ids_is_taken(item):
    body = filled('{"model":"m","prompt":[', item, "]}")
    assert len(read_completion_request(body).prompt) > 120_000


@pytest.mark.parametrize("character", [",", "[", "{", '"', "\\", "1"])
def test_punctuation_in_a_text_is_no_structure(character):
    text = character * (SIZE // 2)
    body = json.dumps({"model": "m", "prompt": text}).encode()
    assert read_completion_request(body).prompt == text


@pytest.mark.slow
@settings(deadline=None)  # a busy machine may take any time
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_an_ordinary_object_is_read_as_it_is(value):
    assert read_object(json.dumps({"a": value}).encode()) == {"a": value}


@pytest.mark.parametrize(
    ("written", "value"), [("5.0", 5), ("1e3", 1000), ("-0.0", 0), ("5.5", 5.5), ("1e300", 1e300)]
)
def test_a_whole_number_is_an_integer_however_it_is_written(written, value):
    (found,) = read_object(f'{{"a":{written}}}'.encode()).values()
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("digits", [b"0.5", b"1e3", b"1E3", b"1.2345e-300"])
def test_numbers_with_fractions_are_bounded_since_they_are_slow(digits):
    def body(count):
        return b'{"a":[' + b",".join([digits] * count) + b'],"text":"e.g. 1.5e3"}'

    assert len(read_object(body(10_000))["a"]) == 10_000
    with pytest.raises(ApiError, match="more than 10000 numbers with a fraction or an exponent"):
        read_object(body(10_001))


@pytest.mark.parametrize(
    "half", [r"\ud800", r"\uDFFF", r"\ud800\ud800", r"\udc00\ud800", r"\\\ud800", r"\ud83d\u0041", r"\ud83dx"]
)
@pytest.mark.parametrize("around", ['{"a":"%s"}', '{"%s":1}', '{"a":[{"b":"\\ud83d\\ude00%s"}]}'])
def test_half_of_a_surrogate_pair_is_refused_wherever_it_is(half, around):
    with pytest.raises(ApiError, match="half of a surrogate pair"):
        read_object((around % half).encode())


@pytest.mark.parametrize("whole", [r"\ud83d\ude00", r"\\ud800", r"\ud7ff", r"\ue000", r"\\\ud83d\uDE00"])
def test_whole_characters_are_taken_however_they_are_escaped(whole):
    assert read_object(f'{{"a":"{whole}"}}'.encode()) == {"a": json.loads(f'"{whole}"')}


def test_an_object_with_too_many_members_is_refused():
    with pytest.raises(ApiError, match="more than 512 members"):
        read_object(json.dumps({"a": {str(n): n for n in range(513)}}).encode())


# -- over a connection -------------------------------------------------------------------------------------


def received(pieces, most=1000, within_s=60.0, **headers):
    """What is read of a request whose body comes in these pieces; ``None`` is a client that sends nothing more."""
    waiting = list(pieces)

    async def receive():
        piece = waiting.pop(0)
        if piece is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": piece, "more_body": bool(waiting)}

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    request = Request({"type": "http", "method": "POST", "headers": raw}, receive)
    return asyncio.run(read_body(request, most, within_s))


def test_the_pieces_of_a_body_are_joined():
    assert received([b'{"a"', b":1}"]) == b'{"a":1}'


def test_a_body_that_does_not_arrive_in_time_is_given_up_for_good():
    with pytest.raises(ApiError, match="arrive") as caught:
        received([b"{", None], within_s=0.01)
    assert caught.value.status == 408
    assert caught.value.headers == {"x-should-retry": "false", "Connection": "close"}


def test_a_body_that_is_too_large_is_refused_before_its_end():
    with pytest.raises(ApiError) as caught:
        received([b"x" * 600, b"x" * 600, None])
    assert caught.value.status == 413


@pytest.mark.parametrize("browser", [{"origin": "https://a.example"}, {"sec_fetch_site": "cross-site"}])
@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_what_a_web_page_can_send_to_another_site_unasked_is_refused(kind, browser):
    with pytest.raises(ApiError) as caught:
        received([b"{}"], content_type=kind, **browser)
    assert (caught.value.status, caught.value.param) == (415, "Content-Type")


def test_a_compressed_body_is_refused_by_its_header():
    with pytest.raises(
        ApiError, match=r"^Content-Encoding: 'gzip', expected a body that is not compressed"
    ) as caught:
        received([gzip.compress(b"{}")], content_encoding="GZIP")
    assert (caught.value.status, caught.value.param) == (415, "Content-Encoding")
    assert received([b"{}"], content_encoding="identity") == b"{}"


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8"])
def test_json_is_taken_from_a_web_page(kind):
    assert received([b"{}"], content_type=kind, origin="https://a.example") == b"{}"


def test_a_client_that_is_no_browser_may_call_its_json_what_it_likes():
    assert received([b"{}"], content_type="application/x-www-form-urlencoded") == received([b"{}"]) == b"{}"


# -- turns -------------------------------------------------------------------------------------------------


def reads(sizes, seconds=0.02, fails=False):
    """When each of the bodies that arrive together was read: from, to, and its size."""
    found = []

    def how(body):
        begun = time.perf_counter()
        time.sleep(seconds)
        found.append((begun, time.perf_counter(), len(body)))
        if fails:
            raise ApiError("no")

    async def run():
        turns = Turns()
        await asyncio.gather(*(turns.read(b" " * size, how) for size in sizes), return_exceptions=True)

    asyncio.run(run())
    return found


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("size", [5_000, 900_000])
def test_bodies_that_arrive_together_leave_half_of_the_loop_to_others(size, fails):
    found = reads([size] * 5, fails=fails)
    pauses = [later[0] - one[1] for one, later in pairwise(found)]
    assert len(pauses) == 4
    assert min(pauses) > 0.9 * 0.02


def test_short_bodies_do_not_wait_for_long_ones():
    found = reads([900_000] * 3 + [5_000, 100])
    assert [size for *_, size in found[:3]] == [900_000, 5_000, 100]


def test_a_body_that_is_given_up_while_it_waits_keeps_nobody_waiting():
    async def run():
        turns = Turns()
        first, left, last = (asyncio.create_task(turns.read(b" " * 5_000, len)) for _ in range(3))
        await first
        left.cancel()
        return await last

    assert asyncio.run(asyncio.wait_for(run(), 30)) == 5_000
