"""Users and passwords: who may do what, and tokens that run out at any moment."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from etcd_engines import (
    PASSWORD,
    ROOT,
    SECRET,
    USER,
    USERS,
    Background,
    events_until,
    get,
    head,
    opened,
    put,
    told,
)
from etcd_server import EtcdPool, EtcdProxy, EtcdServer, Gateway, enable_auth, eventually

import snapkv
from snapkv.base.waiting import pause
from snapkv.engine.contract import Range, Refused
from snapkv.engine.etcd.endpoint import is_loopback
from snapkv.engine.etcd.engine import EtcdEngine
from snapkv.errors import AccessDeniedError, ServerWarning

pytestmark = pytest.mark.slow

KEY = b"default/k"
END = b"default0"
GONE = "gone.1"
"""A token that the server does not know, as if it had expired."""
TTL_S = 1
"""How long an unused token lives on the server of `short_pool`."""


@pytest.fixture
def guarded(etcd: EtcdServer) -> EtcdServer:
    """A server with authentication."""
    enable_auth(etcd, USERS)
    return etcd


@pytest.fixture(scope="module")
def short_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdPool]:
    pool = EtcdPool(tmp_path_factory.mktemp("short"), spares=1, flags=[f"--auth-token-ttl={TTL_S}"])
    yield pool
    pool.close()


@pytest.fixture
def short(short_pool: EtcdPool) -> Iterator[EtcdServer]:
    """A server with authentication whose tokens live for a second or two."""
    with short_pool.taken() as server:
        enable_auth(server, USERS)
        yield server


def add_user(server: EtcdServer, name: str) -> None:
    """Change the rights a little: all tokens are "of an old revision" then."""
    server.gateway.call("/v3/auth/user/add", {"name": name, "password": "x"})


def let_the_token_expire(engine: EtcdEngine, server: EtcdServer) -> None:
    """Wait until the server refuses the engine's token, without using it."""
    token = engine._connection._token
    assert token is not None
    pause(TTL_S + 0.2)  # every use of a token gives it new life: looking at it is no way to wait
    asker = Gateway(server.client_port)
    asker._token = token

    def refused() -> bool:
        try:
            asker.get(KEY)
        except Exception as e:
            return "invalid auth token" in str(e)
        pause(TTL_S + 0.5)
        return False

    eventually(refused, "the token to expire")


# --- rights ---------------------------------------------------------------------------------


def test_a_user_with_a_password(guarded: EtcdServer) -> None:
    with opened(guarded.url, user=USER, password=PASSWORD) as engine:
        put(engine, KEY, b"1")
        assert get(engine, KEY) == b"1"
    assert guarded.gateway.get(KEY).value == b"1"


@pytest.mark.parametrize(
    "login", [{}, {"user": USER, "password": "wrong"}, {"user": "nobody", "password": PASSWORD}]
)
def test_nobody_else_gets_in(guarded: EtcdServer, login: dict[str, str]) -> None:
    before = guarded.gateway.revision()
    with opened(guarded.url, **login) as engine:
        with pytest.raises(AccessDeniedError, match="user") as read:
            get(engine, KEY)
        with pytest.raises(Refused) as refused:
            put(engine, KEY)
        assert isinstance(refused.value.error, AccessDeniedError)
        with pytest.raises(AccessDeniedError):
            engine.watch(KEY, b"", start_revision=1).next(5.0)
        with pytest.raises(AccessDeniedError):
            engine.compacted_revision()
    with pytest.raises(AccessDeniedError):
        snapkv.open(guarded.url, **login)
    assert "wrong" not in told(read.value).replace("a wrong password", "")
    assert guarded.gateway.revision() == before


def test_what_a_user_may_not_touch_is_not_touched(guarded: EtcdServer) -> None:
    guarded.gateway.put(b"other", b"theirs")
    before = guarded.gateway.revision()
    with opened(guarded.url, home=KEY, user=USER, password=PASSWORD) as engine:
        with pytest.raises(Refused) as refused:
            put(engine, b"other")
        assert isinstance(refused.value.error, AccessDeniedError)
        with pytest.raises(AccessDeniedError):
            get(engine, b"other")
        with pytest.raises(AccessDeniedError):
            engine.read([Range(KEY), Range(b"other")])
        with pytest.raises(AccessDeniedError):
            engine.watch(b"other", b"", start_revision=1).next(5.0)
        assert put(engine, KEY) == before + 1
    assert guarded.gateway.get(b"other").value == b"theirs"


