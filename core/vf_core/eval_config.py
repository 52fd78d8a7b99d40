"""`EvalConfig`: all that a run is, read from TOML and `--a.b.c VALUE` options and checked as a whole.

Reading one imports the plugins that it names and starts nothing. `docs/configuration.md` is the user's view.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, Field, PrivateAttr, SerializeAsAny, ValidationError, field_validator

from vf_core import errors
from vf_core.config.base import KeyPath, StrictModel
from vf_core.config.client import ClientConfig
from vf_core.config.explain import nearest, problems_of, refuse
from vf_core.config.fit import Fitter
from vf_core.config.interception import InterceptionConfig
from vf_core.config.layout import move_older, to_canonical
from vf_core.config.load import Override, load_toml, read_overrides
from vf_core.config.paths import text_of
from vf_core.config.save import Hidden, Judge, LeftOut, leave_out, plain, render
from vf_core.config.secrets import is_secret_entry, is_secret_header, names_secret
from vf_core.errors import ConfigError
from vf_core.eval_choices import HARNESS, Written, dig, narrow, validate_tables
from vf_core.harnesses.base import HarnessConfig
from vf_core.plugins import plugin_name
from vf_core.runtimes.base import RuntimeConfig
from vf_core.tasks import TasksetConfig
from vf_core.text import slug
from vf_core.trace.types import SamplingConfig

__all__ = ["ClientConfig", "ConfigError", "EvalConfig"]

SHORT_OPTIONS = {
    "m": "model",
    "n": "num_tasks",
    "r": "num_rollouts",
    "c": "max_concurrent",
    "s": "shuffle",
    "o": "output_dir",
}
"""Letters of `-x VALUE` options."""


class TimeoutConfig(StrictModel):
    """Seconds for each stage of an attempt; None: no limit."""

    setup: float | None = Field(None, gt=0)
    rollout: float | None = Field(None, gt=0)
    finalize: float | None = Field(None, gt=0)
    scoring: float | None = Field(None, gt=0)


class AgentConfig(StrictModel):
    """The harness, the sandbox it works in, and its limits; None: no limit."""

    harness: SerializeAsAny[HarnessConfig]
    runtime: SerializeAsAny[RuntimeConfig]
    timeout: TimeoutConfig = TimeoutConfig()
    max_turns: int | None = Field(None, ge=1)
    max_input_tokens: int | None = Field(None, ge=1)
    max_output_tokens: int | None = Field(None, ge=1)
    max_total_tokens: int | None = Field(None, ge=1)


class EnvConfig(StrictModel):
    """The tasks and who works on them; `taskset` is of the plugin's own config class."""

    taskset: SerializeAsAny[TasksetConfig]
    agent: AgentConfig
    interception: InterceptionConfig = InterceptionConfig()


class RolloutRetryConfig(StrictModel):
    """Whole attempts again after an error whose type is included (empty: all) and not excluded."""

    max_retries: int = Field(0, ge=0)
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @field_validator("include", "exclude")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        known = _error_names()
        for name in names:
            if name not in known:
                near = nearest(name, known)
                help = f"did you mean {near}?" if near else f"known: {', '.join(sorted(known))}"
                raise ValueError(f"{name!r} is no type of error; {help}")
        return names


def _error_names() -> set[str]:
    # UserError is verifiers' name for a failing user simulator: its configs may list it.
    names, todo = {"UserError"}, [errors.RolloutError]
    while todo:
        kind = todo.pop()
        names.add(kind.__name__)
        todo += kind.__subclasses__()
    return names


class RetriesConfig(StrictModel):
    """What is tried again by itself."""

    rollout: RolloutRetryConfig = RolloutRetryConfig()


