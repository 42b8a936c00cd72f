"""Errors of obstore as errors of snapkv; no message contains a secret.

obstore has few classes of errors. The status and the code of the answer are in their texts, beside
the URL of the request, which may contain a password or a signature, and the body of the answer,
which may contain a key. So only the status, the code and the message of the answer are shown.
"""

from __future__ import annotations

import re

from snapkv.archive.storage import ALLOW_HTTP, Location
from snapkv.errors import (
    AccessDeniedError,
    ArchiveError,
    EngineUnavailableError,
    FileMissingError,
    InvalidOptionError,
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
"""Environment variables for credentials."""


def status_of(error: BaseException) -> int:
    """Return the HTTP status of the answer, 0 if there is none."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else 0


def typed(error: BaseException, verb: str, name: str, location: Location) -> SnapKVError:
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


def no_credentials(error: BaseException, location: Location) -> SnapKVError | None:
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


def rejected(error: BaseException, location: Location, names: list[str]) -> SnapKVError:
    """Return the error for options that obstore rejects, by their names: a value may be secret."""
    return InvalidOptionError(
        f"obstore cannot open {location.url}: {type(error).__name__} with the storage options "
        f"{', '.join(sorted(names)) or '(none)'} and those of the environment; check their values"
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
