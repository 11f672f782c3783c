"""Block scaling: one scale for a tile, a block, a row or a whole tensor, and codes relative to it.

**A scale multiplies codes back to values**: ``x ~ scale * decode(codes)`` (DeepGEMM's ``sf``; TransformerEngine
calls the inverse of this "scale"). Scales come from the block's largest magnitude by integer operations on
its bits, never from a logarithm. Sources: the DeepSeek-V3 report 3.3.2; DeepSeek-V3's and DeepGEMM's kernels for
the arithmetic of the named rules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _jit
from .cast import decode, decode_constants, encode, encode_constants, has_fast_kernel
from .formats import Format, formats
from .kernels import quantize as kernels
from .kernels.gemm_f32 import transpose
from .registry import Registry
from .rounding import policies

ScaleKind = Literal["fp32", "ue8m0", "e4m3"]
SCALES: tuple[ScaleKind, ...] = ("fp32", "ue8m0", "e4m3")
SCALE_BITS = {"fp32": 32, "ue8m0": 8, "e4m3": 8}
Division = Literal["divide", "reciprocal"]
DIVISIONS: tuple[Division, ...] = ("divide", "reciprocal")
_NAMED = {"tensor": (None, None), "row": (1, None), "column": (None, 1)}


@dataclass(frozen=True)
class Granularity:
    """The block that shares a scale: `rows` x `columns`, None meaning the whole axis.

    Examples
    --------
    >>> Granularity.parse("1x128")
    Granularity(rows=1, columns=128)
    >>> str(Granularity.parse("tensor")), str(Granularity(None, 1))
    ('tensor', 'column')
    """

    rows: int | None
    columns: int | None

    def __post_init__(self) -> None:
        for size in (self.rows, self.columns):
            if size is not None and (not isinstance(size, int) or size < 1):
                raise ValueError(f"Granularity: {self.rows!r} x {self.columns!r}: sizes are whole numbers >= 1 or None")

    @classmethod
    def parse(cls, text: str | Granularity) -> Granularity:
        """Read ``"1x128"``, ``"tensor"``, ``"row"`` (1 x whole) or ``"column"`` (whole x 1).

        Raises
        ------
        ValueError
            If the text is none of these.
        """
        if isinstance(text, Granularity):
            return text
        if text in _NAMED:
            return cls(*_NAMED[text])
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text) if isinstance(text, str) else None
        if match is None:
            known = ", ".join(repr(name) for name in _NAMED)
            raise ValueError(f"granularity={text!r}: rows x columns such as '1x128' or '128x128', or one of {known}")
        return cls(int(match[1]), int(match[2]))

    @property
    def T(self) -> Granularity:
        """The same block seen from the transposed matrix."""
        return Granularity(self.columns, self.rows)

    def block(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Return rows and columns of a block within a matrix of that shape."""
        return self.rows or max(shape[0], 1), self.columns or max(shape[1], 1)

    def scale_shape(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Return the shape of the scales of a matrix: edges may be ragged."""
        rows, columns = self.block(shape)
        return -(-shape[0] // rows), -(-shape[1] // columns)

    def __str__(self) -> str:
        for name, sizes in _NAMED.items():
            if sizes == (self.rows, self.columns):
                return name
        return f"{self.rows or 'all'}x{self.columns or 'all'}"


@dataclass(frozen=True)
class ScaleRule:
    """How a block's scale comes from its amax, and how values are divided by it.

    Parameters
    ----------
    scale : {"fp32", "ue8m0"}
        ``float32(amax / max)``, or that quotient rounded up to a power of two.
    division : {"divide", "reciprocal"}
        ``x / s``, or ``x * float32(1 / s)``: they differ in the last bit now and then.
    amax_floor : float
        The amax is taken to be at least this. Released kernels use 1e-4, which is harmless for activations and
        wrong for gradients of 1e-5 to 1e-8; the default is 0.
    source : str
        Where the rule is used.
    """

    scale: ScaleKind = "fp32"
    division: Division = "divide"
    amax_floor: float = 0.0
    source: str = "user-defined"

    def __post_init__(self) -> None:
        if self.scale not in ("fp32", "ue8m0"):
            raise ValueError(f"scale={self.scale!r}: one of fp32, ue8m0")
        if self.division not in DIVISIONS:
            raise ValueError(f"division={self.division!r}: one of {', '.join(DIVISIONS)}")
        if not 0.0 <= self.amax_floor < np.inf:
            raise ValueError(f"amax_floor={self.amax_floor!r}: a finite number >= 0 is needed")


scale_rules: Registry[ScaleRule] = Registry("quantizer recipe", ScaleRule)
"""Named rules, each reproducing one published kernel."""
scale_rules.register("dsv3", ScaleRule("fp32", "divide", 1e-4, "DeepSeek-V3 inference/kernel.py: act_quant"))
scale_rules.register("dsv3_ue8m0", ScaleRule("ue8m0", "divide", 1e-4, "DeepSeek-V3 with scale_fmt=ue8m0 (V3.1)"))
scale_rules.register("deepgemm", ScaleRule("fp32", "reciprocal", 1e-4, "DeepGEMM utils/math.py"))
scale_rules.register("deepgemm_ue8m0", ScaleRule("ue8m0", "reciprocal", 1e-4, "DeepGEMM utils/math.py, use_ue8m0"))


@dataclass(frozen=True, eq=False)
class Quantized:
    """A matrix as codes and scales: ``x ~ scale * decode(codes)``.

    Attributes
    ----------
    codes : ndarray of unsigned integers, shape (..., R, C)
        In the shape of the source.
    scale : ndarray of float32, shape (ceil(R / rows), ceil(C / columns))
        Leading axes of the source count as rows. NaN marks a block that held NaN or Inf.
    format : Format
        What the codes mean.
    granularity : Granularity
        The block that shares a scale.
    scale_kind : {"fp32", "ue8m0", "e4m3"}
        How a scale would be stored: 32 bits, or 8 for a power of two or an E4M3 number. `scale` holds values always.
    tensor_scale : float32, optional
        A scale of the whole tensor on top of the blocks' own, as NVFP4 has it.
    recipe : str, optional
        Name of the quantizer that made it.
    """

    codes: NDArray[Any]
    scale: NDArray[np.float32]
    format: Format
    granularity: Granularity
    scale_kind: ScaleKind = "fp32"
    tensor_scale: np.float32 | None = None
    recipe: str | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the codes."""
        return self.codes.shape

    @property
    def nbytes(self) -> int:
        """Bytes that codes (packed to their bits) and scales take when stored."""
        bits = self.codes.size * self.format.bits + self.scale.size * SCALE_BITS[self.scale_kind]
        return -(-bits // 8) + (0 if self.tensor_scale is None else 4)

    @property
    def bits_per_value(self) -> float:
        """Bits for one value, its share of the scales included."""
        return 8.0 * self.nbytes / max(self.codes.size, 1)

    @property
    def T(self) -> Quantized:
        """The transposed matrix, copied so that rows are contiguous; granularity 1x128 becomes 128x1."""
        if self.codes.ndim != 2:
            raise ValueError(f"Quantized.T is for matrices, not for shape {self.shape}")
        codes = np.empty(self.shape[::-1], self.codes.dtype)
        transpose(self.codes, codes)
        return replace(self, codes=codes, scale=np.ascontiguousarray(self.scale.T), granularity=self.granularity.T)

    def dequantize(self, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Return the values ``float32(scale * decode(codes))``, one rounding each, times the tensor's scale if any.

        Parameters
        ----------
        out : ndarray of float32, optional
            Where to put them: C-contiguous, of the codes' shape.

        Raises
        ------
        ValueError
            If `out` does not fit.
        """
        if out is None:
            out = np.empty(self.shape, np.float32)
        elif out.shape != self.shape or out.dtype != np.float32 or not out.flags.c_contiguous:
            raise ValueError(f"dequantize: out is {out.dtype} {out.shape}, needed is contiguous float32 {self.shape}")
        if out.size == 0:
            return out
        codes, into = as_matrix(self.codes), as_matrix(out)
        rows, columns = self.granularity.block(codes.shape)
        constants = decode_constants(self.format)

        def piece(a: int, b: int) -> None:
            if columns == 1:
                kernels.dequantize_columns(codes, self.scale, rows, constants, into, a, b)
            else:
                kernels.dequantize_blocks(codes, self.scale, rows, columns, constants, into, a, b)

        _jit.run_chunks(piece, codes.shape[0], max(1, (1 << 16) // codes.shape[1]))
        if self.tensor_scale is not None:
            np.multiply(out, self.tensor_scale, out=out)
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = self.dequantize()
        return values if dtype is None else values.astype(dtype)

    def __repr__(self) -> str:
        return (
            f"Quantized({self.format.name} {'x'.join(map(str, self.shape))}, {self.granularity} with "
            f"{self.scale_kind} scales, {self.bits_per_value:.4g} bits per value)"
        )


_THIN = {"mxfp8_rceil": ("e4m3fn", "1x32"), "nvfp4_te": ("e2m1fn", "1x16")}


def quantize(
    x: ArrayLike,
    fmt: str | Format | None = None,
    granularity: str | Granularity | None = None,
    *,
    scale: ScaleKind | None = None,
    division: Division | None = None,
    amax_floor: float | None = None,
    recipe: str | ScaleRule | None = None,
) -> Quantized:
    """Quantize a matrix in blocks that share a scale.

    ``s = amax / max``, ``codes = encode(x / s)``, saturating, to nearest even. A block of zeros gets the scale 1. A
    block with NaN or Inf gets the scale NaN, so that all of it decodes to NaN: nothing is lost silently. Ragged
    edges form smaller blocks: 576 columns are four blocks of 128 and one of 64.

    Parameters
    ----------
    x : array_like, shape (..., R, C)
        Values, taken as float32. Leading axes count as rows; a vector is one row.
    fmt : str or Format
        Element format of at most 16 bits; a named recipe may bring its own.
    granularity : str or Granularity, optional
        ``"1x128"``, ``"128x1"``, ``"128x128"``, any other ``"RxC"``, ``"row"``, ``"column"`` or ``"tensor"``.
    scale : {"fp32", "ue8m0"}, optional
        ``float32(amax / max)`` (the default), or that rounded up to a power of two.
    division : {"divide", "reciprocal"}, optional
        ``x / s`` (the default), or ``x * float32(1 / s)``.
    amax_floor : float, optional
        Lower bound on amax, 0 by default.
    recipe : str or ScaleRule, optional
        A named rule (``lowprec.scaling.scale_rules``) in place of the three options; options given beside it win.

    Returns
    -------
    Quantized

    Raises
    ------
    ValueError
        For an unknown format, granularity, scale or recipe.
    TypeError
        If `x` is not numeric.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> x = np.linspace(-3, 3, 576, dtype=np.float32).reshape(1, 576)
    >>> q = lp.quantize(x, "e4m3fn")
    >>> q
    Quantized(e4m3fn 1x576, 1x128 with fp32 scales, 8.278 bits per value)
    >>> q.scale.shape, float(q.dequantize().max())
    ((1, 5), 3.0)
    """
    if isinstance(recipe, str) and recipe in _THIN:
        return _quantize_slowly(x, recipe, fmt, granularity)
    if fmt is None:
        raise ValueError("quantize: fmt is needed: an element format such as 'e4m3fn'")
    f = formats.get(fmt)
    block = Granularity.parse("1x128" if granularity is None else granularity)
    rule = scale_rules.get(recipe) if recipe is not None else ScaleRule()
    given = {"scale": scale, "division": division, "amax_floor": amax_floor}
    rule = replace(rule, **{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]
    if f.bits > 16 or not has_fast_kernel(f):
        raise ValueError(f"quantize: {f} cannot be an element format; signed formats of up to 16 bits can")
    values = np.asarray(x)
    if values.dtype.kind not in "fiuV" or values.dtype.names is not None:
        raise TypeError(f"quantize: values of dtype {values.dtype} are not real numbers")
    with np.errstate(over="ignore", invalid="ignore"):  # what float32 cannot hold becomes Inf, and its block NaN
        values = np.ascontiguousarray(values, dtype=np.float32).reshape(values.shape)
    codes = np.empty(values.shape, f.code_dtype)
    matrix = as_matrix(values)
    scales = np.empty(block.scale_shape(matrix.shape), np.float32)
    if matrix.size:
        _quantize(matrix, f, block, rule, as_matrix(codes), scales)
    return Quantized(codes, scales, f, block, rule.scale)


def _quantize_slowly(x: ArrayLike, recipe: str, fmt: Any, granularity: Any) -> Quantized:
    f = formats.get(fmt or _THIN[recipe][0])
    block = Granularity.parse(granularity or _THIN[recipe][1])
    values = np.ascontiguousarray(x, dtype=np.float32)
    matrix = as_matrix(values)
    rows, columns = block.block((matrix.shape[0], matrix.shape[1]))
    size = block.scale_shape((matrix.shape[0], matrix.shape[1]))
    padded = np.zeros((size[0] * rows, size[1] * columns), np.float32)
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    amax = np.abs(padded.reshape(size[0], rows, size[1], columns)).max((1, 3))
    one, tensor_scale = np.float32(1), None
    kind: ScaleKind = "ue8m0"
    with np.errstate(all="ignore"):
        if recipe == "mxfp8_rceil":
            t = np.ascontiguousarray(amax * (one / np.float32(f.max))).view(np.uint32)
            code = (t >> 23) + ((t & 0x7FFFFF) != 0)
            code = np.where(t < 1 << 23, t > 0x00400000, code)
            code = np.where(t > 0x7F800000, 255, np.where(t == 0x7F800000, 254, code))
            factor = np.ldexp(one, 127 - code.astype(np.int32)).astype(np.float32)
            scale = np.where(code == 255, np.float32(np.nan), np.ldexp(one, code.astype(np.int32) - 127))
            factor = np.where(code == 255, np.float32(np.nan), factor)
        else:
            top = amax.max() if amax.size else np.float32(0)
            encode_scale = np.float32(1) if top == 0 else min(np.float32(2688) / top, np.finfo(np.float32).max)
            encode_scale = np.float32(1) if encode_scale == 0 else encode_scale
            tensor_scale, kind = np.float32(one / encode_scale), "e4m3"
            scale = decode(encode(amax * (encode_scale * np.float32(one / np.float32(6))), "e4m3fn"), "e4m3fn")
            factor = np.minimum(one / (scale * tensor_scale), np.finfo(np.float32).max)
        spread = np.repeat(np.repeat(factor.astype(np.float32), rows, 0), columns, 1)[: matrix.shape[0]]
        codes = encode(matrix * spread[:, : matrix.shape[1]], f, policy="ocp_sat")
    return Quantized(
        codes.reshape(values.shape),
        scale.astype(np.float32),
        f,
        block,
        kind,
        tensor_scale,
        recipe,
    )


def _quantize(
    x: NDArray[np.float32], f: Format, block: Granularity, rule: ScaleRule, codes: NDArray[Any], scales: NDArray[Any]
) -> None:
    rows, columns = block.block((x.shape[0], x.shape[1]))
    constants = encode_constants(f, policies["ocp_sat"].codes(f))
    options = (
        np.float32(f.max), np.float32(rule.amax_floor), SCALES.index(rule.scale), DIVISIONS.index(rule.division),
    )  # fmt: skip

    def piece(a: int, b: int) -> None:
        if columns == 1 and x.shape[1] > 1:
            kernels.quantize_columns(x, rows, *options, constants, codes, scales, a, b)
        else:
            kernels.quantize_blocks(x, rows, columns, *options, constants, codes, scales, a, b)

    _jit.run_chunks(piece, scales.shape[0], max(1, (1 << 16) // (rows * x.shape[1])))


def as_matrix(a: NDArray[Any]) -> NDArray[Any]:
    """View a contiguous array as a matrix: leading axes become rows, a vector one row."""
    columns = a.shape[-1] if a.ndim else 1
    return a.reshape(a.size // columns if columns else 0, columns)
