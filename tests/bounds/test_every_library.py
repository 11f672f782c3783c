"""Every accumulator, in every library, with every split, K and kind of data: no output is beyond its bound."""

import collections

import numpy as np
import pytest
from test_checksum import BY_GEMM, operands

import lowprec as lp
from lowprec.bounds.product import Order, errors_of

LIBRARIES = [
    *map(lp.gemm_libraries.get, lp.gemm_libraries),
    lp.GemmLibrary("apart", fma_promotion=False),
    lp.GemmLibrary("rounds", split_k_reduction="out"),
]
KINDS = ("normal", "positive", "cancelling", "tiles", "boundaries")


def products(k, kind, names):
    """Yield operands of accumulators with their promotion intervals, with scales of blocks and of rows."""
    m, n = {4096: (4, 6), 16384: (2, 4)}.get(k, (12, 16))
    values = lp.testing.operands(kind, m, n, k, seed=k)
    made = {}
    for name in names:
        rule = lp.accumulators[name]
        fmt = rule.default_format
        rows = fmt.bits == 8 and rule.scale_format is None and rule.dtype != np.float16
        for way in ("blocks", "rows") if rows else ("blocks",):
            key = fmt.name, way, rule.scale_format, rule.scale_block, rule.has_running_sum, rule.dtype
            if key not in made:
                by_row = [lp.quantize(v, f"{fmt.name} row") for v in values] if way == "rows" else None
                made[key] = operands(rule, fmt, *values) if by_row is None else (by_row, ())
            pair, intervals = made[key]
            for every in dict.fromkeys((*intervals, "auto")):
                yield rule, pair, every


def count_outputs(k, library, split, kind, names=BY_GEMM):
    """Return the numbers of outputs that have no bound, that are beyond theirs, and that each accumulator bounds."""
    found = collections.Counter()
    outs = ("float32",) if library.split_k_reduction == "float32" else ("float32", "bfloat16")
    for rule, pair, every in products(k, kind, names):
        for out in map(lp.formats.get, outs):
            options = {"accumulator": rule, "promote_every": every, "library": library, "split_k": split}
            try:
                d = lp.gemm(*pair, out_format=out, **options).astype(np.float64)
            except ValueError as error:
                if "must be constant along K" not in str(error):  # scales that this library does not take
                    raise
                continue
            number = library.split_k if split is None else split
            errors = errors_of(*pair, Order(rule, library, every, number, out))
            low, high = (lp.round_to(errors.exact + sign * errors.most, out) for sign in (-1, 1))
            judged = np.isfinite(errors.exact) & np.isfinite(errors.most)
            found[rule.name] += int(judged.sum())
            found["without a bound"] += int((~judged).sum())
            found["beyond"] += int((judged & ~((d >= low) & (d <= high))).sum())
    return found


def check_counts(found, library, names):
    """Check that no output is beyond its bound, and that all accumulators of a library have bounds."""
    refused = {name for name in names if library.slices > 1 and lp.accumulators[name].scale_format is not None}
    assert found["beyond"] == 0
    assert {name for name in names if not found[name]} == refused


@pytest.mark.exhaustive
@pytest.mark.parametrize("k", [512, 4096, 16384])
@pytest.mark.parametrize("library", LIBRARIES, ids=[each.name for each in LIBRARIES])
def test_no_output_is_beyond_the_bound(library, k, record_property):
    has_splits = not library.stream_k and library.split_k_reduction != "tree"
    found = collections.Counter()
    for split in (1, 2, 4) if has_splits else (None,):
        for kind in KINDS:
            found += count_outputs(k, library, split, kind)
    record_property("outputs", found)
    check_counts(found, library, BY_GEMM)


@pytest.mark.slow
@pytest.mark.parametrize("library", [lp.gemm_libraries["deepgemm"], lp.gemm_libraries["cutlass_sliced"]], ids=str)
def test_a_small_product_of_some_accumulators(library):
    names = ["hopper_fp8", "blackwell_nvfp4"]
    check_counts(count_outputs(256, library, 1, "normal", names), library, names)