def test_a_refusal_does_not_cost_the_connection(guarded: EtcdServer) -> None:
    with (
        EtcdProxy(guarded) as proxy,
        opened(proxy.url, home=KEY, user=USER, password=PASSWORD) as engine,
    ):
        put(engine, KEY)
        before = proxy.connections
        for _ in range(5):
            with pytest.raises(Refused):
                put(engine, b"other")
        put(engine, KEY)
        assert proxy.connections == before


def test_one_prefix_is_all_that_a_store_needs(guarded: EtcdServer) -> None:
    with snapkv.open(guarded.url, user=USER, password=PASSWORD) as store:
        first = store.save("a", b"1")
        watch = store.watch("", since=first)
        commit = store.commit(puts={"a": b"2", "b": b"3"}, note="why")
        assert next(watch).commit.ts == commit.ts
        watch.close()
        assert store.load("a", first) == b"1"
        assert store.load_with_prefix("") == (["a", "b"], [b"2", b"3"])
        assert [version.value for version in store.history("a")] == [b"1", b"2"]
        assert [change.key for change in store.diff(first, None)] == ["a", "b"]
        assert [c.note for c in store.commits()][-1] == "why"
        store.restore(first)
        assert store.load("a") == b"1"
        with store.session(ttl=2.0) as session:
            assert [info.id for info in store.sessions()] == [session.id]
        assert store.sessions() == []
        info = store.info()
        assert store.check().problems == ()
        for text in (repr(store), str(info), repr(vars(store))):
            assert PASSWORD not in text
    with opened(guarded.url, home=b"default/sys/ts", user=USER, password=PASSWORD) as engine:
        assert engine.compacted_revision() == 0
        guarded.gateway.compact(3)
        assert engine.compacted_revision() == 3


@pytest.mark.etcd_since("3.5.28", "the right to compact")
@pytest.mark.parametrize("login", [{}, {"user": USER, "password": PASSWORD}])
def test_nobody_else_may_compact(guarded: EtcdServer, login: dict[str, str]) -> None:
    with opened(guarded.url, home=KEY, **login) as engine, pytest.raises(AccessDeniedError):
        engine.compact(guarded.gateway.revision())
    with opened(guarded.url, home=KEY, user=USER, password=PASSWORD) as engine:
        assert engine.compacted_revision() == 0


def test_an_administrator_may_compact(guarded: EtcdServer) -> None:
    with opened(guarded.url, user=ROOT, password=SECRET) as engine:
        put(engine, KEY)
        engine.compact(put(engine, KEY))
        assert engine.compacted_revision() == head(engine)


# --- tokens that run out --------------------------------------------------------------------


def test_an_expired_token_is_renewed_by_every_call(short: EtcdServer) -> None:
    with opened(short.url, home=KEY, user=USER, password=PASSWORD) as engine:
        first = put(engine, KEY)
        let_the_token_expire(engine, short)
        assert put(engine, KEY, b"once") == first + 1
        engine._connection._token = GONE
        assert get(engine, KEY) == b"once"
        engine._connection._token = GONE
        assert put(engine, KEY) == first + 2


def test_a_watch_is_opened_and_opened_again_with_an_invalid_token(guarded: EtcdServer) -> None:
    with (
        EtcdProxy(guarded) as proxy,
        opened(proxy.url, home=KEY, user=USER, password=PASSWORD) as engine,
    ):
        first = put(engine, KEY, b"1")
        engine._connection._token = GONE
        watcher = engine.watch(b"default/", END, start_revision=first)
        assert [event.kv.value for event in events_until(watcher, first)] == [b"1"]
        engine._connection._token = GONE
        proxy.cut_all()
        second = guarded.gateway.put(KEY, b"2")
        assert [event.kv.value for event in events_until(watcher, second)] == [b"2"]


def test_where_compaction_stands_with_an_invalid_token(guarded: EtcdServer) -> None:
    with opened(guarded.url, home=KEY, user=USER, password=PASSWORD) as engine:
        newest = put(engine, KEY)
        assert engine.compacted_revision() == 0
        guarded.gateway.compact(newest)
        engine._connection._token = GONE
        assert engine.compacted_revision() == newest


