"""One text for each value, which Postgres and the sink can both write without knowing of each other.

For every type there is a form: a SQL expression by which the server itself says what a value is, and a function that
says the same of the sink's Arrow values. pgtide's decoder has no part in either, so that a mistake of its own cannot
agree with itself. Only which Arrow type a column becomes is taken from it, because that is what the sink's table is.

    integers, bool, numeric, uuid, time, text, enums …   as the server prints them
    json, jsonb                                          as the server prints them
    float4, float8                                       their bits, in hexadecimal
    date, timestamp, timestamptz                         seconds and microseconds since 1970; Infinity, -Infinity
    bytea, and types that are kept as bytes              the bytes, in hexadecimal
    arrays                                               their dimensions, then their elements as fields in braces

A row's text is its fields with commas between them. A null is the field `N`. A text that could hold a comma has its
length in bytes before it, so no two different rows have the same text; JSON needs none, because it says itself
where it ends.

Pure: SQL is built here and asked elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray
from psycopg import sql

# Arrow arrays, and the functions on them: their stubs are generic in ways that say nothing here.
Array = Any
compute: Any = pyarrow.compute

# Texts have 64-bit offsets: hexadecimal doubles a value, and a batch of large ones passes 2 GB soon.
TEXT = pa.large_string()
_BINARY = pa.large_binary()
_NULL = "N"

_BYTEA, _SINGLE_BYTE, _JSON, _XML, _TIME, _NUMERIC, _UUID, _JSONB = 17, 18, 114, 142, 1083, 1700, 2950, 3802
_NEVER_AMBIGUOUS = frozenset({_JSON, _TIME, _NUMERIC, _UUID, _JSONB})

_SECONDS_OF_DAY = 86_400


@dataclass(frozen=True)
class SourceType:
    """What pg_type says of a type. `send` is its send function, schema and name; None if it has none."""

    oid: int
    kind: str
    base: int
    element: int
    send: tuple[str, str] | None


Types = Mapping[int, SourceType]


@dataclass(frozen=True)
class Form:
    """How the values of one type are written.

    `ask` makes, of an expression that is not null, the expression for its text. `render` gives the texts of an
    Arrow array, null where it is null. `framed`: the text may hold a comma. `printed`: the text is what the server
    prints and reads, so that a value can be found again by it.
    """

    ask: Callable[[sql.Composable], sql.Composable]
    render: Callable[[Array], Array]
    framed: bool = False
    printed: bool = False


class UnexpectedType(TypeError):
    """The sink's column is of a type that this form cannot be read from."""


def form_for(arrow_type: pa.DataType, oid: int, types: Types) -> Form:
    """The form of a source type that is `arrow_type` in the sink. `types` knows the type and what it is made of."""
    source = _without_domains(oid, types)
    if pa.types.is_list(arrow_type):
        element = _without_domains(source.element, types)
        return _list_form(form_for(arrow_type.value_type, element.oid, types), composite=element.kind == "c")
    if source.oid in _PECULIAR:
        return _PECULIAR[source.oid]
    if pa.types.is_binary(arrow_type):
        return Form(partial(_ask_sent, send=source.send), _render_hexadecimal)
    if pa.types.is_string(arrow_type):
        return Form(_ask_printed, _render_text, framed=source.oid not in _NEVER_AMBIGUOUS, printed=True)
    for applies, form in _BY_ARROW_TYPE:
        if applies(arrow_type):
            return form
    raise UnexpectedType(str(arrow_type))


def ask_field(form: Form, value: sql.Composable, *, utf8: bool) -> sql.Composable:
    """The expression for a value's field. `utf8`: that is the database's own encoding, nothing has to be converted.

    `is distinct from null`, because a composite value of nulls `is null` without being null.
    """
    text = form.ask(value)
    if form.framed:
        size = sql.SQL("octet_length({})" if utf8 else "octet_length(convert_to({}, 'UTF8'))").format(text)
        text = sql.SQL("concat({}, ':', {})").format(size, text)
    return sql.SQL("case when {} is distinct from null then {} else {} end").format(value, text, sql.Literal(_NULL))


def render_field(form: Form, array: Array) -> Array:
    """The fields of an Arrow array, none of them null."""
    text = form.render(array)
    if form.framed:
        size = compute.binary_length(text).cast(TEXT)
        text = _joined(size, text, by=":")
    return compute.fill_null(text, _scalar(_NULL))


def join_fields(fields: list[Array]) -> Array:
    """The texts of rows, of their fields."""
    return _joined(*fields, by=",")


