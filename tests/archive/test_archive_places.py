"""Files of an archive behave the same wherever they are: in a folder, and in an object store."""

import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import snapkv
from snapkv.archive import open_files
from snapkv.archive.folder import Folder
from snapkv.archive.objects import ObjectStore
from snapkv.errors import (
    AccessDeniedError,
    ArchiveError,
    FileMissingError,
    InvalidOptionError,
    InvalidTypeError,
)

WAIT_S = 60
ODD_NAMES = ["a b", "a%2Fb", "a+b", "a#b?c&d=e", "\u20ac/\u00fc", "a'\"b", "=x", ".x", "a~b/..."]


def names(entries):
    return [entry.name for entry in entries]


def test_a_file_is_written_once(files):
    assert files.put_new("a/b", b"1")
    assert not files.put_new("a/b", b"2")
    assert not files.put_new("a/b", b"longer")
    assert files.read("a/b") == b"1"


def test_of_eight_that_put_the_same_name_one_succeeds(files):
    begin, done = threading.Barrier(8), []

    def put(n):
        begin.wait(WAIT_S)
        done.append((files.put_new("a/b", b"%d" % n), n))

    threads = [threading.Thread(target=put, args=(n,)) for n in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(WAIT_S)
    (winner,) = [n for ok, n in done if ok]
    assert len(done) == 8
    assert files.read("a/b") == b"%d" % winner
    assert names(files.list("")) == ["a/b"], "and nothing is left over"


def test_parts(files):
    files.put_new("a/b", b"0123456789")
    for start, size, expected in [
        (0, 10, b"0123456789"),
        (0, 99, b"0123456789"),
        (2, 3, b"234"),
        (8, 30, b"89"),
        (9, 1, b"9"),
        (10, 1, b""),
        (50, 5, b""),
        (3, 0, b""),
    ]:
        assert files.read_part("a/b", start, size) == expected, (start, size)


def test_an_empty_file(files):
    assert files.put_new("a", b"")
    assert files.read("a") == b""
    assert files.read_part("a", 0, 5) == b""
    assert [entry[:2] for entry in files.list("")] == [("a", 0)]


def test_a_large_file(files):
    data = os.urandom(20 << 20)
    assert files.put_new("a", data)
    assert files.read("a") == data
    assert files.read_part("a", 12_345_678, 9) == data[12_345_678:12_345_687]
    assert files.read_part("a", len(data) - 5, 9) == data[-5:]
    assert [entry[:2] for entry in files.list("")] == [("a", 20 << 20)]


def test_a_listing_is_sorted_and_has_the_files_below_a_folder(files):
    for name in ("b/2", "b/10", "b/c/d", "bb/1", "a", "c/1", "b.txt"):
        files.put_new(name, name.encode())
    everything = ["a", "b.txt", "b/10", "b/2", "b/c/d", "bb/1", "c/1"]
    assert names(files.list("")) == everything
    assert names(files.list("b")) == ["b/10", "b/2", "b/c/d"]
    assert names(files.list("b/c")) == ["b/c/d"]
    assert files.list("nowhere") == []
    now = time.time()
    for entry in files.list(""):
        assert entry.size == len(entry.name)
        assert abs(entry.written - now) < 600


def test_a_listing_of_more_than_one_page(files):
    expected = [f"many/{n:05}" for n in range(1_003)]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda name: files.put_new(name, b"1"), expected))
    assert names(files.list("many")) == expected


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names(files, name):
    assert files.put_new(name, name.encode())
    assert not files.put_new(name, b"")
    assert files.read(name) == name.encode()
    assert names(files.list("")) == [name]
    files.delete(name)
    assert files.list("") == []


def test_a_file_that_does_not_exist(files):
    files.put_new("a/b", b"1")
    files.delete("a/b")
    files.delete("a/b")
    files.delete("never/was")
    for read in (lambda: files.read("a/b"), lambda: files.read_part("a/b", 0, 1)):
        with pytest.raises(FileMissingError, match="a/b"):
            read()
    assert files.put_new("a/b", b"2"), "the name is free again"


# --- URLs and options ---

SECRET = "geheim"


