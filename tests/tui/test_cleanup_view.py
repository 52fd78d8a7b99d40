"""The inventory as lines, facts and filters: what is marked, what is said, and that nothing hostile gets through."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.inventories import alive, elsewhere, foreign, item
from doubles.screen_states import hostile
from vf_core.sandboxes.items import Item, Outcome, ProviderReport
from vf_tui.filter import FilterError, parse_with
from vf_tui.inventory_source import left_text
from vf_tui.inventory_view import ITEMS, SORTS, InventoryView, in_order
from vf_tui.render import boxes
from vf_tui.render.commands import command_lines
from vf_tui.render.facts import section_lines
from vf_tui.render.line import line_width

NOW = time.time()


def view_of(*items: Item) -> InventoryView:
    view = InventoryView()
    view.take(items, (), NOW)
    return view


def keys(view: InventoryView) -> list[str]:
    return [one.key for one in view.shown()]


def test_only_proven_leftovers_can_be_marked() -> None:
    """T05: not the live one, not another host's, not one that is not ours."""
    view = view_of(item(0), alive(1), elsewhere(2), foreign(3))
    for key in list(view.items):
        view.toggle(key)
    assert view.marks == {"box-0"}
    view.toggle("box-0")
    assert view.marks == set()
    assert view.mark_shown() == 1
    assert "alive" in view.why_not(view.items["box-1"])
    assert view.why_no_claim(view.items["box-2"]) == ""
    assert view.why_no_claim(view.items["box-0"])
    assert view.why_no_claim(view.items["box-1"])


def test_a_mark_goes_with_what_made_it_possible() -> None:
    view = view_of(item(0), item(1), item(2))
    view.mark_shown()
    lost = view.take([item(0), item(1, leftover=False, owner="live", why="its run is alive again")], (), NOW)
    assert sorted(lost) == ["box-1", "box-2"]
    assert view.marks == {"box-0"}


def test_what_was_cleaned_up_says_so_and_is_no_leftover_any_more() -> None:
    view = view_of(item(0), item(1), item(2))
    view.mark_shown()
    view.begin(["box-0", "box-1"], NOW)
    assert view.marks == {"box-2"}
    assert view.state_of(view.items["box-0"]) == "stopping"
    view.ended(Outcome(view.items["box-0"], "GONE", "docker: no such container"))
    view.ended(Outcome(view.items["box-1"], "UNKNOWN", "", "no answer"))
    assert [view.state_of(one) for one in view.items.values()] == ["GONE", "UNKNOWN", "live"]
    assert [one.key for one in view.leftovers] == ["box-1", "box-2"]
    assert boxes.outcome_counts(view.counts()) == "1 GONE, 1 UNKNOWN"
    view.toggle("box-0")
    view.toggle("box-1")
    assert view.marks == {"box-1", "box-2"}


def test_one_that_was_skipped_keeps_its_own_state() -> None:
    view = view_of(item(0))
    view.begin(["box-0"], NOW)
    view.ended(Outcome(view.items["box-0"], "skipped", "", "its run is alive again"))
    assert view.state_of(view.items["box-0"]) == "live"
    assert boxes.remark(view.items["box-0"], view) == ("its run is alive again", "warn")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("owner:dead", ["box-0"]),
        ("!owner:dead", ["box-1", "box-2", "box-3"]),
        ("provider:prime", ["box-2"]),
        ("seen:list", ["box-2", "box-3"]),
        ("state:live host:farm", ["box-2"]),
        ('"not ours"', ["box-3"]),
        ("price:>0.4", ["box-2"]),
        ("/farm-\\d/", ["box-2"]),
        ("leftover", ["box-0"]),
        ("pid:77", ["box-1"]),
    ],
)
def test_filters(text: str, found: list[str]) -> None:
    view = view_of(item(0), alive(1), elsewhere(2), foreign(3))
    view.filter = parse_with(text, ITEMS)
    assert sorted(keys(view)) == found


def test_an_unknown_key_of_a_filter_names_the_nearest() -> None:
    with pytest.raises(FilterError, match="did you mean owner:"):
        parse_with("ovner:dead", ITEMS)


def test_leftovers_come_first_and_only_them_with_what_may_be_one() -> None:
    view = view_of(foreign(3), alive(1), elsewhere(2), item(0))
    assert keys(view)[:2] == ["box-0", "box-2"]
    view.only_doubtful = True
    assert keys(view) == ["box-0", "box-2"]
    assert view.hidden(["box-0", "box-1"]) == 1
    for sort in SORTS:
        view.sort = sort
        view.reverse = True
        assert len(view.shown()) == 2


def test_what_providers_said() -> None:
    said = [
        ProviderReport("docker", "", True, 0.42, NOW, "", 12),
        ProviderReport("prime", "team a", None),
        ProviderReport("modal", "", False, 0.1, NOW, "no token"),
    ]
    assert [boxes.report_text(report, 3.2) for report in in_order(said)] == [
        "modal: could not be asked: no token",
        "prime (team a): asking… 3 s",
        "docker: 12 in 0.4 s",
    ]


