"""`cdcmeta serve` as people run it: a process, its options, its signals, its exit codes."""

import io
import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import redirect_stderr

import httpx
import pytest

import snapkv
from cdcmeta.cli import main
from cdcmeta.couch_http import Limits, Login, Server
from cdcmeta.errors import InvalidArgumentError

from .programs import PROGRAM, Program
from .served import WAIT_S

pytestmark = pytest.mark.slow

PLAIN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith("CDCMETA_") and name != "SNAPKV_STORE"
}


@pytest.fixture
def serve(tmp_path):
    running = []

    def start(*words: str, **variables: str) -> Program:
        store = f"lmdb:{tmp_path / 'meta'}"
        program = Program(
            "--store", store, "--port", "0", *words, environment={**PLAIN, **variables}
        )
        running.append(program)
        return program

    yield start
    for program in running:
        if program.process.returncode is None:
            program.kill()


def failing(*words: str, **variables: str) -> tuple[int, str]:
    done = subprocess.run(
        [*PROGRAM, *words],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env={**PLAIN, **variables},
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def rejected(*words: str, **variables: str) -> tuple[int, str]:
    """Run the command in this process; return its exit code and errors. It must not serve."""

    def serves(server: Server) -> None:
        raise AssertionError(f"it serves at {server.url}")

    errors = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(errors):
        for name in set(os.environ) - set(PLAIN):
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setattr(Server, "run", serves)
        code = main(["serve", *words])
    return code, errors.getvalue()


@pytest.mark.long_after(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_told_to_end(serve, number):
    program = serve()
    assert program.url.startswith("http://127.0.0.1:")
    assert httpx.put(f"{program.url}/db").status_code == 201
    lines: list[str] = []

    def follow() -> None:
        with httpx.stream("GET", f"{program.url}/db/_changes?feed=continuous&heartbeat=50") as feed:
            lines.extend(feed.iter_lines())

    follower = threading.Thread(target=follow)
    follower.start()
    deadline = time.monotonic() + WAIT_S
    while not lines:  # until the first heartbeat
        assert time.monotonic() < deadline
        time.sleep(0.01)
    began = time.monotonic()
    program.process.send_signal(number)
    assert program.ends() == (0, "")
    assert time.monotonic() - began < Limits().stop_s
    follower.join(WAIT_S)
    assert '"last_seq"' in lines[-1]


@pytest.mark.long
def test_a_reader_that_is_slow_cannot_keep_it(serve):
    program = serve()
    httpx.put(f"{program.url}/db")
    for n in range(40):
        httpx.put(f"{program.url}/db/d{n}", json={"text": "x" * 300_000})
    host, _, port = program.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), WAIT_S) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.sendall(b"GET /db/_changes?include_docs=true HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.recv(100)
        began = time.monotonic()
        program.process.terminate()
        code, told = program.ends()
    assert (code, told) == (0, "")
    assert time.monotonic() - began < Limits().stop_s + 3


def test_it_goes_on_where_it_was(serve):
    first = serve()
    httpx.put(f"{first.url}/db")
    httpx.put(f"{first.url}/db/a", json={"n": 1})
    first.kill()
    second = serve()
    assert httpx.get(f"{second.url}/db/a").json()["n"] == 1


def test_a_login_from_the_environment(serve):
    program = serve(CDCMETA_USER="ann", CDCMETA_PASSWORD="x y")
    assert httpx.get(program.url).status_code == 401
    assert httpx.get(program.url, auth=("ann", "x y")).status_code == 200


def test_a_login_from_a_file(serve, tmp_path):
    file = tmp_path / "password"
    file.write_text("x y\nand a second line\n")
    program = serve("--user", "ann", "--password-file", str(file))
    assert httpx.get(program.url, auth=("ann", "x y")).status_code == 200
    assert httpx.get(program.url, auth=("ann", "x")).status_code == 401


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["--user", "ann"], {}),
        ([], {"CDCMETA_USER": "ann"}),
        (["--user", "ann"], {"CDCMETA_PASSWORD": ""}),
        (["--user", "a:b"], {"CDCMETA_PASSWORD": "x"}),
        (["--user", ""], {"CDCMETA_PASSWORD": "x"}),
        ([], {"CDCMETA_PASSWORD": "x"}),
        (["--host", "0.0.0.0"], {"CDCMETA_PASSWORD": "x"}),
        (["--insecure"], {"CDCMETA_PASSWORD": "x"}),
    ],
)
def test_half_a_login_is_an_error(tmp_path, words, variables):
    store = f"lmdb:{tmp_path / 'meta'}"
    code, told = rejected("--store", store, "--port", "0", *words, **variables)
    assert code == 2
    assert "a login needs a user without a colon and a password" in told
    assert not (tmp_path / "meta").exists()


def test_half_a_login_from_a_file_is_an_error(tmp_path):
    file = tmp_path / "password"
    file.write_text("x\n")
    store = f"lmdb:{tmp_path / 'meta'}"
    code, told = rejected("--store", store, "--port", "0", "--password-file", str(file))
    assert (code, "--user" in told) == (2, True)


