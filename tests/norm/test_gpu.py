"""Orders and norms of GPU kernels have the bits of their threads, simulated one by one in fractions."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp
from lowprec.norm.functions import Approximate
from lowprec.norm.invariance import norm_invariance
from lowprec.norm.sums import IN_TURN
from lowprec.oracle.values import FLOAT32, decode, encode
from lowprec.order.rules import MOST
from lowprec.order.threads import Threads

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
ENTRIES = [name for name in lp.norms if "rms" in name and "cpu" not in name]
SOFTMAX = ["torch_cuda_softmax", "torch_cuda_log_softmax"]


def rounded(value):
    """Return a fraction rounded to float32."""
    return Fraction(decode(encode(value, FLOAT32), FLOAT32))


def add(a, b):
    return rounded(a + b) if a and b else a + b


def shuffle(values, offsets, last=31):
    """Return the sum in lane 0 of a warp of 32 after the additions at each offset; lanes after `last` are not read."""
    values = values + [Fraction(0)] * (32 - len(values))
    for offset in offsets:
        values = [add(v, values[i + offset]) if i + offset <= last else v for i, v in enumerate(values)]
    return values[0]


def chain(values, start=0):
    total = Fraction(start)
    for value in values:
        total = add(total, value)
    return total


def warps(sums):
    return [sums[i : i + 32] for i in range(0, len(sums), 32)]


def products(pairs, fused):
    """Return a running sum from 0 of products, which are rounded first or fused."""
    total = Fraction(0)
    for a, b in pairs:
        total = rounded(total + (a * b if fused else rounded(a * b)))
    return total


def cub(x, width, most):
    """vLLM: a vector of 16 bytes or less, and cub::BlockReduce of the threads that have numbers."""
    vector = math.gcd(width, len(x))
    threads = min(len(x) // vector, most)
    sums = [
        products([v for i in range(t, len(x) // vector, threads) for v in x[i * vector : (i + 1) * vector]], True)
        for t in range(threads)
    ]
    return chain([shuffle(warp, (1, 2, 4, 8, 16), len(warp) - 1) for warp in warps(sums)])


def triton(x, block, threads, width, fused):
    """tl.sum of products of blocks that are padded with zeros; registers are added as a tree."""
    total = Fraction(0)
    for start in range(0, len(x), block):
        part = x[start : start + block]
        part = part + [(Fraction(0), Fraction(0))] * (block - len(part))
        vector = min(width, max(1, block // threads))
        sums = []
        for t in range(min(threads, block)):
            own = [v for at in range(t * vector, block, threads * vector) for v in part[at : at + vector]]
            level = [rounded(a * b) for a, b in own]
            if fused and len(own) > 1:
                level = [rounded(own[i][0] * own[i][1] + level[i + 1]) for i in range(0, len(own), 2)]
            while len(level) > 1:
                level = [add(*level[i : i + 2]) for i in range(0, len(level), 2)]
            sums += level
        total = add(total, shuffle([shuffle(warp, (16, 8, 4, 2, 1)) for warp in warps(sums)], (16, 8, 4, 2, 1)))
    return total


def last_power(n):
    return 1 << n.bit_length() - 1


def reduce_kernel(x, rows=1):
    """PyTorch's reduce_kernel: block_x_reduce in shared memory, then shuffles, of the threads of one row."""
    is_vector = len(x) >= 128
    most = last_power(len(x) // 4 if is_vector else len(x))
    width = min(most, 512 // min(last_power(rows), 512 // min(most, 32)))
    sums = []
    for t in range(width):
        values, i = [Fraction(0)] * 4, t
        while is_vector and i * 4 + 3 < len(x):
            values = [add(v, e) for v, e in zip(values, x[i * 4 : i * 4 + 4], strict=True)]
            i += width
        if not is_vector:
            values = [add(v, e) for v, e in zip(values, (x[t::width] + [Fraction(0)] * 4)[:4], strict=True)]
        sums.append(chain(values))
    while len(sums) > 32:
        sums = [add(*pair) for pair in zip(sums[: len(sums) // 2], sums[len(sums) // 2 :], strict=True)]
    return shuffle(sums, [offset for offset in (16, 8, 4, 2, 1) if offset < width])


def te(x, width):
    sums = [products([v for at in range(t * width, len(x), 128 * width) for v in x[at : at + width]], True)
            for t in range(128)]  # fmt: skip
    return chain([shuffle(warp, (16, 8, 4, 2, 1)) for warp in warps(sums)])


def torch_rms(x):
    sums = [products([v for at in range(t * 4, len(x), 512) for v in x[at : at + 4]], True) for t in range(128)]
    return shuffle([shuffle(warp, (16, 8, 4, 2, 1)) for warp in warps(sums)], (2, 1))


def liger(x, width):
    block = max(128, 1 << (len(x) - 1).bit_length())
    threads = 32 * (32 if block >= 32768 else 16 if block >= 8192 else 8 if block >= 2048 else 4)
    return triton(x, block, threads, width, True)


SUMS = {
    "vllm_rms_norm": lambda x, width, rows: cub(x, width, 1024 if rows < 256 else 256),
    "liger_rms_norm": lambda x, width, rows: liger(x, width),
    "batch_invariant_rms_norm": lambda x, width, rows: triton(x, 1024, 128, width, False),
    "te_rms_norm": lambda x, width, rows: te(x, width),
    "llama_rms_norm_cuda": lambda x, width, rows: reduce_kernel([rounded(a * b) for a, b in x], rows),
    "torch_cuda_rms_norm": lambda x, width, rows: torch_rms(x),
}
SIZES = {"te_rms_norm": (2053,), "llama_rms_norm_cuda": (20, 128, 516), "vllm_rms_norm": (7, 90, 1100),
         "liger_rms_norm": (48, 208, 1056)}  # fmt: skip

#: Numbers of rows around those from which on another order holds.
ROWS = {"llama_rms_norm_cuda": (1, 15, 16), "vllm_rms_norm": (255, 256)}


def family(name):
    return name.removesuffix("_16"), 8 if name.endswith("_16") else 4


def sum_of_squares(norm, x, rows=1):
    order = norm.order_for(rows)(len(x))
    return Fraction(float(order.dot(x, x) if order.fma else order.sum(x * x)))


def fractions(x):
    return [Fraction(float(v)) for v in x]


def row(n, seed=0):
    rng = np.random.default_rng([n, seed])
    return (rng.standard_normal(n) * 2.0 ** rng.integers(-3, 3, n)).astype(np.float32)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ENTRIES)
def test_sums_are_those_of_threads(name):
    key, width = family(name)
    for n in SIZES.get(key, (48, 1136)):
        x = row(n)
        for rows in ROWS.get(key, (1,)):
            expected = SUMS[key](list(zip(fractions(x), fractions(x), strict=True)), width, rows)
            assert sum_of_squares(lp.norms[name], x, rows) == expected, (n, rows)


def special(function, value):
    return Fraction(float(Approximate(function)(np.float32(value))))


def mul(*factors):
    total = factors[0]
    for factor in factors[1:]:
        total = rounded(total * factor)
    return total


EPS = rounded(Fraction(1e-5))
#: Factor of x, from the sum of the squares and n.
FACTORS = {
    "vllm": lambda total, n: special("rsqrt", add(rounded(total / n), EPS)),
    "liger": lambda total, n: special("rsqrt", add(rounded(total / n), EPS)),
    "torch": lambda total, n: special("rsqrt", add(rounded(total / n), EPS)),
    "batch": lambda total, n: rounded(1 / special("sqrt", add(rounded(total / n), EPS))),
    "te": lambda total, n: special("rsqrt", rounded(total * rounded(Fraction(1, n)) + EPS)),
    "llama": lambda total, n: special("rsqrt", add(mul(total, rounded(Fraction(1, n))), EPS)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ENTRIES)
def test_norms_have_the_bits_of_fractions(name):
    norm, n = lp.norms[name], 2064 if name.startswith("te") else 528
    for dtype in norm.dtypes:
        x, weight = (row(n, seed).astype(DTYPES[dtype]) for seed in (1, 2))
        wide = x.astype(np.float32)
        factor = FACTORS[name.split("_")[0]](sum_of_squares(norm, wide), n)
        got = norm(x, weight, eps=1e-5)
        for i in range(0, n, 1 + n // 30):
            value = mul(Fraction(float(wide[i])), factor)
            if name.startswith(("liger", "llama")):
                value = Fraction(float(np.float32(value).astype(DTYPES[dtype])))
            value = mul(value, Fraction(float(weight[i])))
            assert got[i] == np.float32(value).astype(DTYPES[dtype]), (dtype, i)


def cast_to(dtype, value):
    return Fraction(float(np.float32(value).astype(DTYPES[dtype])))


def liger_gradient(dtype, width, x, w, dy, r):
    m = [rounded(a * b) for a, b in zip(dy, w, strict=True)]
    total = liger(list(zip(m, x, strict=True)), width)
    share = mul(-special("identity", rounded(Fraction(1, len(x)))), r, r, total)
    return [rounded(r * a + mul(r, mul(share, b))) for a, b in zip(m, x, strict=True)]


def te_gradient(dtype, width, x, w, dy, r):
    g, z = ([rounded(a * b) for a, b in zip(dy, w, strict=True)], [rounded(r * a) for a in x])
    share = mul(te(list(zip(g, z, strict=True)), width), rounded(Fraction(1, len(x))))
    return [mul(r, rounded(a - share * b)) for a, b in zip(g, z, strict=True)]


def llama_gradient(dtype, width, x, w, dy, r):
    g = [cast_to(dtype, rounded(a * b)) for a, b in zip(dy, w, strict=True)]
    total = reduce_kernel([rounded(a * b) for a, b in zip(g, x, strict=True)])
    share = mul(Fraction(-1, 2), total, mul(r, r, r), rounded(Fraction(1, len(x))))
    return [add(mul(a, r), mul(share, 2 * b)) for a, b in zip(g, x, strict=True)]


def torch_gradient(dtype, width, x, w, dy, r):
    total = torch_rms([(mul(a, b, c), r) for a, b, c in zip(dy, w, x, strict=True)])
    near = zip([mul(Fraction(len(x)), b) for b in w], dy, [mul(a, r, total) for a in x], strict=True)
    return [mul(rounded(a * b - c), mul(rounded(Fraction(1, len(x))), r)) for a, b, c in near]


GRADIENTS = {"liger": liger_gradient, "te": te_gradient, "llama": llama_gradient, "torch": torch_gradient}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ENTRIES if lp.norms[name].backward])
def test_gradients_have_the_bits_of_fractions(name):
    norm, n, kind = lp.norms[name], 2064 if name.startswith("te") else 528, name.split("_")[0]
    for dtype in norm.dtypes[-2:]:
        x, weight, dy = (row(n, seed).astype(DTYPES[dtype]) for seed in (1, 2, 3))
        factor = FACTORS[kind](sum_of_squares(norm, x.astype(np.float32)), n)
        found = norm.gradient(dy, x, weight, eps=1e-5)
        expected = GRADIENTS[kind](dtype, family(name)[1], *map(fractions, (x, weight, dy)), factor)
        assert [float(v) for v in found.dx] == [float(cast_to(dtype, v)) for v in expected], dtype
        assert found.dweight is None  # its order depends on the number of multiprocessors


def softmax_sum(terms, most):
    """PyTorch: one warp up to a length, then a block of 1,024 threads; a warp adds the sums of its warps."""
    if len(terms) <= most:
        return shuffle([chain(terms[t::32]) for t in range(32)], (16, 8, 4, 2, 1))
    sums = warps([chain(terms[t::1024]) for t in range(1024)])
    return shuffle([shuffle(warp, (16, 8, 4, 2, 1)) for warp in sums], (16, 8, 4, 2, 1))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("n", "dtype"), [(5, "float16"), (100, "float32"), (100, "bfloat16"), (1024, "float32"),
                                          (2500, "float32")])  # fmt: skip
@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax_has_the_bits_of_fractions(name, n, dtype):
    norm, is_log = lp.norms[name], "log" in name
    x, dy = (row(n, seed).astype(DTYPES[dtype]) for seed in (1, 2))
    largest = Fraction(float(x.max()))
    shifted = [rounded(v - largest) for v in fractions(x)]
    exps = [special("exp", v) for v in shifted]
    total = softmax_sum(exps, 2048)
    y = [add(v, -special("log", total)) for v in shifted] if is_log else [rounded(v / total) for v in exps]
    y = [cast_to(dtype, v) for v in y]
    assert [float(v) for v in norm(x)] == [float(v) for v in y]
    if n > 1024:
        with pytest.raises(ValueError, match="torch_cuda_softmax: n must be from 1 to 1024"):
            norm.gradient(dy, x)
        return
    g = fractions(dy)
    if is_log:
        total = softmax_sum(g, 1024)
        dx = [rounded(a - special("exp", b) * total) for a, b in zip(g, y, strict=True)]
    else:
        p = [cast_to(dtype, rounded(a * b)) for a, b in zip(g, y, strict=True)]
        total = softmax_sum(p, 1024)
        dx = [rounded(a - b * total) for a, b in zip(p, y, strict=True)]
    assert [float(v) for v in norm.gradient(dy, x).dx] == [float(cast_to(dtype, v)) for v in dx]


#: Parts of gradients, and parts of formulas near them.
WRONG_GRADIENTS = {
    "liger_rms_norm_16": (("dy * (0 + weight)", "round(dy * (0 + weight))"),),
    "torch_cuda_rms_norm": (("fma(n * weight, dy, -(x * r * s))", "(n * weight * dy - x * r * s)"),
                            ("(1 / n * r)", "1 / n * r"), ("dot(dy * weight * x, r)", "dot(dy * x * weight, r)")),
    "torch_cuda_layer_norm": (("fma(n * weight, dy, -(", "(n * weight * dy - ("), ("(1 / n * r)", "1 / n * r"),
                              ("sum(dy * weight)", "dot(dy, weight)"),
                              ("dot(dy * weight * c, r)", "dot(dy * weight, c * r)")),
    "te_rms_norm": (("fma(-dot(g, z) * (1 / n), z, g)", "(g - dot(g, z) * (1 / n) * z)"), ("(1 / n), z", "1 / n, z")),
    "llama_rms_norm_cuda": (("* (1 / n)", "/ n"), ("(r * r * r)", "r * r * r")),
    "torch_cuda_softmax": (("round(dy * y)", "dy * y"), ("fma(-y, sum(p), p)", "p - y * sum(p)")),
    "torch_cuda_log_softmax": (("fma(-exp(y), sum(dy), dy)", "dy - exp(y) * sum(dy)"),),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG_GRADIENTS)
def test_a_gradient_with_one_thing_wrong_has_other_bits(name):
    norm, n = lp.norms[name], 2064 if "liger" in name else 2060 if name.startswith("te") else 1000
    for part, other in WRONG_GRADIENTS[name]:
        assert part in norm.backward
        wrong, differ = norm.with_(backward=norm.backward.replace(part, other)), []
        for dtype in norm.dtypes[:2]:
            x, dy = (np.array([row(n, seed + i) for seed in range(16)]).astype(DTYPES[dtype]) for i in (0, 20))
            weight = row(n, 40).astype(DTYPES[dtype])
            differ.append((wrong.gradient(dy, x, weight).dx != norm.gradient(dy, x, weight).dx).any())
        assert any(differ), part


MUTANTS = {
    "torch_cuda_softmax": ({"join": "pairwise"}, {"warps": "in_turn"}, {"launches": ((1, MOST, 1, 32, 1),)}),
    "vllm_rms_norm": ({"join": "butterfly"}, {"warps": "pairwise"}, {"fma": False}, {"lanes": 16},
                      {"launches": ((1, MOST, 1, 1024, 2),)}, {"launches": ((1, MOST, 1, 256, 4),)}),
    "liger_rms_norm": ({"join": "pairwise"}, {"inside": "in_turn"}, {"fma": False}, {"warps": "in_turn"}),
    "batch_invariant_rms_norm": ({"block": 2048}, {"fma": True}),
    "te_rms_norm": ({"join": "pairwise"}, {"warps": "butterfly"}),
    "llama_rms_norm_cuda": ({"inside": "in_turn"}, {"join": "pairwise"}),
    "torch_cuda_rms_norm": ({"join": "pairwise"}, {"warps": "in_turn"}, {"fma": False}),
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MUTANTS)
def test_an_order_with_one_thing_wrong_has_other_bits(name):
    n, order = 2064, lp.norms[name].order_for(16)
    x, y = (np.array([row(n, seed + i) for seed in range(4)]) for i in (0, 9))
    right = order(n).dot(x, y)
    for change in MUTANTS[name]:
        assert (order.with_(**change)(n).dot(x, y) != right).any(), change


def test_a_change_of_the_order_is_listed_if_no_bits_change():
    """With the seed 0, all outputs in bfloat16 round to the same bits in both orders."""
    found = norm_invariance(lp.norms["vllm_rms_norm_16"], 4096, sizes=(255, 256), dtype="bfloat16")
    (change,) = found.changes
    assert (change.m, change.share, change.before == change.after) == (256, 0.0, False)
    assert "row 0 changes the order of its sum but no bits at M = 256, in 262144 outputs" in found.sentence
    with pytest.raises(TypeError, match=r"norm must be of class Norm, such as lp\.norms.*, got 'vllm_rms_norm'"):
        norm_invariance("vllm_rms_norm", 4096)


def test_a_given_order_holds_for_all_numbers_of_rows():
    norm, x = lp.norms["llama_rms_norm_cuda"], np.array([row(1040, seed) for seed in range(16)])
    mine = norm.with_(order=lp.orders["sequential"])
    assert mine.order_for(16) is mine.order
    assert (mine(x) == [mine(each) for each in x]).all()
    assert mine.with_(row_orders=norm.row_orders).order_for(16) is norm.order_for(16)
    assert mine.name == "llama_rms_norm_cuda(order=sequential)"


@pytest.mark.slow
def test_rows_change_the_bits_of_a_row():
    x = np.array([row(1040, seed) for seed in range(256)])
    vllm, reduced = (lp.norms[name] for name in ("vllm_rms_norm", "llama_rms_norm_cuda"))
    few, many = (vllm(x[:rows])[:255] for rows in (255, 256))
    assert (few != many).any()
    assert (vllm(x[:255, :600]) == vllm(x[:, :600])[:255]).all()  # 150 vectors: 150 threads
    found = norm_invariance(reduced, 1040, sizes=(3, 4, 5, 8, 3))
    assert [change.m for change in found.changes] == [4, 8, 3]
    assert found.changes[0].before == found.changes[2].after == reduced.order_for(2)(1040)
    assert norm_invariance(lp.norms["liger_rms_norm"], 64, sizes=(1, 300)).changes == ()
    of_length = lp.norms["torch_cuda_rms_norm"].with_(unaligned=vllm)
    assert [[c.m for c in norm_invariance(of_length, k, sizes=(255, 256)).changes] for k in (4096, 4095)] == [[], [256]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lp.orders["torch_cuda_reduce"](8164),
         "torch_cuda_reduce: n must be from 1 to 127 in steps of 1 or from 128 to 8160 in steps of 4, got 8164"),
        (lambda: lp.norms["te_rms_norm"](np.ones((2, 4096))), "te: n must be from 2049 to 4095"),
        (lambda: lp.norms["liger_rms_norm"](np.ones((2, 40))), "triton: n must be from 16 to 128 in steps of 16"),
        (lambda: lp.Norm("x", "y = x", row_orders=((8, IN_TURN), (8, IN_TURN))),
         "Norm x: row_orders must be an integer >= 9, got 8"),
        (lambda: norm_invariance(lp.norms["te_rms_norm"], 2053, dtype="bfloat16"),
         "norm_invariance: dtype must be 'float32', got 'bfloat16'"),
        (lambda: norm_invariance(lp.norms["te_rms_norm"], 2053, sizes=()), "sizes must be one or more numbers"),
        (lambda: norm_invariance(lp.norms["te_rms_norm"], 2053, sizes=5), "sizes must be one or more numbers"),
        (lambda: Threads("x", ((1, 9, 1, 0, 1),)), "Threads x: launches must be an integer >= 1, got 0"),
        (lambda: Threads("x", inside="tree"), "Threads x: inside must be one of 'in_turn', 'pairwise', 'by_place'"),
        (lambda: Threads("x", warps="up"), "Threads x: warps must be one of 'in_turn'"),
        (lambda: Threads("x", block=0), "Threads x: block must be an integer >= 1, got 0"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
