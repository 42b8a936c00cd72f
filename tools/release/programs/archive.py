"""A store is recorded, compacted, and answered by its archive; a URL of S3 is understood."""

import snapkv
from snapkv.errors import InvalidOptionError

with snapkv.open("lmdb:store") as store:
    first = store.save("a", b"1")
    for number in range(5):
        last = store.save("a", b"%d" % number)
snapkv.record("lmdb:store", into="archive").catch_up()
with snapkv.open_archive("archive") as alone:
    assert alone.load("a", first) == b"1"
    assert alone.load("a", last) == b"4"
try:
    snapkv.open_archive("s3://bucket/path?typo=1")
except InvalidOptionError:
    pass
else:
    raise SystemExit("an option of S3 that does not exist was taken")
