"""import-prefix: what another cluster is told of us, and what is said when it cannot go on."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cli_runner import Cli
from etcd_server import EtcdPool, EtcdServer, enable_auth, make_certificates

import snapkv
from snapkv.cli.importing import FROM_VARIABLES
from snapkv.copying.import_prefix import import_prefix
from snapkv.errors import AccessDeniedError, InvalidOptionError

USERS = {
    "root": ("pw", None),
    "service": ("secret", [("default/", "readwrite"), ("r/", "read")]),
}
OURS = ("SNAPKV_ETCD_USER", "SNAPKV_ETCD_PASSWORD", "SNAPKV_ETCD_CACERT")


@pytest.fixture
def cli(etcd_cli: Cli) -> Cli:
    for variable in (*OURS, *FROM_VARIABLES.values()):
        etcd_cli.patch.delenv(variable, raising=False)
    return etcd_cli


@pytest.fixture
def elsewhere(etcd_pool: EtcdPool) -> Iterator[EtcdServer]:
    """Another cluster, with keys below r/, which knows the same user with the same password."""
    with etcd_pool.taken() as server:
        server.gateway.put(b"r/a", b"1")
        enable_auth(server, USERS)
        yield server


def login(cli: Cli, what: str, user: str, password: str) -> None:
    cli.patch.setenv(f"SNAPKV_{what}_USER", user)
    cli.patch.setenv(f"SNAPKV_{what}_PASSWORD", password)


# --- who we are, there ---


def test_another_cluster_is_not_told_the_password_of_the_store(
    cli: Cli, etcd: EtcdServer, elsewhere: EtcdServer
) -> None:
    enable_auth(etcd, USERS)
    login(cli, "ETCD", "service", "secret")
    cli.ok("put", "mine", "1")
    words = ["import-prefix", "r/", "--from", elsewhere.url]
    answer = cli(*words)
    assert (answer.code, answer.out, answer.err.count("\n")) == (5, "", 1)
    assert answer.err.startswith(f"snapkv: {elsewhere.url}: the cluster wants a user")
    assert "SNAPKV_FROM_USER and SNAPKV_FROM_PASSWORD" in answer.err
    login(cli, "FROM", "service", "hunter2")
    answer = cli(*words)
    assert (answer.code, elsewhere.url in answer.err) == (5, True)
    assert "hunter2" not in answer.err
    login(cli, "FROM", "service", "secret")
    assert cli.ok(*words).err == "1 key saved, 0 removed, of 1 in the source, in 1 commit\n"
    assert cli.ok("get", "r/a").out == "1"
    cli.patch.delenv("SNAPKV_FROM_PASSWORD")
    assert cli(*words).code == 2


def test_the_place_of_the_store_is_told_what_the_store_is(cli: Cli, etcd: EtcdServer) -> None:
    etcd.gateway.put(b"r/a", b"1")
    enable_auth(etcd, USERS)
    login(cli, "ETCD", "service", "secret")
    login(cli, "FROM", "nobody", "wrong")
    cli.ok("import-prefix", "r/")
    cli.ok("import-prefix", "r/", "--under", "again/", "--from", etcd.url)
    assert cli.ok("ls").lines == ["again/r/a", "r/a"]
    answer = cli("import-prefix", "other/")
    assert (answer.code, "SNAPKV_FROM" in answer.err) == (5, False)
    assert answer.err.startswith(f"snapkv: {etcd.url}: the user lacks the right")


def test_another_cluster_has_an_authority_of_its_own(
    cli: Cli, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("source")
    certificates = make_certificates(folder / "certificates", client_auth=True)
    with EtcdServer(folder / "etcd", tls=certificates) as server:
        server.gateway.put(b"r/a", b"1")
        paths = (certificates.ca, certificates.cert("client"), certificates.key("client"))
        for option, path in zip(("ca_cert", "cert", "key"), paths, strict=True):
            cli.patch.setenv(FROM_VARIABLES[option], str(path))
        cli.ok("import-prefix", "r/", "--from", server.url)
    assert cli.ok("get", "r/a").out == "1"


def test_a_folder_is_told_nothing(cli: Cli) -> None:
    cli.ok("put", "r/a", "1", "--store", "lmdb:./folder")
    login(cli, "FROM", "somebody", "secret")
    answer = cli("import-prefix", "r/", "--from", "lmdb:./folder")
    assert (answer.code, answer.err) == (1, "snapkv: no key begins with 'r/'\n")


def test_options_of_a_source_are_all_that_it_is_told(
    cli: Cli, etcd: EtcdServer, elsewhere: EtcdServer
) -> None:
    login(cli, "ETCD", "service", "secret")
    with snapkv.open(etcd.url) as store:
        for options in ({}, {"user": None, "password": None}, {"max_txn_ops": 64}):
            with pytest.raises(AccessDeniedError, match=elsewhere.url):
                import_prefix(store, elsewhere.url, "r/", source_options=options)
        with pytest.raises(InvalidOptionError, match="go together"):
            import_prefix(store, elsewhere.url, "r/", source_options={"user": "service"})
        given = {"user": "service", "password": "secret"}
        for options in (given, None):  # without any, the environment stands in
            done = import_prefix(
                store, elsewhere.url, "r/", under=f"{options}/", source_options=options
            )
            assert done.saved == 1


# --- what is told ---


def test_what_would_be_replaced_and_what_removed(cli: Cli, etcd: EtcdServer) -> None:
    etcd.gateway.put(b"r/a", b"1")
    cli.ok("put", "r/a", "mine", "r/b", "mine")
    answer = cli("import-prefix", "r/")
    assert answer.code == 3
    assert answer.err.endswith(
        "with another value than the source; pass --replace to overwrite it\n"
    )
    cli.ok("put", "r/a", "1")
    answer = cli("import-prefix", "r/")
    assert answer.code == 3
    assert "key 'r/b', which the source does not have; pass --replace to remove" in answer.err


def test_only_keys_of_stores(cli: Cli) -> None:
    cli.ok("put", "mine", "1")
    answer = cli("import-prefix", "default")
    said = (
        "snapkv: prefix 'default' holds only 3 keys of snapkv stores; there is nothing to import\n"
    )
    assert (answer.code, answer.out, answer.err) == (1, "", said)


@pytest.fixture
def interfering(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Let others do something before each commit of an import; they get its note."""
    real = snapkv.SnapshotKV.commit
    with snapkv.open(cli.url) as other:

        def begin(act: Any) -> None:
            def commit(store: snapkv.SnapshotKV, **operations: Any) -> snapkv.Commit:
                if store is not other:
                    act(other, operations["note"])
                return real(store, **operations)

            monkeypatch.setattr(snapkv.SnapshotKV, "commit", commit)

        yield begin