def test_an_answer_takes_the_place_of_the_question() -> None:
    view = InventoryView()
    view.report(ProviderReport("docker", "", None))
    view.report(ProviderReport("docker", "unix:///x", True, 0.4, NOW, "", 3))
    assert [report.count for report in view.reports.values()] == [3]


def test_what_is_left_in_words() -> None:
    assert left_text([]) == ""
    assert left_text(["docker"]) == "1 sandbox of a dead run is left (1 docker)"
    assert left_text(["prime", "docker", "docker"]) == (
        "3 sandboxes of dead runs are left (2 docker, 1 prime)"
    )


def test_a_container_without_a_name_shows_its_id() -> None:
    """R34."""
    nameless = item(0, name="", id="c0ffee" * 10 + "beef")
    assert boxes.short_id(nameless) == "c0ffeec0ffee"
    view = view_of(nameless)
    assert any("c0ffeec0ffee" in text for text, _ in boxes.row(nameless, view, 80, NOW))
    assert boxes.sections(nameless, view, NOW)[0].title


def test_a_narrow_list_still_tells_one_from_another() -> None:
    one = item(0, id="c0ffee" * 10 + "beef")
    row = "".join(text for text, _ in boxes.row(one, view_of(one), 40, NOW))
    assert "c0ffeec0ffee" in row
    assert one.owner in row


def test_one_that_has_no_id_yet_shows_its_name() -> None:
    assert boxes.short_id(item(7, id="")) == "vf-7"


FIELDS = (
    "kind",
    "account",
    "id",
    "name",
    "run",
    "rollout",
    "host",
    "owner_proof",
    "status",
    "why",
    "command",
)


@pytest.mark.parametrize("text", list(hostile()))
@pytest.mark.parametrize("cells", [40, 80, 120])
def test_hostile_text_takes_its_cells_and_no_more(text: str, cells: int) -> None:
    """U01, U02."""
    made = item(0, **dict.fromkeys(FIELDS, text), leftover=False, claimable=True)
    view = view_of(made)
    lines = [boxes.row(made, view, cells, NOW), boxes.titles(cells)]
    lines += section_lines(boxes.sections(made, view, NOW), cells)
    for line in lines:
        assert line_width(line) == cells
        assert not any(c in part for part, _ in line for c in "\x1b\x07\x00\r\n\x9b")
    for line in command_lines([made]):
        assert line.isprintable() or text == "\ud800"
        assert "\n" not in line


def test_a_command_hides_nothing() -> None:
    lines = list(command_lines([item(0, command="docker rm 'a\nrm -rf /\r\x1b[2K'")]))
    assert lines[1] == "docker rm 'a^Jrm -rf /^M^[[2K'"
    assert lines[0].startswith("# docker vf-0: pid 4242 is gone")


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["toggle", "all", "begin", "end", "retake", "filter", "sort", "attention"]),
        st.integers(0, 7),
    ),
    max_size=40,
)  # fmt: skip


@settings(max_examples=60)
@given(MOVES)
def test_whatever_is_done_only_leftovers_are_marked_and_the_list_is_the_model(
    moves: list[tuple[str, int]],
) -> None:
    """U04."""
    makers: list[Any] = [item, alive, elsewhere, foreign]
    view = view_of(*(makers[n % 4](n) for n in range(8)))
    for what, n in moves:
        key = f"box-{n}"
        if what == "toggle":
            view.toggle(key)
        elif what == "all":
            view.mark_shown()
        elif what == "begin":
            view.begin([k for k in view.marks if n % 2], NOW)
        elif what == "end" and key in view.working:
            view.ended(Outcome(view.items[key], "GONE" if n % 3 else "UNKNOWN", "proof" if n % 3 else ""))
        elif what == "retake" and not view.working:
            view.take([makers[(i + n) % 4](i) for i in range(n)], (), NOW)
        elif what == "filter":
            view.filter = parse_with(["", "owner:dead", "!docker", "/box/"][n % 4], ITEMS)
        elif what == "sort":
            view.sort, view.reverse = SORTS[n % len(SORTS)], bool(n % 2)
        else:
            view.only_doubtful = not view.only_doubtful
        assert all(view.items[k].leftover for k in view.marks)
        assert not view.marks & view.working.keys()
        assert {one.key for one in view.shown()} <= view.items.keys()
        if not view.arranged:
            assert len(view.shown()) == len(view.items)
        for one in view.shown():
            assert line_width(boxes.row(one, view, 80, NOW)) == 80


def test_times_in_words() -> None:
    assert boxes.age(item(0, created=NOW - 7200), NOW) == "2 h"
    assert boxes.age(item(0, created=None), NOW) == ""
    assert boxes.age(item(0, created=NOW + 50), NOW) == "0 s"
    assert boxes.ends_in(item(0, ends=NOW + 83_400), NOW) == "23 h 10 m"
    assert boxes.ends_in(item(0, ends=NOW - 1), NOW) == "overdue"
