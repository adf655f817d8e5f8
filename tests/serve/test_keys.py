"""Keys are kept as hashes, taken up when the file changes, and limited each on its own."""

import logging
import os
import subprocess
import sys

import pytest

from pasta.errors import UserError
from serve.config import KeySettings
from serve.errors import ApiError
from serve.gateway.guard import Guard
from serve.keys import KeyRing, new_key, read_keys
from tests.support.paths import ROOT


@pytest.fixture
def file(tmp_path):
    return tmp_path / "keys.yaml"


def bearer(key):
    return {"authorization": f"Bearer {key}"}


def refusal(call, *arguments):
    with pytest.raises(ApiError) as caught:
        call(*arguments)
    return caught.value


# -- the file --------------------------------------------------------------------------------------------


def test_the_command_prints_the_key_once_and_keeps_its_hash(file):
    command = [sys.executable, "-m", "serve.keys", "new", "ann", "--file", str(file), "--max-concurrent", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    key = done.stdout.strip()
    assert key.startswith("sk-pasta-")
    assert key not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    name, entry = KeyRing(file).find(key)
    assert (name, entry.max_concurrent, entry.requests_per_minute) == ("ann", 2, None)
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "already has a key 'ann'" in again.stderr


def test_keys_are_added_below_what_the_file_holds(file):
    first = new_key(file, "ann")
    file.write_text("# ours\n" + file.read_text())
    second = new_key(file, "bob", requests_per_minute=5)
    assert file.read_text().startswith("# ours\n")
    assert [KeyRing(file).find(key)[0] for key in (first, second)] == ["ann", "bob"]
    assert KeyRing(file).find("sk-pasta-other") is None
    assert read_keys(file)["bob"].requests_per_minute == 5


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ann: {sha256: abc}", "ann.sha256"),
        ("ann: {sha257: abc}", "sha257"),
        ("ann: {sha256: '%s', max_concurrent: 0}" % ("0" * 64), "ann.max_concurrent"),
        ("ann: {sha256: '%s'}\nbob: {sha256: '%s'}" % (2 * ("0" * 64,)), "ann and bob have the same sha256"),
        ("", "is empty"),
    ],
)
def test_a_mistake_in_the_file_is_one_line(file, text, says):
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        read_keys(file)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "form", ["%s", "ann: %s", "ann: {sha256: %s}", "ann: {sha256: [%s], max_concurrent: 0}"]
)
def test_a_key_that_somebody_has_put_into_the_file_itself_is_not_said(file, caplog, form):
    new_key(file, "ann")
    ring = KeyRing(file)
    key = "sk-pasta-" + 43 * "k"
    file.write_text(form % key)
    with pytest.raises(UserError, match="expected ") as caught:
        read_keys(file)
    assert "kk" not in str(caught.value)
    with caplog.at_level(logging.ERROR, "ray.serve"):
        assert ring.find(key) is None
    assert "cannot read the API keys, keeping the old ones" in caplog.text
    assert "kk" not in caplog.text


def test_a_changed_file_is_taken_up_and_a_broken_one_is_not(file, caplog):
    ann = new_key(file, "ann")
    ring = KeyRing(file)
    bob = new_key(file, "bob")
    assert ring.find(bob)[0] == "bob"
    whole = file.read_text()
    with caplog.at_level(logging.ERROR, "ray.serve"):
        file.write_text("ann: nonsense")
        assert ring.find(ann)[0] == "ann"
        file.unlink()
        assert ring.find(bob)[0] == "bob"
    assert ann not in caplog.text
    file.write_text("\n".join(line for line in whole.splitlines() if line)[: whole.index("bob")])
    assert ring.find(ann)[0] == "ann"
    assert ring.find(bob) is None


def test_a_file_that_could_not_be_read_is_read_once_its_permissions_are_right(file, monkeypatch):
    new_key(file, "ann")
    ring = KeyRing(file)
    bob = new_key(file, "bob")
    with monkeypatch.context() as patch:
        patch.setattr("serve.keys.read_keys", lambda *_, **__: read_keys(file / "of another user"))
        assert ring.find(bob) is None
    file.chmod(0o640)
    assert ring.find(bob)[0] == "bob"


