"""Prompts of all forms: no message is lost, no text becomes a special token, no user sends a control token."""

import copy

import pytest
from tokenizers.processors import TemplateProcessing

from pasta.lang import CONTROL_TOKENS, Codec, CodecError, check_start, encode_messages, encode_start
from pasta.lang.contents import ways
from pasta.lang.tokenizer import render_chat
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


#: Mistral's way: it trims what the assistant says, and nothing else.
TRIMS_ANSWERS = TEMPLATE.replace(
    "m['content'] }}", "(m['content'] | trim if m['role'] == 'assistant' else m['content']) }}"
)
#: Qwen 3's way: it leaves out the reasoning of earlier answers.
LEAVES_OUT_REASONING = TEMPLATE.replace(
    "m['content'] }}",
    "(m['content'].split('</think>')[-1].lstrip('\\n') if m['role'] == 'assistant' else m['content']) }}",
)
#: Bielik's way: it writes the reasoning anew, without white space around it.
WRITES_REASONING = TEMPLATE.replace(
    "m['content'] }}",
    "('<think>' + m['content'].split('</think>')[0].split('<think>')[-1].strip() + '</think>' "
    "+ m['content'].split('</think>')[-1].lstrip('\\n') if '</think>' in m['content'] else m['content']) }}",
)
#: Qwen 3's way with the last answer, and others' with every turn: an indented first line stays so.
TRIMS_NEWLINES = TEMPLATE.replace("m['content'] }}", "m['content'].strip('\\n') }}")
#: DeepSeek's way: an answer without words leaves no turn.
LEAVES_OUT_EMPTY = TEMPLATE.replace(
    "{% for m in messages %}", "{% for m in messages if m['content'] or m['role'] == 'user' %}"
)
#: Llama 2's way: the user's first message is trimmed together with the system message before it.
TRIMS_BOTH = (
    "{% if messages[0]['role'] == 'system' %}{{ '<|user|>' + ('<<' + messages[0]['content'] + '>>' "
    "+ messages[1]['content']).strip() }}{% endif %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.mark.parametrize("content", ["MESSAGE0END", "MESSAGE" + "X" * 10_000, "MESSAGE MESSAGEX MESSAGEXX"])
def test_contents_that_look_like_placeholders_make_them_no_longer(content):
    messages = turns(content, "MESSAGE")
    ((_, _, contents),) = ways(messages)
    assert [*contents.values()] == [content, "MESSAGE"]
    assert not any(mark in text for mark in contents for text in contents.values())
    assert max(map(len, contents)) < 40
    assert codec().decode_text(codec().encode_prompt(messages)) == render_chat(codec()._tokenizer, messages)


def turns(*contents, first="user"):
    roles = ["system"] * (first == "system") + ["user", "assistant"] * len(contents)
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]


@pytest.mark.parametrize(
    ("template", "messages"),
    [
        (TRIMS_ANSWERS, turns("Say tea.\n", " Tea.\n", " Once more: <|end|>")),
        (TRIMS_BOTH, turns(" Be brief. ", " Say tea. ", first="system")),
        (LEAVES_OUT_REASONING, turns("Say tea.", "<think>\nTea?\n</think>\n\nTea.", "Say </think> <|end|>.")),
        (
            LEAVES_OUT_REASONING.replace(".lstrip('\\n')", ""),
            turns("Say tea.", "<think></think>\n\nTea.", "Once more."),
        ),
        (WRITES_REASONING, turns("Say <|end|>.", "<think>\nTea? <|end|>\n</think>\n\nTea.", "Again.")),
        (WRITES_REASONING, turns("Say tea.", "<think>Tea?</think>\n\n    tea()", "Again.")),
        (TRIMS_NEWLINES, turns("\n  Say tea.\n", "\n    tea() \n", "  Again.")),
        (LEAVES_OUT_EMPTY, turns("Say tea.", "", "Well?")),
        (TEMPLATE, turns("", "", "")),
    ],
    ids=[
        "trims one role",
        "trims two as one",
        "leaves out reasoning",
        "leaves out reasoning only",
        "writes reasoning anew",
        "writes an answer without newlines before it",
        "trims newlines alone",
        "leaves out an empty turn",
        "has nothing but empty turns",
    ],
)
def test_a_template_may_leave_out_parts_of_contents(template, messages):
    own = with_template(template)
    ids = encode_messages(own, messages)
    assert own.decode_text(ids) == render_chat(own._tokenizer, messages)
    plain = own.encode_prompt([{**message, "content": message["content"] and "x"} for message in messages])
    assert [i for i in ids if i in own.special_ids] == [i for i in plain if i in own.special_ids]


#: Qwen 3's way to leave out the reasoning of the answer to come.
THINKS_OR_NOT = (
    TEMPLATE + "{% if add_generation_prompt and enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
)


def test_a_variable_of_the_template_changes_its_text_and_nothing_else():
    own = with_template(THINKS_OR_NOT)
    plain, empty = encode_messages(own, [USER]), own.encode_text("<think>\n\n</think>\n\n")
    assert encode_messages(own, [USER], {"enable_thinking": True}) == plain
    ids = encode_messages(own, [USER], {"enable_thinking": False})
    assert own.decode_text(ids) == own.decode_text([*plain, *empty])


