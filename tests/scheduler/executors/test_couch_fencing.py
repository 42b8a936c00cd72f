"""Writers of earlier assignments that wake up, at any point, change nothing and fork nothing."""

import random
import threading

import pytest

from cdcmeta.errors import SinkError
from cdcmeta.scheduler import Token

from .between import Between, Held, answers, loses, unchecked
from .mirror import T1, T2, T3, TABLE, commit, commit_of

WAIT_S = 20


class Call:
    """A call in a thread, with what it raised."""

    def __init__(self, function, *arguments):
        self.error = None

        def run():
            try:
                function(*arguments)
            except SinkError as e:
                self.error = e

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def ended(self):
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        return self.error


def fenced(call, *arguments):
    with pytest.raises(SinkError) as raised:
        call(*arguments)
    assert raised.value.reason == "fenced"
    assert TABLE in str(raised.value)
    assert "2.1" in str(raised.value)


def test_an_earlier_assignment_that_wakes_up_changes_nothing(mirror):
    early, late = mirror.writer(T1), mirror.writer(T2)
    early.begin(1)
    early.write([commit(5, a=b"1")], 5)
    assert late.begin(1) == 5
    before = mirror.docs(), mirror.seq()
    fenced(early.write, [commit(6, a=b"2")], 6)
    fenced(early.write, [commit(6, a=b"2")], 0)
    fenced(early.begin, 1)
    fenced(mirror.writer(T1).begin, 1)
    assert (mirror.docs(), mirror.seq()) == before
    assert mirror.record() == (5, T2)


HISTORIES = {
    "an update": {"a": b"0"},
    "a creation": {},
    "a re-creation": {"a": None},
}


@pytest.mark.parametrize("before", HISTORIES.values(), ids=HISTORIES)
@pytest.mark.parametrize("last", [b"3", None])
def test_documents_on_their_way_do_not_win_over_later_ones(mirror, between, before, last):
    """The earlier writer was stopped after it had read everything, in the middle of its request."""
    early, late = mirror.writer(T1, port=between.port), mirror.writer(T2)
    early.begin(1)
    early.write([commit(2, a=b"-1"), commit(3, **before)] if before else [], 4)
    held = Held()
    between.next(held, "_bulk_docs")
    call = Call(early.write, [commit(5, a=b"1")], 5)
    assert held.came.wait(WAIT_S)
    assert late.begin(4) == 4
    late.write([commit(5, a=b"1"), commit(6, a=b"2"), commit(7, a=last)], 7)
    docs, seq = mirror.docs(), mirror.seq()
    held.go.set()
    error = call.ended()
    assert error is not None
    assert error.reason == "fenced"
    assert (mirror.docs(), mirror.seq()) == (docs, seq)
    assert docs.keys() == (set() if last is None else {"t/a"})
    assert len(mirror.leaves("t/a")) == 1
    assert mirror.record() == (7, T2)


def test_a_checkpoint_on_its_way_does_not_replace_a_later_one(mirror, between):
    early, late = mirror.writer(T1, port=between.port), mirror.writer(T2)
    early.begin(1)
    held = Held()
    between.next(held, "PUT")
    call = Call(early.write, [commit(5, a=b"1")], 5)
    assert held.came.wait(WAIT_S)
    assert late.begin(1) == 1
    late.write([commit(5, a=b"1"), commit(6, a=b"2")], 6)
    held.go.set()
    error = call.ended()
    assert error is not None
    assert error.reason == "fenced"
    assert mirror.record() == (6, T2)
    assert mirror.content() == {"t/a": b"2"}


def test_two_that_begin_at_once_end_with_the_later_token(mirror, between):
    held = Held()
    between.next(held, "PUT /")
    early = mirror.writer(T1, port=between.port)
    call = Call(early.begin, 1)  # it found no database, and is about to create it
    assert held.came.wait(WAIT_S)
    late = mirror.writer(T2)
    assert late.begin(1) == 1
    held.go.set()
    error = call.ended()
    assert error is not None
    assert error.reason == "fenced"
    assert mirror.record() == (1, T2)


@pytest.mark.parametrize("far", [False, True])
def test_a_server_that_does_not_compare_revisions_of_local_documents(mirror, between, far):
    """As CouchDB 2 and 3: an earlier writer replaces the record once, and does no harm."""
    early, late = mirror.writer(T1, port=between.port), mirror.writer(T2)
    history = [commit(5, a=b"1"), commit(6, a=None), commit(7, b=b"1"), commit(8, b=b"2")]
    early.begin(1)
    held = Held()
    between.next(held, "_bulk_docs")
    on_its_way = history if far else history[:1]
    reached = on_its_way[-1].commit.ts
    call = Call(early.write, on_its_way, reached)
    assert held.came.wait(WAIT_S)
    between.next(unchecked, "PUT")
    late.begin(1)
    late.write(history[:2], 6)
    held.go.set()
    assert call.ended() is None
    assert mirror.record() == (reached, T1)
    late.write(history[2:3], 7)
    assert mirror.record() == (max(reached, 7), T2), "nothing is read again"
    fenced(early.write, [commit(9, a=b"4")], 9)
    assert mirror.content() == {"t/b": b"2" if far else b"1"}


