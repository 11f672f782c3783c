"""Collectives add what their sources add: programs of ranks in exact arithmetic, orders, messages, noise."""

import functools
import itertools
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from counting import Counting
from refusals import refusals

import lowprec as lp
from lowprec import sqnr
from lowprec.codec import codecs
from lowprec.collective.kinds import Choice
from lowprec.oracle import casts, decode
from lowprec.oracle import collectives as programs
from lowprec.oracle.values import FLOAT32
from lowprec.registry import UnknownNameError

F = np.float32
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16,
          "e4m3fn": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}  # fmt: skip
PROGRAMS = {
    "gloo": lambda x, add, size: programs.gloo(x, add, size),
    "openmpi_ring": lambda x, add, size: programs.openmpi_ring(x, add),
    "openmpi_recursive_doubling": lambda x, add, size: programs.openmpi_recursive_doubling(x, add),
    "openmpi_rabenseifner": lambda x, add, size: programs.openmpi_rabenseifner(x, add),
    "openmpi_linear": lambda x, add, size: programs.openmpi_linear(x, add),
    "nccl_ring": lambda x, add, size: programs.nccl_ring(x, add),
    "nccl_tree": lambda x, add, size: programs.nccl_tree(x, add),
}  # fmt: skip
#: Rules close to the right ones, by the entry that they change.
WRONG = {
    "gloo": [{"direction": 1}, {"first": 0}, {"first": 1}, {"segments": 0}, {"segments": 1}, {"segment_bytes": 1},
             {"wide_sums": True}],
    "openmpi_ring": [{"direction": -1}, {"first": 1}, {"segments": 1}, {"wide_sums": True}],
    "openmpi_recursive_doubling": [{"join": "halving"}, {"folds": False}, {"wide_sums": True}],
    "openmpi_rabenseifner": [{"join": "halving"}, {"folds": False}, {"wide_sums": True}],
    "openmpi_linear": [{"descending": False}, {"wide_sums": True}],
    "nccl_ring": [{"direction": -1}, {"first": 0}, {"segments": 1}, {"wide_sums": True}],
    "nccl_tree": [{"wide_sums": True}],
}  # fmt: skip


def shards(ranks, count, fmt, seed=0):
    """Return numbers of which many sums are ties, are lost beside others, or cancel."""
    rng = np.random.default_rng((seed, ranks, count))
    x = rng.integers(1, 16, (ranks, count)) * 2.0 ** rng.integers(-4, 3, (ranks, count))
    x *= rng.choice((-1, 1), x.shape) * 2.0 ** rng.choice((0, -4, -9, -21, -26), x.shape)
    for column in x.T[::2]:  # the rest is what was rounded off
        places = rng.permutation(ranks)
        column[places[: ranks // 2]] = -column[places[ranks // 2 : ranks // 2 * 2]]
    return lp.round_to(x, fmt).astype(DTYPES[fmt])


@functools.cache
def rounded(a, b, fmt, via):
    """Return the exact sum, rounded to a format, by way of another for FP8."""
    total = a + b
    for name in (via, fmt):
        if name is not None:
            f = FLOAT32 if name == "float32" else lp.formats[name]
            total = Fraction(decode(casts.cast(total, f, "nearest_even", "cuda_satfinite"), f))
    return total


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fmt", list(DTYPES))
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_programs_of_ranks_give_the_same_sums(name, fmt):
    """Of a right entry every sum is the program's; of a wrong one some sum differs."""
    wrong, missed = 0, {str(change): 0 for change in WRONG[name]}
    right = lp.collectives[name]
    for ranks, count in ((1, 3), (2, 5), (3, 10), (4, 11), (5, 48), (6, 7), (7, 30), (8, 40)):
        x = shards(ranks, count, fmt)
        via = right.fp8_sums if fmt in ("e4m3fn", "e5m2") else None
        inputs = [[Fraction(float(value)) for value in row] for row in x]
        every = PROGRAMS[name](inputs, functools.partial(rounded, fmt=fmt, via=via), x.dtype.itemsize)
        assert all(mine == every[0] for mine in every)  # all ranks have the same numbers
        wanted = [float(value) for value in every[0]]
        wrong += int((right.all_reduce(x).astype(float) != wanted).sum())
        for change in WRONG[name]:
            missed[str(change)] += int((right.with_(**change).all_reduce(x).astype(float) != wanted).sum())
    assert wrong == 0
    if fmt == "float32":
        missed.pop("{'wide_sums': True}")
    assert [change for change, count in missed.items() if not count] == []


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "ranks"), list(itertools.product(lp.collectives, (1, 2, 3, 6, 8))))
def test_an_order_has_the_bits_of_its_element(name, ranks):
    collective, count = lp.collectives[name], 23
    for fmt in ("float32", "bfloat16", "float16"):
        x = shards(ranks, count, fmt)
        got = collective.all_reduce(x)
        for index in range(0, count, 5):
            assert collective.order(ranks, count, index, fmt).sum(x[:, index]) == got[index]
    halves = x.reshape(ranks, -1)[:, : 2 * ranks]
    assert np.array_equal(collective.reduce_scatter(halves).ravel(), collective.all_reduce(halves))


