"""Services import snapkv: it must not drag in what only some uses need."""

import subprocess
import sys

HEAVY = {
    "grpc",
    "google",
    "pyarrow",
    "pyspark",
    "pandas",
    "numpy",
    "typer",
    "rich",
    "click",
    "lmdb",
}


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(*{{m.partition('.')[0] for m in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    return set(done.stdout.split())


def test_importing_snapkv_is_light() -> None:
    assert not HEAVY & loaded_by("import snapkv")


def test_only_the_engine_of_the_url_is_imported() -> None:
    assert "lmdb" not in loaded_by("import snapkv; snapkv.open('memory:').close()")
