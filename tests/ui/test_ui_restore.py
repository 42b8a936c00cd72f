"""Restoring from the page: previewed, confirmed, guarded; refused in all other cases."""

import re
import subprocess
import sys

import httpx
import pytest
from store.engines import write_raw

import snapkv
from snapkv.engine.contract import Delete, Put
from snapkv.store.location import open_engine
from snapkv.ui import Redaction
from snapkv.web import Login

from .served import WAIT_S, Page, Served

pytestmark = pytest.mark.slow

LOGIN = Login("ann", "secret")


@pytest.fixture
def then(store, clock):
    """Return a moment before the last commits."""
    clock.advance(1_000)
    then = store.commit(puts={"a/x": b"1", "a/y": b"2", "b": b"3"}).ts
    clock.advance(1_000)
    store.commit(puts={"a/x": b"changed", "a/new": b"4"}, deletes=["a/y"], note="a mistake")
    clock.advance(1_000)
    return then


@pytest.fixture
def served(store, then):
    with Served(store, writable=True) as served:
        yield served


def form(served, then, **changes):
    """Return the fields of the preview's form, filled in as a person would."""
    page = served.page(f"/restore?at={then}&prefix=a/")
    assert "restore 3 keys" in page.text
    fields = {**page.fields, "note": "undo it", "confirm": "restore 3 keys"}
    return {name: value for name, value in (fields | changes).items() if value is not None}


def send(served, fields, **headers) -> httpx.Response:
    headers = {"Origin": served.url} | headers
    return served.http.post("/restore", data=fields, headers=headers)


def test_the_preview_shows_what_changes_and_the_commit_does_that(store, served, then):
    data = served.json(f"/restore.json?at={then}&prefix=a/")
    assert {(row["kind"], row["key"]) for row in data["rows"]} == {
        ("-", "a/new"), ("~", "a/x"), ("+", "a/y"),
    }  # fmt: skip
    answer = send(served, form(served, then))
    assert answer.status_code == 303, answer.text
    assert dict(store.at().items()) == dict(store.at(then).items())
    newest = next(store.commits(newest_first=True, limit=1))
    assert newest.note == "undo it"
    assert answer.headers["location"] == f"/commit?at={newest.ts}"
    page = served.page(answer.headers["location"])
    assert "undo it" in page.text


def refused(store, served, fields, status, **headers):
    before = store.resolved()
    answer = send(served, fields, **headers)
    assert answer.status_code == status, answer.text
    assert store.resolved() == before
    return answer


def test_without_its_token_nothing_is_restored(store, served, then):
    refused(store, served, form(served, then, token=None), 403)
    refused(store, served, form(served, then, token="x" * 43), 403)


def test_from_another_origin_nothing_is_restored(store, served, then):
    fields = form(served, then)
    refused(store, served, fields, 403, Origin="http://evil.example")
    refused(store, served, fields, 403, Origin="http://127.0.0.1:1")
    refused(store, served, fields, 403, Origin="null")
    refused(store, served, fields, 403, **{"Sec-Fetch-Site": "cross-site"})
    refused(store, served, fields, 403, **{"Sec-Fetch-Site": "same-site"})


def test_a_stale_preview_restores_nothing(store, served, then):
    fields = form(served, then)
    store.save("elsewhere", b"1")
    answer = refused(store, served, fields, 409)
    page = Page(answer, "/restore")
    assert "another commit was made" in page.text
    assert "restore 4 keys" not in page.text  # the other commit is not below the prefix
    assert page.fields["note"] == "undo it"
    assert page.fields["head"] != fields["head"]
    assert page.fields["prefix"] == fields["prefix"]
    again = {name: page.fields[name] for name in fields} | {"confirm": "restore 3 keys"}
    assert send(served, again).status_code == 303
    assert store.load("a/x") == b"1"


def test_ticks_do_not_make_a_preview_stale(store, served, then):
    fields = form(served, then)
    store.tick()
    store.space("s").commit(puts={b"k": b"1"})
    answer = send(served, fields)
    assert answer.status_code == 303, answer.text
    assert store.load("a/x") == b"1"
    assert store.space("s").load(b"k") == b"1"


def test_the_data_of_a_preview_redacts_values(store, then):
    with Served(store, writable=True, redaction=Redaction(["a/"])) as served:
        for url in (f"/restore.json?at={then}", f"/restore?at={then}"):
            text = served.http.get(url).text
            assert "a/x" in text
            assert "changed" not in text.replace('title="changed"', "").replace("> changed<", "")


def test_a_note_that_is_too_long_is_the_clients_fault(store, served, then):
    refused(store, served, form(served, then, note="x" * 5_000), 413)


