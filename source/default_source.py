"""The data source as Spark finds it: the class `pyspark_rocketmq.DefaultSource`, under the name `rocketmq`.

Spark makes an instance from the options in a Python process of the driver, asks it for a schema, and sends readers and
writers to executors, where this package must be installed too. Everything that can be wrong with options is found here,
before anything runs. Imports of what executors alone need stand in functions: Spark imports this file whenever anybody in the
session names a data source for the first time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from ..remoting.errors import UsageError

if TYPE_CHECKING:
    from .pulling import Reading
    from .writers import Sending


class DefaultSource(DataSource):
    """RocketMQ topics as tables and streams; options.py has the options."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format(...)`."""
        return "rocketmq"

    def schema(self) -> str:
        """All columns but those that options leave out. Raises UsageError for an option that is wrong."""
        from .columns import ddl, default_columns
        from .options import STREAM, flag_of, name_of

        for key in self.options:
            name_of(key)
        body, properties = (flag_of(self.options, name, STREAM) for name in ("includeBody", "includeProperties"))
        return ddl(default_columns(body=body, properties=properties))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`."""
        from .batch_reader import BatchReader

        return BatchReader(self._reading(schema, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """For `spark.readStream`."""
        from .stream_reader import StreamReader

        return StreamReader(self._reading(schema, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For `df.write`."""
        from .writers import BatchWriter

        if overwrite:
            raise UsageError("rocketmq: messages cannot be overwritten: write with mode('append')")
        return BatchWriter(self._sending(schema, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """For `df.writeStream`."""
        from .writers import StreamWriter

        if overwrite:
            raise UsageError("rocketmq: messages cannot be overwritten: write with outputMode('append')")
        return StreamWriter(self._sending(schema, streaming=True))

    def _reading(self, schema: StructType, *, streaming: bool) -> Reading:
        from ..client.logs import get_logger
        from .access_options import access_of
        from .columns import check_columns
        from .options import BATCH, STREAM
        from .pulling import Reading
        from .reading import looks_like_several, read_options

        options = read_options(self.options, streaming)
        if like_several := sorted(filter(looks_like_several, options.tags)):
            hint = "each of these is one tag, as only || stands between several"
            get_logger("rocketcrew.source").warning("tag_looks_like_several", tags=like_several, hint=hint)
        access = access_of(self.options, STREAM if streaming else BATCH)
        return Reading(access, options, tuple(check_columns(_kinds(schema))))

    def _sending(self, schema: StructType, *, streaming: bool) -> Sending:
        from .writers import Sending

        return Sending.of(self.options, _kinds(schema), streaming=streaming)


def _kinds(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]
