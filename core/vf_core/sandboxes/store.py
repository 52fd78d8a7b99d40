"""The ledger's SQLite file: its schema, its modes, and what its failures mean to the user.

Belongs to one thread. Any number of processes of this host may have it open; the write-ahead log needs shared memory,
so on a network filesystem it must not be written from two hosts at once.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from vf_core.errors import SandboxError
from vf_core.runtimes.lifecycle import State
from vf_core.sandboxes.file import ELSEWHERE, error_code, explain, inode, let_go, make_file
from vf_core.sandboxes.owners import Owner
from vf_core.sandboxes.rows import Change, Row
from vf_core.sandboxes.spill import abandoned, load, overlay, spills

SCHEMA = 1
_TRY = 0.1
"""Seconds that SQLite itself waits for a lock; between two tries other things are looked after."""
_READ = 3.0
"""Seconds that a reader waits for a lock; only one who makes or repairs the file keeps it waiting at all."""
_TABLES = (
    """CREATE TABLE owners (
        id INTEGER PRIMARY KEY,
        run TEXT NOT NULL, run_dir TEXT NOT NULL, host TEXT NOT NULL, machine TEXT NOT NULL, boot TEXT NOT NULL,
        space TEXT NOT NULL, pid INTEGER NOT NULL, start TEXT NOT NULL, user TEXT NOT NULL,
        UNIQUE (run, run_dir, host, machine, boot, space, pid, start, user)
    )""",
    """CREATE TABLE sandboxes (
        key INTEGER PRIMARY KEY,
        kind TEXT NOT NULL, account TEXT NOT NULL, name TEXT NOT NULL, id TEXT NOT NULL,
        owner INTEGER NOT NULL REFERENCES owners (id),
        rollout TEXT NOT NULL, attempt INTEGER NOT NULL,
        state TEXT NOT NULL, created REAL NOT NULL, changed REAL NOT NULL,
        proof TEXT NOT NULL, detail TEXT NOT NULL, price REAL
    )""",
    "CREATE INDEX unproven ON sandboxes (kind) WHERE state <> 'gone'",
    "CREATE INDEX by_id ON sandboxes (id) WHERE id <> ''",
    f"PRAGMA user_version = {SCHEMA}",
)
_OWNER = ("run", "run_dir", "host", "machine", "boot", "space", "pid", "start", "user")
_COLUMNS = (
    "s.key, s.kind, s.account, s.name, s.id, s.rollout, s.attempt, s.state, s.created, s.changed, s.proof, s.detail, "
    "s.price, " + ", ".join(f"o.{name}" for name in _OWNER)
)
_INSERT = f"INSERT OR IGNORE INTO sandboxes VALUES ({', '.join('?' * 14)})"  # noqa: S608 - ours
_UPDATE = (
    "UPDATE sandboxes SET state = ?, changed = ?, id = CASE ? WHEN '' THEN id ELSE ? END, proof = ?, detail = ? "
    "WHERE key = ? AND state <> 'gone'"
)


class Store:
    """The file at `path`, opened when it is first needed. Every method raises `SandboxError`, which names the file
    and says what to do; the next call then starts afresh."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db: sqlite3.Connection | None = None
        self._inode = 0
        self._owners: dict[Owner, int] = {}

    def write(
        self,
        new: Sequence[Row],
        changes: Collection[Change],
        *,
        durable: bool,
        until: float,
        meanwhile: Callable[[], None],
    ) -> None:
        """All of it or nothing, in one transaction that survives the death of this process, and (`durable`) of the
        host. Waits for other processes until the monotonic time `until`, calling `meanwhile` now and then; then
        raises `BusyError`."""
        with self._explained():
            db = self._open(until, meanwhile)
            # What is synchronised once a checkpoint survives a process's death, at a tenth of the cost.
            db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            _patiently(lambda: db.execute("BEGIN IMMEDIATE"), until, meanwhile)
            try:
                db.executemany(_INSERT, [self._values(db, row) for row in new])
                db.executemany(_UPDATE, [_change_values(change) for change in changes])
                db.execute("COMMIT")
            except BaseException:
                self._owners.clear()
                with contextlib.suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                raise

    def read(
        self,
        *,
        unproven: bool = False,
        kinds: Collection[str] | None = None,
        run: str | None = None,
        keys: Collection[int] | None = None,
        ids: Collection[str] | None = None,
    ) -> list[Row]:
        """The rows that all given conditions fit, oldest first; none when there is no file yet."""
        beside = self._take_in()
        if beside:
            rows = overlay(self._select("", []), beside)
            return [row for row in rows if _fits(row, unproven, run, (kinds, keys, ids))]
        return self._select(*_conditions(unproven, run, {"s.kind": kinds, "s.key": keys, "s.id": ids}))

    def run_dirs(self, runs: Collection[str]) -> dict[str, str]:
        """The directories of those runs that have rows here."""
        found: dict[str, str] = {}
        if self._db is not None or self.path.exists():
            with self._explained():
                db = self._open(time.monotonic() + _READ, _nothing)
                among = "SELECT value FROM json_each(?)"
                query = f"SELECT run, run_dir FROM owners WHERE run IN ({among}) ORDER BY id"  # noqa: S608 - ours
                found.update(db.execute(query, (_json(runs),)).fetchall())
        for path in spills(self.path):
            found.update((row.owner.run, row.owner.run_dir) for row in load(path)[0] if row.owner.run in runs)
        return found

    def _select(self, where: str, values: Sequence[object]) -> list[Row]:
        if self._db is None and not self.path.exists():
            return []
        with self._explained():
            db = self._open(time.monotonic() + _READ, _nothing)
            found = db.execute(
                f"SELECT {_COLUMNS} FROM sandboxes s JOIN owners o ON o.id = s.owner {where} "  # noqa: S608 - ours
                "ORDER BY s.created, s.key",
                values,
            )
            return [_row(record) for record in found]

    def _take_in(self) -> list[Path]:
        """Move what dead writers left beside the ledger into it; what still stands beside it."""
        left = []
        for path in spills(self.path):
            with abandoned(path) as dead:
                if dead:
                    rows, changes = load(path)
                    now = time.monotonic()
                    try:
                        self.write(rows, changes, durable=True, until=now, meanwhile=_nothing)
                    except SandboxError:
                        left.append(path)
                    else:
                        path.unlink(missing_ok=True)
                elif path.exists():
                    left.append(path)
        return left

    def forget(self, before: float) -> int:
        """Drop rows that were proven gone before that time (Unix seconds), and owners of none; how many rows."""
        if self._db is None and not self.path.exists():
            return 0
        with self._explained():
            db = self._open(time.monotonic() + _READ, _nothing)
            gone = db.execute(
                "SELECT count(*) FROM sandboxes WHERE state = 'gone' AND changed < ?", (before,)
            )
            count = int(gone.fetchone()[0])
            if count:
                self._owners.clear()
                with _transaction(db):
                    db.execute("DELETE FROM sandboxes WHERE state = 'gone' AND changed < ?", (before,))
                    db.execute("DELETE FROM owners WHERE id NOT IN (SELECT owner FROM sandboxes)")
            return count

    def close(self) -> None:
        """Let go of the file. Idempotent, never raises."""
        db, self._db = self._db, None
        self._owners.clear()
        if db is not None:
            let_go(db, moved=inode(self.path) != self._inode)

    # ------------------------------------------------------------------ opening

    def _open(self, until: float, meanwhile: Callable[[], None]) -> sqlite3.Connection:
        if self._db is not None:
            if inode(self.path) == self._inode:
                return self._db
            self.close()  # it was moved away or deleted: what is written there is lost to everybody else
        make_file(self.path)
        db = sqlite3.connect(self.path, timeout=_TRY, isolation_level=None)
        try:
            _patiently(lambda: _set_up(db, self.path), until, meanwhile)
        except BaseException:
            db.close()
            raise
        self._db, self._inode = db, inode(self.path)
        return db

    def _values(self, db: sqlite3.Connection, row: Row) -> tuple[object, ...]:
        owner = self._owners.get(row.owner)
        if owner is None:
            owner = self._owners[row.owner] = _owner_id(db, row.owner)
        return (
            *(row.key, row.kind, row.account, row.name, row.id, owner, row.rollout, row.attempt),
            *(row.state.value, row.created, row.changed, row.proof, row.detail, row.price),
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as e:
            if error_code(e) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CONSTRAINT):
                self.close()
            raise explain(self.path, e) from e
        except OSError as e:
            self.close()
            raise SandboxError(
                f"the ledger of sandboxes {self.path} cannot be opened: {e.strerror or e}", hint=ELSEWHERE
            ) from e


