"""The files of an archive in an object store: S3, Google Cloud Storage or Azure.

obstore has few classes of errors. The status and the code of the answer are in their texts, beside
the URL of the request, which may contain a password or a signature, and the body of the answer,
which may contain a key. So the errors of snapkv show the status, the code and the message only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from snapkv.archive.folder import FileEntry, Files
from snapkv.archive.storage import ALLOW_HTTP, BucketLocation, obstore_options
from snapkv.base.extras import requires_extra
from snapkv.base.lifecycle import renew_in_children
from snapkv.base.waiting import check_in_time, pause
from snapkv.errors import (
    AccessDeniedError,
    ArchiveError,
    EngineUnavailableError,
    FileMissingError,
    InvalidOptionError,
    NotSupportedError,
    SnapKVError,
)

_STATUS = re.compile(r"status(?: code)?: (\d{3})\b")
_CODE = re.compile(r"<Code>(\w+)</Code>|\(code: (\w+)\)")
_MESSAGE = re.compile(r"<Message>([^<]{1,200})")
_URL = re.compile(r"https?://\S+")
_TIMED_OUT = re.compile("TimedOut")
_SYSTEM = re.compile(
    r"Connection refused|Connection reset|failed to lookup address information|IncompleteMessage"
    r"|BadScheme|certificate verify failed|UnknownIssuer|NotValidForName"
    r"|Network is unreachable|No route to host|request or response body error"
)
_MEANING = {
    "TimedOut": "no complete answer in time",
    "IncompleteMessage": "the connection was closed before the answer",
    "failed to lookup address information": "the host name is unknown",
    "request or response body error": "the connection was closed within the answer",
}

_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_DENIED = {
    "AccessDenied",
    "AuthenticationFailed",
    "AuthorizationFailure",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}
_OTHER_REGION = {"AuthorizationHeaderMalformed", "PermanentRedirect"}
_ASKED = re.compile(r"performing \w+ https?://([^/\s]+)")
_CREDENTIAL_HOST = re.compile(r"169\.254\.|\[?fd00:ec2|metadata\.|sts\.|oauth2\.|login\.")
_INCOMPLETE = re.compile(
    r"Missing ?(SecretAccessKey|AccessKeyId|Account)|Account must be specified"
)

CREDENTIALS_IN = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
"""The environment variables for credentials."""


def status_of(error: BaseException) -> int:
    """Return the HTTP status of the answer, 0 if there is none."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else 0


def typed(error: BaseException, verb: str, name: str, location: BucketLocation) -> SnapKVError:
    """Return the error for one of obstore's, of a request to read, write, list or delete."""
    what = f"{verb} {name}".strip()
    text = str(error)
    status = status_of(error)
    found = _CODE.search(text)
    code = (found[1] or found[2]) if found else ""
    system = _TIMED_OUT.search(text) or _SYSTEM.search(text)
    message = f"cannot {what} in {location.url}: {_reason(text, status, code, system)}"
    if code in _NO_BUCKET:
        bucket = f"{location.scheme}://{location.bucket}"
        return ArchiveError(f"the bucket {bucket} does not exist: create it, or correct the URL")
    if status in (401, 403) or code in _DENIED:
        return AccessDeniedError(
            f"{message}; check the credentials and their permissions (docs/archive_places.md)"
        )
    if system and system[0] == "BadScheme":
        return InvalidOptionError(
            f"cannot {what} in {location.url}: the endpoint is an http:// URL, which is not "
            "encrypted; to use it, add allow_http=True to storage=, or set "
            f"{ALLOW_HTTP[location.scheme]}=true"
        )
    if verb in ("read", "delete") and (isinstance(error, FileNotFoundError) or status == 404):
        return FileMissingError(message)
    if status >= 500 or status in (408, 429):
        return EngineUnavailableError(f"{message}; try again later")
    if "incorrectly configured region" in text or code in _OTHER_REGION:
        return InvalidOptionError(
            f"cannot {what} in {location.url}: the bucket is in another region; set AWS_REGION or "
            "the storage option 'region'"
        )
    if not status and ("HTTP error" in text or system):
        return EngineUnavailableError(f"{message}; check the network and the endpoint")
    return ArchiveError(message)


