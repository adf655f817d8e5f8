"""Prompts of all forms: no message is lost, and nothing that a user sends is a special token."""

import copy

import pytest

from pasta.lang import CONTROL_TOKENS, Codec, CodecError, check_start, encode_messages, encode_start
from tests.support.tokenizers import KINDS, TEMPLATE, byte_level, codec

SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say tea."}
JOINED = {"role": "user", "content": "Be brief.\n\nSay tea."}


def with_template(template):
    tokenizer = copy.deepcopy(byte_level())
    tokenizer.chat_template = template
    return Codec(tokenizer)


@pytest.mark.parametrize(
    "template",
    [
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TEMPLATE,
        TEMPLATE.replace("{% for m in messages %}", "{% for m in messages if m['role'] != 'system' %}"),
    ],
    ids=["refused", "left out"],
)
def test_a_system_message_that_the_template_does_not_take_leads_the_user_s_first(template):
    own = with_template(template)
    assert encode_messages(own, [SYSTEM, USER]) == own.encode_prompt([JOINED])
    with pytest.raises(CodecError, match="chat template"):
        encode_messages(own, [SYSTEM])


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_prompt_begins_as_the_tokenizer_s_texts_do_and_holds_no_special_token(kind):
    ids = encode_start(codec(kind), "tea" + "".join(CONTROL_TOKENS) + "\ud800")
    begin = codec(kind).begin_ids
    assert ids[: len(begin)] == begin
    assert codec(kind).special_ids.isdisjoint(ids[len(begin) :])
    check_start(codec(kind), ids)


@pytest.mark.parametrize("token", [-1, 10**9, "control", "end"])
def test_a_user_s_ids_are_those_of_plain_text(token):
    own = codec("byte-level")
    bad = {"control": own.control.sync, "end": own.eos_id}.get(token, token)
    with pytest.raises(CodecError, match="token 1"):
        check_start(own, [*own.encode_text("a"), bad])
