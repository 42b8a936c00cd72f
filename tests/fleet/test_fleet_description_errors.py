"""Descriptions of a fleet that are wrong: each raises a typed error, which names the member."""

import pytest

import snapkv
from snapkv.errors import (
    FileMissingError,
    InvalidFileError,
    InvalidOptionError,
    InvalidTypeError,
    SnapKVError,
)


@pytest.mark.parametrize("given", [5, None, b"\xff", ["memory:"], object()])
def test_neither_a_path_nor_a_mapping(sites, given):
    with pytest.raises((InvalidTypeError, InvalidFileError)):
        sites.fleet(given) if given is not None else snapkv.fleet.open(given)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("f.toml", "members = "),
        ("f.toml", "[members]\na = 'memory:a'\na = 'memory:b'\n"),
        ("f.toml", "\udcff"),
        ("f.toml", "x = " + "[" * 5_000 + "]" * 5_000),
        ("f.json", "{"),
        ("f.json", "[]"),
        ("f.json", '"memory:"'),
        ("f.json", "[" * 100_000),
        ("f.json", '{"members": {"a": "memory:a", "a": "memory:b"}}'),
        ("f.json", "\udcff"),
    ],
    ids=lambda each: each[:12].strip() if isinstance(each, str) else None,
)
def test_files_that_hold_no_fleet(sites, name, text):
    path = sites.folder / name
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InvalidFileError, match=name):
        sites.fleet(path)


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("", InvalidOptionError, "needs a member"),
        ("[members]", InvalidOptionError, "needs a member"),
        ("archives = []", InvalidOptionError, "needs a member"),
        ("[defaults]\nprefix = '/r/'", InvalidOptionError, "needs a member"),
        ("a = 'memory:a'", InvalidTypeError, "'a'"),
        ("member = 1\n[members]\na = 'memory:a'", InvalidTypeError, "'member'"),
        ("members = ['memory:a']", InvalidTypeError, "members must be a table, not list"),
        ("members = 'memory:a'", InvalidTypeError, "members must be a table, not str"),
        ("defaults = 5\n[members]\na = 'memory:a'", InvalidTypeError, "defaults must be a table"),
        ("storage = 5\n[members]\na = 'memory:a'", InvalidTypeError, "storage must be a table"),
        ("archives = 'kept'", InvalidTypeError, "archives must be a list"),
        ("archives = 'kept'\n[members]\na = 'memory:a'", InvalidTypeError, "archives must be"),
        ("archives = [5]", InvalidTypeError, "a folder of archives must be a str"),
    ],
)
def test_tables_that_describe_no_fleet(sites, text, error, said):
    with pytest.raises(error, match=said) as e:
        sites.fleet(sites.written(text))
    assert e.value.member is None


def test_files_that_cannot_be_read(sites):
    with pytest.raises(FileMissingError):
        sites.fleet(sites.folder / "none.toml")
    with pytest.raises(InvalidFileError):
        sites.fleet(sites.folder)
    large = sites.folder / "large.toml"
    large.write_bytes(b"#" * ((16 << 20) + 1))
    with pytest.raises(InvalidFileError, match="16 MiB"):
        sites.fleet(large)
    missing = sites.written("archives = ['none']")
    with pytest.raises(FileMissingError) as e:
        sites.fleet(missing)
    assert "none" in e.value.__notes__[0]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (5, InvalidTypeError),
        (None, InvalidTypeError),
        (b"memory:a", InvalidTypeError),
        ([], InvalidTypeError),
        ("", InvalidOptionError),
        ("a folder", InvalidOptionError),
        ("mysql://host", InvalidOptionError),
        ({}, InvalidOptionError),
        ({"url": 5}, InvalidTypeError),
        ({"url": None}, InvalidOptionError),
        ({"url": "memory:a", "nme": "x"}, InvalidTypeError),
        ({"url": "memory:a", "ca_cert": "x"}, InvalidTypeError),
        ({"url": "memory:a", "create": True}, InvalidTypeError),
        ({"url": "memory:a", "clock": 1}, InvalidTypeError),
        ({"url": "memory:a", "read_timeout": 1}, InvalidTypeError),
        ({"url": "memory:a", "name": 5}, InvalidTypeError),
        ({"url": "memory:a", "name": ""}, SnapKVError),
        ({"url": "memory:a", "prefix": b"/r/"}, InvalidTypeError),
        ({"url": "memory:a", "prefix": 5}, InvalidTypeError),
        ({"url": "memory:a", "archive": 5}, InvalidTypeError),
        ({"url": "memory:a", "storage": {}}, InvalidOptionError),
        ({"url": "memory:a", "archive": "x", "storage": 5}, InvalidTypeError),
        ({"url": "memory:a", "archive": "x", "prefix": "/r/"}, InvalidOptionError),
        ({"url": "archive:x", "prefix": "/r/"}, InvalidOptionError),
        ({"url": "s3://b/x", "archive": "y"}, InvalidOptionError),
        ({"url": "archive:x", "durability": "none"}, InvalidTypeError),
    ],
)
def test_members_that_cannot_be(sites, given, error):
    with pytest.raises(error) as e:
        sites.fleet({"b": "memory:b", "a": given})
    assert e.value.member == "a"
    assert "'a'" in e.value.__notes__[0]


@pytest.mark.parametrize(
    "name", ["", "a b", "eu-*", "a,b", "a?", "[a]", "a\n", "a\x00", "\u200b", "x" * 257]
)
def test_names_that_no_member_can_have(sites, name):
    with pytest.raises(InvalidOptionError, match="named") as e:
        sites.fleet({name: "memory:a"})
    assert e.value.member == name


@pytest.mark.parametrize("name", [5, None, b"a", ("a",)])
def test_names_that_are_no_text(sites, name):
    for given in ({name: "memory:a"}, {"b": "memory:b", name: "memory:a"}):
        with pytest.raises(InvalidTypeError):
            sites.fleet(given)


def test_an_observed_prefix_of_bytes_is_no_member(sites):
    sites.add("a")
    observed = sites.keep(snapkv.observe(sites.urls["a"], prefix=b"/r/"))
    with pytest.raises(InvalidTypeError, match="as a str") as e:
        sites.fleet({"a": observed})
    assert e.value.member == "a"


@pytest.mark.parametrize("timeout", [0, -1, 3_601, float("nan"), "5", None, True])
def test_timeouts(sites, timeout):
    with pytest.raises((InvalidOptionError, InvalidTypeError), match="timeout"):
        sites.fleet({"a": "memory:a"}, timeout=timeout)
