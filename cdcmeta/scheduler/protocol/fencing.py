"""Who is listened to: the rules on both sides for messages of other times."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from cdcmeta.scheduler.protocol.messages import Header


class Verdict(Enum):
    """Whether a message counts, and if not, why."""

    ACCEPTED = "accepted"
    NOT_FOR_US = "not for us"
    OTHER_OWNER = "of another owner"
    OTHER_CAPTURE_EPOCH = "of a capture before its restart"
    OTHER_CHANGEFEED_EPOCH = "of the changefeed before its restart"
    UNKNOWN_CAPTURE = "of a capture that is not registered"


class KnownOwner(NamedTuple):
    """The newest owner that an agent has heard of."""

    name: str = ""
    revision: int = 0


def owner_accepts(
    header: Header, own: KnownOwner, changefeed_epoch: int, epochs: Mapping[str, int]
) -> Verdict:
    """Return whether an owner listens to a message; `epochs` are those of registered captures."""
    if header.to != own.name:
        return Verdict.NOT_FOR_US
    if header.owner_revision != own.revision:
        return Verdict.OTHER_OWNER
    if header.changefeed_epoch != changefeed_epoch:
        return Verdict.OTHER_CHANGEFEED_EPOCH
    epoch = epochs.get(header.sender)
    if epoch is None:
        return Verdict.UNKNOWN_CAPTURE
    if header.capture_epoch != epoch:
        return Verdict.OTHER_CAPTURE_EPOCH
    return Verdict.ACCEPTED


def agent_accepts(
    header: Header, name: str, epoch: int, changefeed_epoch: int, known: KnownOwner
) -> tuple[Verdict, KnownOwner]:
    """Return whether an agent listens to an owner, and the newest owner it then knows of.

    A larger revision is believed at once, whatever else the message is about: from then on all
    earlier owners are refused. Two owners with one revision cannot be: the second is refused.
    """
    if header.to != name:
        return Verdict.NOT_FOR_US, known
    if header.owner_revision < known.revision:
        return Verdict.OTHER_OWNER, known
    if header.owner_revision > known.revision or not known.name:
        known = KnownOwner(header.sender, header.owner_revision)
    elif known.name != header.sender:
        return Verdict.OTHER_OWNER, known
    if header.changefeed_epoch != changefeed_epoch:
        return Verdict.OTHER_CHANGEFEED_EPOCH, known
    if header.capture_epoch != epoch:
        return Verdict.OTHER_CAPTURE_EPOCH, known
    return Verdict.ACCEPTED, known
