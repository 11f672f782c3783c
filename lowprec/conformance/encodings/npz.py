"""npz: an array of words a field, the labels, and the header as JSON; the same bytes whenever and wherever written."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np

from ..vectors import VectorSet
from .encoding import Encoding

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first time that an archive can say


def write(s: VectorSet) -> bytes:
    """Return a set as an archive of arrays: members in the order of the fields, stored as they are, without a time."""
    arrays = {name: s[name] for name in s.field_names}
    kinds = sorted(set(s.labels))
    number = {label: i for i, label in enumerate(kinds)}
    arrays["label"] = np.array([number[label] for label in s.labels], np.uint32)
    text = json.dumps({**s.header(), "labels": kinds}, ensure_ascii=True).encode()
    arrays["header"] = np.frombuffer(text, np.uint8)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as file:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy", _EPOCH)
            member.create_system = 3
            member.external_attr = 0o644 << 16
            content = io.BytesIO()
            little = array.astype(array.dtype.newbyteorder("<"))
            np.lib.format.write_array(content, np.ascontiguousarray(little), version=(1, 0), allow_pickle=False)
            file.writestr(member, content.getvalue())
    return archive.getvalue()


ENCODING = Encoding(
    "npz", ".npz", "NumPy: an array a field; header is JSON in bytes, label counts into its labels", write
)