def no_credentials(error: BaseException, location: BucketLocation) -> SnapKVError | None:
    """Return the error for a request that had no credentials; None if it had some.

    Then the error is of a request for credentials, to another server than the object store.
    """
    text = str(error)
    asked = _ASKED.search(text)
    elsewhere = asked is not None and _CREDENTIAL_HOST.match(asked[1])
    if not elsewhere and not _INCOMPLETE.search(text):
        return None
    return AccessDeniedError(
        f"no credentials for {location.url}: set {CREDENTIALS_IN[location.scheme]}, or pass "
        "storage= (docs/archive_places.md)"
    )


def rejected(error: BaseException, location: BucketLocation, names: list[str]) -> SnapKVError:
    """Return the error for options that obstore rejects, by their names: a value may be secret."""
    return InvalidOptionError(
        f"obstore cannot open {location.url}: {type(error).__name__} with the storage options "
        f"{', '.join(sorted(names)) or '(none)'} and the options of the environment; "
        "check their values"
    )


def _reason(text: str, status: int, code: str, system: re.Match[str] | None) -> str:
    """Return what the server answered, or why it did not."""
    if status:
        message = _MESSAGE.search(text)
        parts = [f"HTTP {status}", code, message[1].strip() if message else ""]
        return " ".join(part for part in parts if part)
    if system:
        return _MEANING.get(system[0], system[0])
    return _URL.sub("...", text.partition("\n")[0])[:200]


with requires_extra("archive", "archives in object stores"):
    import obstore
    from obstore.exceptions import AlreadyExistsError
    from obstore.store import AzureStore, GCSStore, S3Store

STORES = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
PUT_TRIES_MAX = 5
"""The most tries of a put that conflicts with another request for the same file."""
CONFLICT_PAUSE_S = 0.2
CHECKED_BYTES_MAX = 1 << 20
"""The size of the largest file that is put twice, to check that the second put fails."""
LIST_ROWS = 1_000
RANGE_NOT_SATISFIABLE = 416


