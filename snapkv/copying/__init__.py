"""Recording: a source's history is copied to where no compaction of the source can reach it.

`sources` bring steps (a commit's mark, and its changes), a target takes each once and in order: an
archive (`archive_target`), or another store (`store_target`, which makes commits by
`store_commits`). `Recording` moves steps from one to the other while both answer; `Recorder` opens
them, and begins again after failures that pass.

Importing: `import_prefix` commits keys that other programs wrote; `import_source` reads them.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from snapkv.base.arguments import check_known
from snapkv.copying.record_options import RecordOptions, Report

if TYPE_CHECKING:
    from snapkv.copying.recorder import Recorder


def record(url: str, *, into: str, report: Report | None = None, **options: Any) -> Recorder:
    """Return a recorder of a store, or of the keys of other programs, to where history is kept.

    `url` is the source: a store, or with `observe` a prefix of keys (str or bytes) that other
    programs write, or a list of prefixes; keys that begin with `exclude` (a prefix or a list) are
    left out. `into` is another store (`lmdb:PATH`, `etcd://...`), which repeats each commit
    with its time, writer and note; or an archive: a folder, `s3://BUCKET/PATH`, `gs://`, `az://`.
    The first record of a store begins with its oldest commit that is not compacted; of other keys,
    with the present state.

    Options: `name` and `into_name` of the stores; `every` ("1s"), how often time is recorded while
    other programs write nothing; `flush` ("60s") and `flush_bytes` (64 MiB), after which an archive
    gets files; `keep` ("90d"), before which history is dropped (all by default); `storage`, options
    of an archive's object store; `options` and `into_options`, dicts of `open`'s options for the
    source and the target; `redact`, prefixes of observed keys whose values are recorded as digests,
    and `redact_key`, the file with the digests' key, which is made if it does not exist; `clock`;
    `hooks`, whose `on_record` is called as `report` is: that gets a `RecordStatus` each second, and
    when its state changes. No round trip before the recorder runs.

    >>> import snapkv
    >>> with snapkv.open("memory:plans") as store:
    ...     saved = store.save("a", b"1")
    ...     recorder = snapkv.record("memory:plans", into="memory:kept")
    ...     assert recorder.catch_up() == saved
    >>> with snapkv.open("memory:kept") as kept:
    ...     kept.load("a", saved)
    b'1'

    Raises `InvalidOptionError`, `InvalidTypeError`.
    """
    from snapkv.copying.recorder import Recorder

    check_known(options, {f.name for f in fields(RecordOptions)} - {"url", "into"})
    return Recorder(RecordOptions(url=url, into=into, **options), report)
