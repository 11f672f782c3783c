"""A quantized matrix: codes, the scales of its blocks, and what both mean."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._arrays import apart, as_matrix, host, matrix_shape, output, returned
from .._ieee import standard
from .._show import table
from .._values import ByBits
from ..cast.arrays import as_codes, said_format
from ..format.catalogue import Format, formats
from ..format.dtypes import dtype_of
from ..kernels.float32.gemm import transpose
from . import file
from .granularity import Granularity
from .job import dequantize
from .quantizer import Quantizer, quantizers
from .rules import FLOAT32


@dataclass(frozen=True, eq=False)
class Quantized(ByBits):
    """A matrix as codes and scales: ``x ~ scale * decode(codes)``.

    Two of them are equal if all fields are, arrays to the bit. They can be pickled and copied; `copy.copy` shares the
    arrays.

    Parameters
    ----------
    codes : ndarray of unsigned integers, shape (..., R, C)
        In the shape of the source.
    scale : ndarray of float32, shape (ceil(R / rows), ceil(C / columns))
        Values of the scales, however they would be stored. Leading axes of the source count as rows. NaN marks a
        block that held NaN or Inf, where the quantizer says so.
    format : str or Format
        What the codes mean; kept as a `Format`.
    granularity : str or Granularity
        The block that shares a scale, as in "1x128"; kept as a `Granularity`.
    scale_format : Format or str
        Format that a scale is stored in: float32 (the default), e8m0fnu for powers of two, e4m3fn ...
    tensor_scale : float32 or ndarray of float32, optional
        A scale of the whole tensor on top of the blocks' own, as NVFP4 has it, or one for each row, shape (R, 1), as
        row-scaled NVFP4 has it, or for each column, shape (1, C). Leading axes of the source count as rows.
    quantizer : Quantizer, optional
        What made it.

    Raises
    ------
    ValueError
        If the format, granularity or scale format is unknown, the scales are not one for each block, or an array of
        tensor scales is not one for each row or each column.
    TypeError
        If codes or scales have another type than these; the message quotes it.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> codes = np.full((2, 256), 0x38, np.uint8)           # from a GPU, say: 1.0 in E4M3
    >>> q = Quantized(codes, np.float32([[1, 2], [3, 4]]), "e4m3fn", "1x128")
    >>> q
    Quantized(e4m3fn 2x256, 1x128 with float32 scales, 8.25 bits per value)
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
                    object.__setattr__(self, name, np.asarray(host(given)))  # torch's, JAX's
            if said_format(self.codes) is not None:
                object.__setattr__(self, "codes", as_codes(self.codes, fmt))
        for name, array, dtype in (("codes", self.codes, fmt.code_dtype), ("scale", self.scale, np.float32)):
            if not isinstance(array, np.ndarray) or array.dtype != dtype:
                found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
                raise TypeError(f"Quantized: {name} is {found}, needed is an ndarray of {np.dtype(dtype)}")
        expected = granularity.scale_shape(matrix_shape(self.codes.shape))
        if self.scale.shape != expected:
            raise ValueError(
                f"Quantized: scale has shape {self.scale.shape}; codes {self.codes.shape} in blocks of {granularity} "
                f"have {expected}"
            )
        if not isinstance(self.tensor_scale, np.float32 | None):
            self._check_line_scales()

    def _check_line_scales(self) -> None:
        """Raise unless scales on top of the blocks' own are one for each row or each column."""
        given = self.tensor_scale
        if hasattr(given, "dtype") and not isinstance(given, np.ndarray):
            object.__setattr__(self, "tensor_scale", given := np.asarray(host(given)))
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
        """Bytes that codes (packed to their bits) and scales take when stored."""
        bits = self.codes.size * self.format.bits + self.scale.size * self.scale_format.bits
        return -(-bits // 8) + (0 if self.tensor_scale is None else 4 * np.size(self.tensor_scale))

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
        top = self.tensor_scale
        top = np.ascontiguousarray(top.T) if isinstance(top, np.ndarray) else top
        scale = np.ascontiguousarray(self.scale.T)
        return replace(self, codes=codes, scale=scale, granularity=self.granularity.T, tensor_scale=top)

    @standard
    def dequantize(self, out: NDArray[np.float32] | None = None, *, like: Any = None) -> NDArray[np.float32]:
        """Return the values ``float32(scale * decode(codes))``, times the tensor's or the row's scale if there is one.

        Every NaN is the positive quiet one, 0x7FC00000.

        Parameters
        ----------
        out : ndarray of float32, optional
            Where to put them: C-contiguous, of the codes' shape.
        like : array or str, optional
            Whose arrays to return: NumPy's, torch's or JAX's, by one of them or by name.

        Raises
        ------
        ValueError
            If `out` does not fit.
        """
        out = output("dequantize", out, self.shape, np.float32)
        if out.size:
            codes, scale = as_matrix(apart(self.codes, out)), apart(self.scale, out)
            block = self.granularity.block((codes.shape[0], codes.shape[1]))
            top = self.tensor_scale
            tensor = apart(top, out) if isinstance(top, np.ndarray) else np.float32(1 if top is None else top)
            dequantize(codes, scale, block, self.format, tensor, as_matrix(out))
        return out if like is None else returned("dequantize", out, like)

    def arrays(self, like: Any = "numpy") -> tuple[Any, Any]:
        """Return codes and scales as arrays of another package; they share this one's memory where that can be.

        Parameters
        ----------
        like : array or str, optional
            Whose arrays: NumPy's (the default), torch's or JAX's, by one of them or by name. Codes have the package's
            own type for the format, where it has one.

        Examples
        --------
        >>> import lowprec as lp
        >>> codes, scale = lp.quantize([[1.0, 448.0]], "e4m3fn", "1x2").arrays()
        >>> codes.dtype.name, codes.astype(float).tolist(), scale.tolist()
        ('float8_e4m3fn', [[1.0, 448.0]], [[1.0]])
        """
        dtype = dtype_of(self.format)
        return returned("arrays", self.codes, like, dtype), returned("arrays", self.scale, like)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, see `lowprec.scaling.file`.

        Raises
        ------
        ValueError
            If a scale is not exact as a power of two or E4M3 number, where it is said to be one.
        OSError
            If the file cannot be written.
        """
        fields = (getattr(self, field.name) for field in dataclasses.fields(self))
        file.write(path, file.Content(*fields))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Quantized:
        """Read it from a file.

        Raises
        ------
        ValueError
            If the file is damaged, something else, or of an unknown version.
        OSError
            If it cannot be read.
        """
        content = file.read(path)
        try:
            return Quantized(*content)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: damaged header: {error}") from None

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
        return table([row for row in rows if row[1] is not None], title="Quantized")

    @property
    def _lines(self) -> str:
        """What has a scale each on top of the blocks' own: "rows", "columns" or "" for neither."""
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
            f"Quantized({by}{self.format.name} {'x'.join(map(str, self.shape)) or 'scalar'}, {self.granularity} with "
            f"{scales}, {self.bits_per_value:.4g} bits per value)"
        )