class EvalConfig(StrictModel):
    """A whole run, resolved: plugins' own options in their own classes, paths absolute.

    Values that a user wrote as `{ env = "VAR" }` are held resolved; `to_toml` and `to_dict` write them as
    they were.
    """

    model: str = Field(
        "deepseek/deepseek-v4-flash", min_length=1, validation_alias=AliasChoices("model", "m")
    )
    num_tasks: int | None = Field(
        None, ge=1, validation_alias=AliasChoices("num_tasks", "n", "num_examples", "batch_size")
    )
    num_rollouts: int = Field(
        1, ge=1, validation_alias=AliasChoices("num_rollouts", "r", "rollouts_per_example", "group_size")
    )
    max_concurrent: int = Field(128, ge=1, validation_alias=AliasChoices("max_concurrent", "c"))
    shuffle: bool = Field(False, validation_alias=AliasChoices("shuffle", "s"))
    seed: int = Field(0, ge=0)
    max_errors: int = Field(0, ge=0)
    """How many rollouts may end in an error before the exit code says so."""
    output_dir: Path = Field(Path("outputs"), validation_alias=AliasChoices("output_dir", "o"))
    sampling: SamplingConfig = SamplingConfig()
    client: ClientConfig = ClientConfig()
    env: EnvConfig
    retries: RetriesConfig = RetriesConfig()

    _refs: dict[KeyPath, tuple[str, Any]] = PrivateAttr(default_factory=dict)
    # Variables that values were taken from, and those values: what has been replaced since is no reference any more.

    @classmethod
    def load(cls, path: Path | None, overrides: Sequence[str] = ()) -> EvalConfig:
        """Read a file (None: only options) and lay options (`--a.b.c VALUE`, `-n VALUE`) over it.

        Relative paths are relative to the file; those given as options, or without a file, to the current
        directory. Raises `ConfigError` (`PluginError`) with file, dotted key and nearest valid name.
        """
        options = read_overrides(overrides, SHORT_OPTIONS)
        data = {} if path is None else load_toml(path)
        base_dir = Path.cwd() if path is None else Path(os.path.abspath(path)).parent
        return cls._build(data, path, base_dir, options)

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        *,
        file: Path | str | None = None,
        base_dir: Path | None = None,
        overrides: Sequence[str] = (),
    ) -> EvalConfig:
        """As `load`, from tables already read; `file` is named in errors, relative paths are relative to `base_dir`
        (default: the file's directory, else the current one)."""
        if base_dir is None:
            base_dir = Path(os.path.abspath(file)).parent if isinstance(file, Path) else Path.cwd()
        return cls._build(data, file, base_dir, read_overrides(overrides, SHORT_OPTIONS))

    @classmethod
    def _build(
        cls, data: Mapping[str, Any], file: Path | str | None, base_dir: Path, options: Sequence[Override]
    ) -> EvalConfig:
        tables, moved = move_older(data, file)
        placed = [(option, to_canonical(option.path)) for option in options]
        fitter = Fitter(cls, narrow(Written(tables, moved, file, placed)))
        fitted = fitter.file(tables, file, base_dir, moved)
        fitted.setdefault("output_dir", Path(os.path.abspath(base_dir / "outputs")))
        for option, at in placed:
            fitter.override(fitted, option, at)
        problems = validate_tables(cls, fitter, fitted, base_dir)
        try:
            config = cls.model_validate(fitted)
        except ValidationError as e:
            problems += problems_of(e, cls, fitted, root=cls, narrow=fitter.narrow)
        told = {problem.at for problem in fitter.problems}
        problems = fitter.problems + [problem for problem in problems if problem.at not in told]
        if problems:
            raise refuse(problems, fitter.written)
        text_of(config.output_dir)  # refuse now what could not be saved
        dump = config._dump()
        config._refs.update({at: (variable, dig(dump, at)) for at, variable in fitter.refs.items()})
        return config

    @property
    def run_name(self) -> str:
        """`env--model--harness`, fit for a directory's name."""
        names = (plugin_name(self.env.taskset.id), self.model, plugin_name(self.env.agent.harness.id))
        return "--".join(slug(name) for name in names)

    def with_model(self, model: str, client: ClientConfig) -> EvalConfig:
        """This config with `model` behind `client`, judges that ask the run's provider included."""
        taskset = self.env.taskset
        judges = tuple(
            judge if judge.base_url is not None else judge.model_copy(update={"model": model})
            for judge in taskset.task.judges
        )
        taskset = taskset.model_copy(update={"task": taskset.task.model_copy(update={"judges": judges})})
        env = self.env.model_copy(update={"taskset": taskset})
        return self.model_copy(update={"model": model, "client": client, "env": env})

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON can hold it, for `from_dict` in another process: **secrets given literally are in it**;
        what came from variables is a reference to them."""
        return self._leave_out(None, LeftOut())

    def public_dict(self) -> dict[str, Any]:
        """What `to_toml` writes, as tables."""
        return self._leave_out(_judge, LeftOut())

    def to_toml(self) -> str:
        """The resolved config, which can be run again from anywhere and holds no secrets.

        The API key is there by its variable's name. Headers (but the harmless ones), values of `harness.env` that
        are not evidently ordinary, and whatever is named or looks like a credential elsewhere are written as
        `{ env = "VF_TUI_SECRET_…" }`; running that without the variable set is refused, naming it. A comment
        at the top lists them.
        """
        left = LeftOut()
        return render(self._leave_out(_judge, left), left)

    def left_out(self) -> dict[str, str]:
        """The variables that stand for literal secrets in `to_toml`, and their values."""
        left = LeftOut()
        self._leave_out(_judge, left)
        return left.values

    def secret_variables(self) -> frozenset[str]:
        """The variables that the config says hold secrets, whatever they are called: those of keys (`api_key_var`, of
        a judge or a plugin too), and those that headers and values with a secret's name or type are taken from."""
        referred = {
            variable
            for at, (variable, value) in self._refs.items()
            if "headers" in at or isinstance(value, Hidden) or any(names_secret((part,)) for part in at)
        }
        return frozenset(referred) | frozenset(_key_variables(self._dump()))

    def _leave_out(self, judge: Judge | None, left: LeftOut) -> dict[str, Any]:
        dump = self._dump()
        refs = {at: variable for at, (variable, value) in self._refs.items() if dig(dump, at) == value}
        return dict(leave_out(dump, refs, judge, left))

    def _dump(self) -> dict[str, Any]:
        return dict(plain(self.model_dump(serialize_as_any=True)))


def _judge(at: KeyPath, text: str) -> bool | None:
    """Whether the text at `at` must be left out of a saved config."""
    if at[-2:-1] == ("headers",):
        return is_secret_header(at[-1], text)
    if at[:4] == (*HARNESS, "env"):
        return is_secret_entry(at[-1], text)
    # Elsewhere the models say what stands there; open tables and plugins' own options are judged by name and look.
    return None if at[0] in ("sampling", "env") else False


def _names_key_variable(key: str) -> bool:
    return key.endswith("_var") and names_secret((key.removesuffix("_var"),))


def _key_variables(data: Any) -> Iterator[str]:
    """The values of all `…key_var`, `…token_var` and the like."""
    for key, value in data.items() if isinstance(data, Mapping) else ((None, item) for item in data):
        if isinstance(value, Mapping | list):
            yield from _key_variables(value)
        elif isinstance(value, str) and isinstance(key, str) and _names_key_variable(key):
            yield value