@pytest.mark.parametrize("text", ["ann: nonsense", None])
def test_a_gateway_that_comes_back_to_a_broken_file_refuses_all_until_it_is_mended(file, text, caplog):
    ann = new_key(file, "ann")
    whole = file.read_text()
    file.unlink() if text is None else file.write_text(text)
    with caplog.at_level(logging.ERROR, "ray.serve"):
        guard = Guard(KeySettings(file=str(file)))
    assert f"cannot read the API keys, all requests are refused: {file}" in caplog.text
    error = refusal(guard.client, bearer(ann), "127.0.0.1")
    assert (error.status, error.message) == (503, "The service cannot read its API keys; its log says why.")
    file.write_text(whole)
    assert guard.client(bearer(ann), "127.0.0.1").name == "ann"


def test_whoever_may_read_the_file_may_read_it_with_one_more_key(file):
    """In containers, and where the service has a user of its own, that is not who makes the keys."""
    new_key(file, "ann")
    file.chmod(0o644)
    if os.getuid() == 0:
        os.chown(file, 1234, 1234)
    before = file.stat()
    new_key(file, "bob")
    after = file.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_a_link_to_the_file_stays_and_the_file_has_one_more_key(file):
    """As where several services share one file: the others have the key too."""
    new_key(file, "ann")
    link = file.with_name("link.yaml")
    link.symlink_to(file.name)
    ring = KeyRing(file)
    assert ring.find(new_key(link, "bob"))[0] == "bob"
    assert link.is_symlink()


@pytest.mark.parametrize("text", ["", "# nobody\n", "{}\n"])
def test_once_the_last_entry_is_deleted_no_key_is_left(file, text):
    ann = new_key(file, "ann")
    ring = KeyRing(file)
    file.write_text(text)
    assert ring.find(ann) is None
    assert KeyRing(file).find(ann) is None


@pytest.mark.parametrize("text", ["", "# nobody yet\n", "{}\n", "---\n", "# nobody yet\n{}\n"])
def test_a_file_without_entries_takes_a_key_and_keeps_its_comments(file, text):
    file.write_text(text)
    assert KeyRing(file).find(new_key(file, "bob"))[0] == "bob"
    assert file.read_text().startswith("# nobody yet\nbob:" if "#" in text else "bob:")


@pytest.mark.parametrize("form", ["{ann: {sha256: '%s'}}\n", "ann: {sha256: '%s'}\n...\n"])
def test_a_file_that_no_entry_can_be_added_to_stays_as_it_is(file, form):
    text = form % ("0" * 64)
    file.write_text(text)
    with pytest.raises(UserError, match=r"keys\.yaml:") as caught:
        new_key(file, "bob")
    assert "\n" not in str(caught.value)
    assert file.read_text() == text


@pytest.mark.parametrize("name", ["1e3", "08", "0o7", "123", "null", "-", "a.b"])
def test_a_key_of_any_name_can_be_read_back(file, name):
    new_key(file, "ann")
    key = new_key(file, name, requests_per_minute=5)
    new_key(file, "bob")
    found, entry = KeyRing(file).find(key)
    assert (found, entry.requests_per_minute) == (name, 5)


@pytest.mark.parametrize("key", ["", " a", "ключ", "schlüssel", "a\nb", "a\tb"])
def test_a_key_that_no_header_can_hold_is_refused(file, key):
    with pytest.raises(UserError, match=r"^the API key: .*expected text that a header can hold$"):
        new_key(file, "ann", key)
    assert not file.exists()


