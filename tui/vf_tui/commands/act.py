"""Commands that act on a live run without a screen: `stop`, `restart`, `pause`, `unpause`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from vf_core.runs.find import RunSummary
from vf_tui.cli import INTERNAL, OK, UNCONFIRMED
from vf_tui.commands.console import emit, notice, say
from vf_tui.commands.facts import JSON, load_state
from vf_tui.commands.runs import RUN_HELP, link_to, the_live_run, the_run, why_not_live
from vf_tui.commands.select import HELP as SELECTORS
from vf_tui.commands.select import select

if TYPE_CHECKING:
    from vf_core.events.command import Reply
    from vf_core.events.state import RunState

NAMED = 12


@dataclass(frozen=True, slots=True)
class Asked:
    """A command on its way: `name` and `args` are the engine's, `verb` the user's word for it."""

    verb: str
    name: str
    targets: tuple[str, ...] = ()
    args: dict[str, Any] | None = None
    whole_run: bool = False
    proves: bool = False


@click.command(
    "stop", help=f"Stop rollouts gracefully, or with `all` the run.\n\n{RUN_HELP} SEL: {SELECTORS}"
)
@click.argument("run")
@click.argument("selectors", metavar="SEL...", nargs=-1)
@click.option("--confirm", is_flag=True, help="Wait until each sandbox is proven gone.")
@click.option("--dry-run", is_flag=True, help="Only tell which rollouts are meant.")
@JSON
def stop_command(run: str, selectors: tuple[str, ...], confirm: bool, dry_run: bool, as_json: bool) -> int:
    """Stop rollouts."""
    _need(selectors)
    found = the_run(run)
    if not found.live:
        return _over(found, "stop", as_json=as_json)

    def asked(state: RunState) -> Asked:
        targets = tuple(select(state, selectors))
        if "all" in selectors:
            return Asked("stop", "stop_all", targets, {"confirm": confirm}, whole_run=True, proves=confirm)
        return Asked("stop", "confirm_stop" if confirm else "stop", targets, proves=confirm)

    return _do(found, asked, dry_run=dry_run, as_json=as_json)


@click.command(
    "restart",
    help=f"Start rollouts again, each in a new sandbox once the old is gone.\n\n{RUN_HELP} SEL: {SELECTORS}",
)
@click.argument("run")
@click.argument("selectors", metavar="SEL...", nargs=-1)
@click.option(
    "--force", is_flag=True, help="Also where the old sandbox can't be proven gone; it stays listed."
)
@click.option("--dry-run", is_flag=True, help="Only tell which rollouts are meant.")
@JSON
def restart_command(run: str, selectors: tuple[str, ...], force: bool, dry_run: bool, as_json: bool) -> int:
    """Restart rollouts."""
    _need(selectors)
    return _do(
        the_live_run(run),
        lambda state: Asked(
            "restart", "restart", tuple(select(state, selectors)), {"force": force}, proves=not force
        ),
        dry_run=dry_run,
        as_json=as_json,
    )


@click.command("pause", help=f"Launch nothing new until unpaused; what runs goes on.\n\n{RUN_HELP}")
@click.argument("run")
@JSON
def pause_command(run: str, as_json: bool) -> int:
    """Pause launching."""
    return _on_run(run, "pause", as_json=as_json)


@click.command("unpause", help=f"Launch again.\n\n{RUN_HELP}")
@click.argument("run")
@JSON
def unpause_command(run: str, as_json: bool) -> int:
    """Unpause launching."""
    return _on_run(run, "unpause", as_json=as_json)


def _on_run(run: str, name: str, *, as_json: bool) -> int:
    found = the_run(run)
    if not found.live:
        return _over(found, name, as_json=as_json)
    return _do(found, lambda state: Asked(name, name, whole_run=True), as_json=as_json)


def _need(selectors: Sequence[str]) -> None:
    if not selectors:
        raise click.UsageError(f"say which rollouts. {SELECTORS}", click.get_current_context())


def _do(run: RunSummary, asked: Any, *, dry_run: bool = False, as_json: bool) -> int:
    """Ask the engine of `run` and print its answer; the exit code."""
    what, reply = asyncio.run(_ask(run, asked, dry_run=dry_run))
    if reply is None:
        return _tell(run, what, ok=True, changed=(), message="dry run: nothing was sent", as_json=as_json)
    confirmed = reply.ok and reply.changed and what.proves and what.verb == "stop"
    message = reply.message or ("each sandbox is proven gone" if confirmed else "")
    code = _tell(run, what, ok=reply.ok, changed=reply.changed, message=message, as_json=as_json)
    if code != OK and what.proves and _unproven(run, what):
        return UNCONFIRMED
    return code


async def _ask(run: RunSummary, asked: Any, *, dry_run: bool) -> tuple[Asked, Reply | None]:
    link = link_to(run, read_only=dry_run, by="command line")
    try:
        what: Asked = asked(await link.connect())
        if dry_run:
            return what, None
        if not what.whole_run and not what.targets:
            from vf_core.events.command import Reply

            return what, Reply(True, "no rollout is meant now")
        targets = () if what.whole_run else what.targets
        return what, await _reply(link, what.name, targets, what.args or {})
    finally:
        await link.close()


async def _reply(link: Any, name: str, targets: Sequence[str], args: dict[str, Any]) -> Reply:
    """The engine's reply; batches are read meanwhile, so that we are not the slow viewer."""

    async def drain() -> None:
        async for _ in link.batches():
            pass

    reading = asyncio.ensure_future(drain())
    try:
        reply: Reply = await link.command(name, targets, **args)
    finally:
        reading.cancel()
    return reply


def _tell(
    run: RunSummary, what: Asked, *, ok: bool, changed: Sequence[str], message: str, as_json: bool
) -> int:
    if as_json:
        emit(
            {
                "command": what.verb,
                "run": run.id,
                "targets": list(what.targets),
                "ok": ok,
                "changed": list(changed),
                "message": message,
            }
        )
    else:
        if what.targets:
            say(
                f"{what.verb}: {len(what.targets)} rollout{'s' * (len(what.targets) != 1)}: {_listed(what.targets)}"
            )
        say(f"changed: {_listed(changed) or 'no'}" + (f" ({message})" if message and ok else ""))
    if not ok:
        notice(f"error: {what.verb}: {message}")
    return OK if ok else INTERNAL


def _listed(names: Sequence[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _over(run: RunSummary, verb: str, *, as_json: bool) -> int:
    """The answer for a run that no engine runs any more: there is nothing left to do."""
    if run.liveness == "elsewhere":
        raise click.UsageError(f"run {run.id[:8]} takes no commands: {why_not_live(run)}")
    # The journal of an engine that died knows more than its last summary.
    left = len(load_state(run).unconfirmed)
    ok = not left
    message = why_not_live(run)
    if left:
        what = "1 sandbox is" if left == 1 else f"{left} sandboxes are"
        message += f", and {what} not proven gone: `vf-tui cleanup {run.id[:8]}` ends what is there"
    _tell(run, Asked(verb, verb), ok=ok, changed=(), message=message, as_json=as_json)
    return OK if ok else UNCONFIRMED


def _unproven(run: RunSummary, what: Asked) -> bool:
    """A sandbox of the targets is not proven gone, as far as the journal says."""
    state = load_state(run)
    targets = set(what.targets) or set(state.rollouts)
    return any(box.rollout in targets and name in state.unconfirmed for name, box in state.sandboxes.items())
