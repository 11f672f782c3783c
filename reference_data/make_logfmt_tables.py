"""Print the constants of LogFMT.

    python reference_data/make_logfmt_tables.py > lowprec/kernels/logfmt/tables.py

Every constant is the double nearest to its exact value; mpmath works with 200 bits here, far beyond any doubt.
"""

import sys

import mpmath

mpmath.mp.prec = 200
LN2 = mpmath.log(2)


def rows(name: str, comment: str, values: list[mpmath.mpf]) -> str:
    """One table as source."""
    hexes = [float(value).hex() for value in values]
    lines = [" ".join(hexes[i : i + 5]) for i in range(0, len(hexes), 5)]
    return "\n".join([f"#: {comment}", f'{name} = _doubles("""', *lines, '""")'])


def main() -> None:
    """Print the module."""
    tables = [
        rows("LOG2", "log2(1 + j / 128), j = 0 .. 127.", [mpmath.log(1 + mpmath.mpf(j) / 128, 2) for j in range(128)]),
        rows("EXP2", "2 ** (i / 64), i = 0 .. 63.", [mpmath.mpf(2) ** (mpmath.mpf(i) / 64) for i in range(64)]),
        rows(
            "LOG2_SERIES",
            "Coefficients of z, z^2 .. z^8 in log2(1 + z).",
            [(-1) ** (k + 1) / (k * LN2) for k in range(1, 9)],
        ),
        rows(
            "EXP2_SERIES",
            "Coefficients of r, r^2 .. r^6 in 2^r.",
            [LN2**k / mpmath.factorial(k) for k in range(1, 7)],
        ),
    ]
    header = '''"""Constants of LogFMT's logarithm and exponential: the doubles nearest to their exact values.

Made by `python reference_data/make_logfmt_tables.py > lowprec/kernels/logfmt/tables.py`; the tests check every one.
"""

import numpy as np
import numpy.typing as npt


def _doubles(text: str) -> npt.NDArray[np.float64]:
    return np.array([float.fromhex(word) for word in text.split()])


'''
    sys.stdout.write(header + "\n".join(tables).replace("\n#:", "\n#:") + "\n")


if __name__ == "__main__":
    main()
