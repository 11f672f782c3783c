"""Memory that is used again: a loop of products takes no more after its first round."""

import numpy as np

import lowprec as lp
from lowprec import _threads as module
from lowprec._threads import forget, fresh, scratch


def held() -> int:
    return sum(buffer.size for buffer in module._buffers.by_name.values())


def test_the_same_memory_again_and_more_of_it_when_needed() -> None:
    forget()
    small = scratch("test", 10, np.float32)
    assert scratch("test", 10, np.float32) is small
    assert scratch("test", 5, np.int64).ctypes.data == small.ctypes.data
    large = scratch("test", 1000, np.float32)
    again = scratch("test", 10, np.float32)
    assert large.ctypes.data == again.ctypes.data
    assert {large.ctypes.data % 64, fresh("test", 3, np.int8).ctypes.data % 64} == {0}
    assert held() == 4000
    for size in range(1, 2000):
        assert scratch("test", size, np.uint8).size == size
    assert held() == 4000
    forget()
    assert held() == 0


def test_a_training_loop_of_products_holds_what_its_largest_needs(keep_threads: None) -> None:
    lp.set_num_threads(1)
    rng = np.random.default_rng(1)
    shapes = [(96, 40, 256), (40, 96, 128), (33, 64, 512)]
    kinds = [("hopper_fp8", "e4m3fn", "1x128", "fp32"), ("blackwell_mxf8", "e4m3fn", "1x32", "ue8m0"),
             ("blackwell_mxf4", "e2m1fn", "1x32", "ue8m0")]  # fmt: skip
    pairs = []
    for m, n, k in shapes:
        x, w = rng.standard_normal((m, k)), rng.standard_normal((n, k))
        pairs += [
            (machine, *(lp.quantize(v, fmt, granularity, scale=scale) for v in (x, w)))
            for machine, fmt, granularity, scale in kinds
        ]
    forget()
    after = []
    for _ in range(4):
        for machine, qa, qb in pairs:
            lp.gemm(qa, qb, accumulator=machine)
        after.append(held())
    assert after == after[:1] * 4
    assert 0 < after[0] < 8 << 20