def _nothing() -> None:
    pass


def _set_up(db: sqlite3.Connection, path: Path) -> None:
    version = _version(db)
    if version > SCHEMA:
        raise SandboxError(
            f"the ledger of sandboxes {path} was written by a newer vf-tui (its schema is {version}, this one knows "
            f"{SCHEMA})",
            hint="upgrade this vf-tui",
        )
    if version == 0:
        # Where shared memory is not to be had, another mode holds: slower, and as safe.
        db.execute("PRAGMA journal_mode = WAL")
        with _transaction(db):
            if _version(db) == 0:
                for statement in _TABLES:
                    db.execute(statement)


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def _patiently(act: Callable[[], object], until: float, meanwhile: Callable[[], None]) -> None:
    while True:
        try:
            act()
        except sqlite3.OperationalError as e:
            if error_code(e) != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                raise
            meanwhile()
            time.sleep(0.005)  # some refusals come at once
        else:
            return


# ---------------------------------------------------------------------- rows


def _owner_id(db: sqlite3.Connection, owner: Owner) -> int:
    values = tuple(getattr(owner, name) for name in _OWNER)
    places = ", ".join("?" * len(_OWNER))
    db.execute(f"INSERT OR IGNORE INTO owners ({', '.join(_OWNER)}) VALUES ({places})", values)  # noqa: S608 - ours
    same = " AND ".join(f"{name} = ?" for name in _OWNER)
    return int(db.execute(f"SELECT id FROM owners WHERE {same}", values).fetchone()[0])  # noqa: S608 - ours


