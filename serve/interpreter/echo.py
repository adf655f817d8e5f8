"""``echo``: an answer that begins with its prompt, and with the log-probabilities of the prompt's tokens. No I/O."""

from collections.abc import Sequence
from dataclasses import replace

from pasta.lang import Codec, TextStream
from serve.interpreter.session import text_token
from serve.wire import Decoded, Delta, Finished, Refused, TextToken


class Echo:
    """Puts the prompt before one answer. With log-probabilities all comes at the end, as the prompt's do."""

    def __init__(self, codec: Codec, prompt_ids: Sequence[int], *, logprobs: bool) -> None:
        self._codec, self._prompt, self._logprobs = codec, list(prompt_ids), logprobs
        self._begun = False
        self._held: list[Delta] = []

    def passed(
        self, updates: list[Delta | Finished | Refused], decoded: Decoded | None, end: TextToken | None
    ) -> list[Delta | Finished | Refused]:
        """Return an answer's updates as the client gets them. ``decoded`` is there with the last ones, and ``end`` is
        the end of text that the model chose."""
        if not self._logprobs:
            first, self._begun = not self._begun, True
            return [Delta(self._tokens([])[0]), *updates] if first else updates
        self._held += [update for update in updates if isinstance(update, Delta)]
        rest = [update for update in updates if not isinstance(update, Delta)]
        if decoded is None:
            return [*rest] if rest else [Delta("")]
        text, tokens = self._tokens(decoded.prompt_logprobs)
        for delta in self._held:
            tokens += [replace(token, offset=len(text) + token.offset) for token in delta.logprobs]
        text += "".join(delta.text for delta in self._held)
        if end is not None and decoded.finish_reason == "stop":
            tokens.append(replace(end, offset=len(text)))
        decoded_tokens = self._held[-1].completion_tokens if self._held else 0
        return [Delta(text, logprobs=tokens, completion_tokens=decoded_tokens), *rest]

    def _tokens(
        self, logprobs: Sequence[tuple[float, tuple[tuple[int, float], ...]]]
    ) -> tuple[str, list[TextToken]]:
        """The prompt's text, without a begin-of-text token, and its tokens; the first one follows nothing."""
        stream, text, tokens = TextStream(self._codec), "", []
        begin = len(self._codec.begin_ids) if self._prompt[:1] == self._codec.begin_ids else 0
        for at, token in enumerate(self._prompt):
            if self._logprobs:
                shown = text_token(self._codec, token, logprobs[at - 1]) if at else None
                alone = TextToken(self._codec.decode_text([token]), None, ())
                tokens.append(replace(shown or alone, offset=len(text)))
            text += stream.push(token) if at >= begin else ""
        text += stream.flush()
        whole = self._codec.decode_beginning(self._prompt[begin:])
        # The space that SentencePiece puts before a text.
        over = len(text) - len(whole) if text.endswith(whole) else 0
        if over and tokens:
            tokens = [replace(token, offset=max(token.offset - over, 0)) for token in tokens]
            tokens[begin] = replace(tokens[begin], token=tokens[begin].token[over:])
        return text[over:], tokens
