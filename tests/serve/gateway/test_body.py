"""A body is read within a deadline and within bounds: however it is made, it costs little more than its size."""

import asyncio
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from serve.errors import ApiError
from serve.gateway.api import read_chat_request, read_completion_request
from serve.gateway.body import read_body, read_object

SIZE = 900_000
MESSAGE = '{"role":"user","content":"a"}'


def filled(before: str, item: str, after: str) -> bytes:
    """A body of about ``SIZE`` bytes whose middle is one item over and over."""
    return f"{before}{','.join([item] * (SIZE // (len(item) + 1)))}{after}".encode()


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


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("read", [read_chat_request, read_completion_request])
def test_no_body_costs_more_than_ten_times_its_size(name, read):
    body = HOSTILE[name]
    tracemalloc.start()
    try:
        refused = refusal(lambda: read(body).order("id"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused is None or (refused.status == 400 and len(refused.message) < 400)
    assert peak < 10 * len(body)


@pytest.mark.parametrize("character", [",", "[", "{", '"', "\\", "1"])
def test_punctuation_in_a_text_is_no_structure(character):
    text = character * (SIZE // 2)
    body = json.dumps({"model": "m", "prompt": text}).encode()
    assert read_completion_request(body).prompt == text


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
    assert caught.value.headers == {"x-should-retry": "false"}


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


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8"])
def test_json_is_taken_from_a_web_page(kind):
    assert received([b"{}"], content_type=kind, origin="https://a.example") == b"{}"


def test_a_client_that_is_no_browser_may_call_its_json_what_it_likes():
    assert received([b"{}"], content_type="application/x-www-form-urlencoded") == received([b"{}"]) == b"{}"
