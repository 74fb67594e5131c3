"""Spark types and Arrow types.

TIMESTAMP is Spark's ``TimestampType`` in a session whose time zone is UTC; a ``TimestampNTZType``
of a source is read as UTC.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as spark_types

from penstock.errors import InternalError, NotSupportedError
from penstock.expr.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    NULL,
    SMALLINT,
    STRING,
    TINYINT,
    decimal_type,
    is_decimal,
    type_name,
)
from penstock.model import TIMESTAMP
from penstock.nested.shapes import fields_of, is_array, is_map, is_struct

_SPARK: dict[pa.DataType, spark_types.DataType] = {
    BOOLEAN: spark_types.BooleanType(),
    TINYINT: spark_types.ByteType(),
    SMALLINT: spark_types.ShortType(),
    INT: spark_types.IntegerType(),
    BIGINT: spark_types.LongType(),
    FLOAT: spark_types.FloatType(),
    DOUBLE: spark_types.DoubleType(),
    STRING: spark_types.StringType(),
    BINARY: spark_types.BinaryType(),
    TIMESTAMP: spark_types.TimestampType(),
    DATE: spark_types.DateType(),
    NULL: spark_types.NullType(),
}
_ARROW: dict[type[spark_types.DataType], pa.DataType] = {
    **{type(spark): arrow for arrow, spark in _SPARK.items()},
    spark_types.TimestampNTZType: TIMESTAMP,
    spark_types.VarcharType: STRING,
    spark_types.CharType: STRING,
}


def spark_type(type_: pa.DataType) -> spark_types.DataType:
    """Return the Spark type of one of Penstock's types."""
    if is_decimal(type_):
        return spark_types.DecimalType(type_.precision, type_.scale)
    if is_map(type_):
        return spark_types.MapType(spark_type(type_.key_type), spark_type(type_.item_type))
    if is_array(type_):
        return spark_types.ArrayType(spark_type(type_.value_type))
    if is_struct(type_):
        pairs = ((f.name, spark_type(f.type)) for f in fields_of(type_))
        return spark_types.StructType([spark_types.StructField(*pair) for pair in pairs])
    found = _SPARK.get(type_)
    if found is None:
        raise InternalError(f"a type must be one of Penstock's, got {type_name(type_)}")
    return found


def arrow_type(type_: spark_types.DataType) -> pa.DataType:
    """Return the type of Penstock that holds the values of a Spark type."""
    if isinstance(type_, spark_types.DecimalType):
        return decimal_type(type_.precision, type_.scale)
    if isinstance(type_, spark_types.MapType):
        return pa.map_(arrow_type(type_.keyType), arrow_type(type_.valueType))
    if isinstance(type_, spark_types.ArrayType):
        return pa.list_(arrow_type(type_.elementType))
    if isinstance(type_, spark_types.StructType):
        return pa.struct([pa.field(f.name, arrow_type(f.dataType)) for f in type_.fields])
    found = _ARROW.get(type(type_))
    if found is None:
        raise NotSupportedError(
            f"a column must have a type that Penstock has, got Spark's {type_.simpleString()}; "
            "convert or drop it before, for instance an interval to a number"
        )
    return found
