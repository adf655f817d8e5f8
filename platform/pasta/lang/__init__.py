"""PASTA-LANG: documents, their text form, and the codec between documents and token ids."""

from pasta.lang.codec import Codec
from pasta.lang.document import CONTROL_TOKENS, Chunk, Document, Item, Sync, Text, render
from pasta.lang.grammar import ControlIds, TagGrammar
from pasta.lang.parser import ParseError, parse, strip
from pasta.lang.plain import annotated_ids, plain_ids
from pasta.lang.printer import to_text
from pasta.lang.prompts import check_start, encode_messages, encode_start, system_joined, turn_tail
from pasta.lang.stream import TextStream
from pasta.lang.tokenizer import CodecError, add_control_tokens, has_chat_template

__all__ = [
    "CONTROL_TOKENS",
    "Chunk",
    "Codec",
    "CodecError",
    "ControlIds",
    "Document",
    "Item",
    "ParseError",
    "Sync",
    "TagGrammar",
    "Text",
    "TextStream",
    "add_control_tokens",
    "annotated_ids",
    "check_start",
    "encode_messages",
    "encode_start",
    "has_chat_template",
    "parse",
    "plain_ids",
    "render",
    "strip",
    "system_joined",
    "to_text",
    "turn_tail",
]