# -- the guard -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peer", "allowed"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.4", False),
        (None, False),
        ("", False),
    ],
)
def test_without_keys_only_this_machine_is_answered(peer, allowed):
    guard = Guard(KeySettings())
    if allowed:
        assert guard.client({}, peer).name is None
    else:
        assert refusal(guard.client, {}, peer).status == 403


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"host": "127.0.0.1:8000"}, True),
        ({"host": "localhost:8000"}, True),
        ({"host": "[::1]:8000"}, True),
        ({"host": "localhost"}, True),
        ({"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000"}, True),
        ({"host": "127.0.0.1:8000", "origin": "https://127.0.0.1:8000"}, True),
        # A name that an attacker has made resolve to this machine (DNS rebinding).
        ({"host": "attacker.example:8000"}, False),
        ({"host": "127.0.0.1.attacker.example"}, False),
        ({"host": "localhost@attacker.example"}, False),
        ({"host": "[::1"}, False),
        # A page of another site that posts here.
        ({"host": "127.0.0.1:8000", "origin": "https://attacker.example"}, False),
        ({"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:9000"}, False),
        ({"host": "127.0.0.1:8000", "origin": "null"}, False),
        ({"host": "127.0.0.1:8000", "origin": "http://[::1"}, False),
        # A proxy on this machine that serves others.
        ({"host": "127.0.0.1:8000", "x-forwarded-for": "10.0.0.4"}, False),
        ({"host": "127.0.0.1:8000", "forwarded": "for=10.0.0.4"}, False),
        ({"host": "127.0.0.1:8000", "via": "1.1 proxy"}, False),
        ({"host": "127.0.0.1:8000", "x-forwarded-proto": "https"}, False),
        ({"host": "127.0.0.1:8000", "x-forwarded-port": "443"}, False),
        ({"host": "127.0.0.1:8000", "cf-connecting-ip": "10.0.0.4"}, False),
        ({"host": "127.0.0.1:8000", "true-client-ip": "10.0.0.4"}, False),
    ],
)
def test_without_keys_nobody_gets_in_through_a_browser_or_a_proxy_of_this_machine(headers, allowed):
    guard = Guard(KeySettings())
    if allowed:
        assert guard.client(headers, "127.0.0.1").name is None
    else:
        error = refusal(guard.client, headers, "127.0.0.1")
        assert (error.status, error.code) == (403, "no_keys_configured")


def test_with_keys_a_browser_and_a_proxy_may_be_anywhere(file):
    key = new_key(file, "ann")
    headers = {"host": "api.example", "origin": "https://app.example", "x-forwarded-for": "10.0.0.4"}
    guard = Guard(KeySettings(file=str(file)))
    assert guard.client({**headers, **bearer(key)}, "127.0.0.1").name == "ann"


def test_with_keys_one_is_needed_wherever_the_request_comes_from(file):
    key = new_key(file, "ann")
    guard = Guard(KeySettings(file=str(file)))
    assert guard.client(bearer(key), "10.0.0.4").name == "ann"
    for headers in (
        {},
        {"authorization": key},
        {"authorization": "Basic x"},
        bearer(""),
        bearer(key[:-1]),
        bearer("é"),
    ):
        error = refusal(guard.client, headers, "127.0.0.1")
        assert (error.status, error.code) == (401, "invalid_api_key")
        assert key[:-1] not in error.message


def test_a_rate_is_each_key_s_own_and_comes_back_with_time(file):
    now = [0.0]
    keys = [new_key(file, "ann", requests_per_minute=2), new_key(file, "bob")]
    guard = Guard(KeySettings(file=str(file), requests_per_minute=4), clock=lambda: now[0])
    ann, bob = (guard.client(bearer(key), None) for key in keys)
    for _ in range(2):
        guard.count(ann)
    error = refusal(guard.count, ann)
    assert (error.status, error.code, error.headers) == (429, "rate_limit_exceeded", {"Retry-After": "30"})
    for _ in range(4):
        guard.count(bob)
    assert refusal(guard.count, bob).status == 429
    now[0] += 30
    guard.count(ann)
    assert refusal(guard.count, ann).status == 429


def test_a_key_has_so_many_requests_under_way_and_no_more(file):
    key = new_key(file, "ann")
    guard = Guard(KeySettings(file=str(file), max_concurrent=1))
    ann = guard.client(bearer(key), None)
    with guard.running(ann):
        error = refusal(guard.running(ann).__enter__)
        assert (error.status, error.code) == (429, "rate_limit_exceeded")
    with guard.running(ann):
        pass


def test_several_gateways_share_a_key_s_limits_out(file):
    now = [0.0]
    key = new_key(file, "ann", requests_per_minute=4, max_concurrent=3)
    guard = Guard(KeySettings(file=str(file)), 2, clock=lambda: now[0])
    ann = guard.client(bearer(key), None)
    for _ in range(2):
        guard.count(ann)
    assert refusal(guard.count, ann).headers == {"Retry-After": "30"}
    with guard.running(ann), guard.running(ann):
        assert refusal(guard.running(ann).__enter__).status == 429


def test_a_key_with_less_than_one_request_a_gateway_has_one(file):
    key = new_key(file, "ann", requests_per_minute=1, max_concurrent=1)
    guard = Guard(KeySettings(file=str(file)), 4, clock=lambda: 0.0)
    ann = guard.client(bearer(key), None)
    guard.count(ann)
    with guard.running(ann):
        pass
