"""The splitter of `_bulk_docs`, beside the parser of the standard library."""

import json
import random

import pytest

from cdcmeta.changes.documents import encoded
from cdcmeta.couch_http.bulk import BulkBody, shallow, split
from cdcmeta.couch_http.http_errors import HTTPError, bad_request
from cdcmeta.errors import InvalidDocumentError

SEED = 20_240_611
TEXTS = ("", "a", "_id", 'quote " brace }', "back\\slash", "[", "]]", "{,:", "é€\U0001f600", "\n")


def value(rng: random.Random, depth: int):
    kind = rng.randrange(7 if depth else 4)
    if kind == 0:
        return rng.choice([None, True, 0, -1.5e9])
    if kind <= 3:
        return rng.choice(TEXTS)
    if kind == 4:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {rng.choice(TEXTS): value(rng, depth - 1) for _ in range(rng.randrange(4))}


def spaced(rng: random.Random, found) -> bytes:
    return json.dumps(
        found,
        ensure_ascii=rng.random() < 0.5,
        indent=rng.choice([None, 1, "\t"]),
        separators=rng.choice([None, (",", ":"), (" , ", " : ")]),
    ).encode()


def checked(raw: bytes) -> None:
    _, posted = split(raw, 10)
    if posted is None:
        raise bad_request("docs are a list")
    posted.check(10_000)


def test_any_body_is_split_as_the_parser_reads_it():
    rng = random.Random(SEED)
    for n in range(2_000):
        docs = [value(rng, rng.randrange(9)) for _ in range(rng.randrange(5))]
        body = {"a": value(rng, 3), "docs": docs, "new_edits": n, "b": value(rng, 3)}
        raw = spaced(rng, body)
        members, posted = split(raw, 10)
        assert isinstance(posted, BulkBody), (SEED, raw)
        posted.check(10_000)
        assert list(posted.documents(range(len(docs)))) == docs, (SEED, raw)
        assert members["new_edits"] == n
        for number, doc in enumerate(docs):
            id = doc.get("_id") if isinstance(doc, dict) else None
            assert posted.id(number) == (id if isinstance(id, str) else ""), (SEED, raw)


def test_a_broken_body_is_refused_as_a_whole():
    """Cut off, or with a byte changed: split and parser agree on what is JSON."""
    rng = random.Random(SEED)
    refused = 0
    for n in range(2_000):
        docs = [value(rng, rng.randrange(6)) for _ in range(rng.randrange(5))]
        raw = bytearray(spaced(rng, {"docs": docs}))
        if n % 2:
            del raw[rng.randrange(len(raw)) :]
        else:
            raw[rng.randrange(len(raw))] = rng.choice(b'[]{},:" x\\')
        try:
            expected = json.loads(bytes(raw))
        except ValueError:
            refused += 1
            with pytest.raises(HTTPError):
                checked(bytes(raw))
        else:
            _, posted = split(bytes(raw), 10)
            if posted is None:
                assert not isinstance(expected.get("docs"), list), (SEED, raw)
                continue
            posted.check(10_000)
            assert list(posted.documents(range(len(posted.ranges)))) == expected["docs"], (
                SEED,
                raw,
            )
    assert refused > 500


@pytest.mark.parametrize(
    "docs", ["[1,]", "[,1]", "[1,,2]", "[,]", "[1 2]", "[{]}", "[[}]]", "[tru]"]
)
def test_lists_that_are_no_json(docs):
    with pytest.raises(HTTPError) as refused:
        checked(b'{"docs":%s}' % docs.encode())
    assert refused.value.status == 400


def test_what_cannot_be_parsed_has_an_id():
    deep = b'{"a":%s,"_id":"deep","b":{"_id":"x"}}' % (b"[" * 10_000 + b"]" * 10_000)
    large = b'{"_id":"large","text":"%s"}' % (b"x" * 300_000)
    raw = b'{"docs":[%s,{"_id":"fine"},%s]}' % (deep, large)
    _, posted = split(raw, 10)
    posted.check(200_000)
    refused = {number: each.id for number, each in posted.refused.items()}
    if refused.pop(0, None) != "deep":  # Python 3.14 parses it, and storing it fails
        with pytest.raises(InvalidDocumentError, match="nested"):
            encoded(next(iter(posted.documents([0]))))
    assert refused == {2: "large"}
    assert list(posted.documents([1])) == [{"_id": "fine"}]


def test_a_body_that_is_nested_without_end():
    raw = b'{"docs":[%s%s]}' % (b"[" * 50_000, b"]" * 50_000)
    with pytest.raises(HTTPError, match="nested more than"):
        split(raw, 10)


def test_more_documents_than_one_request_may_have():
    with pytest.raises(HTTPError) as refused:
        split(b'{"docs":[%s]}' % b",".join([b"{}"] * 11), 10)
    assert (refused.value.status, refused.value.error) == (413, "too_large")


def test_shallow():
    raw = b' {"a":[1,[2]], "b" : {"c":[]}, "d":"[", "e":[]} '
    found, ranges = shallow(raw, 0, len(raw))
    assert found == {"a": [0], "b": {}, "d": "[", "e": [2]}
    assert [raw[start:end] for start, end in ranges] == [b"[1,[2]]", b'{"c":[]}', b"[]"]