class ObjectStore(Files):
    """The files below a URL of an object store; safe for threads.

    A request ends within the bounds of `snapkv.archive.storage`. obstore does not survive a fork:
    where the parent had used it, it would hang, so the child raises `NotSupportedError`.
    """

    def __init__(self, location: BucketLocation, storage: Mapping[str, Any]) -> None:
        self.url, self._location, self._storage = location.url, location, storage
        options = obstore_options(location.scheme, storage)
        try:
            self._store = STORES[location.scheme](
                location.bucket, prefix=location.path or None, **options
            )
        except Exception as e:
            found = no_credentials(e, location) or rejected(e, location, list(storage))
            raise found from None
        self._put_new_checked = False
        renew_in_children(self)

    def put_new(self, name: str, data: bytes) -> bool:
        """Write a file; return False if another writer wrote one of that name.

        Raises `NotSupportedError` for a server that ignores `If-None-Match`.
        """
        for _ in range(PUT_TRIES_MAX):
            lost: EngineUnavailableError | None = None
            try:
                if self._put(name, data):
                    self._check_put_new(name, data)
                    return True
            except EngineUnavailableError as e:
                lost = e
            # The file may be our own. If the server wrote it and the answer was lost, obstore's
            # second try finds the file of its first one; and a put that timed out may have been
            # applied, too. So we compare. Another writer never puts the same bytes: the names of
            # data files are random, and each manifest contains a random number of its attempt.
            found = self._read_if_any(name, lost)
            if found is not None:
                return found == data
            if lost is not None:
                raise lost
            pause(CONFLICT_PAUSE_S)  # S3 answers 409 while another request for the file runs
        raise EngineUnavailableError(
            f"cannot write {name} in {self.url}: {PUT_TRIES_MAX} tries conflicted with other "
            "requests for it; try again later"
        )

    def read(self, name: str) -> bytes:
        """Return a file's bytes; one request."""
        with self._errors("read", name):
            return bytes(obstore.get(self._store, name).bytes())

    def read_part(self, name: str, start: int, size: int) -> bytes:
        """Return `size` bytes of a file, fewer at its end; one request."""
        if size <= 0:
            return b""
        with self._errors("read", name):
            try:
                return bytes(obstore.get_range(self._store, name, start=start, length=size))
            except obstore.exceptions.BaseError as e:
                if status_of(e) == RANGE_NOT_SATISFIABLE:
                    return b""
                raise

    def walk(self, folder: str) -> Iterator[FileEntry]:
        """Yield the files below a folder; one request before each 1,000."""
        with self._errors("list", folder or "the files"):
            for page in obstore.list(self._store, folder or None, chunk_size=LIST_ROWS):
                for found in page:
                    yield FileEntry(
                        found["path"], found["size"], found["last_modified"].timestamp()
                    )

    def above(self) -> tuple[ObjectStore, Sequence[str]]:
        """Return the bucket, and the folders of it above the URL."""
        bucket, parts = self._location._replace(path=""), self._location.path.split("/")
        folders = ["/".join(parts[:count]) for count in range(len(parts))] if parts[0] else []
        return ObjectStore(bucket, self._storage), folders

    def delete(self, name: str) -> None:
        """Remove a file; one request."""
        try:
            with self._errors("delete", name):
                obstore.delete(self._store, name)
        except FileMissingError:
            return

    def after_fork(self) -> None:
        """Keep the parent's connections: closing them needs threads that a child does not have."""
        _kept.append(self._store)

    def _put(self, name: str, data: bytes) -> bool:
        """Write a file; return False if there is one of that name, which may be our own."""
        with self._errors("write", name):
            try:
                obstore.put(self._store, name, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    def _check_put_new(self, name: str, data: bytes) -> None:
        """Put a new file again, once: a server without put-if-absent accepts it."""
        if self._put_new_checked or len(data) > CHECKED_BYTES_MAX:
            return
        try:
            if self._put(name, data):  # two recorders would overwrite each other's manifests
                raise NotSupportedError(
                    f"{self.url}: the server wrote {name} twice, so it ignores 'If-None-Match: *'; "
                    "an archive needs an object store that supports conditional writes"
                )
        except EngineUnavailableError:
            return  # the next put checks it
        self._put_new_checked = True

    def _read_if_any(self, name: str, lost: EngineUnavailableError | None) -> bytes | None:
        try:
            return self.read(name)
        except FileMissingError:
            return None
        except EngineUnavailableError:
            raise lost or EngineUnavailableError(
                f"cannot write {name} in {self.url}: a file of that name exists, and it cannot be "
                "read to find out whose it is; try again later"
            ) from None

    @contextmanager
    def _errors(self, verb: str, name: str) -> Iterator[None]:
        """Turn obstore's errors into errors of snapkv, without their texts: see `typed`."""
        check_in_time()  # obstore cannot end a request that has begun
        _check_process(self.url)
        try:
            yield
        except SnapKVError:
            raise
        except BaseException as e:
            if not isinstance(e, Exception) and type(e).__name__ != "PanicException":
                raise  # Ctrl-C
            raise no_credentials(e, self._location) or typed(
                e, verb, name, self._location
            ) from None


_kept: list[Any] = []
_used_by: list[int] = []
"""The process that made obstore's threads."""


def _check_process(url: str) -> None:
    """Raise `NotSupportedError` if the parent process made obstore's threads."""
    if not _used_by:
        _used_by.append(os.getpid())
    if _used_by[0] != os.getpid():
        raise NotSupportedError(
            f"cannot use {url} in this process: it was forked from one that had used an object "
            "store, and obstore does not survive a fork; use the start method 'spawn' or "
            "'forkserver', or open the archive only after the fork"
        )
