"""Errors that stop a tour; each says what is wrong, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from snapkv.cli.exits import CommandError, Exit


class TourError(CommandError):
    """The tour cannot continue: `message` says why, `advice` what to do about it."""

    def __init__(self, message: str, advice: str, code: Exit = Exit.USAGE) -> None:
        super().__init__(f"{message}. {advice}", code)
        self.message, self.advice = message, advice


class GitError(TourError):
    """Git ended with an error that the tour did not expect; `stderr` is its output."""

    def __init__(self, words: Sequence[str], code: int, stderr: bytes) -> None:
        self.stderr = stderr.decode(errors="replace").strip()
        super().__init__(
            f"git failed with code {code}, asked for: git {' '.join(words)}",
            self.stderr or "It did not say why.",
        )