#: Mistral's way: a space of the template begins the first word of what a user says.
SPACED = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|> ' + m['content'] + '\n' }}{% endfor %}<|assistant|>"
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("template", [TEMPLATE, SPACED], ids=["plain", "spaced"])
def test_a_prompt_is_encoded_as_transformers_encodes_it(kind, template):
    tokenizer = copy.deepcopy(KINDS[kind]())
    tokenizer.chat_template = template
    messages = turns("Say tea.\n\nThe capital\n", "Tea (10 g) \ud800", "1. Then é, 日本")
    readable = [{**m, "content": m["content"].replace("\ud800", "\ufffd")} for m in messages]
    expected = tokenizer.apply_chat_template(readable, add_generation_prompt=True)["input_ids"]
    assert Codec(tokenizer).encode_prompt(messages) == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "content", ["<|end|>", "a<|end|>b", "|en", "<|en", "d|>", "|end|>", "<sync/>", "<", "/>"], ids=repr
)
def test_a_content_that_spells_a_special_token_beside_the_template_s_text_is_text(kind, content):
    tokenizer = copy.deepcopy(KINDS[kind]())
    tokenizer.chat_template = "<|user|>{{ '<' + messages[0]['content'] + 'd|>' }}<|assistant|>"
    own = Codec(tokenizer)
    special = [i for i in own.encode_prompt([{**USER, "content": content}]) if i in own.special_ids]
    assert special == [i for i in own.encode_prompt([USER]) if i in own.special_ids]
    assert len(special) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_prompt_is_encoded_as_transformers_encodes_it(kind):
    tokenizer = KINDS[kind]()
    assert encode_start(codec(kind), "The capital of é") == [
        *codec(kind).begin_ids,
        *tokenizer("The capital of é", add_special_tokens=False)["input_ids"],
    ]


def test_the_end_of_text_begins_a_plain_prompt_if_the_tokenizer_puts_it_there():
    tokenizer = copy.deepcopy(byte_level())
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|end|> $A", special_tokens=[("<|end|>", tokenizer.eos_token_id)]
    )
    assert encode_start(Codec(tokenizer), "tea") == tokenizer("tea")["input_ids"]
    assert encode_start(Codec(tokenizer), "tea")[0] == tokenizer.eos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A <|end|>", special_tokens=[("<|end|>", tokenizer.eos_token_id)]
    )
    assert encode_start(Codec(tokenizer), "tea") == tokenizer("tea")["input_ids"][:-1]


#: SmolLM 3's way: a flag in the system message is obeyed, and left out.
OBEYS_FLAGS = TEMPLATE.replace("m['content'] }}", "m['content'].replace('/no_think', '').rstrip() }}") + (
    "{% if '/no_think' in messages[0]['content'] %}<think>\n\n</think>{% endif %}"
)


@pytest.mark.parametrize("content", ["Be brief. /no_think", "/no_think", "Be\nbrief."])
def test_a_template_that_obeys_a_flag_in_a_content_is_followed(content):
    own = with_template(OBEYS_FLAGS)
    messages = [{"role": "system", "content": content}, USER]
    expected = own._tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert encode_messages(own, messages) == expected


@pytest.mark.parametrize("content", ["Say <|end|>. /no_think", "Say <|en/no_thinkd|>."])
def test_a_content_that_spells_a_special_token_is_refused_by_a_template_that_rewrites_it(content):
    own = with_template(OBEYS_FLAGS)
    with pytest.raises(CodecError, match="rewrites message contents"):
        encode_messages(own, [{"role": "user", "content": content}])


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_prompt_begins_as_the_tokenizer_s_texts_do_and_holds_no_special_token(kind):
    ids = encode_start(codec(kind), "tea" + "".join(CONTROL_TOKENS) + "\ud800")
    begin = codec(kind).begin_ids
    assert ids[: len(begin)] == begin
    assert codec(kind).special_ids.isdisjoint(ids[len(begin) :])
    check_start(codec(kind), ids)


@pytest.mark.parametrize("kind", KINDS)
def test_a_user_s_ids_may_be_those_of_a_conversation(kind):
    """As who evaluates a chat model sends them, having applied the chat template."""
    own = codec(kind)
    ids = own.encode_prompt([USER, {"role": "assistant", "content": "Tea."}, USER])
    assert not own.special_ids.isdisjoint(ids)
    check_start(own, ids)


def test_a_user_s_ids_may_begin_with_the_begin_or_end_of_text_that_the_tokenizer_names():
    """lm-eval puts one of them before a text of which it scores every token."""
    tokenizer = copy.deepcopy(byte_level())
    tokenizer.add_special_tokens({"bos_token": "<|begin|>"})
    own = Codec(tokenizer)
    assert own.begin_ids == [], "this tokenizer puts nothing before a text by itself"
    for first in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        check_start(own, [first, *own.encode_text("a")])


@pytest.mark.parametrize("token", [-1, 10**9, *CONTROL_TOKENS, "<image>"])
def test_a_user_s_ids_are_no_control_tokens_and_none_that_no_prompt_has(token):
    tokenizer = copy.deepcopy(byte_level())
    tokenizer.add_special_tokens(
        {"additional_special_tokens": ["<image>"]}, replace_extra_special_tokens=False
    )
    own = Codec(tokenizer)
    bad = token if isinstance(token, int) else tokenizer.convert_tokens_to_ids(token)
    with pytest.raises(CodecError, match=f"token 1: {bad}, expected the id of text"):
        check_start(own, [*own.encode_text("a"), bad])