@pytest.mark.parametrize(
    ("ranks", "count", "itemsize", "name"),
    [(2, 1, 4, "openmpi_recursive_doubling"), (3, 1000, 4, "openmpi_recursive_doubling"), (3, 1024, 4, "openmpi_ring"),
     (2, 65536, 4, "openmpi_rabenseifner"), (4, 2048, 4, "openmpi_rabenseifner"), (17, 17, 2, "openmpi_ring"),
     (40, 16, 8, "openmpi_linear"), (127, 1, 4, "openmpi_recursive_doubling")],
)  # fmt: skip
def test_choice_by_ranks_and_bytes(ranks, count, itemsize, name):
    assert lp.collectives["openmpi"].choose(ranks, count, itemsize) == lp.collectives[name]


def test_special_numbers_and_wide_sums():
    x = F([[np.inf, np.nan, -0.0, 3e38], [-np.inf, 1, -0.0, 3e38]])
    for name in lp.collectives:
        got = lp.collectives[name].all_reduce(x)
        assert np.array_equal(got, F([np.nan, np.nan, 0, np.inf]), equal_nan=True), name
        assert got.view(np.uint32)[:2].tolist() == [0x7FC00000] * 2
        assert np.signbit(got[2]) == (name not in ("two_level", "one_shot", "two_step")), name  # these start at +0
    small = np.array([[1.0], [2.0**-8], [2.0**-8]], ml_dtypes.bfloat16)
    assert [float(lp.collectives[n].all_reduce(small)[0]) for n in ("tree", "one_shot", "nccl_nvls")] == [
        1, 1 + 2.0**-7, 1 + 2.0**-7,
    ]  # fmt: skip
    top = np.full((2, 1), 448, ml_dtypes.float8_e4m3fn)
    assert lp.collectives["nccl_ring"].all_reduce(top).astype(float) == 448  # CUDA's conversion saturates
    over = np.concatenate([top, -top[:1]])
    assert [float(lp.collectives[n].all_reduce(over)[0]) for n in ("tree", "nccl_nvls")] == [0, 448]
    assert lp.collectives["ring"].all_reduce(np.zeros((3, 0))).shape == (0,)


# --- messages with a codec -------------------------------------------------------------------------------------------


CODED = ("ring", "tree", "two_level", "one_shot", "two_step")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["logfmt8", "logfmt10", "fp8_1x128", "e5m2_1x128"])
@pytest.mark.parametrize("algorithm", CODED)
@pytest.mark.parametrize("ranks", [8, 32])
def test_noise_has_its_closed_form(name, algorithm, ranks):
    x = np.random.default_rng(ranks).standard_normal((ranks, 128, 1024)).astype(F)
    alone = sqnr(codecs[name].round_trip(x[:4]), x[:4])
    found = sqnr(lp.collectives[algorithm].all_reduce(x, name), x.astype(float).sum(0))
    assert abs(found - (alone - lp.collectives[algorithm].snr_loss(ranks))) < 0.2


def test_closed_forms():
    loss = {name: [round(lp.collectives[name].snr_loss(ranks), 2) for ranks in (8, 32)] for name in CODED}
    assert loss == {
        "ring": [5.44, 11.9], "tree": [4.77, 6.99], "two_level": [-3.01, 5.44], "one_shot": [0.0, 0.0],
        "two_step": [3.01, 3.01],
    }  # fmt: skip
    assert [lp.collectives["tree"].noise_gain(ranks) for ranks in (1, 2, 3, 4)] == [0, 1, 5 / 3, 2]


