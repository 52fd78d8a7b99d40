"""Messages, tools, usage and sampling as a trace record holds them, under verifiers' names.

What this project writes uses the declared fields only; fields that another producer added are kept on reading.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field


class RecordModel(BaseModel):
    """Base of everything inside a trace record: unknown fields are kept."""

    model_config = ConfigDict(extra="allow")


class TextContentPart(RecordModel):
    type: Literal["text"] = "text"
    text: str


class ImageUrlSource(RecordModel):
    url: str


class ImageUrlContentPart(RecordModel):
    type: Literal["image_url"] = "image_url"
    image_url: ImageUrlSource


ContentPart = Annotated[TextContentPart | ImageUrlContentPart, Field(discriminator="type")]
MessageContent = str | list[ContentPart]
"""Plain text, or parts in the order they were sent."""


def content_text(content: MessageContent | None) -> str:
    """The text of a message's content, parts joined by newlines; images are left out."""
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content or () if isinstance(part, TextContentPart))


class SystemMessage(RecordModel):
    role: Literal["system"] = "system"
    content: MessageContent


class UserMessage(RecordModel):
    role: Literal["user"] = "user"
    content: MessageContent


class ToolCall(RecordModel):
    """`arguments` is the text exactly as the model gave it, JSON or not."""

    id: str
    name: str
    arguments: str


class AssistantMessage(RecordModel):
    """`provider_state` holds a provider's opaque reasoning items, to be sent back unchanged."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    provider_state: list[dict[str, Any]] | None = None


class ToolMessage(RecordModel):
    role: Literal["tool"] = "tool"
    tool_call_id: str
    content: MessageContent
    name: str | None = None


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]
Messages = list[Message]


class Tool(RecordModel):
    """A tool as it was offered to the model; `parameters` is a JSON schema."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    strict: bool | None = None


FinishReason = str | None
"""`stop`, `length` or `tool_calls`; anything else is what the provider said; None: not said, or the call failed."""


class Usage(RecordModel):
    """A provider's token counts for one call, or their sum.

    `prompt_tokens` excludes cache reads, `input_tokens` has them. Reasoning tokens are part of
    `completion_tokens`. `cost` is in the provider's currency, usually US dollars. None: not reported.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_input_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost: float | None = None

    @classmethod
    def from_wire(cls, usage: Any) -> Usage | None:
        """Usage from a chat-completions `usage` object (a dict); None where it does not say enough.

        Never negative. Cache reads above the prompt's count can't be part of it: where the total shows that
        they were counted apart, the prompt's count stands, else all of the prompt was cached.
        """
        if not isinstance(usage, dict):
            return None
        prompt, completion = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
        total = _count(usage.get("total_tokens"))
        if prompt is None and completion is not None and total is not None:
            prompt = max(0, total - completion)
        elif completion is None and prompt is not None and total is not None:
            completion = max(0, total - prompt)
        if prompt is None or completion is None:
            return None
        cached = _detail(usage, "prompt_tokens_details", "cached_tokens")
        if cached and not (cached > prompt and total is not None and total >= prompt + completion + cached):
            prompt = max(0, prompt - cached)
        return cls(
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_input_tokens=cached,
            reasoning_tokens=_detail(usage, "completion_tokens_details", "reasoning_tokens"),
            cost=_cost(usage.get("cost")),
        )

    @classmethod
    def aggregate(cls, usages: Iterable[Usage | None]) -> Usage | None:
        """The sum of what was reported; None when nothing was. A field that no usage reports stays None."""
        values = [usage for usage in usages if usage is not None]
        if not values:
            return None

        def total(name: str) -> Any:
            known = [value for usage in values if (value := getattr(usage, name)) is not None]
            return sum(known) if known else None

        return cls(
            prompt_tokens=total("prompt_tokens"),
            completion_tokens=total("completion_tokens"),
            cached_input_tokens=total("cached_input_tokens"),
            reasoning_tokens=total("reasoning_tokens"),
            cost=total("cost"),
        )

    @property
    def input_tokens(self) -> int:
        """All tokens that went in, cache reads included."""
        return self.prompt_tokens + (self.cached_input_tokens or 0)

    @property
    def total_tokens(self) -> int:
        """Tokens in and out."""
        return self.input_tokens + self.completion_tokens


def _count(value: Any) -> int | None:
    # A count beyond what a float holds exactly is none.
    if type(value) not in (int, float) or not value < 2**53:
        return None
    return max(0, int(value)) if value > -math.inf else None


def _detail(usage: dict[str, Any], group: str, name: str) -> int | None:
    details = usage.get(group)
    return _count(details.get(name)) if isinstance(details, dict) else None


def _cost(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and 0 <= value < 2**53 else None


class SamplingConfig(BaseModel):
    """Sampling settings; keys not named here pass through to the provider."""

    model_config = ConfigDict(extra="allow")

    temperature: float | None = None
    top_p: float | None = None
    reasoning_effort: str | None = None
    max_tokens: int | None = Field(None, validation_alias=AliasChoices("max_tokens", "max_completion_tokens"))
