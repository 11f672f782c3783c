"""A quantized matrix: codes, block scales, and their formats."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lowprec  # the public functions: quantize and gemm are defined above this file

from .._arrays import as_matrix, copy_if_overlapping, matrix_shape, prepare_out, to_like, to_numpy
from .._fpenv import with_default_fpenv
from .._markup import html_table
from .._values import BitwiseEq
from ..cast.arrays import as_codes, format_from_dtype
from ..format.catalogue import Format, formats
from ..format.dtypes import dtype_of
from ..kernels.tensorcore.chain.gemm import transpose
from . import file
from .convert import Conversion, convert_blocks
from .granularity import Granularity
from .job import dequantize
from .quantizer import Quantizer, quantizers
from .rules import FLOAT32
from .spec import TensorSpec


@dataclass(frozen=True, eq=False)
class Quantized(BitwiseEq):
    """A matrix as codes and scales: ``x ~ scale * decode(codes)``.

    Two objects are equal if all fields are equal, arrays bit for bit. Objects can be pickled and copied; `copy.copy`
    shares the arrays.

    Parameters
    ----------
    codes : ndarray of unsigned integers, shape (..., R, C)
        Codes in the shape of the source.
    scale : ndarray of float32, shape (ceil(R / rows), ceil(C / columns))
        Scales as float32, independent of `scale_format`. Leading axes of the source count as rows. NaN marks a block
        that held NaN or Inf, if the quantizer marks such blocks.
    format : str or Format
        Format of the codes; converted to a `Format`.
    granularity : str or Granularity
        Block that shares a scale, such as "1x128"; converted to a `Granularity`.
    scale_format : Format or str
        Format in which scales are stored: float32 (the default), e8m0fnu for powers of two, e4m3fn ...
    tensor_scale : float32 or ndarray of float32, optional
        Scale on top of the block scales: one for the whole tensor, as in NVFP4, one for each row, shape (R, 1), as in
        row-scaled NVFP4, or one for each column, shape (1, C). Leading axes of the source count as rows.
    quantizer : Quantizer, optional
        Quantizer that made the codes and scales.

    Raises
    ------
    ValueError
        If the format, granularity or scale format is unknown, if the number of scales differs from the number of
        blocks, or if an array of tensor scales does not have one per row or per column.
    TypeError
        If codes or scales have another type; the message quotes it.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> codes = np.full((2, 256), 0x38, np.uint8)           # for example from a GPU: 1.0 in E4M3
    >>> q = Quantized(codes, np.float32([[1, 2], [3, 4]]), "e4m3fn", "1x128")
    >>> q
    <Quantized e4m3fn 2x256, 1x128 with float32 scales, 8.25 bits per value>
    >>> q.dequantize()[:, ::128]
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """

    codes: NDArray[Any]
    scale: NDArray[np.float32]
    format: Format
    granularity: Granularity
    scale_format: Format = FLOAT32
    tensor_scale: np.float32 | NDArray[np.float32] | None = None
    quantizer: Quantizer | None = None

    def __post_init__(self) -> None:
        fmt, granularity = formats.get(self.format), Granularity.parse(self.granularity)
        object.__setattr__(self, "format", fmt)
        object.__setattr__(self, "granularity", granularity)
        object.__setattr__(self, "scale_format", formats.get(self.scale_format))
        if self.quantizer is not None:
            object.__setattr__(self, "quantizer", quantizers.get(self.quantizer))
        if self.tensor_scale is not None and not np.ndim(self.tensor_scale):
            object.__setattr__(self, "tensor_scale", np.float32(self.tensor_scale))
        if not (type(self.codes) is type(self.scale) is np.ndarray and self.codes.dtype == fmt.code_dtype):
            for name in ("codes", "scale"):
                if hasattr(given := getattr(self, name), "dtype") and not isinstance(given, np.ndarray):
                    object.__setattr__(self, name, np.asarray(to_numpy(given)))  # arrays of torch and JAX
            if format_from_dtype(self.codes) is not None:
                object.__setattr__(self, "codes", as_codes(self.codes, fmt))
        for name, array, dtype in (("codes", self.codes, fmt.code_dtype), ("scale", self.scale, np.float32)):
            if not isinstance(array, np.ndarray) or array.dtype != dtype:
                found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
                raise TypeError(f"Quantized: {name} must be an ndarray of {np.dtype(dtype)}, got {found}")
        expected = granularity.scale_shape(matrix_shape(self.codes.shape))
        if self.scale.shape != expected:
            raise ValueError(
                f"Quantized: scale must have shape {expected} for codes {self.codes.shape} in blocks of {granularity}, "
                f"got {self.scale.shape}"
            )
        if not isinstance(self.tensor_scale, np.float32 | None):
            self._check_line_scales()

    def _check_line_scales(self) -> None:
        """Raise unless an array of tensor scales has one for each row or each column."""
        given = self.tensor_scale
        if hasattr(given, "dtype") and not isinstance(given, np.ndarray):
            object.__setattr__(self, "tensor_scale", given := np.asarray(to_numpy(given)))
        if not isinstance(given, np.ndarray) or given.dtype != np.float32:
            found = given.dtype if isinstance(given, np.ndarray) else type(given).__name__
            raise TypeError(f"Quantized: tensor_scale must be a number or an ndarray of float32, got {found}")
        rows, columns = matrix_shape(self.codes.shape)
        if given.shape not in ((rows, 1), (1, columns)):
            raise ValueError(
                f"Quantized: tensor_scale must be a number or of shape {(rows, 1)} or {(1, columns)} with codes "
                f"{self.codes.shape}, got shape {given.shape}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the codes."""
        return self.codes.shape

    @property
    def nbytes(self) -> int:
        """Number of bytes that codes (packed to their bits) and scales take when they are stored."""
        bits = self.codes.size * self.format.bits + self.scale.size * self.scale_format.bits
        return -(-bits // 8) + (0 if self.tensor_scale is None else 4 * np.size(self.tensor_scale))

    @property
    def bits_per_value(self) -> float:
        """Number of bits per value, including its share of the scales."""
        return 8.0 * self.nbytes / max(self.codes.size, 1)

    @property
    def T(self) -> Quantized:
        """The transposed matrix, copied so that rows are contiguous; granularity 1x128 becomes 128x1."""
        if self.codes.ndim != 2:
            raise ValueError(f"Quantized.T: codes must be a matrix, got shape {self.shape}")
        codes = np.empty(self.shape[::-1], self.codes.dtype)
        transpose(self.codes, codes)
        top = self.tensor_scale
        top = np.ascontiguousarray(top.T) if isinstance(top, np.ndarray) else top
        scale = np.ascontiguousarray(self.scale.T)
        return replace(self, codes=codes, scale=scale, granularity=self.granularity.T, tensor_scale=top)

    @with_default_fpenv
    def dequantize(self, out: NDArray[np.float32] | None = None, *, like: Any = None) -> NDArray[np.float32]:
        """Return the values ``float32(scale * decode(codes))``, times the tensor scale or row scale if there is one.

        Every NaN is the positive quiet one, 0x7FC00000.

        Parameters
        ----------
        out : ndarray of float32, optional
            Destination of the values: C-contiguous, of the codes' shape.
        like : array or str, optional
            Package of the returned array (NumPy, torch or JAX): one of its arrays, or its name.

        Raises
        ------
        ValueError
            If `out` does not fit.
        """
        out = prepare_out("dequantize", out, self.shape, np.float32)
        if out.size:
            codes, scale = as_matrix(copy_if_overlapping(self.codes, out)), copy_if_overlapping(self.scale, out)
            block = self.granularity.block((codes.shape[0], codes.shape[1]))
            top = self.tensor_scale
            tensor = (
                copy_if_overlapping(top, out) if isinstance(top, np.ndarray) else np.float32(1 if top is None else top)
            )
            dequantize(codes, scale, block, self.format, tensor, as_matrix(out))
        return out if like is None else to_like("dequantize", out, like)

    def requantize(self, spec: str | Quantizer | TensorSpec, **options: Any) -> Quantized:
        """Quantize the values again, in other blocks (such as 128x1 for an operand of Wgrad) or in another format.

        Parameters
        ----------
        spec : str, Quantizer or TensorSpec
            See `lowprec.quantize`. Words that name neither a format nor a quantizer, such as ``"32x1"``, modify the
            quantizer of this matrix, or if that is unknown its formats with ``amax / max``.
        **options
            See `lowprec.quantize`.

        Examples
        --------
        >>> import numpy as np, lowprec as lp
        >>> q = lp.quantize(np.ones((256, 256), np.float32), "mxfp8")
        >>> q.requantize("32x1").granularity, q.requantize("e4m3fn 128x128").scale.shape
        (Granularity(rows=32, columns=1), (2, 2))
        """
        return lowprec.quantize(self.dequantize(), TensorSpec.parse(spec, base=self._made_by), **options)

    def convert(self, spec: str | Quantizer | TensorSpec) -> Conversion:
        """Convert codes and scales to another block format, exactly where possible.

        Parameters
        ----------
        spec : str, Quantizer or TensorSpec
            Format, block and scale format, such as ``"e4m3fn 128x128 ue8m0"``, or only those that change. New scales
            are powers of two (``ue8m0``), or powers of two times the significand of the old scale of a block's largest
            value (``fp32``).

        Returns
        -------
        Conversion
            Converted matrix and a mask of the values that changed; see `lowprec.scaling.convert`.

        Raises
        ------
        ValueError
            If a word is unknown, or the scales have another format.

        Examples
        --------
        >>> import numpy as np, lowprec as lp
        >>> x = np.random.default_rng(0).standard_normal((128, 256), np.float32)
        >>> fp4 = lp.quantize(x, "dsv4_fp4")
        >>> fp4.convert("e4m3fn 128x128 ue8m0").is_lossless
        True
        >>> x[:64] *= 2.0**-20                              # scales of a block span 20 binades and more
        >>> wide = lp.quantize(x, "dsv4_fp4").convert("e4m3fn 128x128 ue8m0")
        >>> wide.is_lossless, wide.blocks.tolist(), int(wide.binades.min()) > 14
        (False, [[True, True]], True)
        """
        made = TensorSpec.parse(spec, base=self._made_by)
        if made.plain:
            raise ValueError(f"convert: spec must name a block, as in 'e4m3fn 128x128 ue8m0', got {str(spec)!r}")
        target = made.resolved
        codes, scale, lost, binades = convert_blocks(
            as_matrix(self.codes), self.scale, self.tensor_scale, self.format, self.granularity, target
        )
        result = Quantized(codes.reshape(self.shape), scale, target.format, target.granularity, target.scale_format)
        return Conversion(result, lost, binades)

    @property
    def _made_by(self) -> Quantizer:
        """Quantizer of this matrix; if unknown, ``amax / max`` with these formats and blocks."""
        if self.quantizer is not None:
            return self.quantizer
        return Quantizer(format=self.format, granularity=self.granularity, scale_format=self.scale_format)

    def __getitem__(self, rows: slice) -> Quantized:
        """Return a slice of the rows, which must consist of whole blocks, as views of the codes and scales.

        Raises
        ------
        TypeError
            If `rows` is not a slice.
        ValueError
            If this is not a matrix, or the slice has a step or cuts a block.

        Examples
        --------
        >>> import numpy as np, lowprec as lp
        >>> w = lp.quantize(np.ones((512, 256), np.float32), "e4m3fn 128x128")
        >>> w[128:384]
        <Quantized e4m3fn 256x256, 128x128 with float32 scales, 8.002 bits per value>
        """
        if not isinstance(rows, slice):
            raise TypeError(f"Quantized: rows must be a slice, as in q[:128], got {rows!r}")
        if self.codes.ndim != 2:
            raise ValueError(f"Quantized: codes must be a matrix to take rows of it, got shape {self.shape}")
        start, stop, step = rows.indices(len(self.codes))
        stop, block = max(start, stop), self.granularity.rows
        ends = (0, len(self.codes))
        if step != 1 or (block is not None and any(edge % block and edge not in ends for edge in (start, stop))):
            raise ValueError(f"Quantized: rows must be whole blocks of {block} without a step, got {rows!r}")
        first, last = (0, 1) if block is None else (start // block, -(-stop // block))
        scale = self.scale[first : last if stop > start else first]
        top = self.tensor_scale
        if isinstance(top, np.ndarray) and self._lines == "rows":
            top = np.ascontiguousarray(top[start:stop])
        return replace(self, codes=self.codes[start:stop], scale=np.ascontiguousarray(scale), tensor_scale=top)

    def __matmul__(self, other: Quantized) -> NDArray[np.float32]:
        """Return ``lowprec.gemm(self, other.T)``: the product [M, N] of [M, K] and [K, N] with `gemm`'s defaults."""
        if not isinstance(other, Quantized):
            raise TypeError(f"Quantized: w must be Quantized in q @ w, got {type(other).__name__}")
        return lowprec.gemm(self, other.T)

    def arrays(self, like: Any = "numpy") -> tuple[Any, Any]:
        """Return codes and scales as arrays of another package, sharing memory where possible.

        Parameters
        ----------
        like : array or str, optional
            Package of the arrays (NumPy by default, torch or JAX): one of its arrays, or its name. Codes have the
            package's dtype for the format, if it has one.

        Examples
        --------
        >>> import lowprec as lp
        >>> codes, scale = lp.quantize([[1.0, 448.0]], "e4m3fn 1x2").arrays()
        >>> codes.dtype.name, codes.astype(float).tolist(), scale.tolist()
        ('float8_e4m3fn', [[1.0, 448.0]], [[1.0]])
        """
        dtype = dtype_of(self.format)
        return to_like("arrays", self.codes, like, dtype), to_like("arrays", self.scale, like)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the matrix to a file, see `lowprec.scaling.file`.

        Raises
        ------
        ValueError
            If a scale is not exact in the scale format.
        OSError
            If the file cannot be written.
        """
        fields = (getattr(self, field.name) for field in dataclasses.fields(self))
        file.write(path, file.Content(*fields))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Quantized:
        """Read a quantized matrix from a file.

        Raises
        ------
        ValueError
            If the file is damaged, has another content, or is of an unknown version.
        OSError
            If it cannot be read.
        """
        content = file.read(path)
        try:
            return Quantized(*content)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} has a damaged header: {error}") from None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = self.dequantize()
        return values if dtype is None else values.astype(dtype)

    def _repr_html_(self) -> str:
        rows = [
            ("shape", " x ".join(map(str, self.shape)) or "scalar"), ("elements", self.format.name),
            ("a scale for each", str(self.granularity)), ("scales", f"{self.scale.size:,} as {self.scale_format}"),
            ("scale of the tensor", self.tensor_scale) if not isinstance(self.tensor_scale, np.ndarray)
            else (f"scales of {self._lines}", f"{self.tensor_scale.size:,} as float32"),
            ("quantizer", self.quantizer and self.quantizer.name),
            ("bytes", f"{self.nbytes:,}"), ("bits per value", f"{self.bits_per_value:.4g}"),
        ]  # fmt: skip
        return html_table([row for row in rows if row[1] is not None], title="Quantized")

    @property
    def _lines(self) -> str:
        """Lines that each have a scale on top of the block scales: "rows", "columns", or "" for neither."""
        if not isinstance(self.tensor_scale, np.ndarray):
            return ""
        return "rows" if self.tensor_scale.shape == (matrix_shape(self.shape)[0], 1) else "columns"

    def __repr__(self) -> str:
        scales, top = f"{self.scale_format} scales", self.tensor_scale
        if top is not None:
            many = isinstance(top, np.ndarray)
            scales += f" times those of {top.size} {self._lines}" if many else f" times {top:.4g}"
        by = "" if self.quantizer is None or not self.quantizer.name else f"{self.quantizer.name}: "
        return (
            f"<Quantized {by}{self.format.name} {'x'.join(map(str, self.shape)) or 'scalar'}, {self.granularity} with "
            f"{scales}, {self.bits_per_value:.4g} bits per value>"
        )