@pytest.mark.parametrize(
    ("algorithm", "messages"),
    [("ring", 8 * 7), ("tree", 14), ("two_level", 2), ("one_shot", 8), ("two_step", 9), ("nccl_tree", 14)],
)
def test_who_sends(algorithm, messages):
    wire = Counting()
    x = np.arange(8 * 16 * 4, dtype=F).reshape(8, 16, 4)
    assert np.array_equal(lp.collectives[algorithm].all_reduce(x, wire), x.sum(0))
    assert len(wire.sent) == messages
    rows = {"ring": 2, "two_level": 8, "nccl_tree": 8}.get(algorithm, 16)
    assert {sent.shape for sent in wire.sent} == {(rows, 4)}
    if algorithm == "two_level":
        assert {tuple(sent.ravel()) for sent in wire.sent} == {
            tuple(x[4:, :8].sum(0).ravel()), tuple(x[:4, 8:].sum(0).ravel())
        }  # fmt: skip
    if algorithm == "ring":  # part 0 starts behind rank 0 and picks up rank after rank
        assert np.array_equal(wire.sent[0], x[1, :2])
        assert np.array_equal(wire.sent[1], x[1, :2] + x[2, :2])


@pytest.mark.parametrize(("algorithm", "ranks"), list(itertools.product(lp.collectives, (1, 2, 3, 5, 7))))
def test_any_number_of_ranks(algorithm, ranks):
    x = np.random.default_rng(0).integers(-8, 9, (ranks, 3, 2, 32)).astype(F)
    assert np.array_equal(lp.collectives[algorithm].all_reduce(x, "float32"), x.sum(0))


@pytest.mark.parametrize("algorithm", lp.collectives)
def test_messages_that_overflow_or_are_empty(algorithm):
    x = np.full((3, 2, 32), 3e38, F)
    x[1, 0, 0], x[2, 0, 1] = -np.inf, np.nan
    with np.errstate(all="raise"):
        got = lp.collectives[algorithm].all_reduce(x, "float32")
    assert np.isinf(got[1]).all()
    assert np.isnan(got[0, 1])
    for shape in ((3, 2, 0), (3, 0, 32), (3, 0)):
        assert lp.collectives[algorithm].all_reduce(np.zeros(shape, F), "float32").shape == shape[1:]


# --- what users give -------------------------------------------------------------------------------------------------

test_errors = refusals(
    [
        ("lp.collectives['rings']", UnknownNameError, "unknown collective 'rings': did you mean 'ring'"),
        ("ring.all_reduce(np.ones((0, 4)))", r"all_reduce: shards must have shape \[ranks >= 1, ...\], got \(0, 4\)"),
        ("ring.all_reduce(np.float32(1))", r"all_reduce: shards must have shape \[ranks >= 1, ...\], got \(\)"),
        ("ring.all_reduce(np.ones(4), 'bf16')",
         r"all_reduce: shards must have shape \[ranks >= 1, ..., columns\], got \(4,\)"),
        ("ring.all_reduce([[1.0, 2.0], [3.0]])", "all_reduce: values must be rectangular"),
        ("ring.all_reduce([np.ones(2), np.ones(2, np.float32)])", TypeError,
         "all_reduce: shards must have one dtype, got float32, float64"),
        ("ring.all_reduce([[1, 2], [3, 4]])", TypeError, "all_reduce: shards must be of .*, got int64"),
        ("ring.reduce_scatter(np.ones((3, 4)))",
         r"reduce_scatter: shards must have shape \[ranks, a multiple of ranks, ...\], got \(3, 4\)"),
        ("ring.order(0, 4)", "Collective.order: ranks must be"),
        ("ring.order(2, 4, 4)", "Collective.order: index must be"),
        ("ring.order(2, 4, dtype='e4m3fn')", "Collective.order: dtype must be"),
        ("lp.collectives['openmpi'].all_reduce(np.ones((128, 4)))",
         "openmpi: ranks and bytes must be a case that is described, got 128 ranks and 32 bytes"),
        ("ring.with_(direction=0)", "direction must be"),
        ("lp.collectives['openmpi'].noise_gain(8)", r"must be one algorithm, such as openmpi.choose\(.*, got openmpi"),
        ("lp.collectives['openmpi'].snr_loss(8)", "noise_gain: collective must be one algorithm"),
        ("lp.collectives['openmpi'].with_(choices=('ring',))", TypeError, "must be a sequence of Choice, got "),
        ("Choice(8, 8, 'ring')", TypeError, "Choice: algorithm must be a Collective or None, got 'ring'"),
        ("Choice(8, 0.5, None)", "Choice: nbytes must be an integer >= 1, got 0.5"),
    ],
    lambda: {"ring": lp.collectives["ring"], "Choice": Choice},
)  # fmt: skip
