"""Object stores: their URLs, and the options that `storage=` takes for each."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from snapkv.base.arguments import check_int, check_known, check_seconds, wrong_type
from snapkv.errors import InvalidOptionError

CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 20.0
"""The longest time of one try of a request with its body, in seconds; the option `timeout`."""
RETRY_TIMEOUT_S = 10.0
"""The latest begin of a try after the first one, in seconds; the option `retry_timeout`. So a
request takes at most `REQUEST_TIMEOUT_S` + `RETRY_TIMEOUT_S`."""
RETRIES_MAX = 6
"""The option `max_retries`."""
BACKOFF_MIN_S = 0.1
BACKOFF_MAX_S = 2.0
TIMEOUT_S_MAX = 3_600.0

SECONDS = ("connect_timeout", "retry_timeout", "timeout")
CLIENT = (
    "allow_http",
    "allow_invalid_certificates",
    "default_headers",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "root_certificate",
    "user_agent",
)
"""The options of the HTTP client, of all object stores; all but the times are given to obstore."""

# The bucket is in the URL. `conditional_put` is missing on purpose: an archive needs it.
CONFIG = {
    "s3": (
        "access_key_id",
        "checksum_algorithm",
        "container_authorization_token_file",
        "container_credentials_full_uri",
        "container_credentials_relative_uri",
        "endpoint",
        "imdsv1_fallback",
        "metadata_endpoint",
        "region",
        "request_payer",
        "role_arn",
        "role_session_name",
        "s3_express",
        "secret_access_key",
        "server_side_encryption",
        "session_token",
        "skip_signature",
        "sse_bucket_key_enabled",
        "sse_customer_key_base64",
        "sse_kms_key_id",
        "sts_endpoint",
        "unsigned_payload",
        "virtual_hosted_style_request",
        "web_identity_token_file",
    ),
    "gs": (
        "application_credentials",
        "base_url",
        "bearer_token",
        "service_account",
        "service_account_key",
        "skip_signature",
    ),
    "az": (
        "account_key",
        "account_name",
        "authority_host",
        "client_id",
        "client_secret",
        "encryption_key",
        "endpoint",
        "federated_token_file",
        "msi_endpoint",
        "msi_resource_id",
        "object_id",
        "sas_key",
        "skip_signature",
        "tenant_id",
        "token",
        "use_azure_cli",
        "use_emulator",
    ),
}
ALLOW_HTTP = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
"""The environment variables for `allow_http`; obstore does not read them beside other options."""
ENDPOINTS = ("base_url", "endpoint")
ENDPOINT = re.compile(r"https?://[^\s/?#@]+(/[^\s?#@]*)?")

FORMS = "s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH"
BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]*")


class BucketLocation(NamedTuple):
    """A folder of a bucket; `path` is "" for the whole bucket."""

    scheme: str
    bucket: str
    path: str

    @property
    def url(self) -> str:
        """The URL, which contains no secret."""
        return f"{self.scheme}://{self.bucket}/{self.path}".rstrip("/")


def location_of(url: str) -> BucketLocation:
    """Return the location that a URL names.

    Raises `InvalidOptionError`, which shows the scheme only: the rest may hold a password.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in CONFIG:
        raise InvalidOptionError(
            f"an archive cannot be at {scheme}://...; name a folder by its path, or write {FORMS}"
        )
    if found := next((mark for mark in "@?#" if mark in rest), None):
        raise InvalidOptionError(
            f"the URL {scheme}://... contains {found!r}: it takes no user, password, query or "
            "fragment; put credentials into the environment or into storage="
        )
    bucket, _, path = rest.partition("/")
    if not BUCKET.fullmatch(bucket):
        raise InvalidOptionError(f"the URL {scheme}://... needs the name of a bucket: {FORMS}")
    path = path.rstrip("/")
    if path and not all(map(_is_name, path.split("/"))):
        raise InvalidOptionError(
            f"the URL {scheme}://{bucket}/... needs a path without empty parts, '.', '..', '\\' "
            "and control characters"
        )
    return BucketLocation(scheme, bucket, path)


def _is_name(part: str) -> bool:
    return part not in ("", ".", "..") and part.isprintable() and "\\" not in part


def obstore_options(scheme: str, storage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of one of obstore's stores, with bounds for time and retries.

    Raises `InvalidTypeError` for an unknown option or a wrong type, `InvalidOptionError`. No
    message contains a value, which may be a secret.
    """
    check_known(storage, {*CLIENT, *SECONDS, "max_retries", *CONFIG[scheme]})
    for name in SECONDS:
        if name in storage:
            check_seconds(f"storage option {name!r}", storage[name], above=0, most=TIMEOUT_S_MAX)
    return {
        "config": {
            name: _config_value(name, storage[name]) for name in CONFIG[scheme] if name in storage
        },
        "client_options": {
            "connect_timeout": _seconds(storage, "connect_timeout", CONNECT_TIMEOUT_S),
            "timeout": _seconds(storage, "timeout", REQUEST_TIMEOUT_S),
            "allow_http": os.environ.get(ALLOW_HTTP[scheme], "").lower() in ("1", "true"),
            **{name: storage[name] for name in CLIENT if name in storage},
        },
        "retry_config": {
            "max_retries": check_int(
                "storage option 'max_retries'", storage.get("max_retries", RETRIES_MAX), 0, 100
            ),
            "retry_timeout": _seconds(storage, "retry_timeout", RETRY_TIMEOUT_S),
            "backoff": {
                "init_backoff": timedelta(seconds=BACKOFF_MIN_S),
                "max_backoff": timedelta(seconds=BACKOFF_MAX_S),
                "base": 2,
            },
        },
    }


def _seconds(storage: Mapping[str, Any], name: str, default: float) -> timedelta:
    return timedelta(seconds=storage.get(name, default))


def _config_value(name: str, value: object) -> str | bool:
    if not isinstance(value, str | bool):
        raise wrong_type(f"storage option {name!r}", "a str, or True or False", value)
    if name in ENDPOINTS and (isinstance(value, bool) or not ENDPOINT.fullmatch(value)):
        raise InvalidOptionError(
            f"storage option {name!r} must be a URL like https://HOST:PORT, without user, password "
            "and query"
        )
    return value