def _joined(*parts: Array, by: str = "") -> Array:
    """Texts side by side; null where one of them is."""
    return compute.binary_join_element_wise(*parts, _scalar(by))


def _scalar(text: str | None) -> Any:
    return pa.scalar(text, TEXT)


def _without_domains(oid: int, types: Types) -> SourceType:
    found = types[oid]
    while found.kind == "d":
        found = types[found.base]
    return found


def _ask_printed(value: sql.Composable) -> sql.Composable:
    """What the type's output function prints. A cast to text would not do: it strips a char(n) of its blanks."""
    return sql.SQL("concat({})").format(value)


def _ask_sent(value: sql.Composable, *, send: tuple[str, str] | None) -> sql.Composable:
    """The bytes that the server sends for a type that pgtide keeps as bytes: text, if it can send nothing else."""
    if send is None:
        return sql.SQL("encode(convert_to(concat({}), 'UTF8'), 'hex')").format(value)
    return sql.SQL("encode({}({}), 'hex')").format(sql.Identifier(*send), value)


def _ask_with(template: Any) -> Callable[[sql.Composable], sql.Composable]:
    return lambda value: sql.SQL(template).format(value)


def _require(found: bool, array: Array) -> None:
    if not found:
        raise UnexpectedType(str(array.type))


def _render_text(array: Array) -> Array:
    _require(pa.types.is_string(array.type) or pa.types.is_large_string(array.type), array)
    return array.cast(TEXT)


def _render_integer(array: Array) -> Array:
    _require(pa.types.is_integer(array.type), array)
    return array.cast(TEXT)


def _render_bool(array: Array) -> Array:
    _require(pa.types.is_boolean(array.type), array)
    return compute.if_else(array, _scalar("t"), _scalar("f"))


def _render_float(array: Array, *, arrow_type: pa.DataType, bits: pa.DataType, wire: str) -> Array:
    _require(array.type == arrow_type, array)
    numbers = compute.fill_null(array.view(bits), 0).to_numpy().astype(wire)
    offsets = np.arange(len(array) + 1) * numbers.itemsize
    return _hexadecimal(numbers.view(np.uint8), offsets, array)


def _render_hexadecimal(array: Array) -> Array:
    _require(pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type), array)
    data, offsets = text_memory(array.cast(_BINARY))
    return _hexadecimal(data[offsets[0] : offsets[-1]], offsets - offsets[0], array)


_HEXADECIMAL = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)


