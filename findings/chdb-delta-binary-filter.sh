#!/usr/bin/env bash
# chdb lists the rows of a Delta table by a binary column, and raises when it filters by that column.
#
# Versions: chdb 4.4.0, deltalake 1.6.6, pyarrow 26.0.0 (PyPI).
# Behaviour: ClickHouse has one type for bytes and text, so a column of Delta's type `binary` is a
#   String there, and is compared with a text. It hands the predicate to the Delta kernel, where the
#   column is binary and the literal is text; the kernel knows no such comparison and the query fails.
#   The same filter on a column of type `string` works. Without the predicate in the kernel
#   (`delta_lake_enable_engine_predicate = 0`) the rows are right.
# Seen (2026-11-28):
#   type: String
#   all: a b c
#   by text: b
#   by bytes: RuntimeError, no comparison of BinaryView and Utf8View
#   by bytes, predicate kept: b
# Needs: python3. Downloads some 250 MB.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check chdb==4.4.0 deltalake==1.6.6 pyarrow==26.0.0

python/bin/python - << 'END' | tee found
import os
import re

import chdb
import pyarrow as pa
from deltalake import write_deltalake

columns = {"key": pa.array([b"a", b"b", b"c"], pa.binary()), "name": ["a", "b", "c"]}
write_deltalake("table", pa.table(columns))
table = f"deltaLakeLocal('{os.getcwd()}/table')"


def ask(title: str, sql: str) -> None:
    try:
        said = str(chdb.query(f"{sql} FORMAT TabSeparatedRaw")).split()
        print(f"{title}:", *said)
    except RuntimeError as error:
        ((left, right),) = re.findall(r"comparison operation: (\w+) [<>=]+ (\w+)", str(error))
        print(f"{title}: {type(error).__name__}, no comparison of {left} and {right}")


ask("type", f"SELECT toTypeName(assumeNotNull(key)) FROM {table} LIMIT 1")
ask("all", f"SELECT name FROM {table} ORDER BY key")
ask("by text", f"SELECT name FROM {table} WHERE name = 'b'")
ask("by bytes", f"SELECT name FROM {table} WHERE key = 'b'")
kept = "SETTINGS delta_lake_enable_engine_predicate = 0"
ask("by bytes, predicate kept", f"SELECT name FROM {table} WHERE key = 'b' {kept}")
END
diff found - << 'END' && echo "as it was seen"
type: String
all: a b c
by text: b
by bytes: RuntimeError, no comparison of BinaryView and Utf8View
by bytes, predicate kept: b
END
