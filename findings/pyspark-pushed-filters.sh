#!/usr/bin/env bash
# The filters that PySpark pushes into a Python data source also narrow other queries of its frame.
#
# Versions: pyspark 4.3.0 (PyPI), Java 17.
# Behaviour: a reader whose `pushFilters` takes a filter over reads less, as it should. With
#   spark.sql.python.filterPushdown.enabled, the narrowed plan is kept with the frame: a later query
#   of the same frame without that filter is answered from it, and so is the other side of a union.
#   Rows are missing, without an error or a warning. Without the setting, its default, a reader that
#   has `pushFilters` cannot be read at all.
# Seen (2026-11-28):
#   with filterPushdown: one key 1 row; the same frame, unfiltered 1 row; union of two keys: [2, 2]
#   without: DATA_SOURCE_PUSHDOWN_DISABLED
# Needs: python3, java 17 or newer, 500 MB to download; takes about a minute.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check pyspark==4.3.0 pyarrow==25.0.0 \
  pandas==3.0.5 2> pip.log || { cat pip.log >&2; exit 1; }
export PYSPARK_PYTHON=$work/python/bin/python PYSPARK_DRIVER_PYTHON=$work/python/bin/python
export SPARK_LOCAL_IP=127.0.0.1

cat > trial.py << 'END'
import re

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, InputPartition


class Numbers(DataSource):
    """The rows 1, 2, 3."""

    @classmethod
    def name(cls):
        return "numbers"

    def schema(self):
        return "id int"

    def reader(self, schema):
        return NumbersReader()


class NumbersReader(DataSourceReader):
    def __init__(self):
        self.wanted = {1, 2, 3}

    def pushFilters(self, filters):
        for each in filters:
            if isinstance(each, EqualTo) and each.attribute == ("id",):
                self.wanted &= {each.value}
            else:
                yield each

    def partitions(self):
        return [InputPartition(0)]

    def read(self, partition):
        yield from ((number,) for number in sorted(self.wanted))


spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.dataSource.register(Numbers)



def counted(rows):
    return f"{rows} row{'s' * (rows != 1)}"


spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
frame = spark.read.format("numbers").load()
one, other = frame.where("id = 1"), frame.where("id = 2")
narrowed, whole = one.count(), frame.count()
united = sorted(row.id for row in one.union(other).collect())
print(
    f"with filterPushdown: one key {counted(narrowed)}; the same frame, unfiltered "
    f"{counted(whole)}; union of two keys: {united}"
)
spark.conf.unset("spark.sql.python.filterPushdown.enabled")
try:
    print("without:", counted(spark.read.format("numbers").load().count()))
except Exception as e:
    found = re.search(r"DATA_SOURCE_PUSHDOWN_\w+", str(e))
    print("without:", found[0] if found else e)
spark.stop()
END
python/bin/python trial.py 2> spark.log | tee found || { cat spark.log >&2; exit 1; }
diff - found << 'END'
with filterPushdown: one key 1 row; the same frame, unfiltered 1 row; union of two keys: [2, 2]
without: DATA_SOURCE_PUSHDOWN_DISABLED
END
