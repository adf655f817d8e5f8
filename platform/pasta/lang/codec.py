"""Encodes documents as token ids and decodes them; no other module does.

Text never becomes a control token: it is encoded with special-token parsing off. If a tokenizer parses special tokens
all the same, or changes text around a token that was added to it, the text is cut inside every such string.
"""

import itertools
import re
from array import array
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial

from pasta.lang.contents import align, encode_whole, pieces_of, ways
from pasta.lang.detokenizer import Detokenizer
from pasta.lang.document import (
    CONTROL_TOKENS,
    MAX_DEPTH,
    TOO_DEEP,
    Chunk,
    Document,
    Item,
    Sync,
    Text,
    in_tens,
    is_topic,
)
from pasta.lang.grammar import ControlIds, TagGrammar, TailNode, build_tail
from pasta.lang.positions import Positions
from pasta.lang.tokenizer import (
    CodecError,
    Tokenizer,
    added_tokens,
    anywhere,
    control_ids,
    num_ids,
    render_chat,
    special_ids,
    stored_scheme,
    token_ids,
    turn_end_id,
    without_halves,
)

MAX_ESTIMATE = 2000
_TOPIC_OPEN = ' topic="'
# A SentencePiece tokenizer adds a space at the start of a text and drops it when it decodes. Behind an anchor it does
# neither. The empty anchor comes first: most tokenizers need none.
_ANCHORS = ("", "\n", ":", "=", "a")
_PROBES = ("a", " a", "  a", "a ", "\n- a", " ", "1.", "é", "«", "\n\nA b")
# Spellings of characters that a topic must not hold. Only vocabulary entries with one of these are decoded one by one.
_SUSPECT = re.compile('["<>\r\nĊč]')
_HALF_OF_PAIR = re.compile("[\ud800-\udfff]")
_BANNED_IN_TOPIC = re.compile('["<>\r\n]')


