"""Tables come to be wanted, and cease to be: what begins where, and how far the changefeed is."""

import pytest

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler import (
    AddRequest,
    Barrier,
    Cluster,
    Coordinator,
    Progress,
    RemoveRequest,
    TableState,
    Token,
    Watermarks,
)

from .speaking import OWNER, REVISION, Owner, beat, from_capture, requests, says, sync

OLD = Token(8, 1)
ROUND_US, HALF_US = 100_000, 50_000


class Feed(Owner):
    """An owner with one capture that replicates what it had, and a store that may be late."""

    is_late = False

    def __init__(self, **progress: Progress) -> None:
        super().__init__({"c0": 3}, list(progress))
        self.progress = progress
        held = sync(*(says(table, TableState.REPLICATING, OLD, p) for table, p in progress.items()))
        assert requests(self.tick(from_capture("c0", held))) == []

    def tick(self, *inbox, us: int = 1_000):
        """Let the owner decide; what it tells is stored before the next time, or never."""
        before = self.stored
        said = super().tick(*inbox, us=us)
        if self.is_late:
            self.stored = before
        return said

    def beats(self, us: int = ROUND_US, **progress: Progress):
        """Let the capture tell how far it is, and the owner decide."""
        self.progress |= progress
        each = (says(t, TableState.REPLICATING, OLD, p) for t, p in self.progress.items())
        return self.tick(from_capture("c0", beat(*each)), us=us)

    def wants(self, *tables: str) -> None:
        self.tables = dict.fromkeys(tables, 1.0)


class LateFeed(Feed):
    """Its store gets nothing of what is told, unless a test says so."""

    is_late = True


def at(checkpoint: int, resolved: int | None = None, synced: int = 0) -> Progress:
    return Progress(checkpoint, checkpoint if resolved is None else resolved, synced)


def begun(tick) -> list[tuple[str, Progress]]:
    """Return which tables are to be prepared, and where they begin."""
    added = [request for _, request in requests(tick) if isinstance(request, AddRequest)]
    return [(each.table, each.progress) for each in added if each.is_prepare]


# --- a table that is new ---


@pytest.mark.parametrize("us", [HALF_US, ROUND_US], ids=["between rounds", "a round is due"])
def test_no_watermark_is_beyond_where_a_new_table_begins(us):
    """Also in the tick in which it is wanted and others are farther.

    What was resolved before stays so: it does not go back until the new one has caught up.
    """
    feed = Feed(u=at(200, 500))
    assert feed.beats().watermarks == Watermarks(200, 500, 0)
    feed.wants("u", "new")
    tick = feed.beats(us, u=at(300, 600))
    assert begun(tick) == [("new", at(200))]
    for _ in range(4):
        assert tick.watermarks.checkpoint <= 200
        assert tick.watermarks.resolved <= 500
        tick = feed.beats(HALF_US)


@pytest.mark.parametrize("us", [HALF_US, ROUND_US], ids=["between rounds", "a round is due"])
def test_a_table_that_is_new_waits_until_all_that_was_told_is_stored(us):
    """Meanwhile the same is told again, however far others are, and then it begins there."""
    feed = LateFeed(u=at(200, 250))
    told = feed.beats().watermarks
    assert told == Watermarks(200, 250, 0)
    feed.wants("u", "new")
    for checkpoint in (300, 400, 500):
        tick = feed.beats(us, u=at(checkpoint))
        assert (tick.watermarks, begun(tick)) == (told, [])
    feed.stored = 199
    assert begun(feed.beats(us)) == []
    feed.stored = 200
    tick = feed.beats(us)
    assert begun(tick) == [("new", at(200))]
    assert tick.watermarks.checkpoint <= 200


def test_what_is_stored_beyond_what_was_told_is_where_a_table_begins():
    """The owner before told it, and it was stored late; what is read after may be older."""
    feed = LateFeed(u=at(200))
    feed.stored = 230
    feed.beats()
    feed.stored = 210
    feed.wants("u", "new")
    assert begun(feed.beats()) == [("new", at(230))]


# --- a table that nobody wants any more ---


def test_a_table_that_is_dropped_holds_the_others_back_no_longer():
    feed = Feed(t=at(100), u=at(200))
    assert feed.beats().watermarks == Watermarks(100, 100, 0)
    feed.wants("u")
    tick = feed.beats()
    assert [request for _, request in requests(tick)] == [RemoveRequest("t", OLD)]
    assert tick.watermarks == Watermarks(200, 200, 0), "though it is still stopping"


@pytest.mark.parametrize("is_one_tick", [False, True])
def test_a_table_that_is_wanted_again_while_it_stops_is_replicated_again(is_one_tick):
    """It stops first, then it begins where the changefeed is stored to be."""
    feed = Feed(t=at(100), u=at(200))
    feed.beats()
    feed.wants("u")
    assert [request for _, request in requests(feed.tick())] == [RemoveRequest("t", OLD)]
    stops = from_capture("c0", beat(says("t", TableState.STOPPING, OLD, at(100))))
    ended = from_capture("c0", beat(says("t", TableState.STOPPED, OLD, at(120))))
    feed.wants("t", "u")
    if not is_one_tick:
        assert [begun(feed.tick(stops)) for _ in range(3)] == [[]] * 3
    assert begun(feed.tick(ended)) == [("t", at(100))]
    token = feed.coordinator.replication.held["c0"]["t"]
    assert token > OLD
    for state in (TableState.PREPARED, TableState.REPLICATING):
        tick = feed.tick(from_capture("c0", beat(says("t", state, token, at(100)))))
    assert "t" in feed.coordinator.replication.primaries["c0"]
    assert not feed.coordinator.replication.unsettled
    assert tick.watermarks.checkpoint <= 100


