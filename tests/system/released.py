"""Copies of what released versions stored."""

import gzip
import json
import shutil
from pathlib import Path

VECTORS = Path(__file__).parents[1] / "vectors"
RELEASED = sorted(VECTORS.glob("formats_*"))


class Released:
    """Copies of one folder's files, to work with."""

    def __init__(self, folder: Path, place: Path) -> None:
        self.folder = folder
        self.expected = json.loads((folder / "expected.json").read_text())
        self.dump, self.archive, self.lines = place / "dump", place / "archive", place / "lines"
        self.url = self._directory("data.mdb.gz", place / "meta")
        self.recorded_url = self._directory("recorded.mdb.gz", place / "recorded")
        self.dump.write_bytes(self._content("dump.gz"))
        for copy in (self.archive, self.lines):
            shutil.copytree(folder / copy.name, copy)

    def _directory(self, name: str, place: Path) -> str:
        """Make the directory of a store from its LMDB file; return its URL."""
        place.mkdir(parents=True)
        (place / "data.mdb").write_bytes(self._content(name))
        return f"lmdb:{place}"

    def _content(self, name: str) -> bytes:
        return gzip.decompress((self.folder / name).read_bytes())
