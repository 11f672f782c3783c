"""Writers of .npy and .npz files, and readers that are safe for damaged and hostile files.

`numpy.load` allocates whatever a header claims and raises the errors of its parsers. These readers raise a `ValueError`
or an `OSError` with one line that names the file, and never allocate more than the file can hold.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import io
import math
import os
import re
import stat
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

from .writing import PathLike, write_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

_MAGIC = b"\x93NUMPY"
_LENGTHS = {1: "<H", 2: "<I", 3: "<I"}  # struct format of the header's length, by version
_LONGEST_HEADER = 10_000  # as in NumPy's reader: the header is parsed as a Python literal
_PIECE = 1 << 20
_DEFLATE = 1032  # zlib's largest expansion of a byte
_METHODS = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: _DEFLATE}  # those of numpy.savez and savez_compressed
# Exceptions of zipfile, zlib, struct and NumPy for damaged files; RuntimeError is for encrypted members.
_DAMAGE = (ValueError, EOFError, KeyError, RuntimeError, OverflowError, struct.error, zlib.error, zipfile.BadZipFile)


def read_npy(path: PathLike, what: str = "a .npy file, or damaged") -> NDArray[Any]:
    """Read an array of numbers or text from a .npy file.

    Parameters
    ----------
    path : str or path
        File to read.
    what : str
        Description of the expected file, used in error messages.

    Raises
    ------
    ValueError
        If the file is not a valid .npy file.
    OSError
        If the file cannot be read, or memory runs out.
    """
    with _errors(path, what), _opened(path) as (file, size):
        if file.read(4) == b"PK\3\4":
            raise ValueError("it is an archive of several arrays")
        file.seek(0)
        return _read(file, size)


def is_npy(path: PathLike) -> bool:
    """Return whether a file starts with the magic bytes of .npy; raise `OSError` if it cannot be read."""
    with _opened(path) as (file, _):
        return file.read(len(_MAGIC)) == _MAGIC


class Archive:
    """Context manager for an .npz file that reads arrays on access.

    Parameters
    ----------
    path : str or path
        File to read.
    what : str
        Description of the expected file, used in error messages.

    Raises
    ------
    ValueError
        If the file is not a valid .npz file, here or when an array is read.
    OSError
        If the file cannot be read, or memory runs out.
    """

    def __init__(self, path: PathLike, what: str = "an .npz file, or damaged") -> None:
        self._path, self._what = path, what
        with contextlib.ExitStack() as stack, _errors(path, what):
            file, self._size = stack.enter_context(_opened(path))
            if file.read(len(_MAGIC)) == _MAGIC:
                raise ValueError("it is a single array")
            self._zip = stack.enter_context(zipfile.ZipFile(file))
            self._members = {info.filename.removesuffix(".npy"): info for info in self._zip.infolist()}
            self._stack = stack.pop_all()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def names(self) -> list[str]:
        """Names of the arrays."""
        return list(self._members)

    def __getitem__(self, name: str) -> NDArray[Any]:
        with _errors(self._path, self._what):
            if name not in self._members:
                raise ValueError(f"it has no {name}")
            try:
                return self._member(self._members[name])
            except _DAMAGE as error:
                raise ValueError(f"{name} in it: {_message(error)}") from None

    def _member(self, info: zipfile.ZipInfo) -> NDArray[Any]:
        if info.compress_type not in _METHODS:
            raise ValueError(f"compression method must be stored or deflated, got {info.compress_type}")
        stored = min(info.compress_size, self._size)
        if info.file_size > _METHODS[info.compress_type] * stored:
            raise ValueError(f"{stored} bytes cannot decompress to the {info.file_size} of its header")
        with self._zip.open(info) as file:
            array = _read(file, info.file_size)
            while file.read(_PIECE):  # reads to the end, where the checksum is verified
                pass
        return array


@contextlib.contextmanager
def _errors(path: PathLike, what: str) -> Iterator[None]:
    """Convert the errors of a damaged file into a `ValueError` or `OSError` that names it."""
    name = os.fspath(path)
    try:
        yield
    except MemoryError:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), name) from None
    except OSError as error:
        if error.errno in (None, errno.EINVAL) and error.filename is None:  # a seek to before the file's start
            raise ValueError(f"{name}: not {what}: {_message(error)}") from None
        raise OSError(error.errno, error.strerror, name) from None
    except _DAMAGE as error:
        raise ValueError(f"{name}: not {what}: {_message(error)}") from None


def _message(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


@contextlib.contextmanager
def _opened(path: PathLike) -> Iterator[tuple[IO[bytes], int]]:
    """Open a file and yield it with its size; a pipe is read into memory."""
    with open(path, "rb") as file:
        if stat.S_ISCHR(os.fstat(file.fileno()).st_mode):  # /dev/zero, for example, is endless
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        whole: IO[bytes] = file if file.seekable() else io.BytesIO(file.read())
        size = whole.seek(0, os.SEEK_END)
        whole.seek(0)
        yield whole, size


def _read(file: IO[bytes], size: int) -> NDArray[Any]:
    """Read an array from a stream of `size` bytes."""
    import numpy as np

    dtype, shape, fortran_order, used = _header(file)
    count = math.prod(shape)
    if count * dtype.itemsize > size - used or count > max(size, 1):  # strings of length 0 take no bytes
        raise ValueError(f"{size - used} bytes cannot hold {dtype} of shape {str(shape)[:80]}")
    content = np.empty(count * dtype.itemsize, np.uint8)
    left = content.data
    while left:
        n = file.readinto(left[:_PIECE])  # type: ignore[attr-defined]  # files and members of archives have it
        if not n:
            raise ValueError(f"it is cut short by {len(left)} bytes")
        left = left[n:]
    array = content.view(dtype) if dtype.itemsize else np.empty(count, dtype)
    return array.reshape(shape[::-1]).T if fortran_order else array.reshape(shape)


def _header(file: IO[bytes]) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """Return dtype, shape, whether the array is in Fortran order, and the length of the header."""
    import numpy as np

    start = file.read(len(_MAGIC) + 2)
    if len(start) < len(_MAGIC) + 2 or not start.startswith(_MAGIC) or start[len(_MAGIC)] not in _LENGTHS:
        raise ValueError("it does not begin as an array does")
    field = struct.Struct(_LENGTHS[start[len(_MAGIC)]])
    (length,) = field.unpack(file.read(field.size))
    if length > _LONGEST_HEADER:
        raise ValueError(f"its header must have at most {_LONGEST_HEADER} bytes, got {length}")
    text = file.read(length).decode("utf-8" if start[len(_MAGIC)] == 3 else "latin-1")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            header = ast.literal_eval(re.sub(r"(?<=\d)L", "", text.strip()))  # Python 2 wrote 10L
        descr, fortran_order, shape = header["descr"], header["fortran_order"], header["shape"]
    except (ValueError, TypeError, KeyError, SyntaxError, MemoryError, RecursionError):
        raise ValueError("its header has no dtype and shape") from None
    if not (isinstance(descr, str) and re.fullmatch(r"[<>|=]?[?a-zA-Z]\d{0,9}", descr)):
        raise ValueError(f"it must hold numbers, got {str(descr)[:80]}")
    try:
        dtype = np.dtype(descr)
    except (TypeError, ValueError):
        raise ValueError(f"it must hold numbers, got {descr}") from None
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not loaded")
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"its shape must be a tuple of integers >= 0, got {str(shape)[:80]}")
    return dtype, shape, bool(fortran_order), len(start) + field.size + length


# --- writing ---------------------------------------------------------------------------------------------------------


def write_npy(path: PathLike, array: ArrayLike) -> None:
    """Write an array to a .npy file atomically, as `write_bytes` does."""
    import numpy as np

    content = io.BytesIO()
    np.save(content, array)
    write_bytes(path, content.getvalue())


def write_npz(path: PathLike, arrays: Mapping[str, ArrayLike]) -> None:
    """Write arrays to an .npz file atomically, as `write_bytes` does; the path gets no suffix."""
    import numpy as np

    content = io.BytesIO()
    np.savez(content, **dict(arrays))  # type: ignore[arg-type]  # names of members are not options
    write_bytes(path, content.getvalue())


def npz_bytes(arrays: Mapping[str, ArrayLike]) -> bytes:
    """Return an .npz archive of arrays as bytes. Unlike with `numpy.savez`, equal arrays always give equal bytes.

    Members are in the given order, uncompressed, little-endian, and without a time stamp.
    """
    import numpy as np

    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as file:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))  # the earliest time of the zip format
            member.create_system = 3
            member.external_attr = 0o644 << 16
            content = io.BytesIO()
            values = np.asarray(array)
            little = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<")))
            np.lib.format.write_array(content, little.reshape(values.shape), version=(1, 0), allow_pickle=False)
            file.writestr(member, content.getvalue())
    return archive.getvalue()