@pytest.mark.parametrize(
    "url",
    [
        f"s3://user:{SECRET}@bucket/path",
        f"s3://{SECRET}@bucket/path",
        f"s3://bucket/path?secret_access_key={SECRET}",
        f"s3://bucket/path#{SECRET}",
        f"az://container/path?sv=1&sig={SECRET}",
        f"s3://key:{SECRET}/bucket",
        f"ftp://user:{SECRET}@host/path",
        f"file:///{SECRET}",
        f"s3:///{SECRET}",
        f"S3://bucket/{SECRET}",
        f"s3://bucket/../{SECRET}",
        f"s3://bucket//{SECRET}",
        f"s3://bucket/\n{SECRET}",
    ],
)
@pytest.mark.parametrize("opened", [snapkv.open_archive, lambda url: snapkv.open(f"archive:{url}")])
def test_a_url_that_names_no_place(url, opened):
    with pytest.raises(InvalidOptionError) as caught:
        opened(url)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("storage", "error", "message"),
    [
        ({"regoin": SECRET}, InvalidTypeError, "unknown option 'regoin'; the known options are"),
        ({"bucket": SECRET}, InvalidTypeError, "unknown option 'bucket'"),
        ({"conditional_put": "disabled"}, InvalidTypeError, "unknown option 'conditional_put'"),
        ({"url": SECRET}, InvalidTypeError, "unknown option 'url'"),
        ({"region": 5}, InvalidTypeError, "storage option 'region' must be a str"),
        ({"timeout": "5s"}, InvalidTypeError, "'timeout' must be a number of seconds"),
        ({"timeout": 0}, InvalidOptionError, "'timeout' must be above 0"),
        ({"retry_timeout": float("inf")}, InvalidOptionError, "at most 3,600 seconds"),
        ({"max_retries": -1}, InvalidOptionError, "from 0 to 100"),
        ({"endpoint": "nowhere"}, InvalidOptionError, "must be a URL like https://HOST:PORT"),
        ({"endpoint": f"http://a:{SECRET}@host"}, InvalidOptionError, "without user, password"),
        ({"skip_signature": SECRET}, InvalidOptionError, "skip_signature.*check their values"),
        ({"allow_http": SECRET}, InvalidOptionError, "allow_http.*check their values"),
    ],
    ids=str,
)
def test_options_that_cannot_be_used(storage, error, message):
    with pytest.raises(error, match=message) as caught:
        snapkv.open_archive("s3://bucket/path", storage=storage)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_folder_takes_no_options(tmp_path):
    with pytest.raises(InvalidOptionError, match="storage= is for object stores"):
        snapkv.open_archive(str(tmp_path), storage={"region": "x"})
    assert isinstance(open_files(str(tmp_path), {}), Folder)


def test_each_scheme_is_one_of_obstores_stores(monkeypatch):
    azure = {"account_name": "acc", "account_key": "bm90"}
    for url, storage, store in [
        ("s3://bucket/a/b/", {}, "S3Store"),
        ("gs://bucket/a/b", {}, "GCSStore"),
        ("az://bucket/a/b", azure, "AzureStore"),
    ]:
        files = open_files(url, storage)
        assert isinstance(files, ObjectStore)
        assert files.url == url.rstrip("/")
        assert type(files._store).__name__ == store
        assert files._store.prefix == "a/b"


def test_credentials_and_endpoint_may_come_from_the_environment(s3, monkeypatch):
    storage = s3.storage
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", storage["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", storage["secret_access_key"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", storage["endpoint"])
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    files = open_files(s3.new_url())
    assert files.put_new("a", b"1")
    assert files.read("a") == b"1"


def test_an_endpoint_of_the_environment_that_is_none(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"no-url-{SECRET}")
    storage = {"access_key_id": "a", "secret_access_key": SECRET}
    with pytest.raises(ArchiveError) as caught:
        open_files("s3://bucket", storage).list("")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(("scheme", "variable"), [("s3", "AWS_ACCESS_KEY_ID"), ("az", "AZURE_")])
def test_without_credentials(scheme, variable, monkeypatch):
    for name in [*os.environ]:
        if name.startswith(("AWS_", "AZURE_")):
            monkeypatch.delenv(name)
    storage = {"metadata_endpoint": "http://169.254.0.1"} if scheme == "s3" else {}
    with pytest.raises(
        AccessDeniedError, match=f"no credentials for {scheme}://bucket.*{variable}"
    ):
        open_files(f"{scheme}://bucket", storage | {"max_retries": 0}).list("")


def test_an_unencrypted_endpoint_must_be_allowed(s3):
    storage = {k: v for k, v in s3.storage.items() if k != "allow_http"}
    assert "AWS_ALLOW_HTTP" not in os.environ
    with pytest.raises(InvalidOptionError, match=re.escape("add allow_http=True to storage=")):
        open_files(s3.new_url(), storage).list("")


def test_a_bucket_that_does_not_exist(s3):
    files = open_files("s3://nowhere/path", s3.storage)
    for call in (
        lambda: files.put_new("a", b""),
        lambda: files.read("a"),
        lambda: files.read_part("a", 0, 1),
        lambda: files.list(""),
        lambda: files.delete("a"),
        lambda: snapkv.open_archive("s3://nowhere/path", storage=s3.storage),
    ):
        with pytest.raises(ArchiveError, match="the bucket s3://nowhere does not exist: create it"):
            call()
