"""import and export: a folder or JSON becomes a commit, and a moment becomes files."""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from cli_runner import PROCESS_TIMEOUT_S, Cli

from snapkv.copying.key_files import SOURCE_BYTES_MAX, read_folder
from snapkv.errors import InvalidFileError

pytestmark = pytest.mark.slow


def values(rng: random.Random, count: int) -> dict[str, bytes]:
    """Return keys that are paths together, with values of all kinds."""
    made: dict[str, bytes] = {}
    for number in range(count):
        parts = [rng.choice(["a", "b.c", "ü", " ", "-x", '"', "\\", "\n"]) for _ in range(3)]
        key = "/".join([*parts[: rng.randint(0, 3)], f"{number}"])
        made[key] = rng.choice(
            [b"", b"\xff\0", rng.randbytes(40), b'{"a": 1}', "grün\r\n".encode(), b"null"]
        )
    return made


@pytest.mark.parametrize("target", ["out", "out.jsonl"])
def test_what_is_exported_and_imported_again_is_the_same(cli: Cli, target: str) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    expected = values(random.Random(seed), 60)
    folder = cli.place / "in"
    for key, value in expected.items():
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(value)
    cli.ok("import", str(folder), "--prefix", "p/")
    cli.ok("put", "beside", "1")
    cli.ok("export", str(cli.place / target), "--prefix", "p/")
    cli.ok("import", str(cli.place / target), "--prefix", "q/")
    found = cli.ok("ls", "q/", "--json").json
    assert [each["key"] for each in found] == sorted("q/" + key for key in expected)
    for key, value in expected.items():
        assert cli.ok("get", "q/" + key).raw == value
    again = cli.ok("import", str(cli.place / target), "--prefix", "p/", "--delete")
    assert (again.out, "nothing to import" in again.err) == ("", True)


def test_an_import_is_one_commit_of_what_differs(cli: Cli) -> None:
    records = [{"key": "a", "value": "1"}, {"key": "b", "value": {"n": [1.5, None]}}]
    text = "\n".join(map(json.dumps, records)).encode()
    answer = cli.ok("import", "-", "--note", "new", "--meta", "t=7", "--json", stdin=text)
    assert (answer.json[0]["saved"], answer.json[0]["commit"]["meta"]) == (2, {"t": "7"})
    assert cli.ok("get", "b").out == '{"n":[1.5,null]}'
    (cli.place / "x.json").write_text('{"b": "2", "c": {"base64": "/w=="}}')
    dry = cli.ok("import", str(cli.place / "x.json"), "--dry-run")
    assert "2 keys saved, 0 removed" in dry.out
    cli.ok("import", str(cli.place / "x.json"))
    assert cli.ok("get", "c").raw == b"\xff"
    assert cli.ok("get", "a").out == "1", "it stays without --delete"
    assert [each["note"] for each in cli.ok("log", "--json").json[:2]] == [
        f"import {cli.place}/x.json",
        "new",
    ]


def test_a_field_of_the_records_has_the_key(cli: Cli) -> None:
    (cli.place / "x.json").write_text('[{"id": "u1", "name": "Ann"}, {"id": "u2"}]')
    cli.ok("import", str(cli.place / "x.json"), "--key", "id", "--prefix", "users/")
    assert cli.ok("get", "users/u1").out == '{"id":"u1","name":"Ann"}'


def test_delete_asks_and_removes_only_below_the_prefix(cli: Cli) -> None:
    cli.ok("put", "p/a", "1", "p/gone", "1", "beside", "1")
    text = b'{"key": "a", "value": "1"}'
    refused = cli("import", "-", "--prefix", "p/", "--delete", stdin=text)
    assert refused.code != 0
    assert "Remove 1 key that - lacks?" in refused.err
    cli.ok("import", "-", "--prefix", "p/", "--delete", "--yes", stdin=text)
    assert cli.ok("ls").lines == ["beside", "p/a"]
    nothing = cli("import", "-", "--delete", "--yes", stdin=b"\n")
    assert (nothing.code, nothing.err) == (1, "snapkv: - has no keys: to remove keys, use rm\n")
    assert cli.ok("ls").lines == ["beside", "p/a"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"{", "-, line 1 is not JSON"),
        (b'{"key": "a", "key": "b"}', "'key' occurs twice"),
        (b'\n{"key": "a"}\n7', "-, record 2 is not an object"),
        (b'{"key": "", "value": "1"}', "-, record 1 is not an object with a text as 'key'"),
        (b'{"key": "\\ud800"}', "-, record 1 cannot be stored"),
        (b'{"key": "a", "value": {"base64": "!"}}', "-, record 1 cannot be stored"),
        (b'{"key": "a", "value": NaN}', "-, record 1 cannot be stored"),
        (b'{"key": "a"}\n{"key": "a"}', "- has key 'a' 2 times"),
        (b"\xff", "-, line 1 is not JSON"),
    ],
)
def test_what_cannot_be_imported_is_an_error_before_a_store_is_made(
    cli: Cli, text: bytes, why: str
) -> None:
    answer = cli("import", "-", stdin=text)
    assert (answer.code, answer.out) == (2, "")
    assert why in answer.err
    assert not (cli.place / "meta").exists()


def test_a_key_that_is_too_long_is_an_error_before_anything_is_written(cli: Cli) -> None:
    cli.ok("put", "z", "1")
    answer = cli("import", "-", "--batches", stdin=b'{"key": "a"}\n{"key": "%s"}' % (b"x" * 600))
    assert (answer.code, "x" * 40 in answer.err) == (2, True)
    assert cli.ok("ls").lines == ["z"]


