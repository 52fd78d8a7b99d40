"""What a judge is written with: a model is asked about a rollout, and its answer becomes a verdict or an error.

A judge's `score` gives a number for a rollout. It may call its model with `evaluate` (its prompt, its parsing) or
`complete` (any messages); what that used is recorded on the trace, apart from the agent's own use. Whatever goes
wrong, a refusal and an answer that can't be read included, is a `JudgeError`: the rollout stays unscored and is
tried again on resume. Nothing is ever a score of zero by mistake.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic

from pydantic import BaseModel, ConfigDict
from typing_extensions import TypeVar

from vf_core.config.client import ClientConfig
from vf_core.errors import JudgeError
from vf_core.judges import _calls
from vf_core.judges._endpoint import Endpoint
from vf_core.judges._reading import SHOWN
from vf_core.tasks.judging import JudgeConfig, now, record
from vf_core.trace.record import Trace
from vf_core.trace.task import TaskData
from vf_core.trace.types import Message, Usage
from vf_core.trace.wire import message_to_wire

TEXT_LIMIT = 200_000
"""Characters of an answer; a longer one is no verdict."""

ParsedT = TypeVar("ParsedT", default=Any)
ConfigT = TypeVar("ConfigT", bound=JudgeConfig, default=JudgeConfig)


class JudgeResponse(BaseModel, Generic[ParsedT]):
    """A judge's model's answer: its text, what `parse` made of it, and its use (None: the provider did not tell)."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    text: str
    parsed: ParsedT | None = None
    usage: Usage | None = None


