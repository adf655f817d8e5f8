"""What requests hold besides OpenAI's plain parameters, as objects of their own. No I/O."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pasta.errors import UserError
from pasta.interpreter.repetition import LARGEST_PATTERN, RepetitionDetection
from serve.errors import ApiError
from serve.gateway.openapi import or_null

#: vLLM's ``chat_template_kwargs``: variables of the chat template. Numbers and truth values alone: no text of a user
#: may become a special token.
TemplateOptions = Annotated[
    dict[str, bool | Annotated[int, Field(ge=-(2**31), lt=2**31)]],
    Field(max_length=16, description="variables of the model's chat template, such as enable_thinking"),
]


class Strict(BaseModel):
    """An object without unknown keys, whose values have the types that JSON gave them."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(Strict):
    """``include_usage`` asks for a last chunk that holds the usage."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = Field(
        default=None, description="the usage so far in every chunk, as vLLM and SGLang write it"
    )
    include_obfuscation: Literal[False] | None = None


class RepetitionOptions(Strict):
    """vLLM's ``repetition_detection``: a thread whose last tokens are ``min_count`` copies of a pattern ends. Ours
    besides: so does a thread that has promised one topic more than ``max_same_topic`` times. Where a request does not
    say, the service's configuration does."""

    max_pattern_size: int = Field(
        default=0, ge=0, le=LARGEST_PATTERN, description="tokens of the longest pattern; 0: no detection"
    )
    min_pattern_size: int = Field(default=1, ge=0, le=LARGEST_PATTERN, description="0 and 1 are the same")
    min_count: int = Field(default=2, ge=2, le=LARGEST_PATTERN)
    max_same_topic: int = Field(
        default=0, ge=0, le=LARGEST_PATTERN, description="promises of one topic by a thread; 0: any number"
    )

    def detection(self) -> RepetitionDetection:
        """What the interpreter takes. Raises ``ApiError`` 400 that names the parameter."""
        sizes = 0, 1, 2  # a request without patterns may have any
        if self.max_pattern_size:
            sizes = self.max_pattern_size, self.min_pattern_size or 1, self.min_count
        try:
            return RepetitionDetection(*sizes, max_same_topic=self.max_same_topic)
        except UserError as error:
            name = f"repetition_detection.{error}"
            raise ApiError(f"{name}.", param=name.partition(":")[0]) from None


class PastaOptions(Strict):
    """This service's extension of the request. A null is an option that was not given."""

    model_config = ConfigDict(json_schema_extra=or_null)

    mode: Literal["parallel", "sequential"] | None = Field(
        default=None, description="sequential: no promises, one token after another"
    )
    placement: Literal["local", "spread", "auto"] | None = Field(
        default=None, description="where chunks are decoded: at home, over all replicas, or as it pays"
    )
    max_threads: int | None = Field(
        default=None, ge=1, le=64, description="threads of this answer, the main one included"
    )
    promise_bias: float = Field(
        default=0.0, ge=-100, le=100, description="added to the logit of opening a promise"
    )
    drafts: bool = Field(
        default=True, description="let the engine draft tokens; false decodes the same answer without"
    )
    events: bool = Field(
        default=False, description="stream every thread's tokens as they come (needs stream)"
    )
    document: bool = Field(default=False, description="return the answer in PASTA-LANG too")
    trace: bool = Field(
        default=False, description="return what each thread did, and when: a trace that Perfetto opens"
    )

    @model_validator(mode="before")
    @classmethod
    def _given(cls, data: Any) -> Any:
        return (
            {name: value for name, value in data.items() if value is not None}
            if isinstance(data, dict)
            else data
        )