def _hexadecimal(data: NDArray[np.uint8], offsets: NDArray[np.int64], like: Array) -> Array:
    """Two digits for each byte of the values that lie in `data`; null where `like` is."""
    digits = _HEXADECIMAL.take(data)
    valid = np.packbits(like.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
    buffers: Any = [pa.py_buffer(part) for part in (valid, 2 * offsets, digits)]  # type: ignore[arg-type]
    return pa.Array.from_buffers(TEXT, len(like), buffers)


def text_memory(array: Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes under an array of large texts or binaries, and where each value begins; one offset more at the end."""
    _, offsets, data = array.buffers()
    if offsets is None or len(array) == 0:
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    starts = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8), starts


def _render_decimal(array: Array) -> Array:
    """All digits after the point, as numeric(p, s) is printed. Arrow's own text turns to exponents for small values."""
    _require(pa.types.is_decimal128(array.type), array)
    scale = array.type.scale
    unscaled = array.view(pa.decimal128(38, 0)).cast(TEXT)
    if scale <= 0:
        return unscaled
    sign = compute.if_else(compute.starts_with(unscaled, "-"), _scalar("-"), _scalar(""))
    digits = compute.utf8_lpad(compute.utf8_ltrim(unscaled, "-"), scale + 1, "0")
    whole = compute.utf8_slice_codeunits(digits, 0, -scale)
    fraction = compute.utf8_slice_codeunits(digits, -scale)
    return _joined(sign, whole, _scalar("."), fraction)


def _render_date(array: Array) -> Array:
    _require(pa.types.is_date32(array.type), array)
    days = array.view(pa.int32())
    seconds = compute.multiply(days.cast(pa.int64()), _SECONDS_OF_DAY)
    return _with_infinities(seconds.cast(TEXT), days, np.iinfo(np.int32))


def _render_timestamp(array: Array) -> Array:
    _require(pa.types.is_timestamp(array.type) and array.type.unit == "us", array)
    microseconds = array.view(pa.int64())
    return _with_infinities(microseconds.cast(TEXT), microseconds, np.iinfo(np.int64))


def _with_infinities(texts: Array, numbers: Array, bounds: Any) -> Array:
    """The documented rule for infinity: it is the largest number of the type, and -infinity the smallest."""
    texts = compute.if_else(compute.equal(numbers, int(bounds.max)), _scalar("Infinity"), texts)
    return compute.if_else(compute.equal(numbers, int(bounds.min)), _scalar("-Infinity"), texts)


# A "char" is one byte, kept as Postgres 16 prints it; older servers print the upper half otherwise.
_SINGLE_BYTES = pa.array(["", *map(chr, range(1, 128)), *(f"\\{byte:03o}" for byte in range(128, 256))], TEXT)
_SINGLE_BYTE_TEXTS = pa.array([*(f"{byte:02x}" for byte in range(256)), "no such byte"], TEXT)


def _render_single_byte(array: Array) -> Array:
    texts = _render_text(array)
    places = compute.fill_null(compute.index_in(texts, _SINGLE_BYTES), 256)
    return compute.if_else(texts.is_valid(), _SINGLE_BYTE_TEXTS.take(places), _scalar(None))


_PECULIAR = {
    _BYTEA: Form(_ask_with("encode({}, 'hex')"), _render_hexadecimal),
    _SINGLE_BYTE: Form(_ask_with("encode(charsend({}), 'hex')"), _render_single_byte),
    # Sent, an xml value names the encoding in its declaration; printed, it does not.
    _XML: Form(_ask_with("convert_from(xml_send({}), 'UTF8')"), _render_text, framed=True),
}

# extract() gives an exact numeric, and knows the infinities by itself.
_BY_ARROW_TYPE: tuple[tuple[Callable[[pa.DataType], bool], Form], ...] = (
    (pa.types.is_integer, Form(_ask_printed, _render_integer, printed=True)),
    (pa.types.is_boolean, Form(_ask_printed, _render_bool, printed=True)),
    (pa.types.is_decimal128, Form(_ask_printed, _render_decimal, printed=True)),
    (
        pa.types.is_float32,
        Form(
            _ask_with("encode(float4send({}), 'hex')"),
            partial(_render_float, arrow_type=pa.float32(), bits=pa.uint32(), wire=">u4"),
        ),
    ),
    (
        pa.types.is_float64,
        Form(
            _ask_with("encode(float8send({}), 'hex')"),
            partial(_render_float, arrow_type=pa.float64(), bits=pa.uint64(), wire=">u8"),
        ),
    ),
    (pa.types.is_date32, Form(_ask_with("concat(trunc(extract(epoch from {})))"), _render_date)),
    (pa.types.is_timestamp, Form(_ask_with("concat(trunc(extract(epoch from {}) * 1000000))"), _render_timestamp)),
)


def _list_form(element: Form, *, composite: bool) -> Form:
    return Form(
        partial(_ask_list, element=element, composite=composite),
        partial(_render_list, element=element),
    )


def _ask_list(value: sql.Composable, *, element: Form, composite: bool) -> sql.Composable:
    """The dimensions stand in front, because a list says that there is one and that it begins at 1."""
    if element.printed and not element.framed:
        elements = sql.SQL("array_to_string({}, ',', {})").format(value, sql.Literal(_NULL))
    else:
        each = sql.SQL("({})[place]").format(value) if composite else sql.SQL("each")
        # unnest() would take a composite element apart, and no longer tell a null from a row of nulls.
        origin = sql.SQL("generate_subscripts({}, 1) place" if composite else "unnest({}) each").format(value)
        # What is framed here is measured in bytes of UTF-8 in any case: converting is cheap next to the loop.
        field = ask_field(element, each, utf8=False)
        elements = sql.SQL("array_to_string(array(select {} from {}), ',')").format(field, origin)
    return sql.SQL("concat(array_dims({}), '{{', {}, '}}')").format(value, elements)


def _render_list(array: Array, *, element: Form) -> Array:
    _require(pa.types.is_list(array.type) or pa.types.is_large_list(array.type), array)
    lengths = compute.list_value_length(array)
    counts = compute.fill_null(lengths, 0).to_numpy().astype(np.int64)
    offsets = pa.array(np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))))
    fields = pa.LargeListArray.from_arrays(offsets, render_field(element, array.flatten()))
    elements = compute.binary_join(fields, _scalar(","))
    dimensions = _joined(_scalar("[1:"), lengths.cast(TEXT), _scalar("]"))
    dimensions = compute.if_else(compute.greater(lengths, 0), dimensions, _scalar(""))
    return _joined(dimensions, _scalar("{"), elements, _scalar("}"))