class Judge(Generic[ParsedT, ConfigT]):
    """Subclass it as `Judge[Verdict, MyConfig]`; give it a `prompt`, perhaps a `schema`, `parse` and `score`.

    One object serves a whole run, a shallow copy of it each rollout. In TOML it is one of
    `[[env.taskset.task.judges]]`; a task's own code may use it too: `MyJudge(config).evaluate(trace=trace, …)`.
    """

    prompt: str | None = None
    """The template of its message, in `str.format` style; the config's own replaces it."""
    schema: type[BaseModel] | None = None
    """Ask for structured output: what `parse` gets is an instance of this."""
    scale: tuple[float, float] | None = (0.0, 1.0)
    """Its lowest and highest verdict: one outside is an error. None: any finite number."""
    fields: ClassVar[tuple[str, ...]] = ()
    """What templates may name, checked before the run; empty: anything."""

    def __init__(self, config: ConfigT) -> None:
        self.config = config
        if config.prompt is not None:
            self.prompt = config.prompt

    @property
    def reward_name(self) -> str:
        """What its verdict is called among the rewards."""
        return self.config.reward_name or type(self).__name__

    # -- before the run ----------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Read what it needs (files) and refuse what can't work, before anything is started. It may block.

        Raises ValueError. A subclass calls `super().validate()`.
        """
        if self.config.prompt_file is not None:
            try:
                self.prompt = self.config.prompt_file.read_text(encoding="utf-8-sig")
            except OSError as e:
                raise ValueError(f"prompt_file {self.config.prompt_file}: {e.strerror or e}") from e
            except UnicodeDecodeError as e:
                raise ValueError(f"prompt_file {self.config.prompt_file}: not UTF-8") from e
        if self.prompt is not None and self.fields:
            check_template(self.prompt, self.fields)

    def validate_task(self, task: TaskData) -> None:
        """Refuse a row that it could not judge. Raises ValueError."""

    # -- a rollout ---------------------------------------------------------------------------------------------

    async def score(self, *args: Any, **kwargs: Any) -> float | Mapping[str, float]:
        """The verdict on a rollout, or several by name. A subclass takes those of `task` (the row), `trace` and
        `runtime` (the live sandbox) that it needs, by these names; it may be a plain function."""
        raise NotImplementedError(f"{type(self).__name__} has no score: it can't be one of a config's judges")

    def build_messages(self, **fields: Any) -> str | Sequence[Message]:
        """What its model is asked: the template filled in."""
        if self.prompt is None and self.config.prompt_file is not None:
            self.validate()
        if self.prompt is None:
            raise JudgeError(f"{type(self).__name__} has no prompt", hint="set prompt in its table")
        return self.prompt.format(**fields)

    def parse(self, response: JudgeResponse[Any]) -> ParsedT:
        """The verdict in an answer. Raises ValueError where there is none."""
        found: ParsedT = response.parsed if self.schema is not None else response.text  # type: ignore[assignment]
        return found

    async def evaluate(
        self, *, trace: Trace[Any, Any] | None = None, **fields: Any
    ) -> JudgeResponse[ParsedT]:
        """Ask its own prompt, filled with `fields`, and parse the answer."""
        messages = self.build_messages(**fields)
        return await self.complete(messages, trace=trace, schema=self.schema, parse=self.parse)

    async def complete(
        self,
        messages: str | Sequence[Message],
        *,
        trace: Trace[Any, Any] | None = None,
        schema: type[BaseModel] | None = None,
        parse: Callable[[JudgeResponse[Any]], Any] | None = None,
        **sampling: Any,
    ) -> JudgeResponse[Any]:
        """One model call; `sampling` goes over the config's.

        It is recorded on `trace` (None: the one that is being scored, if one is), whether a verdict is in it or not.
        Raises JudgeError: the call failed, the model refused, its answer is empty or can't be read.
        """
        where = now()
        if trace is None and where is not None:
            trace = where.trace
        call = self._call(messages, schema, sampling, where.client if where is not None else None)
        response: JudgeResponse[Any] | None = None
        told = ""
        try:
            answer = await _calls.ask(call)
            response = JudgeResponse(text=answer.text, usage=answer.usage)
            response.parsed = self._read(answer, schema)
            if parse is not None:
                response.parsed = parse(response)
        except JudgeError as e:
            told = str(e)
            raise
        except ValueError as e:
            told = f"judge {self.reward_name!r}: {e}"
            raise JudgeError(told) from e
        finally:
            if trace is not None:
                record(
                    trace,
                    name=self.reward_name,
                    model=self.config.model,
                    text=None if response is None else response.text,
                    parsed=None if response is None else response.parsed,
                    usage=None if response is None else response.usage,
                    error=told,
                )
        return response

    def _call(
        self,
        messages: str | Sequence[Message],
        schema: type[BaseModel] | None,
        sampling: Mapping[str, Any],
        run: ClientConfig | None,
    ) -> _calls.Call:
        if isinstance(messages, str):
            wire = [{"role": "user", "content": messages}]
        else:
            wire = [message_to_wire(message) for message in messages]
        return _calls.Call(
            name=self.reward_name,
            endpoint=endpoint_of(self.config, run),
            model=self.config.model,
            messages=wire,
            sampling={**self.config.sampling.model_dump(exclude_none=True), **sampling},
            schema=schema,
            timeout=self.config.timeout,
        )

    def _read(self, answer: _calls.Answer, schema: type[BaseModel] | None) -> Any:
        """The structured part of an answer. Raises JudgeError for one without a verdict."""
        name = f"judge {self.reward_name!r}"
        if answer.refusal:
            raise JudgeError(f"{name}: its model refused: {answer.refusal[:SHOWN]!r}")
        if answer.finish_reason == "content_filter":
            raise JudgeError(f"{name}: its model's answer was filtered")
        if not answer.text.strip():
            why = f" (finish reason {answer.finish_reason!r})" if answer.finish_reason else ""
            raise JudgeError(f"{name}: its model said nothing{why}")
        if len(answer.text) > TEXT_LIMIT:
            raise JudgeError(f"{name}: its model's answer has {len(answer.text)} characters")
        if schema is None:
            return None
        try:
            return schema.model_validate_json(answer.text)
        except ValueError as e:
            cut = "; it was cut off" if answer.finish_reason == "length" else ""
            raise JudgeError(f"{name}: no {schema.__name__} in {answer.text[:SHOWN]!r}{cut}") from e


def endpoint_of(config: JudgeConfig, run: ClientConfig | None) -> Endpoint:
    """Where a judge's calls go. The run's key and headers go to the run's own provider only."""
    if config.base_url is not None:
        return Endpoint(config.base_url, config.api_key_var, tuple(config.headers.items()))
    if run is None:
        raise JudgeError(f"judge {config.reward_name!r} is asked outside of a run", hint="give it a base_url")
    headers = {name.lower(): value for name, value in run.headers.items()}
    if config.api_key_var is not None:
        headers.pop("authorization", None)
    headers |= {name.lower(): value for name, value in config.headers.items()}
    return Endpoint(run.base_url, config.api_key_var or run.api_key_var, tuple(headers.items()))


def check_template(template: str, known: Sequence[str]) -> None:
    """Raises ValueError for a template that can't be filled in."""
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as e:
        raise ValueError(f"the prompt is no template: {e}; write {{{{ and }}}} for braces") from e
    for name in names:
        if name not in known:
            told = ", ".join(f"{{{field}}}" for field in known)
            raise ValueError(
                f"the prompt has {{{name}}}, which stands for nothing here; known: {told}; "
                "write {{ and }} for braces"
            )
