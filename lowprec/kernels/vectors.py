"""Helpers for vector kernels: an emitter of LLVM vector code, and aligned scratch memory."""

from typing import Any

import numpy as np

from lowprec._jit import cgutils, ir, kernel

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()
UNROLL = 4  # unrolled steps per test of a loop's end
TOWARD_ZERO = 8 | 3  # rounding control of the AVX-512 encodings: toward zero, exceptions suppressed
_BITS = {F32: 32, F64: 64}


class VectorCode:
    """Emits vector instructions through an IR builder; addresses are 64-bit integers."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def steps(self, count: Any) -> Any:
        """Yield the indices 0 .. count - 1 within a loop; `count` is a multiple of `UNROLL`."""
        b = self.builder
        with cgutils.for_range(b, b.udiv(count, I64(UNROLL))) as loop:
            first = b.mul(loop.index, I64(UNROLL))
            for u in range(UNROLL):
                yield b.add(first, I64(u))

    def at(self, address: Any, *offsets: Any) -> Any:
        """Return an address plus an offset in bytes."""
        for offset in offsets:
            address = self.builder.add(address, I64(offset) if isinstance(offset, int) else offset)
        return address

    def load(self, address: Any, kind: Any, align: int | None = None) -> Any:
        """Load a scalar or vector, by default from an address that is a multiple of its size."""
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=align or size(kind))

    def store(self, value: Any, address: Any, align: int | None = None) -> None:
        """Store a scalar or vector, by default to an address that is a multiple of its size."""
        place = self.builder.inttoptr(address, value.type.as_pointer())
        self.builder.store(value, place, align=align or size(value.type))

    def variable(self, value: Any) -> Any:
        """Return a stack slot with the initial content `value`; LLVM promotes these to registers."""
        slot = cgutils.alloca_once(self.builder, value.type)
        self.builder.store(value, slot)
        return slot

    def call(self, name: str, result: Any, *arguments: Any) -> Any:
        """Call one of LLVM's intrinsic functions."""
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), arguments)

    def splat(self, scalar: Any, vector: Any) -> Any:
        """Return a vector with a scalar in every lane."""
        blank = ir.Constant(vector, ir.Undefined)
        seed = self.builder.insert_element(blank, scalar, I32(0))
        return self.builder.shuffle_vector(seed, blank, ir.Constant(ir.VectorType(I32, vector.count), None))

    def pick(self, vector: Any, lanes: range) -> Any:
        """Return a selection of a vector's lanes."""
        return self.builder.shuffle_vector(vector, vector, indices(lanes))

    def join(self, low: Any, high: Any) -> Any:
        """Return the concatenation of two vectors."""
        return self.builder.shuffle_vector(low, high, indices(range(2 * low.type.count)))


def fill(vector: Any, value: float) -> Any:
    """Return the constant vector with `value` in every lane."""
    return ir.Constant(vector, [value] * vector.count)


def indices(lanes: Any) -> Any:
    """Return constant lane numbers for a shuffle."""
    numbers = list(lanes)
    return ir.Constant(ir.VectorType(I32, len(numbers)), numbers)


def swapped(h: int) -> tuple[Any, Any]:
    """Return shuffles that exchange, in blocks of h lanes, the upper lanes of one vector for the lower of another.

    Over h = 8, 4, 2, 1, with rows i and i + h, they transpose 16 rows.
    """
    low = indices(16 + i - h if i & h else i for i in range(16))
    high = indices(16 + i if i & h else i + h for i in range(16))
    return low, high


def size(kind: Any) -> int:
    """Return the size of a scalar or vector type in bytes."""
    count, item = (kind.count, kind.element) if isinstance(kind, ir.VectorType) else (1, kind)
    return int(count * (_BITS.get(item) or item.width) // 8)


def fields(builder: Any, value: Any) -> list[Any]:
    """Return the elements of a tuple."""
    return [builder.extract_value(value, i) for i in range(len(value.type.elements))]


def address(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    """Return the address of an array's data."""
    return builder.ptrtoint(context.make_array(kind)(context, builder, array).data, I64)


# Full-width loads should not straddle cache lines.


@kernel
def aligned_f32(n):
    """Return `n` uninitialised float32 that start on a 64-byte boundary."""
    raw = np.empty(n + 16, np.float32)
    skip = (-(raw.ctypes.data >> 2)) & 15
    return raw[skip : skip + n]


@kernel
def aligned_i8(n):
    """Return `n` uninitialised int8 that start on a 64-byte boundary."""
    raw = np.empty(n + 64, np.int8)
    skip = (-raw.ctypes.data) & 63
    return raw[skip : skip + n]


@kernel
def aligned_i16(n):
    """Return `n` uninitialised int16 that start on a 64-byte boundary."""
    raw = np.empty(n + 32, np.int16)
    skip = (-(raw.ctypes.data >> 1)) & 31
    return raw[skip : skip + n]


@kernel
def aligned_f64(n):
    """Return `n` uninitialised float64 that start on a 64-byte boundary."""
    raw = np.empty(n + 8)
    skip = (-(raw.ctypes.data >> 3)) & 7
    return raw[skip : skip + n]