@pytest.mark.parametrize("what", ["_bulk_docs", "PUT"])
def test_a_lost_answer_is_no_conflict(mirror, between, what):
    writer = mirror.writer(T1, port=between.port)
    writer.begin(1)
    writer.write([commit(5, a=b"1")], 5)
    between.next(loses, what)
    writer.write([commit(6, a=b"2"), commit(7, b=b"1")], 7)
    assert mirror.content() == {"t/a": b"2", "t/b": b"1"}
    assert mirror.docs()["t/a"]["_rev"].startswith("2-")
    assert mirror.record() == (7, T1)


def test_a_record_that_always_changes_ends_in_an_error(mirror, between):
    writer = mirror.writer(T1, port=between.port)
    writer.begin(1)
    between.next(answers(409), "PUT", times=50)
    with pytest.raises(SinkError, match=r"a conflict of table 't/' 5 times.*local documents"):
        writer.write([commit(5, a=b"1")], 5)
    with pytest.raises(SinkError, match="a conflict of table 't/'"):
        writer.begin(1)


class Sleeper:
    """A writer that has read the table's record long ago, and does not notice later tokens."""

    def __init__(self, mirror, token, history):
        self.between = Between(mirror.base).__enter__()
        self.writer = mirror.writer(token, port=self.between.port)
        self.at = self.writer.begin(1)
        self._record = mirror.http.get(self._path()).content
        self._history = history

    def _path(self):
        line = next(line for line in self.between.requests if "_local" in line)
        return "/" + line.partition("/")[2].partition("/")[2]

    def write(self, count, *, is_stale):
        commits = [each for each in self._history if each.commit.ts > self.at][:count]
        if not commits:
            return
        if is_stale:
            self.between.next(answers(200, self._record), "GET", times=20)
            self.between.next(answers(409), "PUT", times=20)
        checkpoint = commits[-1].commit.ts
        try:
            self.writer.write(commits, checkpoint)
        except SinkError:
            assert is_stale, "the newest writer is never in the way"
        self.between._faults.clear()
        self.at = checkpoint

    def close(self):
        self.writer.close()
        self.between.__exit__()


@pytest.mark.slow
def test_random_writers_that_overtake_each_other_make_one_chain(mirror):
    """Each writes the same history from where it began; only the newest notices its record."""
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    rng = random.Random(seed)
    keys = [f"{TABLE}k{n}" for n in range(4)]
    history = []
    for ts in range(2, 82):
        chosen = rng.sample(keys, rng.randint(1, 3))
        values = {key: None if rng.random() < 0.4 else b"%d" % ts for key in chosen}
        history.append(commit_of(ts, values))
    sleepers, newest = [], dict.fromkeys(keys, 0)
    try:
        for turn in range(60):
            if not sleepers or (rng.random() < 0.15 and len(sleepers) < 6):
                token = Token(len(sleepers) + 1, 1)
                sleepers.append(Sleeper(mirror, token, history))
            chosen = rng.choice([*sleepers, *sleepers[-1:] * 2])
            chosen.write(rng.randint(1, 6), is_stale=chosen is not sleepers[-1])
            for key, doc in mirror.docs().items():
                assert doc["ts"] >= newest[key], (turn, key)
                newest[key] = doc["ts"]
        while sleepers[-1].at < history[-1].commit.ts:
            sleepers[-1].write(20, is_stale=False)
    finally:
        for sleeper in sleepers:
            sleeper.close()
    expected = {each.key: each.value for commit in history for each in commit}
    assert mirror.content() == {key: value for key, value in expected.items() if value is not None}
    for key in expected:
        commits = sum(each.key == key for commit in history for each in commit)
        (leaf,) = mirror.leaves(key)
        assert leaf["_rev"].startswith(f"{commits}-")
    assert mirror.record() == (81, Token(len(sleepers), 1))


def test_a_third_assignment_goes_on_from_the_second(mirror):
    for token, ts in ((T1, 5), (T2, 6), (T3, 7)):
        writer = mirror.writer(token)
        assert writer.begin(1) == max(1, ts - 1 if ts > 5 else 1)
        writer.write([commit(ts, a=b"%d" % ts)], ts)
    assert mirror.content() == {"t/a": b"7"}