def test_somebody_else_writes_below_the_target(
    cli: Cli, etcd: EtcdServer, interfering: Callable[[Any], None]
) -> None:
    for number in range(4):
        etcd.gateway.put(b"r/%d" % number, b"x" * 700_000)

    def act(other: snapkv.SnapshotKV, note: str) -> None:
        if note.startswith("import 2 of"):
            other.save("r/intruder", b"1")

    interfering(act)
    answer = cli("import-prefix", "r/", "--batches")
    assert (answer.code, answer.out) == (3, "")
    assert answer.err.splitlines()[1:] == [
        "imported keys stay; another import continues there",
        f"snapkv: guard failed: 'r/intruder' absent but found revision {etcd.gateway.revision()}",
    ]
    assert cli.ok("ls").lines == ["r/0", "r/1", "r/intruder"]


@pytest.mark.slow
def test_others_commit_too_often(
    cli: Cli, etcd: EtcdServer, interfering: Callable[[Any], None]
) -> None:
    for number in range(4):
        etcd.gateway.put(b"r/%d" % number, b"1")
    interfering(lambda other, note: other.save("elsewhere", b"1"))
    answer = cli("import-prefix", "r/")
    assert (answer.code, answer.out, answer.err.count("\n")) == (3, "", 1)
    assert "other writers committed first in all 8 attempts" in answer.err
    turns = iter(range(100))

    def act(other: snapkv.SnapshotKV, note: str) -> None:
        if next(turns) < 7:
            other.save("elsewhere", b"1")

    interfering(act)
    answer = cli.ok("import-prefix", "r/", "--note", "why")
    assert answer.err == "4 keys saved, 0 removed, of 4 in the source, in 1 commit\n"
