"""The commands generations and streams, as a user types them."""

import json
import subprocess
import sys

import pytest

import snapkv
from cdcmeta.cli import main
from cdcmeta.generations import CdcLog, GenerationLog, Sharding, murmur3_token
from cdcmeta.generations.log_rows import OLD_PREFIX

pytestmark = pytest.mark.slow

RING = {"tokens": {"-100": "a", "100": "b"}, "nodes": {"a": {"shards": 2}, "b": {"shards": 3}}}


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SNAPKV_STORE", f"lmdb:{tmp_path}/meta")

    def run(*words):
        code = main([str(word) for word in words])
        told = capsys.readouterr()
        return code, told.out.splitlines(), told.err

    return run


@pytest.fixture
def ring(tmp_path):
    file = tmp_path / "ring.json"
    file.write_text(json.dumps(RING))
    return file


@pytest.fixture
def log(tmp_path, run, ring):
    assert run("generations", "make", ring)[0] == 0
    with snapkv.open(f"lmdb:{tmp_path}/meta") as store:
        yield GenerationLog(store, propagation_delay=0.0, leeway=0.0)


def test_a_life_of_generations(run, ring, log):
    (first,) = log.generations()
    assert log.topology(first).shardings() == {-100: Sharding(2), 100: Sharding(3)}
    assert run("generations", "make", ring, "--if-needed")[0] == 0
    assert log.generations() == [first]
    second = log.make({5: Sharding(1)})
    code, lines, _ = run("generations", "list", "--json")
    told = [json.loads(line) for line in lines]
    assert (code, [each["timestamp"] for each in told]) == (0, [str(first.time), str(second.time)])
    assert [each["streams"] for each in told] == [5, 1]
    assert [each["state"] for each in told] == ["superseded", "operates"]
    assert run("generations", "list")[1][0].endswith("2 ranges  5 streams  superseded")
    assert run("generations", "at", first.time)[1][0].endswith("5 streams  superseded")
    assert len(run("generations", "show", first.time)[1]) == 3
    _, head, last = map(json.loads, run("generations", "show", first.time, "--json")[1])
    assert (head["start"], head["end"], last["end"]) == ("100", "-100", "100")
    assert run("streams", "of", first.time)[1] == [str(each) for each in log.streams_of(first)]
    stream = log.topology(first).stream_for(murmur3_token(b"users"))
    assert run("streams", "at", first.time, "users")[1] == [str(stream)]
    assert run("generations", "repair") == (0, ["no switch was under way"], "")


def test_expiry(run, log):
    (first,) = log.generations()
    log.make({5: Sharding(1)})
    assert log.expire(10**6).marked  # the command's leeway has not passed
    assert run("generations", "expire", "0s") == (0, [], "")
    assert run("generations", "list")[1][0].endswith("expired")
    assert log.expire(0).removed[0].time == first.time


def test_an_expiry_that_is_not_complete_shows_what_was_done(run, log):
    with log.member("node") as member:
        broken, fine = (CdcLog(log.store, member, name) for name in ("broken", "fine"))
        broken.bind(log.space)
        log.store.space("cdc/broken").commit(puts={OLD_PREFIX + b"none": b"none"})
        fine.write(b"k", b"v")
    code, lines, error = run("generations", "expire", "0s", "--ttl", "0s")
    assert (code, lines) == (1, ["trimmed  1 log rows"])
    assert error.startswith("cdcmeta: could not remove log rows of 'broken' (")


@pytest.mark.parametrize("group", ["generations", "streams"])
def test_a_group_alone_shows_its_help(run, group):
    """As `cdcmeta` alone does."""
    alone, asked = run(group), run(group, "--help")
    assert alone == asked
    assert (alone[0], alone[2]) == (0, "")
    assert any(f"Usage: cdcmeta {group} " in line for line in alone[1])
    assert run()[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["generations", "at", "2001-01-01T00:00:00Z"], 1, "no generation operates"),
        (["generations", "at", "nonsense"], 1, "nonsense"),
        (["generations", "expire", "long"], 1, "is not a duration"),
        (["generations", "make", "nowhere.json"], 1, "nowhere.json"),
        (["generations", "repair", "--timeout", "-1"], 1, "timeout"),
        (["generations", "repair", "--timeout", "nan"], 1, "timeout"),
        (["generations", "list", "--log", ""], 1, "name"),
        (["generations", "at", "-5x"], 1, "-5x"),
        (["generations", "list", "--jsn"], 2, "--jsn"),
        (["streams", "at"], 2, "TIME"),
    ],
)
def test_what_goes_wrong_is_one_line(run, log, words, code, why):
    got, lines, error = run(*words)
    assert (got, lines) == (code, [])
    assert why in error
    assert error.startswith("cdcmeta: ")


