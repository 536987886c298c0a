"""Null lists and null maps of Iceberg tables stay null.

pyiceberg (0.12) brings all rows that it reads or writes into a table's schema by one visitor. That makes lists and maps of
structs anew from their offsets alone, and null becomes empty: with each append, with a merge of files that others have
written rightly, with a scan, and in rows of before a column was added. In lists of lists it forgets what became of the inner
ones: a field that was renamed is null there (https://github.com/apache/iceberg-python/issues/3833, whose mend is for lists
of structs only).

So `keep_nulls` puts a visitor of ours in its place, for the whole process: pyiceberg's functions find it by its name, and
take none as an argument. What else the process does with pyiceberg keeps its nulls too. It is superfluous once the lowest
pyiceberg of pyproject.toml passes tests/unit/spark/test_nested_nulls.py without it.
"""

from __future__ import annotations

from typing import Any

import pyarrow
import pyiceberg.io.pyarrow

from .errors import LoaderError

pa: Any = pyarrow
_arrow: Any = pyiceberg.io.pyarrow
_Projection: Any = _arrow.ArrowProjectionVisitor


def keep_nulls() -> None:
    """Have pyiceberg read and write by `KeepingProjection`, in this process."""
    _arrow.ArrowProjectionVisitor = KeepingProjection


class KeepingProjection(_Projection):  # type: ignore[misc]
    """Rows in another version of their schema. Lists and maps have their own buffers, also of slices, around new values."""

    def schema(self, schema: Any, schema_partner: Any, struct_result: Any) -> Any:
        """The whole. Raises LoaderError where a column has more or fewer nulls than before, whoever made it."""
        for place, field in enumerate(schema.fields):
            name = self._file_schema.find_column_name(field.field_id)
            if name is None:
                continue  # a column that came later
            was, now = schema_partner.column(name).null_count, struct_result.field(place).null_count
            if was != now:
                raise LoaderError(
                    f"pyiceberg makes {now} nulls of {was} in column {field.name}, so values would be lost: install a version"
                    " that rocketcrew is made for (pip install 'rocketcrew[iceberg]')"
                )
        return struct_result

    def list(self, list_type: Any, list_array: Any, value_array: Any) -> Any:
        """A list around the new `value_array`."""
        if value_array is None:
            return None
        values = self._cast_if_needed(list_type.element_field, value_array)
        field = self._construct_field(list_type.element_field, values.type)
        if isinstance(list_array, pa.FixedSizeListArray):
            return _around(list_array, pa.list_(field, list_array.type.list_size), values, 1).cast(pa.list_(field))
        made = pa.large_list if isinstance(list_array, pa.LargeListArray) else pa.list_
        return _around(list_array, made(field), values, 2)

    def map(self, map_type: Any, map_array: Any, key_result: Any, value_result: Any) -> Any:
        """A map around the new keys and values."""
        if key_result is None or value_result is None:
            return None
        parts = ((map_type.key_field, key_result), (map_type.value_field, value_result))
        arrays = [self._cast_if_needed(field, array) for field, array in parts]
        fields = [self._construct_field(field, array.type) for (field, _), array in zip(parts, arrays, strict=True)]
        return _around(map_array, pa.map_(*fields), pa.StructArray.from_arrays(arrays, fields=fields), 2)


def _around(old: Any, kind: Any, values: Any, buffers: int) -> Any:
    """An array of type `kind` with `values`; which are null, and where each begins, is in the first `buffers` of `old`."""
    return pa.Array.from_buffers(kind, len(old), old.buffers()[:buffers], offset=old.offset, children=[values])
