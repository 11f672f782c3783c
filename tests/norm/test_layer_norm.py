"""LayerNorm of PyTorch on CPUs and on CUDA has the bits of fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest
from floats import Exact, fma, normal, rounded

import lowprec as lp
from lowprec.norm.functions import Approximate
from lowprec.norm.sums import DividingWelford, ThreadsWelford, Welford

CUDA = lp.norms["torch_cuda_layer_norm"]


def operands(n, rows=1):
    """Return x and dy [rows, n], weight and bias [n]."""
    return normal(n, rows, n), normal(n + 1, rows, n), normal(n + 2, n), normal(n + 3, n)


def root(value):
    """Return the square root of a fraction, rounded to float32."""
    scaled = value * Fraction(4) ** 100
    return rounded(Fraction(2 * math.isqrt(int(scaled)) + (math.isqrt(int(scaled)) ** 2 != scaled), 2) / 2**100)


@pytest.mark.parametrize(("n", "weighted"), [(3, True), (21, True), (21, False), (270, True)])
def test_layer_norm_has_the_bits_of_fractions(n, weighted):
    """Written after moments_utils.h: two levels of chunks at most."""
    x, _, weight, bias = operands(n)
    terms, count = [Exact(float(v)) for v in x[0]], n // 8
    zero = (0, Exact(0), Exact(0))

    def join(a, b, scalar):
        m = a[0] + b[0]
        c = Exact(b[0]) / Exact(m) if m else Exact(0)
        d = b[1] - a[1]
        if scalar:
            return m, fma(c, d, a[1]), a[2] + fma(d * d * c, Exact(a[0]), b[2])
        return m, a[1] + c * d, fma(d * Exact(a[0]), c * d, a[2] + b[2])

    lanes = []
    for lane in range(8):
        levels = [zero, zero]
        for chunk in range(0, count, 16):
            size, mean, squares = min(16, count - chunk), Exact(0), Exact(0)
            for j in range(size):
                v = terms[(chunk + j) * 8 + lane]
                d = v - mean
                mean = fma(Exact(1) / Exact(j + 1), d, mean)
                squares = fma(d, v - mean, squares)
            levels[0] = join(levels[0], (size, mean, squares), False)
            if chunk == 16 and count > 32:
                levels = [zero, join(levels[1], levels[0], False)]
        lanes.append(join(levels[0], levels[1], False) if count > 16 else levels[0])
    total = zero
    for i, v in enumerate(terms[count * 8 :]):
        d = v - total[1]
        mean = total[1] + d / Exact(i + 1)
        total = (i + 1, mean, total[2] + d * (v - mean))
    for lane in lanes:
        total = join(total, (count, *lane[1:]), True)
    r = Exact(1) / Exact(root((total[2] / Exact(n) + Exact(1e-5)).value))
    expected = [
        fma((v - total[1]) * r, Exact(float(w)), Exact(float(b))) if weighted else fma(v - total[1], r, Exact(float(b)))
        for v, w, b in zip(terms, weight, bias, strict=True)
    ]
    norm = lp.norms["torch_cpu_layer_norm"]
    got = norm(x, weight if weighted else None, bias, eps=1e-5)[0]
    assert (norm.gradient(x, x, weight if weighted else None).dweight is None) == (not weighted)
    assert [Fraction(float(v)) for v in got] == [v.value for v in expected]


def combine(b, a):
    """Written after cuWelfordCombine; b is the thread's own result, a that of another thread."""
    count = a[0] + b[0]
    if not count.value:
        return (Exact(0),) * 3
    n_a, n_b, delta = a[0] * (Exact(1) / count), b[0] * (Exact(1) / count), b[1] - a[1]
    return count, fma(n_a, a[1], n_b * b[1]), fma(delta * delta * a[0], n_b, a[2] + b[2])


def combine_by_division(a, b):
    """Written after WelfordOps::combine."""
    if not a[0].value or not b[0].value:
        return a if a[0].value else b
    count, delta = a[0] + b[0], b[1] - a[1]
    share = b[0] / count
    return count, fma(delta, share, a[1]), fma(delta * delta * a[0], share, a[2] + b[2])


def reduced(threads, join):
    """Return the result of thread 0: shuffles within warps of 32 lanes, then the upper half of warps to the lower."""
    warps = [threads[i : i + 32] for i in range(0, len(threads), 32)]
    for offset in (16, 8, 4, 2, 1):
        warps = [[join(v, warp[min(i + offset, 31)]) for i, v in enumerate(warp)] for warp in warps]
    firsts = [warp[0] for warp in warps]
    while len(firsts) > 1:
        half = len(firsts) // 2
        firsts = [join(firsts[i], firsts[half + i]) for i in range(half)]
    return firsts[0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("n", "given"), [(100, 3), (532, 3), (44, 2), (44, 1), (35, 3), (551, 1), (1, 2)])