class Codec:
    """Encodes and decodes documents, text and prompts with one Hugging Face tokenizer.

    Raises :class:`CodecError` if a control token is missing or not special, if there is no end-of-text
    token, or if the tokenizer cannot reproduce plain text. With ``sequential`` a tokenizer may lack control tokens
    (``parallel`` is then false): it encodes and decodes text and prompts, and documents without tags. Answers of such a
    model, which PASTA has not trained, may end with one of ``ends`` too, unless that is an ordinary token.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        sequential: bool = False,
        positions: Positions | None = None,
        ends: Collection[int] = (),
    ) -> None:
        self._tokenizer, self._raw_decode = tokenizer, Detokenizer(tokenizer)
        self._raw_encode = partial(token_ids, tokenizer, specials=False)
        #: The texts of single tokens that have been decoded (``TextStream``).
        self.token_texts: dict[int, str] = {}
        #: Where a thread goes on after a promise: the tokenizer's stored rule, unless another rule was given.
        self.positions = positions or Positions(stored_scheme(tokenizer))
        vocabulary = tokenizer.get_vocab()
        #: Whether the model can write tags.
        self.parallel = not sequential or vocabulary.keys() >= set(CONTROL_TOKENS)
        if self.parallel:
            self.control = control_ids(tokenizer)
        else:  # ids that no token has and that no text becomes
            self.control = ControlIds(*range(first := num_ids(tokenizer, vocabulary), first + 5))
        if tokenizer.eos_token_id is None:
            raise CodecError(
                "tokenizer: eos_token is not set; an end-of-text token is needed to end an answer"
            )
        added = added_tokens(tokenizer)
        named = frozenset() if self.parallel else added.keys() & {*ends}
        self.special_ids = special_ids(tokenizer) | {int(tokenizer.eos_token_id)} | named
        specials = sorted(
            (t for t, i in vocabulary.items() if i in self.special_ids and t), key=len, reverse=True
        )
        self._specials, self._added = anywhere(specials), anywhere([*specials, *added.values()])
        self._added_ids = added.keys() - self.special_ids
        self._anchor = next((anchor for anchor in _ANCHORS if self._is_exact(anchor)), None)
        if self._anchor is None:
            if not self._raw_encode("a"):
                raise CodecError(
                    f"tokenizer: it has no tokens for text ({len(vocabulary)} in all); expected a tokenizer's files, "
                    "such as tokenizer.json, beside the model"
                )
            raise CodecError(
                "tokenizer: decode(encode(text)) changes plain text; a lossless tokenizer is needed"
            )
        self._anchor_ids = self._raw_encode(self._anchor) if self._anchor else []
        self._anchor_text = self._raw_decode(self._anchor_ids) if self._anchor else ""
        #: The token that ends an answer: the special token that the chat template puts after an assistant's turn
        #: (Gemma's <end_of_turn>), or else the tokenizer's end-of-text.
        turn_end, end_of_text = turn_end_id(tokenizer, self.special_ids), int(tokenizer.eos_token_id)
        self.eos_id: int = end_of_text if turn_end is None else turn_end
        self.eos_ids: frozenset[int] = frozenset({self.eos_id, end_of_text}) | named

    # -- text ------------------------------------------------------------------------------------------

    def encode_text(self, text: str) -> list[int]:
        """Token ids of plain text, none of them special. ``decode_text`` gives the text back.

        Raises :class:`CodecError` for half of a surrogate pair.
        """
        if not text:
            return []
        try:
            ids = self._encode_behind_anchor(text)
        except (TypeError, UnicodeEncodeError):
            if (half := _HALF_OF_PAIR.search(text)) is None:
                raise
            raise CodecError(
                f"text {text[:40]!r}: character {half.start() + 1} is half of a surrogate pair"
            ) from None
        if not self.special_ids.isdisjoint(ids):
            ids = self._encode_in_pieces(text, self._specials)
        exact = self._added_ids.isdisjoint(ids) or self.decode_text(ids) == text
        return ids if exact else self._encode_in_pieces(text, self._added)

    def encode_lossy(self, text: str) -> list[int]:
        """A user's text: lone surrogates (broken JSON escapes) become U+FFFD instead of an error."""
        return self.encode_text(without_halves(text))

    def encode_beginning(self, text: str) -> list[int]:
        """Token ids of a text that nothing stands before, none of them special: SentencePiece begins it with a space.
        Raises :class:`CodecError` for half of a surrogate pair."""
        ids = self._raw_encode(text) if text and not _HALF_OF_PAIR.search(text) else self.encode_text(text)
        return ids if self.special_ids.isdisjoint(ids) else self.encode_text(text)

    def decode_beginning(self, ids: Sequence[int]) -> str:
        """The text of token ids that nothing stands before."""
        return self._raw_decode([*ids])

    def decode_text(self, ids: Sequence[int]) -> str:
        """The text of plain token ids (incomplete UTF-8 shows as U+FFFD)."""
        if not ids:
            return ""
        return self._raw_decode([*self._anchor_ids, *ids])[len(self._anchor_text) :]

    @cached_property
    def begin_ids(self) -> list[int]:
        """Token ids that the tokenizer puts before every text: its begin-of-text token, or none."""
        first = token_ids(self._tokenizer, "a", begin=True)[:1]
        return [token for token in first if token in self.special_ids]

    @property
    def bos_id(self) -> int | None:
        """The token that the tokenizer names begin-of-text, whether it puts it before texts or not."""
        return getattr(self._tokenizer, "bos_token_id", None)

    def backend_json(self) -> str:
        """The tokenizer as its ``tokenizer.json``. Raises :class:`CodecError` if it is not one of Hugging Face's fast
        ones."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise CodecError("tokenizer: it has no tokenizer.json, which structured output needs")
        text: str = backend.to_str()
        return text

    # -- documents -------------------------------------------------------------------------------------

    def encode(self, document: Document) -> list[int]:
        """Token ids of a document in storage order, without end-of-text.

        Raises :class:`CodecError` if the tokenizer cannot represent a text exactly or an estimate is larger
        than the grammar's.
        """
        out: list[int] = []
        self._encode_items(document.items, out)
        return out

    def encode_promise(self, topic: str, tokens: int) -> list[int]:
        """Token ids of a promise, from ``<promise`` to ``/>``."""
        if not 0 < tokens <= MAX_ESTIMATE:
            raise CodecError(f"promise {topic!r}: tokens={tokens}, expected at most {MAX_ESTIMATE}")
        inside = [
            *self.encode_text(_TOPIC_OPEN),
            *self._encode_exact(topic),
            *self.encode_text(_tail(tokens)),
        ]
        return [self.control.promise, *inside, self.control.close]

    def decode(self, ids: Sequence[int]) -> Document:
        """The document behind token ids in storage order (a final end-of-text may be there or not).

        Raises :class:`CodecError`, naming the place, if they are not well-formed.
        """
        ids = list(ids[:-1]) if ids and ids[-1] in self.eos_ids else list(ids)
        items, at = self._decode_items(ids, 0, depth=0)
        assert at == len(ids)
        return Document(items)

    def topic_of(self, ids: Sequence[int]) -> tuple[str, int]:
        """Topic and estimate of a promise's ids, from ``<promise`` to ``/>``, both tags included."""
        open_ids = self.grammar.open_ids
        for cut in range(len(ids) - 2, 1 + len(open_ids), -1):
            node: TailNode | None = self.grammar.tail
            for token in ids[cut:-1]:
                node = node.children.get(token) if node else None
            if node is not None and node.estimate is not None:
                # A decoder may drop the bytes of half a character: a model can write such a topic.
                return self.decode_text(ids[1 + len(open_ids) : cut]) or "\ufffd", node.estimate
        raise CodecError(f"promise: token ids {list(ids)[:40]} do not spell a topic and an estimate")

    # -- prompts ---------------------------------------------------------------------------------------

    def encode_prompt(
        self, messages: Sequence[Mapping[str, str]], options: Mapping[str, int] | None = None
    ) -> list[int]:
        """Token ids of a chat prompt, ready for the assistant's answer. ``options`` are variables of the chat template.

        The ids are those that transformers encodes, unless a content spells a special token: then each message's
        content is encoded by itself, as plain text. Nothing that a user sends can become a special token. Raises
        :class:`CodecError` if the tokenizer has no chat template or the template rejects the messages.
        """
        text, parts = render_chat(self._tokenizer, messages, options), None
        for same, marked, placed in ways(messages):
            if same is not messages and render_chat(self._tokenizer, same, options) != text:
                continue
            contents = placed
            pieces = pieces_of(render_chat(self._tokenizer, marked, options), marked, contents)
            if (parts := align(text, pieces, contents)) is not None:
                break
        own = [part for piece, part in zip(pieces, parts or pieces, strict=True) if piece not in contents]
        spelt = parts is None and any(map(self._specials.search, contents.values()))
        whole = encode_whole(self._tokenizer, text, own, self.special_ids)
        if whole is not None and not spelt:
            return whole
        if parts is None:
            raise CodecError("chat template: it rewrites message contents, in which special tokens are spelt")
        ids: list[int] = []
        for piece, part in zip(pieces, parts, strict=True):
            if piece in contents:
                ids += self.encode_lossy(part)
            elif part:
                ids += token_ids(self._tokenizer, part)
        return ids

    # -- grammar ---------------------------------------------------------------------------------------

    @cached_property
    def grammar(self) -> TagGrammar:
        """The token-level grammar of this tokenizer, for the interpreter."""
        vocabulary = self._tokenizer.get_vocab()
        size = num_ids(self._tokenizer, vocabulary)
        text_mask, topic_mask = bytearray(size), bytearray(size)
        topic_chars = array("H", bytes(2 * size))
        for token, token_id in vocabulary.items():
            if token_id in self.special_ids:
                continue
            text_mask[token_id] = 1
            text = self.decode_text([token_id]) if not token or _SUSPECT.search(token) else token
            if text and not _BANNED_IN_TOPIC.search(text):
                topic_mask[token_id] = 1
                topic_chars[token_id] = min(len(text), 65535)
        tail = build_tail({n: self.encode_text(_tail(n)) for n in self.positions.estimates(MAX_ESTIMATE)})
        for token_id in tail.children:
            topic_mask[token_id] = 0
        return TagGrammar(
            control=self.control,
            eos_id=self.eos_id,
            eos_ids=self.eos_ids,
            open_ids=tuple(self.encode_text(_TOPIC_OPEN)),
            tail=tail,
            text_mask=bytes(text_mask),
            topic_mask=bytes(topic_mask),
            topic_chars=topic_chars,
            positions=self.positions,
        )

    # -- inside ----------------------------------------------------------------------------------------

    def _is_exact(self, anchor: str) -> bool:
        """Whether texts come back behind ``anchor``: each alone, and each behind every other one's ids.

        A document joins the ids of texts that are encoded one by one; a tokenizer that begins each with a space
        which only the first loses in decoding gives back other text.
        """
        anchor_ids = self._raw_encode(anchor) if anchor else []
        anchor_text = self._raw_decode(anchor_ids) if anchor else ""
        pieces = []
        for probe in _PROBES:
            ids = self._raw_encode(anchor + probe)
            if ids[: len(anchor_ids)] != anchor_ids or self._raw_decode(ids) != anchor_text + probe:
                return False
            pieces.append((probe, ids[len(anchor_ids) :]))
        pairs = [piece for pair in itertools.product(pieces, repeat=2) for piece in pair]
        joined = self._raw_decode([*anchor_ids, *(token for _, ids in pairs for token in ids)])
        return joined == anchor_text + "".join(probe for probe, _ in pairs)

    def _encode_behind_anchor(self, text: str) -> list[int]:
        ids = self._raw_encode(f"{self._anchor}{text}")
        if ids[: len(self._anchor_ids)] == self._anchor_ids:
            return ids[len(self._anchor_ids) :]
        return self._raw_encode(text)  # the anchor merged with the text

    def _encode_in_pieces(self, text: str, strings: re.Pattern[str]) -> list[int]:
        """Encode text that contains some ``strings``, cut after the first character of each."""
        cuts = [0, *(match.start() + 1 for match in strings.finditer(text)), len(text)]
        ids: list[int] = []
        for start, end in itertools.pairwise(cuts):
            ids += self._encode_halved(text[start:end])
        return ids

    def _encode_halved(self, text: str) -> list[int]:
        """Encode text, halved until no special id is left: a normaliser may turn other strings into special ones."""
        ids = self._encode_behind_anchor(text)
        if self.special_ids.isdisjoint(ids):
            return ids
        if len(text) == 1:
            raise CodecError(f"tokenizer: text {text!r} is a character that is a special token")
        half = len(text) // 2
        return [*self._encode_halved(text[:half]), *self._encode_halved(text[half:])]

    def _encode_exact(self, text: str) -> list[int]:
        ids = self.encode_text(text)
        if self.decode_text(ids) != text:
            raise CodecError(
                f"tokenizer: text {text[:60]!r} does not survive encoding; it cannot be trained on"
            )
        return ids

    def _encode_items(self, items: tuple[Item, ...], out: list[int]) -> None:
        for item in items:
            if isinstance(item, Text):
                out += self._encode_exact(item.text)
            elif isinstance(item, Sync):
                out.append(self.control.sync)
            else:
                inner: list[int] = []
                self._encode_items(item.items, inner)
                out += self.encode_promise(item.topic, self.positions.written(item.tokens, len(inner)))
                out += [self.control.async_open, *inner, self.control.async_close]

    def _decode_items(self, ids: list[int], at: int, *, depth: int) -> tuple[tuple[Item, ...], int]:
        items: list[Item] = []
        control = self.control
        run: list[int] = []

        def flush() -> None:
            if run:
                items.append(Text(self.decode_text(run)))
                run.clear()

        while at < len(ids):
            token = ids[at]
            if token == control.promise:
                flush()
                try:
                    end = ids.index(control.close, at)
                except ValueError:
                    raise CodecError(f"token {at}: promise without '/>'") from None
                topic, estimate = self.topic_of(ids[at : end + 1])
                if not is_topic(topic):
                    raise CodecError(f"token {at}: {topic!r} is no topic")
                if end + 1 >= len(ids) or ids[end + 1] != control.async_open:
                    raise CodecError(f"token {end + 1}: expected <async> after a promise")
                if depth == MAX_DEPTH:
                    raise CodecError(f"token {at}: {TOO_DEEP}")
                inner, at = self._decode_items(ids, end + 2, depth=depth + 1)
                items.append(Chunk(topic, in_tens(estimate), inner))
            elif token == control.sync:
                flush()
                items.append(Sync())
                at += 1
            elif token == control.async_close and depth:
                flush()
                return tuple(items), at + 1
            elif token in self.special_ids:
                raise CodecError(f"token {at}: special token {token} has no place here")
            else:
                run.append(token)
                at += 1
        if depth:
            raise CodecError(f"token {at}: expected </async>, found the end")
        flush()
        return tuple(items), at


def _tail(tokens: int) -> str:
    return f'" tokens="{tokens}"'
