"""Reverts in random histories: the state without exactly those changes, or a named conflict."""

import random
import threading

import pytest

from snapkv import ConflictError, KeyNotFoundError, RevertConflictError

from .revert_model import KEYS, Wanted, arguments, read, wanted, written

STEPS = 40
WRITES = 60
WAIT_S = 60


def check(store, history, asked):
    """Revert, and compare with the model; return the commit's timestamp if there was one."""
    times = [history.commits[at][0] for at in asked.commits]
    state, conflicts = history.reverted(asked)
    if not history.chosen_are_met(asked):
        with pytest.raises(KeyNotFoundError):
            store.revert(*times, **asked.options)
        return False
    preview = store.revert(*times, **asked.options, dry_run=True)
    assert {key: each.ts for key, each in preview.conflicts.items()} == conflicts
    assert dict(store.at().items()) == history.state, "a dry run writes nothing"
    if conflicts and asked.mode == "plain":
        with pytest.raises(RevertConflictError) as caught:
            store.revert(*times, **asked.options)
        assert caught.value.conflicts == preview.conflicts
        return False
    done = store.revert(*times, **asked.options)
    assert (done.changes, done.conflicts) == (preview.changes, preview.conflicts)
    assert dict(store.at().items()) == state
    assert (done.commit is None) == (state == history.state)
    if done.commit is not None:
        history.add(done.commit.ts, {each.key: each.after for each in done.changes})
        assert history.state == state
    return done.commit is not None


def test_any_revert_in_any_history(store, clock):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance, reverts = random.Random(seed), 0
    history = read(store)
    for _ in range(STEPS):
        values = written(chance)
        history.add(store.commit(**arguments(values)).ts, values)
        if chance.random() < 0.3:
            history.add(store.tick().ts, {})
        clock.advance(chance.randrange(3))
        asked = wanted(chance, len(history.commits))
        if any(not history.commits[at][1] for at in asked.commits):
            continue  # a tick, or a commit that changed nothing
        reverts += check(store, history, asked)
    assert reverts, "some are carried out"
    assert history.visible == read(store).visible


def test_among_writers_none_is_overwritten_in_silence(place, clock):
    """Each revert has exactly the effect that it has on the state just before its own commit."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    store, failed, reverts, refused = place.open(), [], [], []
    for number in range(10):
        store.commit(**arguments(written(random.Random(seed + number))))

    def write(number):
        chance = random.Random(seed * 10 + number)
        try:
            mine = place.open()
            for _ in range(WRITES):
                mine.commit(**arguments(written(chance)))
        except Exception as e:
            failed.append(e)

    def revert(number):
        chance = random.Random(seed * 100 + number)
        try:
            mine = place.open()
            for _ in range(WRITES // 3):
                newest = [ts for ts, _ in read(mine).visible[-3:]]
                times = chance.sample(newest, chance.randint(1, 2))
                mode = chance.choice(("plain", "theirs", "force"))
                options = {} if mode == "plain" else {mode: True}
                try:
                    done = mine.revert(*times, **options)
                    if done.commit is not None:
                        reverts.append((done, times, mode))
                except RevertConflictError as e:
                    refused.append((e.conflicts, times))
                except ConflictError:
                    pass  # other writers were faster, each time
        except Exception as e:
            failed.append(e)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    threads += [threading.Thread(target=revert, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert failed == []
    history = read(store)
    index = {ts: at for at, (ts, _) in enumerate(history.commits)}
    assert reverts
    for done, times, mode in reverts:
        before = type(history)()
        for ts, changed in history.commits[: index[done.commit.ts]]:
            before.add(ts, {key: after for key, (_, after) in changed.items()})
        state, conflicts = before.reverted(Wanted([index[ts] for ts in times], [], [], mode))
        if mode != "theirs":  # that does not depend on what happens to keys that it leaves alone
            assert {key: each.ts for key, each in done.conflicts.items()} == conflicts
        changed = history.commits[index[done.commit.ts]][1]
        for key in KEYS:
            now = changed[key][1] if key in changed else before.state.get(key)
            assert now == state.get(key), key
    for conflicts, times in refused:
        for key, later in conflicts.items():
            assert key in history.commits[index[later.ts]][1]
            assert later.ts > min(times)
            assert later.ts not in times