def test_layer_norm_of_cuda_has_the_bits_of_fractions(n, given):
    """Written after layer_norm_kernel.cu: 128 threads, or 512 for the moments of rows of odd lengths."""
    operand, norm = [v[0] if v.ndim > 1 else v for v in operands(n)], CUDA
    x, dy, w, b = ([Exact(float(e)) for e in v] for v in operand)
    w, length = (w if given > 1 else [Exact(1)] * n), Exact(n)
    threads = [(Exact(0),) * 3] * (512 if n % 4 else 128)
    for i, v in enumerate(x):
        at = i % 512 if n % 4 else i // 4 % 128
        count, mean, squares = threads[at][0] + Exact(1), *threads[at][1:]
        d = v - mean
        now = mean + d / count if n % 4 else fma(d, Exact(1) / count, mean)
        threads[at] = count, now, fma(d, v - now, squares)
    _, mean, squares = reduced(threads, combine_by_division if n % 4 else combine)
    r = Exact(float(Approximate("rsqrt")(np.float32((squares / length + Exact(1e-5)).value))))
    c, scaled = [v - mean for v in x], [r * (v - mean) for v in x]
    y = [fma(g, v, h) if given > 2 else g * v for g, v, h in zip(w, scaled, b, strict=True)]
    args = operand[2:4][: given - 1]
    assert [Fraction(float(v)) for v in norm(operand[0], *args, eps=1e-5)] == [v.value for v in y]
    totals = [(Exact(0), Exact(0))] * 128
    for i, (g, v) in enumerate(zip(dy, c, strict=True)):
        first, second = totals[i // 4 % 128]
        totals[i // 4 % 128] = first + g * w[i], fma(g * w[i] * v, r, second)
    first, second = reduced(totals, lambda p, q: (p[0] + q[0], p[1] + q[1]))
    dx = [
        (fma(length * e, g, Exact(0) - v * r * second) - first) * (Exact(1) / length * r)
        for e, g, v in zip(w, dy, c, strict=True)
    ]
    got = norm.gradient(operand[1], operand[0], *args, eps=1e-5)
    assert [Fraction(float(v)) for v in got.dx] == [v.value for v in dx]
    assert got.dweight is got.dbias is None


def test_a_bias_that_is_not_given_is_not_added_in_vectors():
    x, weight = np.ones((1, 5), np.float32), np.full(5, -1, np.float32)
    assert np.signbit(CUDA(x[:, :4], weight[:4])).all()
    assert not np.signbit(CUDA(x[:, :4], weight[:4], np.zeros(4, np.float32))).any()
    assert not np.signbit(CUDA(x, weight)).any()


CUDA_MUTANTS = [
    {"moments": ThreadsWelford(64)}, {"moments": ThreadsWelford(vector=2)}, {"moments": Welford()},
    {"forward": CUDA.forward.replace("fma(weight, r * (x - mean), bias)", "weight * (r * (x - mean)) + bias")},
    {"forward": CUDA.forward.replace("r * (x - mean)", "fma(r, x, -r * mean)")},
]  # fmt: skip


@pytest.mark.parametrize("change", CUDA_MUTANTS, ids=str)
def test_layer_norm_of_cuda_with_one_thing_wrong_has_other_bits(change):
    x, _, weight, bias = operands(1032, 6)
    assert (CUDA.with_(**change)(x, weight, bias) != CUDA(x, weight, bias)).any()


@pytest.mark.parametrize("rule", [ThreadsWelford(), DividingWelford()], ids=str)
def test_threads_are_joined_in_the_order_of_the_kernel(rule, monkeypatch):
    x = operands(1032, 6)[0]
    found, join = rule(x), rule._join
    monkeypatch.setattr(type(rule), "_join", staticmethod(lambda own, other: join(other, own)))
    assert (np.array(rule(x)) != np.array(found)).any()


UNALIGNED = [
    {"moments": ThreadsWelford(512, 1)}, {"moments": DividingWelford(256)},
    {"order": lp.orders["halving"]},
    {"forward": CUDA.unaligned.forward.replace("fma((x - mean) * r, weight, bias)", "(x - mean) * r * weight + bias")},
]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("change", UNALIGNED, ids=str)
def test_unaligned_rows_with_one_thing_wrong_have_other_bits(change):
    x, dy, weight, bias = operands(1031, 6)
    moments = {"moments": DividingWelford()} if "order" in change else {}
    wrong = CUDA.with_(unaligned=CUDA.unaligned.with_(**moments, **change))
    assert any(
        (a != b).any() for a, b in zip(
            (wrong(x, weight, bias), wrong.gradient(dy, x, weight, bias).dx),
            (CUDA(x, weight, bias), CUDA.gradient(dy, x, weight, bias).dx), strict=True,
        )
    )  # fmt: skip


def test_changes_of_a_norm_reach_unaligned_rows_except_for_formulas_and_orders():
    functions = (("rsqrt", Approximate("rsqrt", 4)),)
    changed = CUDA.with_(functions=functions, order=lp.orders["torch_cuda_reduce"], moments=Welford())
    assert changed.unaligned == CUDA.unaligned.with_(functions=functions)
