"""With processes: `cdcmeta serve` on lmdb, and a writer that is killed before its checkpoint."""

import os
import subprocess
import sys

import pytest
from couch_http.programs import served_store

from .between import Between, Held
from .mirror import T1, T2, Mirror, commit

pytestmark = pytest.mark.slow

WAIT_S = 30
PASSWORD = "a secret, too long to be found by chance"
LOGIN = {"CDCMETA_SINK_USER": "ann", "CDCMETA_SINK_PASSWORD": PASSWORD}
WRITER = """
import os
import sys
from cdcmeta.scheduler import Token
from cdcmeta.scheduler.executors.couch_client import CouchDatabase
from cdcmeta.scheduler.executors.couch_sink import CouchWriter
from snapkv import Change, Changes, Commit

database = CouchDatabase(sys.argv[1], os.environ)
writer = CouchWriter(database, "feed", "t/", Token(1, 1), write_s=60)
writer.begin(1)
head = Commit(5, 0, 5, "ann@host", None)
writer.write([Changes(head, (Change("t/a", b"1", head), Change("t/b", b"1", head)))], 0)
print("begun", flush=True)
sys.stdin.readline()
head = Commit(6, 0, 6, "ann@host", None)
writer.write([Changes(head, (Change("t/a", None, head), Change("t/c", b"1", head)))], 6)
"""


@pytest.fixture
def program(tmp_path):
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    words = ("--port", "0", "--user", "ann", "--password-file", str(password))
    with served_store(tmp_path / "store", *words) as program:
        yield program


@pytest.fixture
def mirror(program):
    mirror = Mirror(program.url, LOGIN)
    mirror.http.auth = ("ann", PASSWORD)
    yield mirror
    mirror.close()


def test_a_writer_that_is_killed_between_data_and_checkpoint(program, mirror):
    last = [commit(6, a=None, c=b"1")]
    with Between(program.url) as between:
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, mirror.url(between.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | LOGIN,
        )
        held = Held()
        try:
            assert process.stdout.readline() == b"begun\n"
            between.next(held, "PUT")
            process.stdin.write(b"go on\n")
            process.stdin.flush()
            assert held.came.wait(WAIT_S)
            assert mirror.content() == {"t/b": b"1", "t/c": b"1"}
            assert mirror.record() == (1, T1)
        finally:
            process.kill()
            process.communicate(timeout=WAIT_S)
        before = mirror.docs(), mirror.seq()
        later = mirror.writer(T2)
        assert later.begin(1) == 1, "the checkpoint did not arrive"
        later.write([commit(5, a=b"1", b=b"1")], 0)
        later.write(last, 6)
        assert (mirror.docs(), mirror.seq()) == before
        assert mirror.record() == (6, T2)
        held.go.set()
    assert len(mirror.leaves("t/a")) == 1


def test_a_server_that_is_killed_and_started_again(program, mirror, tmp_path):
    writer = mirror.writer(T1)
    writer.begin(1)
    writer.write([commit(5, a=b"1")], 5)
    program.kill()
    words = ("--port", program.url.rpartition(":")[2], "--user", "ann")
    with served_store(tmp_path / "store", *words, "--password-file", str(tmp_path / "password")):
        writer.write([commit(6, a=b"2")], 6)
        assert mirror.content() == {"t/a": b"2"}
        assert mirror.record() == (6, T1)