def test_what_is_not_a_plain_file_is_not_imported(cli: Cli) -> None:
    folder = cli.place / "in"
    folder.mkdir()
    (folder / "a").write_bytes(b"1")
    os.mkdir(os.fsencode(folder) + b"/caf\xe9")
    Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9/b")).write_bytes(b"1")
    assert "is not valid UTF-8" in cli("import", str(folder)).err
    (folder / "link").symlink_to("/etc")
    os.mkfifo(folder / "a.fifo")
    assert "perhaps a link" in cli("import", str(folder)).err
    assert not (cli.place / "meta").exists()


@pytest.mark.parametrize(
    "keys", [["../x"], ["a/../../x"], ["/abs"], ["a//b"], ["a/"], ["."], ["a", "a/b"], ["n" * 300]]
)
def test_keys_that_are_not_paths_are_an_error_and_leave_nothing(cli: Cli, keys: list[str]) -> None:
    for key in ("plain", *keys):
        cli.ok("put", key, "1")
    target = cli.place / "deep" / "out"
    target.parent.mkdir()
    answer = cli("export", str(target))
    assert (answer.code, answer.out) == (2, "")
    assert keys[0] in answer.err or "too long" in answer.err
    assert list(target.parent.iterdir()) == []
    cli.ok("export", str(target) + ".jsonl")
    records = [json.loads(line) for line in Path(str(target) + ".jsonl").read_text().splitlines()]
    assert {each["key"] for each in records} == {"plain", *keys}


def test_an_export_replaces_no_files_of_a_folder(cli: Cli) -> None:
    cli.ok("put", "a", "1")
    first = cli.ok("log", "--raw", "--json").json[0]["timestamp"]
    cli.ok("put", "a", "2")
    target = cli.place / "out"
    target.mkdir()
    (target / "mine").write_text("precious")
    answer = cli("export", str(target))
    assert (answer.code, "is not empty" in answer.err) == (2, True)
    assert [each.name for each in target.iterdir()] == ["mine"]
    (target / "mine").unlink()
    cli.ok("export", str(target), "--at", first)
    assert (target / "a").read_bytes() == b"1"
    assert (target / "a").stat().st_mode & 0o777 == 0o600
    (cli.place / "link").symlink_to(target)
    assert "is not empty" in cli("export", str(cli.place / "link")).err


def test_an_import_that_is_too_large_takes_batches(cli: Cli) -> None:
    line = b'{"key": "%d", "value": "%s"}\n'
    text = b"".join(line % (number, b"x" * (24 << 20)) for number in range(3))
    assert "use --batches" in cli("import", "-", stdin=text).err
    answer = cli.ok("import", "-", "--batches", stdin=text)
    assert "in 2 commits" in answer.err


def test_a_source_that_is_too_large_is_not_read_into_memory(cli: Cli) -> None:
    """Files without contents on the disk; each is within the bound, both are beyond it."""
    folder = cli.place / "in"
    folder.mkdir()
    for name in ("a.json", "b.json"):
        (folder / name).touch()
        os.truncate(folder / name, (SOURCE_BYTES_MAX >> 1) + 1)
    (cli.place / "x.jsonl").symlink_to("/dev/zero")
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30));"
        "from snapkv.cli.app import main; sys.exit(main(sys.argv[1:]))"
    )
    for source in (folder, cli.place / "x.jsonl"):
        done = subprocess.run(
            [sys.executable, "-c", code, "import", str(source)],
            env=cli.variables(),
            capture_output=True,
            text=True,
            timeout=PROCESS_TIMEOUT_S,
        )
        said = f"snapkv: {source} has more than 256 MiB: import parts of it one by one\n"
        assert (done.returncode, done.stderr) == (2, said)
    assert not Path(cli.url.partition(":")[2]).exists()


def test_numbers_of_json(cli: Cli) -> None:
    """Integers keep all digits, other numbers become Python's floats."""
    text = b'{"key": "a", "value": [12345678901234567890, 0.1000000000000000055, 1.10, 1E2]}'
    cli.ok("import", "-", stdin=text)
    assert cli.ok("get", "a").out == "[12345678901234567890,0.1,1.1,100.0]"
    answer = cli("import", "-", stdin=b'{"key": "a", "value": 1e400}')
    assert (answer.code, "-, record 1 cannot be stored: " in answer.err) == (2, True)


def test_an_export_has_what_is_redacted_on_the_screen(cli: Cli) -> None:
    cli.ok("put", "secrets/a", "hunter2")
    cli.patch.setenv("SNAPKV_REDACT", "secrets/")
    assert "hunter2" not in cli.ok("ls", "--long").out
    cli.ok("export", str(cli.place / "out.jsonl"))
    cli.ok("import", str(cli.place / "out.jsonl"), "--prefix", "again/")
    assert cli.ok("get", "again/secrets/a").out == "hunter2"


def test_a_folder_that_cannot_be_read_is_named() -> None:
    """Its files would seem to be gone, and --delete remove their keys."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        (closed := Path(place, "closed")).mkdir(mode=0)
        user = os.geteuid()
        os.seteuid(user or 65_534)  # root reads everything
        try:
            with pytest.raises(InvalidFileError, match="closed cannot be read: Permission denied"):
                list(read_folder(place))
        finally:
            os.seteuid(user)
            closed.chmod(0o755)


def test_a_folder_of_any_name_is_imported(cli: Cli) -> None:
    folder = os.fsdecode(os.fsencode(cli.place) + b"/caf\xe9")
    os.mkdir(folder)
    Path(folder, "a").write_text("1")
    cli.ok("import", folder)
    assert cli.ok("log", "-n", "1", "--json").json[0]["note"].endswith("/caf\\xe9")