def _change_values(change: Change) -> tuple[object, ...]:
    return (
        *(change.state.value, change.t, change.id, change.id),
        *(change.proof, change.detail, change.key),
    )


def _conditions(
    unproven: bool, run: str | None, among: Mapping[str, Collection[object] | None]
) -> tuple[str, list[object]]:
    parts = ["s.state <> 'gone'"] if unproven else []
    values: list[object] = []
    if run is not None:
        parts.append("o.run = ?")
        values.append(run)
    for column, accepted in among.items():
        if accepted is not None:
            known = "s.id <> '' AND " if column == "s.id" else ""  # the index holds those only
            parts.append(f"{known}{column} IN (SELECT value FROM json_each(?))")  # noqa: S608 - ours
            values.append(_json(accepted))
    return (f"WHERE {' AND '.join(parts)}" if parts else ""), values


def _fits(row: Row, unproven: bool, run: str | None, among: tuple[Collection[object] | None, ...]) -> bool:
    """As `_conditions`; `among` are the kinds, keys and ids."""
    if (unproven and row.state is State.GONE) or (run is not None and row.owner.run != run):
        return False
    values = (row.kind, row.key, row.id)
    return all(accepted is None or value in accepted for accepted, value in zip(among, values, strict=True))


def _json(values: Iterable[object]) -> str:
    import json

    return json.dumps(list(values))


def _row(record: tuple[object, ...]) -> Row:
    key, kind, account, name, id, rollout, attempt, state, created, changed, proof, detail, price = record[
        :13
    ]
    owner = Owner(**dict(zip(_OWNER, record[13:], strict=True)))  # type: ignore[arg-type]
    return Row(  # types are the schema's
        key=key,  # type: ignore[arg-type]
        kind=str(kind),
        account=str(account),
        name=str(name),
        id=str(id),
        owner=owner,
        rollout=str(rollout),
        attempt=attempt,  # type: ignore[arg-type]
        state=_state(str(state)),
        created=created,  # type: ignore[arg-type]
        changed=changed,  # type: ignore[arg-type]
        proof=str(proof),
        detail=str(detail),
        price=price,  # type: ignore[arg-type]
    )


def _state(word: str) -> State:
    try:
        return State(word)
    except ValueError:
        return State.UNKNOWN