def test_a_password_that_is_not_utf8_is_an_error(tmp_path):
    file = tmp_path / "password"
    file.write_bytes(b"p\xe4ss\n")
    code, told = rejected("--store", "memory:", "--user", "ann", "--password-file", str(file))
    assert (code, "password is not valid UTF-8" in told) == (2, True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_machines_need_a_login(tmp_path, host):
    code, told = rejected("--store", f"lmdb:{tmp_path / 'meta'}", "--port", "0", "--host", host)
    assert code == 2
    assert "--insecure" in told
    assert not (tmp_path / "meta").exists()


@pytest.mark.parametrize("login", [("ann", ""), ("", "x"), ("a:b", "x"), ("ann", None), (None, 1)])
def test_half_a_login_is_an_error_in_python(login):
    with pytest.raises(InvalidArgumentError, match="a login needs a user"):
        Login(*login)


@pytest.mark.parametrize("login", [("ann", "\udcff"), ("\udcff", "x")])
def test_a_login_that_is_not_utf8_is_an_error(login):
    with pytest.raises(InvalidArgumentError, match="not valid UTF-8"):
        Login(*login)


def test_other_machines_need_a_login_in_python():
    with snapkv.open("memory:") as store:
        with pytest.raises(InvalidArgumentError, match="insecure=True"):
            Server(store, host="0.0.0.0", port=0)
        for options in ({"insecure": True}, {"login": Login("ann", "x")}):
            server = Server(store, host="0.0.0.0", port=0, **options)
            server.stop()
            server.run()


def test_a_login_lets_other_machines_in(serve):
    program = serve("--host", "0.0.0.0", CDCMETA_USER="ann", CDCMETA_PASSWORD="x")
    url = program.url.replace("0.0.0.0", "127.0.0.1")
    assert httpx.get(url).status_code == 401
    assert httpx.get(url, auth=("ann", "x")).status_code == 200


def test_an_insecure_server_warns(serve):
    program = serve("--host", "0.0.0.0", "--insecure")
    program.process.terminate()
    assert program.ends() == (
        0,
        "cdcmeta: warning: anyone who reaches this address may read and write\n",
    )


def test_names_that_it_is_asked_by(serve):
    program = serve("--allow-host", "couch.example", "--allow-host", "couch.test")
    told = [
        httpx.get(program.url, headers={"Host": host}).status_code
        for host in ("couch.example", "couch.test:5984", "localhost", "rebound.example")
    ]
    assert told == [200, 200, 200, 403]


def test_who_listens_to_others_is_asked_by_any_name(serve):
    program = serve("--host", "0.0.0.0", "--insecure")
    url = program.url.replace("0.0.0.0", "127.0.0.1")
    assert httpx.get(url, headers={"Host": "catalogue.example"}).status_code == 200


@pytest.mark.long
def test_origins_of_other_pages(serve, tmp_path):
    program = serve("--cors-origin", "https://a.example", "--cors-origin", "https://b.example")
    for origin in ("https://a.example", "https://b.example"):
        answer = httpx.get(program.url, headers={"Origin": origin})
        assert answer.headers["access-control-allow-origin"] == origin
    store = f"lmdb:{tmp_path / 'other'}"
    code, told = failing("--store", store, "--port", "0", "--cors-origin", "b.example")
    assert (code, "SCHEME://HOST" in told) == (2, True)


def test_the_largest_body(serve):
    program = serve("--max-body", "100")
    httpx.put(f"{program.url}/db")
    assert httpx.put(f"{program.url}/db/a", json={"n": "x" * 50}).status_code == 201
    assert httpx.put(f"{program.url}/db/b", json={"n": "x" * 150}).status_code == 413
    bulk = httpx.post(f"{program.url}/db/_bulk_docs", json={"docs": [{"n": "x" * 150}, {}, {}]})
    assert [row.get("error") for row in bulk.json()] == ["forbidden", None, None]


@pytest.mark.long
def test_the_largest_body_of_bulk_docs(serve):
    program = serve("--max-bulk", "100")
    httpx.put(f"{program.url}/db")
    for size, status in ((30, 201), (150, 413)):
        body = {"docs": [{"n": "x" * size}]}
        assert httpx.post(f"{program.url}/db/_bulk_docs", json=body).status_code == status


def test_what_cannot_be_served(tmp_path):
    assert rejected()[0] == 2
    assert rejected("--store", "nothing:")[0] == 1
    assert rejected("--store", "memory:", "--port", "x")[0] == 2
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, told = failing("--store", "memory:", "--port", port)
    assert (code, told.count("\n")) == (1, 1)
    assert f"cannot listen at 127.0.0.1:{port}: another process has that port" in told


def test_help(capsys):
    assert main(["serve", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--password-file" in shown
    assert "--password " not in shown  # it would stand in the list of processes
    assert main([]) == 0
