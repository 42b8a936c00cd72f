"""Fencing: the rules on both sides that reject messages from before an election or a restart."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from cdcmeta.scheduler.protocol.messages import Header


class Verdict(Enum):
    """Whether a message is accepted, and if not, why."""

    ACCEPTED = "accepted"
    NOT_FOR_US = "not for us"
    OTHER_OWNER = "of another owner"
    OTHER_CAPTURE_EPOCH = "of a capture before its restart"
    OTHER_CHANGEFEED_EPOCH = "of the changefeed before its restart"
    UNKNOWN_CAPTURE = "of a capture that is not registered"


class KnownOwner(NamedTuple):
    """The newest owner that an agent knows."""

    name: str = ""
    revision: int = 0


def owner_accepts(
    header: Header, own: KnownOwner, changefeed_epoch: int, epochs: Mapping[str, int]
) -> Verdict:
    """Return whether an owner accepts a message; `epochs` has registered captures' epochs."""
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
    """Return whether an agent accepts an owner's message, and the newest owner it then knows.

    A larger revision counts at once, even if the message is rejected: from then on all earlier
    owners are rejected. Two owners never have the same revision; the second is rejected.
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