def test_rights_that_change_make_tokens_old_for_every_call(guarded: EtcdServer) -> None:
    with opened(guarded.url, home=KEY, user=USER, password=PASSWORD) as engine:
        newest = put(engine, KEY)
        watcher = engine.watch(b"default/", END, start_revision=1)
        events_until(watcher, newest)
        add_user(guarded, "a")
        assert get(engine, KEY) == b"v"
        add_user(guarded, "b")
        before = guarded.gateway.revision()
        assert put(engine, KEY, b"once") == before + 1
        assert guarded.gateway.revision() == before + 1
        add_user(guarded, "c")
        assert engine.compacted_revision() == 0
        add_user(guarded, "d")
        lease = engine.grant(60.0)
        add_user(guarded, "e")
        assert engine.keep_alive(lease.id) == 60.0
        add_user(guarded, "f")
        engine.revoke(lease.id)
        add_user(guarded, "g")
        other = engine.watch(b"default/", END, start_revision=before + 1)
        assert [event.kv.value for event in events_until(other, before + 1)] == [b"once"]
        assert len(events_until(watcher, before + 1)) == 1


def test_rights_that_change_all_the_time_lose_and_repeat_nothing(guarded: EtcdServer) -> None:
    """Commits under tokens that age on their way: each is there once."""
    with snapkv.open(guarded.url, user=USER, password=PASSWORD) as store:
        since = store.save("start", b"")
        watch = store.watch("", since=since)
        done = Background(
            lambda: [store.commit(puts={f"k{i}": b"v"}, timeout=20).ts for i in range(40)]
        )
        changes = 0
        while done.running:
            add_user(guarded, f"user{changes}")
            changes += 1
        assert changes >= 3
        stamps = done.result()
        ours = set(stamps)  # a fence may stand between them
        assert [commit.ts for commit in store.commits(since=since) if commit.ts in ours] == stamps
        assert [next(watch).commit.ts for _ in range(40)] == stamps
        watch.close()
        assert store.check().problems == ()


def test_authentication_that_is_turned_on_and_off(etcd: EtcdServer) -> None:
    with (
        opened(etcd.url, home=KEY, user=USER, password=PASSWORD) as engine,
        opened(etcd.url, home=KEY) as stranger,
    ):
        first = put(engine, KEY, b"1")
        put(stranger, KEY, b"1")
        watcher = engine.watch(KEY, b"", start_revision=first)
        events_until(watcher, first + 1)
        enable_auth(etcd, USERS)
        assert put(engine, KEY, b"2") == first + 2
        assert get(engine, KEY) == b"2"
        with pytest.raises(AccessDeniedError, match="wants a user and a password"):
            get(stranger, KEY)
        with pytest.raises(Refused):
            put(stranger, KEY, b"not me")
        etcd.gateway.call("/v3/auth/disable")
        etcd.gateway.log_out()
        assert put(engine, KEY, b"3") == first + 3
        assert put(stranger, KEY, b"4") == first + 4
        assert [event.kv.value for event in events_until(watcher, first + 4)] == [b"2", b"3", b"4"]


@pytest.mark.kills_etcd
def test_a_server_that_forgot_all_tokens(guarded: EtcdServer) -> None:
    """Simple tokens live in the server's memory."""
    with opened(guarded.url, home=KEY, user=USER, password=PASSWORD) as engine:
        first = put(engine, KEY, b"1")
        watcher = engine.watch(KEY, b"", start_revision=first)
        events_until(watcher, first)
        guarded.kill()
        guarded.start()
        assert get(engine, KEY) == b"1"
        assert put(engine, KEY, b"2") == first + 1
        assert [event.kv.value for event in events_until(watcher, first + 1)] == [b"2"]


def test_a_password_that_was_changed(guarded: EtcdServer) -> None:
    with opened(guarded.url, home=KEY, user=USER, password=PASSWORD) as engine:
        first = put(engine, KEY, b"1")
        watcher = engine.watch(KEY, b"", start_revision=first + 1)
        guarded.gateway.call("/v3/auth/user/changepw", {"name": USER, "password": "new"})
        with pytest.raises(AccessDeniedError, match="wrong password") as raised:
            get(engine, KEY)
        assert PASSWORD not in told(raised.value)
        with pytest.raises(Refused) as refused:
            put(engine, KEY, b"2")
        assert isinstance(refused.value.error, AccessDeniedError)
        assert PASSWORD not in told(refused.value)
        guarded.gateway.log_in(ROOT, SECRET)
        assert guarded.gateway.revision() == first
        watcher.close()