@pytest.mark.parametrize(
    "ring",
    [
        "[]",
        "{",
        '{"tokens": {}}',
        '{"tokens": {"x": "a"}, "nodes": {"a": {"shards": 1}}}',
        '{"tokens": {"1": "b"}, "nodes": {"a": {"shards": 1}}}',
        '{"tokens": {"1": "a"}, "nodes": {"a": {"cores": 1}}}',
        '{"tokens": {"1": "a"}, "nodes": {"a": {"shards": 0}}}',
        '{"tokens": {}, "nodes": {}}',
        '{"tokens": {"1": "a", "01": "a"}, "nodes": {"a": {"shards": 1}}}',
        '{"tokens": {"1": "a", "1": "b"}, "nodes": {"a": {"shards": 1}, "b": {"shards": 2}}}',
        '{"tokens": {"99999999999999999999": "a"}, "nodes": {"a": {"shards": 1}}}',
        '{"tokens": {"1": "a"}, "nodes": {"a": {"shards": 99999999999999999999}}}',
        "[" * 100_000,
    ],
    ids=range(13),
)
def test_files_that_are_no_ring(run, tmp_path, ring):
    file = tmp_path / "bad.json"
    file.write_text(ring)
    code, lines, error = run("generations", "make", file)
    assert (code, lines) == (1, [])
    assert error.count("\n") == 1
    assert run("generations", "list")[1] == []


NODES = '"nodes": {"a": {"shards": 1}}'


@pytest.mark.parametrize(
    ("ring", "why"),
    [
        ("[]", "it is []; write {"),
        ("{", "it is not JSON: "),
        (b"\xff{}", "it is not UTF-8: byte 0 is 0xff"),
        ("[" * 100_000, "it is nested too deeply"),
        ('{"tokens": {}}', "it has no 'nodes'"),
        ('{"tokens": [1], "nodes": {}}', "'tokens' is [1]; write {"),
        ('{"tokens": {"0": "a"}, "nodes": {"a": [2]}}', "node 'a' is [2]; write {"),
        (
            '{"tokens": {"0": "a"}, "nodes": {"a": {"shards": 2, "foo": 1}}}',
            "node 'a' has the unknown field 'foo'; write {",
        ),
        ('{"tokens": {"0": "a"}, "nodes": {"a": {}}}', "node 'a' has no 'shards'; write {"),
        ('{"tokens": {"0": "a"}, "nodes": {"a": {"shards": 0}}}', "node 'a': a node has 1 to "),
        (f'{{"tokens": {{"0": "b"}}, {NODES}}}', "the owner of token '0' is 'b', which is not in"),
        (f'{{"tokens": {{"0": ["b"]}}, {NODES}}}', "the owner of token '0' is ['b'], which"),
        (f'{{"tokens": {{"{9 * 10**18}9": "a"}}, {NODES}}}', "a token is an integer from -9223"),
        *(
            (f'{{"tokens": {{"{token}": "a"}}, {NODES}}}', f"token {token!r} is not an integer")
            for token in ("1_0", "٣", " 3", "+3", "03", "-0", "3.0", "x", "", "9" * 50)
        ),
    ],
)
def test_what_is_wrong_in_the_file_of_a_ring(run, tmp_path, ring, why):
    file = tmp_path / "bad.json"
    file.write_bytes(ring if isinstance(ring, bytes) else ring.encode())
    code, _, error = run("generations", "make", file)
    assert code == 1
    assert f"{file} is not a valid ring: {why}" in error
    for internal in ("__new__", "argument", "indices", "Sharding"):
        assert internal not in error


@pytest.mark.parametrize("delay", ["1e300", "4e9"])
def test_a_delay_of_more_than_a_century(run, ring, delay):
    code, _, error = run("generations", "make", ring, "--propagation-delay", delay)
    assert (code, len(error) < 120) == (1, True)
    assert "propagation_delay is at most 3,155,760,000 seconds, not " in error


COMMANDS = [
    ["generations", "list"],
    ["generations", "at", "now"],
    ["generations", "show", "now"],
    ["generations", "repair"],
    ["generations", "expire", "0s"],
    ["streams", "of", "now"],
    ["streams", "at", "now", "users"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_only_make_makes_a_store(run, tmp_path, words):
    """A misspelt place is told, and nothing is left there."""
    code, lines, error = run(*words)
    assert (code, lines) == (1, [])
    assert "no store" in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("time", ["-0s", "now"])
def test_times_that_begin_with_a_dash(run, log, time):
    (first,) = log.generations()
    stream = log.topology(first).stream_for(murmur3_token(b"users"))
    assert run("streams", "at", time, "users")[1] == [str(stream)]
    assert len(run("streams", "of", time)[1]) == first.streams
    assert run("generations", "at", time)[1][0].endswith("5 streams  operates")
    assert len(run("generations", "show", time, "--json")[1]) == 3
    echo, error = run("generations", "at", "-9d")[2].splitlines()
    shown = echo.removeprefix("cdcmeta: -9d = ")
    assert error.startswith(f"cdcmeta: no generation operates at {shown} (4")
    assert "is not a timestamp of this store" in run("generations", "at", "4")[2]


def test_a_revision_is_shown_as_a_time(run, log):
    (newest,) = log.store.commits(limit=1, newest_first=True)
    revision = f"rev:{newest.revision}"
    shown = f"cdcmeta: {revision} = {snapkv.format_time(newest.ts)}\n"
    code, lines, error = run("streams", "of", revision)
    assert error.startswith(shown)
    if code == 0:
        assert len(lines) == 5
    assert run("generations", "at", revision)[2].startswith(shown)


@pytest.mark.long_after(2)
@pytest.mark.parametrize("words", [*COMMANDS, ["generations", "make", "ring.json"]], ids=" ".join)
def test_without_numpy_it_is_told_what_to_install(tmp_path, words):
    program = "import sys; sys.modules['numpy'] = None; from cdcmeta.cli import main; "
    program += "sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, *words, "--store", f"lmdb:{tmp_path}/meta"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "pip install 'snapkv[generations]'" in done.stderr
