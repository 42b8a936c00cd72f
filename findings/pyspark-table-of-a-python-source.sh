#!/usr/bin/env bash
# A table that Spark SQL creates on a Python data source forgets its options.
#
# Versions: pyspark 4.3.0 (PyPI), Java 17.
# Behaviour: `CREATE TABLE t USING source OPTIONS (asked 'yes')` is accepted, for a data source that
#   is written in Python. A query of the table runs, and the source gets no option at all: it answers
#   as if nothing had been asked. A source with a required option fails, others answer something else
#   than the statement says. SHOW CREATE TABLE has neither OPTIONS nor USING. The same options reach
#   the source with CREATE TEMPORARY VIEW, and with spark.read.format(...).option(...).load().
# Seen (2026-11-28):
#   load(): {'asked': 'yes'}
#   CREATE TEMPORARY VIEW: {'asked': 'yes'}
#   CREATE TABLE: {}
#   SHOW CREATE TABLE: no USING, no OPTIONS
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
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition


class Echo(DataSource):
    """Answers one row: the options that it was given."""

    @classmethod
    def name(cls):
        return "echo"

    def schema(self):
        return "given string"

    def reader(self, schema):
        options = {name: value for name, value in self.options.items() if name == "asked"}

        class Reader(DataSourceReader):
            def partitions(self):
                return [InputPartition(0)]

            def read(self, partition):
                yield (str(options),)

        return Reader()


spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.warehouse.dir", "warehouse")
    .getOrCreate()
)
spark.dataSource.register(Echo)
print("load():", spark.read.format("echo").option("asked", "yes").load().first().given)
spark.sql("CREATE TEMPORARY VIEW v USING echo OPTIONS (asked 'yes')")
print("CREATE TEMPORARY VIEW:", spark.table("v").first().given)
spark.sql("CREATE TABLE t USING echo OPTIONS (asked 'yes')")
print("CREATE TABLE:", spark.table("t").first().given)
shown = spark.sql("SHOW CREATE TABLE t").first()[0]
said = [word if word in shown else f"no {word}" for word in ("USING", "OPTIONS")]
print("SHOW CREATE TABLE:", ", ".join(said))
spark.stop()
END
python/bin/python trial.py 2> spark.log | tee found || { cat spark.log >&2; exit 1; }
diff - found << 'END'
load(): {'asked': 'yes'}
CREATE TEMPORARY VIEW: {'asked': 'yes'}
CREATE TABLE: {}
SHOW CREATE TABLE: no USING, no OPTIONS
END
