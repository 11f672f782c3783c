"""Files that are not what they should be: damaged, made up, or too large for what they hold."""

import io
import pickle
import struct
import zipfile

import numpy as np


def npy(header: str | bytes, content: bytes = bytes(64), version: int = 1) -> bytes:
    """Return a .npy file with a header as it is given."""
    text = header if isinstance(header, bytes) else header.encode("latin-1")
    text += b" " * (63 - (10 + len(text)) % 64) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + content


def of_shape(shape: str, descr: str = "'<f4'") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"


def saved(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def archive(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as file:
        for name, inner in members.items():
            file.writestr(f"{name}.npy", inner)
    return content.getvalue()


def changed(content: bytes, old: bytes, new: bytes) -> bytes:
    assert old in content
    return content.replace(old, new)


GOOD = saved(np.arange(24, dtype=np.float32).reshape(4, 6))
#: .npy files that no reader takes.
BAD_NPY = {
    "empty": b"",
    "magic": GOOD[:6],
    "cut header": GOOD[:40],
    "cut content": GOOD[:-1],
    "noise": bytes(range(256)),
    "text": b"1 2 3\n",
    "version 9": npy(of_shape("(4, 4)"), version=9),
    "10 TB": npy(of_shape("(10000000000000,)")),
    "10^30": npy(of_shape("(1" + "0" * 30 + ",)")),
    "10^30 of nothing": npy(of_shape("(0, 1" + "0" * 30 + ")")),
    "wraps to 0": npy(of_shape("(4294967296, 4294967296)")),
    "negative": npy(of_shape("(-4, -4)")),
    "negative axis": npy(of_shape("(-1, 16)")),
    "fractions": npy(of_shape("(4.0, 4)")),
    "no tuple": npy(of_shape("16")),
    "100 axes": npy(of_shape(str((1,) * 100))),
    "open parentheses": npy("{'descr': '<f4', 'fortran_order': False, 'shape': " + "(" * 300 + ", }"),
    "nested": npy(of_shape("(" * 150 + "4" + ",)" * 150)),
    "signs": npy(of_shape("(" + "-" * 9000 + "4,)")),
    "escapes": npy(of_shape("('\\d',)")),
    "unhashable": npy("{[]: 1}"),
    "no header": npy("16"),
    "missing keys": npy("{'descr': '<f4'}"),
    "code": npy("__import__('os').abort()"),
    "long header": npy(of_shape("(4, 4)") + " " * 20_000),
    "longer header than file": b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31) + bytes(64),
    "objects": npy(of_shape("(1,)", "'|O'"), pickle.dumps([1])),
    "records": npy(of_shape("(4, 4)", "[('a', '<f4')]")),
    "list in a type": npy(of_shape("(4, 4)", "['<f4']")),
    "parts": npy(of_shape("(2, 2)", "'(2,2)f4'")),
    "dates": npy(of_shape("(4, 2)", "'<M8[s]'")),
    "type of a terabyte": npy(of_shape("(1,)", "'<U999999999'")),
    "text of no length": npy(of_shape("(1000000000000,)", "'<U0'")),
    "no such type": npy(of_shape("(4, 4)", "'<f3'")),
    "pickle": pickle.dumps({"a": 1}),
}


def bombs(names: tuple[str, ...], good: bytes) -> dict[str, bytes]:
    """Return archives that claim more than they hold, whose members are called so and would be good arrays else."""
    members = dict.fromkeys(names, good)
    whole, deflated = archive(members), archive(members, zipfile.ZIP_DEFLATED)
    lzma, bz2 = archive(members, zipfile.ZIP_LZMA), archive(members, zipfile.ZIP_BZIP2)
    size = struct.pack("<I", len(good))
    first = whole.index(b"PK\1\2")
    return {
        "cut": whole[: len(whole) // 2],
        "no directory": whole[:first],
        "only a directory": whole[first:],
        "flipped": whole[:60] + bytes([whole[60] ^ 1]) + whole[61:],
        "flipped deflated": deflated[:60] + bytes([deflated[60] ^ 0x55]) + deflated[61:],
        "flipped lzma": lzma[:90] + bytes([lzma[90] ^ 0x55]) + lzma[91:],
        "flipped bz2": bz2[:90] + bytes([bz2[90] ^ 0x55]) + bz2[91:],
        "claims 4 GB": whole[:first] + changed(whole[first:], size * 2, b"\xf0\xff\xff\xff" * 2),
        "claims 4 GB unpacked": deflated[: (at := deflated.index(b"PK\1\2"))]
        + changed(deflated[at:], size, b"\xf0\xff\xff\xff"),
        "encrypted": whole[: first + 8] + b"\1" + whole[first + 9 :],
        "members before the file": whole[:-6] + b"\xff\xff\xff\x7f" + whole[-2:],
        "noise in members": archive(dict.fromkeys(names, b"no array at all")),
        **{f"members: {name}": archive(dict.fromkeys(names, content)) for name, content in BAD_NPY.items()},
    }