def test_no_password_in_what_people_see(guarded: EtcdServer, tmp_path: Path) -> None:
    with opened(guarded.url, home=KEY, user=USER, password=PASSWORD) as engine:
        put(engine, KEY)
        seen = [repr(engine), str(engine.info()), repr(engine._connection), engine.url]
        seen += [repr(engine._connection._login)]
        guarded.stop()
        for call in (lambda: get(engine, KEY, timeout=0.5), lambda: put(engine, KEY, timeout=0.5)):
            with pytest.raises(snapkv.SnapKVError) as raised:
                call()
            seen.append(told(raised.value))
    assert PASSWORD not in "\n".join(seen)


# --- a password without TLS -----------------------------------------------------------------


def warned(url: str, **options: object) -> list[str]:
    """What opening says of plain passwords; whether it can be reached or not."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        snapkv.open(url, **options).close()
    return [str(w.message) for w in caught if w.category is ServerWarning]


def test_a_password_that_leaves_the_machine_without_tls_is_warned_of(guarded: EtcdServer) -> None:
    port = guarded.client_port
    beyond = f"etcd://0.0.0.0:{port},127.0.0.1:{port}"
    (message,) = warned(beyond, user=USER, password=PASSWORD)
    assert f"0.0.0.0:{port} without TLS" in message
    assert USER in message
    assert "127.0.0.1" not in message
    assert PASSWORD not in message
    for host in ("127.0.0.1", "localhost"):
        assert warned(f"etcd://{host}:{port}", user=USER, password=PASSWORD) == []


def test_without_a_password_there_is_nothing_to_warn_of(etcd: EtcdServer) -> None:
    assert warned(f"etcd://0.0.0.0:{etcd.client_port}") == []


def test_the_command_line_says_it_in_a_line(guarded: EtcdServer) -> None:
    login = {"SNAPKV_ETCD_USER": USER, "SNAPKV_ETCD_PASSWORD": PASSWORD}
    url = f"etcd://0.0.0.0:{guarded.client_port}"
    done = subprocess.run(
        [sys.executable, "-m", "snapkv.cli", "put", "--store", url, "k", "v"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **login},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "snapkv: warning: the password of user" in done.stderr


@pytest.mark.parametrize(
    ("address", "here"),
    [
        ("127.0.0.1:1", True),
        ("127.255.3.4:1", True),
        ("[::1]:2379", True),
        ("[::ffff:127.0.0.1]:1", True),
        ("LOCALHOST:1", True),
        ("localhost.:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("[::2]:1", False),
        ("localhost.example.com:1", False),
        ("127.0.0.1.example.com:1", False),
    ],
)
def test_what_this_machine_is(address: str, here: bool) -> None:
    assert is_loopback(address) is here


def test_several_prefixes_are_watched_as_one_range(etcd: EtcdServer) -> None:
    """A user of two prefixes may read both; the watch of both needs what is between, too."""
    with opened(etcd.url) as engine:
        put(engine, b"a/1", b"1")
        put(engine, b"c/1", b"1")
    snapkv.open(etcd.url).close()
    rights = [(prefix, "read") for prefix in ("a/", "c/", "default/")]
    enable_auth(etcd, {ROOT: (SECRET, None), USER: (PASSWORD, rights)})
    with snapkv.open(etcd.url, user=ROOT, password=SECRET) as ticker:
        tick = ticker.tick()
        login = {"user": USER, "password": PASSWORD}
        with snapkv.observe(etcd.url, prefix=["a/", "c/"], **login) as observed:
            assert list(observed.at().keys()) == ["a/1", "c/1"]
            with (
                observed.watch(since=0, timeout=20) as watch,
                pytest.raises(AccessDeniedError) as e,
            ):
                next(watch)
            assert "'a/' and 'c/' are watched as one range, from b'a/' to b'c0'" in str(e.value)
            with observed.watch("c/", since=0, timeout=20) as watch:
                changes = next(watch)
                assert [change.key for change in changes] == ["c/1"]
                assert changes.commit.ts == tick.ts
        etcd.gateway.call(
            "/v3/auth/role/grant",
            {
                "name": f"role-of-{USER}",
                "perm": {"permType": "READ", "key": "YS8=", "range_end": "YzA="},  # a/ to c0
            },
        )
        with (
            snapkv.observe(etcd.url, prefix=["a/", "c/"], **login) as observed,
            observed.watch(since=0, timeout=20) as watch,
        ):
            assert [change.key for change in next(watch)] == ["a/1", "c/1"]