def test_it_needs_a_note_and_the_typed_words(store, served, then):
    refused(store, served, form(served, then, note="  "), 400)
    answer = refused(store, served, form(served, then, confirm="yes"), 400)
    page = Page(answer, "/restore")
    assert "to confirm, type 'restore 3 keys', not 'yes'" in page.text
    assert (page.fields["note"], page.fields["confirm"]) == ("undo it", "")
    assert "a/new" in page.text
    refused(store, served, form(served, then, confirm="restore 2 keys"), 400)
    refused(store, served, form(served, then, timestamp="x"), 400)
    refused(store, served, form(served, then, head=None), 400)
    refused(store, served, form(served, then, prefix="nothing"), 404)


def test_it_is_off_by_default(store, then):
    with Served(store, writable=True) as other:
        fields = form(other, then)
    with Served(store) as served:
        assert "/restore" not in " ".join(served.page("/").links)
        assert served.http.get(f"/restore?at={then}").status_code == 400
        token = fields.pop("token")
        refused(store, served, fields, 403)
        refused(store, served, {**fields, "token": token}, 403)
        answer = served.http.post("/restore", data=fields)
        assert answer.status_code == 403


def test_behind_a_login_the_form_needs_that_too(store, then):
    with Served(store, writable=True, login=LOGIN) as served:
        auth = ("ann", "secret")
        served.http.auth = httpx.BasicAuth(*auth)
        fields = form(served, then)
        served.http.auth = None
        served.http.cookies.clear()
        refused(store, served, fields, 401)
        served.http.auth = httpx.BasicAuth(*auth)
        assert send(served, fields).status_code == 303
        newest = next(store.commits(newest_first=True, limit=1))
        assert (newest.writer, newest.note) == ("ann", "undo it")


@pytest.mark.parametrize(
    "store", [["--store", "memory:", "--observe", "/registry/"], ["--store", "archive:./none"]]
)
def test_it_cannot_be_on_for_what_is_only_read(store):
    done = subprocess.run(
        [sys.executable, "-m", "snapkv", "ui", *store, "--port=0", "--allow-restore"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 2, done.stderr
    assert "--allow-restore needs a store that can be written" in done.stderr


def test_a_preview_says_first_that_a_prefix_matches_longer_names(store, clock):
    clock.advance(1_000)
    then = store.commit(puts={"a/x": b"1", "a/x2": b"1", "a/x/below": b"1"}).ts
    store.commit(puts={"a/x": b"2", "a/x2": b"2", "a/x/below": b"2"})
    said = "prefix 'a/x' also matches 'a/x2', which is not below 'a/x/'"
    with Served(store, writable=True) as served:
        page = served.page(f"/restore?at={then}&prefix=a/x")
        assert page.text.index(said) < page.text.index("This makes the keys")
        assert served.json(f"/restore.json?at={then}&prefix=a/x")["longer"] == said
        assert served.json(f"/restore.json?at={then}&prefix=a/x/")["longer"] is None


# --- a record: nothing is restored there, but the page says how to put an object back ---


@pytest.fixture
def recorded(tmp_path):
    """Serve the record of a prefix in which an object was changed, one removed and one made."""
    url, into = f"memory:{tmp_path}", f"lmdb:{tmp_path / 'record'}"
    engine = open_engine(url, create=True, options={})
    recorder = snapkv.record(url, observe="/registry/", into=into)
    kept, gone = "/registry/deployments/shop/web", "/registry/deployments/shop/old"
    write_raw(engine, Put(kept.encode(), b'{"replicas": 2}'), Put(gone.encode(), b"{}"))
    recorder.catch_up()
    write_raw(engine, Put(kept.encode(), b'{"replicas": 3}'))
    then = recorder.catch_up()
    write_raw(engine, Put(kept.encode(), b'{"replicas": 9}'), Delete(gone.encode()))
    write_raw(engine, Put(b"/registry/new", b"1"))
    recorder.catch_up()
    with (
        snapkv.open(into) as record,
        Served(record, writable=True, words=["--store", into]) as served,
    ):
        yield served, record, then
    engine.close()


def test_a_record_is_not_restored_from_the_page(recorded):
    served, record, then = recorded
    newest = record.resolved()
    text = served.page(f"/commit?at={then}").text
    assert "Put back the moment before it" in text
    assert "Revert" not in text
    key = "/registry/deployments/shop/web"
    for url in (f"/key?key={key}&at={then}", f"/changes?from={then}", f"/commit?at={then}"):
        assert not any(
            link.startswith("/restore?") and "key=" in link for link in served.page(url).links
        )
    assert served.http.get(f"/restore?revert={then}").status_code == 400
    page = served.page(f"/restore?at={then}")
    assert ("form", "post") not in [(tag, found.get("method")) for tag, found in page.tags]
    assert "only its recorder writes" in page.text
    for name, verb in (("web", "replace"), ("old", "create")):
        command = rf"snapkv get /registry/deployments/shop/{name} --at \S+ --as kubernetes "
        assert re.search(command + rf"--store \S+ \| kubectl {verb} -f -", page.text), page.text
    assert record.resolved() == newest
