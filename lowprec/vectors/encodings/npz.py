"""npz: an array of words a field, the labels, and the header as JSON; the same bytes whenever and wherever written."""

from __future__ import annotations

import json

import numpy as np

from ..._files import npz_bytes
from ..vectors import VectorSet
from .encoding import Encoding


def write(s: VectorSet) -> bytes:
    """Return a set as an archive of arrays: members in the order of the fields."""
    arrays = {name: s[name] for name in s.field_names}
    kinds = sorted(set(s.labels))
    number = {label: i for i, label in enumerate(kinds)}
    arrays["label"] = np.array([number[label] for label in s.labels], np.uint32)
    text = json.dumps({**s.header(), "labels": kinds}, ensure_ascii=True).encode()
    arrays["header"] = np.frombuffer(text, np.uint8)
    return npz_bytes(arrays)


ENCODING = Encoding(
    "npz", ".npz", "NumPy: an array a field; header is JSON in bytes, label counts into its labels", write
)