def test_a_table_that_is_dropped_for_good_does_not_come_back():
    feed = Feed(t=at(100), u=at(200))
    feed.wants("u")
    assert [len(requests(feed.tick())) for _ in range(3)] == [1, 0, 0], "it is told once"
    ended = from_capture("c0", beat(says("t", TableState.STOPPED, OLD)))
    assert [begun(feed.tick(ended)), begun(feed.beats(t=at(100)))] == [[], []]
    assert list(feed.coordinator.replication.sets) == ["u"]


@pytest.mark.parametrize("desired", [[], ["u"]])
def test_what_captures_have_and_nobody_wants_is_removed_by_a_new_owner(desired):
    """Also where nothing is wanted at all."""
    owner = Owner({"c0": 3}, desired)
    held = sync(*(says(table, TableState.REPLICATING, OLD) for table in ("gone", *desired)))
    sent = [*requests(owner.tick(from_capture("c0", held))), *requests(owner.tick())]
    assert sent == [("c0", RemoveRequest("gone", OLD))]


# --- watermarks never go back ---


def test_what_was_told_is_told_again_though_there_was_nothing_to_tell_meanwhile():
    """Else it might never be stored, and the table never begin."""
    feed = LateFeed(t=at(100), u=at(200))
    feed.wants("u")
    feed.tick()
    assert feed.beats().watermarks == Watermarks(200, 200, 0)
    feed.wants("t", "u")
    assert feed.beats().watermarks == Watermarks(200, 200, 0), "and no more: t is at 100"
    tick = feed.tick(from_capture("c0", beat(says("t", TableState.STOPPED, OLD, at(100)))))
    assert (tick.watermarks, begun(tick)) == (Watermarks(200, 200, 0), [])
    feed.stored = 200
    assert begun(feed.tick()) == [("t", at(200))]


def test_resolved_never_goes_back():
    """A table that is new has resolved no more than what is stored of all."""
    feed = Feed(u=at(200, 500))
    assert feed.beats().watermarks == Watermarks(200, 500, 0)
    feed.wants("u", "new")
    feed.beats()
    token = feed.coordinator.replication.held["c0"]["new"]
    told = []
    for state, progress in (
        (TableState.PREPARED, at(200)),
        (TableState.REPLICATING, at(200, 300)),
        (TableState.REPLICATING, at(200, 499)),
        (TableState.REPLICATING, at(200, 500)),
        (TableState.REPLICATING, at(210, 600)),
    ):
        feed.tick(from_capture("c0", beat(says("new", state, token, progress))))
        told.append(feed.beats(u=at(220, 700)).watermarks)
    assert told == [Watermarks(200, 500, 0)] * 4 + [Watermarks(210, 600, 0)]


def test_checkpoints_never_go_back():
    """The store is late, so that a table can begin anew where it was."""
    feed = LateFeed(t=at(100, 300), u=at(200, 300))
    feed.beats()
    feed.wants("u")
    feed.tick()
    assert feed.beats().watermarks == Watermarks(200, 300, 0)
    feed.wants("t", "u")
    assert feed.beats().watermarks == Watermarks(200, 300, 0), "t is at 100"
    assert feed.beats(t=at(199, 300)).watermarks == Watermarks(200, 300, 0)
    assert feed.beats(t=at(201, 301), u=at(202, 302)).watermarks == Watermarks(201, 301, 0)


def test_synced_never_goes_back():
    """The table with the last change may be dropped."""
    feed = Feed(t=at(100, 100, 90), u=at(200, 200, 30))
    assert feed.beats().watermarks == Watermarks(100, 100, 90)
    feed.wants("u")
    assert feed.beats().watermarks == Watermarks(200, 200, 90)
    assert feed.beats(u=at(210, 210, 89)).watermarks == Watermarks(210, 210, 90)
    assert feed.beats(u=at(220, 220, 91)).watermarks == Watermarks(220, 220, 91)


def test_nothing_told_is_behind_what_is_stored():
    """Without tables it is the barrier that counts, and it may be behind."""
    owner = Coordinator(OWNER, "c0", revision=REVISION)
    seen = Cluster(0, {"c0": 3}, {}, 50, REVISION, Barrier(30))
    told = owner.tick([from_capture("c0", sync())], seen).watermarks
    assert told == Watermarks(50, 50, 0)
    seen = seen._replace(now=ROUND_US, barrier=Barrier(70, (("t", 60),)))
    assert owner.tick([], seen).watermarks == Watermarks(60, 70, 0)


# --- what `tables` is ---


def test_tables_that_are_equal_change_nothing():
    """A fresh mapping in each tick does what the same one does, to the last message."""
    same, fresh = Feed(t=at(100), u=at(200)), Feed(t=at(100), u=at(200))
    for checkpoint in range(101, 113):
        fresh.tables = dict(fresh.tables)
        ticks = [feed.beats(HALF_US, t=at(checkpoint)) for feed in (same, fresh)]
        assert ticks[0] == ticks[1]
        assert requests(ticks[1]) == []
    assert ticks[1].watermarks.checkpoint >= 111


@pytest.mark.parametrize("is_added", [True, False])
def test_tables_that_are_changed_in_place_are_refused(is_added):
    feed = Feed(t=at(100), u=at(200))
    feed.beats()
    if is_added:
        feed.tables["new"] = 1.0
    else:
        del feed.tables["t"]
    with pytest.raises(InvalidArgumentError, match="in place"):
        feed.beats()
    feed.wants("t", "u")
    tick = feed.beats(t=at(150))
    assert (requests(tick), tick.watermarks) == ([], Watermarks(150, 150, 0))
