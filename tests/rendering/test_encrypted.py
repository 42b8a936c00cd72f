"""Values that an API server encrypted show who encrypted them and how large they are, no bytes."""

import pytest

from snapkv.errors import InvalidOptionError
from snapkv.model import Version
from snapkv.rendering import blame, compare, decode, plain
from tests.rendering.shown import text_of
from tests.rendering.test_kubernetes import stored

VIEWS = ("auto", "paths", "unified", "full", "side-by-side", "words")


def enc(
    provider: str, size: int, key: str = "key1", *, version: str = "v1", fill: int = 7
) -> bytes:
    """Return an encrypted value with so many bytes behind its beginning."""
    return f"k8s:enc:{provider}:{version}:{key}:".encode() + bytes([fill]) * size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (enc("aescbc", 304), "encrypted by aescbc with key1, 327 bytes"),
        (enc("secretbox", 40, "a.b"), "encrypted by secretbox with a.b, 65 bytes"),
        (enc("kms", 9, "vault", version="v2"), "encrypted by kms v2 with vault, 30 bytes"),
        (enc("later", 0), "encrypted by later with key1, 22 bytes"),
    ],
)
def test_an_encrypted_value_says_by_what_it_is_encrypted(value: bytes, text: str) -> None:
    found = decode(value)
    assert (found.kind, found.text, found.preview()) == ("encrypted", text, text)
    assert [plain(line) for line in found.lines()] == [text]


def test_other_bytes_after_its_prefix_are_no_encrypted_value() -> None:
    assert decode(b"k8s:enc:aescbc").kind == "text"
    with pytest.raises(InvalidOptionError, match="does not begin with k8s:enc:PROVIDER"):
        decode(b"abc", "encrypted")


def change(before: bytes, after: bytes) -> str:
    """Return the one line that each view has of a change."""
    found = compare(decode(before), decode(after))
    shown = {tuple(text_of(found, view)) for view in VIEWS}
    assert shown == {(found.summary,)}
    assert plain(found.brief()) == found.summary
    return found.summary


def test_with_the_same_key_another_value_is_a_change() -> None:
    assert change(enc("aescbc", 304), enc("aescbc", 304, fill=8)) == (
        "changed, encrypted by aescbc with key1, 327 bytes"
    )


@pytest.mark.parametrize(
    ("after", "text"),
    [
        (enc("aescbc", 132, "key2"), "encrypted anew by aescbc with key2: {}, 155 bytes"),
        (enc("secretbox", 140), "encrypted anew by secretbox with key1: {}, 155 -> 166 bytes"),
        (enc("secretbox", 156), "changed, encrypted anew by secretbox with key1, 155 -> 182 bytes"),
        (enc("aesgcm", 200), "changed, encrypted anew by aesgcm with key1, 155 -> 223 bytes"),
    ],
)
def test_of_another_key_only_the_size_is_compared(after: bytes, text: str) -> None:
    text = text.format("whether the object changed cannot be seen")
    assert change(enc("aescbc", 132), after) == text


def test_with_a_key_service_the_same_name_may_mean_another_key() -> None:
    assert "cannot be seen" in change(
        enc("kms", 99, "vault", version="v2"), enc("kms", 99, "vault", version="v2", fill=8)
    )


def test_encryption_of_a_plain_object_does_not_show_its_text() -> None:
    secret = stored("Secret")
    size = len(secret)
    after = enc("aesgcm", size + 28)
    text = change(secret, after)
    assert text == (
        "encrypted by aesgcm with key1 now, was in plain text: whether the object changed cannot "
        f"be seen, {size} -> {len(after)} bytes"
    )
    assert change(enc("aesgcm", size), secret).startswith(
        "changed, in plain text now, was encrypted by aesgcm with key1, "
    )


def test_blame_of_an_encrypted_value_names_its_last_write() -> None:
    first, second = (Version(n, n, enc("aescbc", 32, fill=n), None) for n in (1, 2))
    (line,) = blame([first, second])
    assert (line.text, line.version) == (decode(first.value or b"").text, second)
