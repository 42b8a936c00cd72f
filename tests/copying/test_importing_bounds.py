"""The URL of an import's source may hold secrets."""

import pytest

import snapkv
from snapkv.copying.import_prefix import import_prefix
from snapkv.errors import InvalidOptionError


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://h:1/?password=PW", "'http:...'"),
        ("etcdd://user:PW@h:1", "'etcdd:...'"),
        ("odd:password=PW", "'odd:...'"),
        ("PW@h:1", "'...'"),
        ("h?password=PW", "'...'"),
        ("./meta", "'./meta'"),
        ("redis:x", "'redis:x'"),
    ],
)
def test_a_url_that_nobody_understands_keeps_its_secrets(url: str, shown: str) -> None:
    with snapkv.open("memory:") as store:
        for call in (lambda: import_prefix(store, url, "r/"), lambda: snapkv.open(url)):
            with pytest.raises(InvalidOptionError, match="no engine for") as told:
                call()
            assert f"no engine for {shown};" in str(told.value)
            assert "PW" not in str(told.value)
