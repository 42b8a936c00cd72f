"""Commits that are tried again, by the names of `fabric2_fdb_tx_retry_tests` (facts 5.4).

There a transaction's body runs again, guarded by an id of its own that must be swept. Here the
timestamp is the id: what is sent is sent once, and a lost answer is looked up.
"""

import pytest
from store.wrapping import wrap_engines

from cdcmeta import ChangesDB
from cdcmeta.errors import DocumentConflictError, DocumentNotFoundError, EditUnknownError
from snapkv.engine.contract import OutcomeUnknown
from snapkv.errors import EngineUnavailableError

from .losing import CUT, Losing
from .sound import assert_database_sound

pytestmark = pytest.mark.slow


class Building(Losing):
    """Counts how often what is to be committed was made, and lets others in just before."""

    def __init__(self, inner) -> None:
        super().__init__(inner)
        self.built, self.meanwhile = 0, []

    def transact(self, prepare, peek, *, timeout):
        if self.meanwhile:
            self.meanwhile.pop(0)()

        def counted(peeked):
            self.built += 1
            return prepare(peeked)

        return super().transact(counted, peek, timeout=timeout)


@pytest.fixture
def engines(monkeypatch):
    return wrap_engines(monkeypatch, Building)


@pytest.fixture
def db(engines, place, clock):
    db = ChangesDB(place.open(clock=clock), "db").create()
    db.put({"_id": "warm"})
    yield db
    engines[0].cut = False
    assert_database_sound(db)


@pytest.fixture
def engine(db, engines):
    engines[0].built = engines[0].sent = 0
    return engines[0]


def test_read_only_no_retry(db, engine):
    """A reader is told at once that nobody answers."""
    engine.cut = True
    with pytest.raises(EngineUnavailableError):
        db.changes()
    engine.cut = False
    assert len(db.changes().rows) == 1
    assert engine.sent == 0


def test_read_only_commit_unknown_result(db, engine):
    """An edit that changes nothing is not sent, so nothing can be unknown of it."""
    (doc,) = db.open_revs("warm")
    engine.plan = ["after, then cut"]
    (edited,) = db.replicate([doc])
    assert (edited.ok, edited.seq, engine.sent) == (True, None, 0)
    engine.plan = []


def test_run_on_first_try(db, engine):
    edited = db.put({"_id": "a"})
    assert (engine.built, engine.sent) == (1, 1)
    assert db.changes().rows[-1].seq == edited.seq


def test_retry_when_commit_conflict(db, engine, place, clock):
    """Others edited the document meanwhile: the edit is planned anew upon what they made."""
    from .revs import replicated

    other = ChangesDB(place.open(clock=clock), "db")
    for letter in "cb":
        engine.meanwhile.append(lambda letter=letter: other.replicate([replicated("a", letter)]))
    (edited,) = db.replicate([replicated("a", "d")])
    (row,) = db.changes(doc_ids=["a"], style="all_docs").rows
    assert [rev[:3] for rev in row.revs] == ["1-d", "1-c", "1-b"]
    assert row.seq == edited.seq
    assert engine.sent >= 3
    engine.meanwhile = [lambda: other.put({"_id": "b"})]
    with pytest.raises(DocumentConflictError):
        db.put({"_id": "b", "n": 1})


def test_retry_when_txid_not_found(db, engine):
    """It never arrived, and never will: a new one is sent, of a later timestamp."""
    engine.plan = ["before"]
    edited = db.put({"_id": "a"})
    assert engine.built == 3, "the commit, its fence, and a commit of a later timestamp"
    assert [each.seq for each in db.history("a")] == [edited.seq]


def test_no_retry_when_txid_found(db, engine):
    """It arrived: it is not made again, and the caller is told of the sequence it has."""
    engine.plan = ["after"]
    edited = db.put({"_id": "a", "n": 1})
    built = engine.built
    assert db.changes().rows[-1].seq == edited.seq
    assert [(each.seq, each.rev) for each in db.history("a")] == [(edited.seq, edited.rev)]
    assert built == 1 + 1, "the commit and its fence, no second commit"


@pytest.mark.parametrize("later", [OutcomeUnknown("again", retry=True), None])
def test_use_last_unknown_result(db, engine, later):
    """Once unknown it stays unknown until it is settled, whatever comes after (couchdb#3560)."""
    engine.plan = ["after", "before", "before"] if later else ["before", "after", "before"]
    edited = db.put({"_id": "a", "n": 1})
    assert edited.ok
    assert len(list(db.history("a"))) == 1
    assert db.changes().rows[-1].seq == edited.seq


@pytest.mark.parametrize("fate", CUT)
@pytest.mark.parametrize("number", [1, 30])
def test_what_is_settled_later_is_the_commit_that_landed(db, engine, fate, number):
    """FoundationDB forgot the version of what it resolved (foundationdb#12582)."""
    engine.plan = [fate]
    with pytest.raises(EditUnknownError) as caught:
        db.bulk([{"_id": f"d{n}"} for n in range(number)], timeout=0.2)
    engine.cut = False
    found = db.resolve(caught.value)
    if fate.startswith("before"):
        assert found is None
        found = db.bulk([{"_id": f"d{n}"} for n in range(number)])
    told = [(each.id, each.seq, each.rev) for each in found]
    assert told == [(row.id, row.seq, row.rev) for row in db.changes().rows[1:]]


# --- local documents ---


def write(db, what, timeout=None):
    if what == "remove":
        return db.local.remove("cp", "0-1", timeout=timeout)
    doc = {"n": 2} | ({"_rev": "0-1"} if what == "update" else {})
    return db.local.put("cp", doc, timeout=timeout)


WRITES = {"insert": "0-1", "update": "0-2", "remove": None}


@pytest.mark.parametrize("fate", ["before", "after"])
@pytest.mark.parametrize("what", WRITES)
def test_a_local_document_is_written_once(db, engine, what, fate):
    if what != "insert":
        db.local.put("cp", {"n": 1})
    engine.plan = [fate]
    assert write(db, what) == WRITES[what]


@pytest.mark.parametrize("fate", CUT)
@pytest.mark.parametrize("what", WRITES)
def test_a_local_document_of_which_nobody_knows_yet(db, engine, what, fate):
    """Trying again blindly would be in conflict with oneself; so it is settled like an edit."""
    if what != "insert":
        db.local.put("cp", {"n": 1})
    engine.plan = [fate]
    with pytest.raises(EditUnknownError) as caught:
        write(db, what, timeout=0.1)
    engine.cut = False
    found = db.resolve(caught.value)
    if fate.startswith("before"):
        assert found is None
        assert write(db, what) == WRITES[what]
    else:
        ((id, rev, seq, error),) = [(each.id, each.rev, each.seq, each.error) for each in found]
        assert (id, rev, seq, error) == ("_local/cp", WRITES[what], None, None)
        with pytest.raises((DocumentConflictError, DocumentNotFoundError)):
            write(db, what)
    if what == "remove":
        with pytest.raises(DocumentNotFoundError):
            db.local.get("cp")
    else:
        assert db.local.get("cp") == {"_id": "_local/cp", "_rev": WRITES[what], "n": 2}
