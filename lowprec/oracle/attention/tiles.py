"""Tiles of keys that the block of a query loads, by the loops of the sources, for one query at a time.

Sources: Dao-AILab/flash-attention 0251105, vllm-project/flash-attention 617264c, flashinfer-ai/flashinfer fb28d72. The
functions name files and lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from ..float32 import rounded

Visits = list[tuple[int, bool]]
_HEADS = (32, 64, 96, 128)  # sizes of FlashAttention-2 that have kernels without checks of bounds


@dataclass(frozen=True)
class Tiles:
    """Tiles of one head: by a correct rule, or by a wrong one that tests must detect.

    Attributes
    ----------
    library
        Source of the loops.
    rows, keys
        Sizes of a block of queries and of a tile of keys.
    m, n, d, group
        Numbers of queries and keys, head size, and number of query heads per key head.
    causal, left, right
        Mask that the caller requests; -1: no limit.
    splits, split
        Number of shares into which FlashAttention-2's blocks divide the tiles, and index of this one; 1 for other
        libraries.
    guards_all, one_block, as_given, aligned, even_by_length, packs_by_rows
        Wrong rules. `guards_all`: every tile checks for rows without a maximum; `one_block`: a block holds all queries;
        `as_given`: the mask is not normalized; `aligned`: tiles of vLLM's windows start at a multiple of their size;
        `even_by_length`: head sizes are ignored; `packs_by_rows`: vLLM packs heads only to waste fewer rows.
    """

    library: Literal["flash2", "fa3", "vllm", "fa4", "flashinfer"]
    rows: int
    keys: int
    m: int
    n: int
    d: int
    group: int = 1
    causal: bool = False
    left: int = -1
    right: int = -1
    splits: int = 1
    split: int = 0
    guards_all: bool = False
    one_block: bool = False
    as_given: bool = False
    aligned: bool = False
    even_by_length: bool = False
    packs_by_rows: bool = False

    def row(self, i: int, member: int = 0) -> Visits:
        """Return the first key of each tile that query i of a group's head loads, and whether the tile is guarded."""
        rules = {
            "flash2": self._flash2, "fa3": self._fa3, "vllm": self._fa3, "fa4": self._fa4,
            "flashinfer": self._flashinfer,
        }  # fmt: skip
        rule = rules[self.library]
        return [(start, guarded or self.guards_all) for start, guarded in rule(i, member)]

    def seen(self, i: int) -> tuple[int, int]:
        """Return the first key that query i sees, and one past the last."""
        place, left, right = i + self.n - self.m, self.left, 0 if self.causal else self.right
        low = 0 if left < 0 else min(max(place - left, 0), self.n)
        return low, max(0, self.n if right < 0 else min(self.n, place + right + 1))

    def query_tiles(self, tile: int) -> list[int]:
        """Return the tiles of queries that the backward pass of a tile of keys computes, in order.

        Follow csrc/flash_attn/src/flash_bwd_kernel.h:104-107, 318-333, 474; hopper/block.h:83-101,
        flash_api.cpp:1360-1366.
        """
        left, right, is_causal = self._gradient_mask()
        low, high = 0, -(-self.m // self.rows)
        shift = self.m - self.n
        if left >= 0:
            high = min(high, _up((tile + 1) * self.keys + shift + left, self.rows))
        if is_causal or left >= 0:
            low = max(low, _toward_zero(tile * self.keys + shift - right, self.rows))
        found = list(range(low, high))
        return found[::-1] if self.library == "flash2" else found

    def key_tiles(self, block: int) -> list[int]:
        """Return the tiles of keys that add to dQ of a tile of queries, in the order in which they hold its semaphore.

        Follow hopper/mainloop_bwd_sm90_tma_gmma_ws.hpp:630-662; FlashAttention-2 adds in increasing order.
        """
        is_causal = self._gradient_mask()[2] and self.library == "fa3"
        tiles = -(-self.n // self.keys)
        stop = min(tiles, _up((block + 1) * self.rows + self.n - self.m, self.keys))
        turns = {stop - 1 - x if is_causal else x: x for x in range(tiles) if block in self.query_tiles(x)}
        return [turns[turn] for turn in sorted(turns)]

    def _gradient_mask(self) -> tuple[int, int, bool]:
        """Return the limits of a window, -1 and 0 of a causal mask, or -1 and -1; and whether the mask is causal."""
        most = (self.n, self.n) if self.library == "flash2" else (self.n - 1, self.m - 1)
        left, right = self.left, self.right
        if not self.as_given:
            left, right = (-1 if x >= limit else x for x, limit in zip((left, right), most, strict=True))
        right = 0 if self.causal else right
        if left < 0 and right <= 0:
            return -1, right, right == 0
        return left if left >= 0 else most[0], right if right >= 0 else most[1], False

    def _flash2(self, i: int, _: int) -> Visits:
        """Follow csrc/flash_attn/flash_api.cpp:422-427; flash_fwd_kernel.h:90-101, 305-414; launch_template.h:65-79.

        Splits: flash_fwd_kernel.h:536-544, 856-992; launch_template.h:120.
        """
        left, right, causal = self.left, self.right, self.causal
        if not self.as_given:
            left, right = (-1 if x >= self.n else x for x in (left, right))
            causal = causal and self.m > 1
        right = 0 if causal else right
        is_causal = left < 0 and right == 0
        is_local = (left >= 0 or right >= 0) and not is_causal
        if is_local:
            left, right = (self.n if x < 0 else x for x in (left, right))
        block = 0 if self.one_block else i // self.rows
        high = -(-self.n // self.keys)
        if is_causal or is_local:
            last = self.m if self.one_block else (block + 1) * self.rows
            high = min(high, _up(last + self.n - self.m + right, self.keys))
        low = max(0, _toward_zero(block * self.rows + self.n - self.m - left, self.keys)) if is_local else 0
        each = _up(_up(self.n, self.keys), self.splits)
        low, high = max(low, self.split * each), min(high, (self.split + 1) * each)
        even = self.n % self.keys == 0 and self.m % self.rows == 0 and not is_local
        even = even and (self.d in _HEADS or self.even_by_length)
        steps = 1
        if is_causal or is_local:
            steps = -(-self.rows // self.keys) + (0 if even and is_causal else 1)
        found, tile = [], high - 1
        for _step in range(steps):
            if tile < low:
                break
            found.append((tile * self.keys, is_causal or is_local))
            tile -= 1
        while tile >= low:
            found.append((tile * self.keys, is_local))
            tile -= 1
        return found

    def _fa3(self, i: int, member: int) -> Visits:
        """Follow hopper/flash_api.cpp:796-815; block.h:14-130; heuristics.h:10-22; mainloop_fwd_sm90...hpp:1149-1233.

        vLLM: hopper/block.h:21-87.
        """
        vllm, left, right, causal = self.library == "vllm", self.left, self.right, self.causal
        if not self.as_given:
            left, right = -1 if left >= self.n - 1 else left, -1 if right >= self.m - 1 else right
            causal = causal and not (self.m == 1 and left == right == -1)
        right = 0 if causal else right
        is_causal = left < 0 and right == 0
        is_local = (left >= 0 or right >= 0) and not is_causal
        if is_local:
            left, right = left if left >= 0 else self.n - 1, right if right >= 0 else self.m - 1
        first, last = self._block(i, member, self._packs())
        start = max(0, first + self.n - self.m - left) if vllm and is_local and not self.aligned else 0
        n = self.n - start
        low, high = 0, -(-n // self.keys)
        if is_causal or is_local:
            high = min(high, _up(last + n - self.m + (right if is_local else 0), self.keys))
        if is_local and (not vllm or self.aligned):
            low = max(0, _toward_zero(first + self.n - self.m - left, self.keys))
        masked = whole = low
        if is_causal or is_local:
            masked = max(low, _toward_zero(first + self.n - self.m + (right if is_local else 0), self.keys))
        if is_local:
            whole = max(low, _up(last + self.n - self.m - left, self.keys))
        return [
            (start + tile * self.keys, tile == high - 1 or ((is_causal or is_local) and tile >= masked) or tile < whole)
            for tile in range(high - 1, low - 1, -1)
        ]

    def _fa4(self, i: int, member: int) -> Visits:
        """Follow flash_attn/cute/block_info.py:31-56; flash_fwd_sm100.py:2300-2348, 3380: a block always has a tile."""
        left, right = self.left, 0 if self.causal else self.right
        half = self.rows // 2
        rows = self.rows if self.m * self.group > half else half
        first, last = self._block(i, member, self.group > 1, rows)
        low, high = 0, -(-self.n // self.keys)
        if right >= 0:
            high = min(high, -(-(last + self.n - self.m + right) // self.keys))
        if left >= 0:
            low = max(0, (first + self.n - self.m - left) // self.keys)
        return [(tile * self.keys, True) for tile in range(high - 1, min(low, high - 1) - 1, -1)]

    def _flashinfer(self, i: int, _: int) -> Visits:
        """Follow hopper/mainloop.cuh:141-152; utils.cuh:37-47; quantization/mainloop_mma.cuh."""
        is_causal, block, shift = self.causal or self.right == 0, i // self.rows, self.n - self.m
        tiles = _up(self.n, self.keys)
        if is_causal:
            tiles = min(tiles, _up((block + 1) * self.rows + shift, self.keys))
        if tiles <= 0:
            return []
        begin, end = 0, -1
        if self.left >= 0:
            begin = max(_toward_zero(block * self.rows + shift - self.left, self.keys) - 1, 0)
            end = max(_toward_zero((block + 1) * self.rows + shift - self.left, self.keys), -1)
        tile = tiles - 1
        found = [tile]
        for _step in range(-(-self.rows // self.keys) if is_causal else 0):
            if tile <= begin:
                break
            tile -= 1
            found.append(tile)
        while tile > end + 1:
            tile -= 1
            found.append(tile)
        while self.left >= 0 and tile > begin:
            tile -= 1
            found.append(tile)
        return [(tile * self.keys, True) for tile in found]

    def _block(self, i: int, member: int, packs: bool, rows: int = 0) -> tuple[int, int]:
        """Return the first query of a block and one past its last, which may be beyond the end."""
        rows = rows or self.rows
        if self.one_block:
            return 0, self.m
        group, member = (self.group, member) if packs else (1, 0)
        block = (i * group + member) // rows
        return block * rows // group, -(-(block + 1) * rows // group)

    def _packs(self) -> bool:
        """Return whether packing the heads of a group wastes clearly fewer rows, by hopper/heuristics.h:16-24.

        vLLM compiles for variable lengths only (CMakeLists.txt:310), for which this function returns true at once.
        """
        if self.library == "vllm" and not self.packs_by_rows:
            return self.group > 1
        alone, packed = (
            float(rounded(Fraction(x, -(-x // self.rows) * self.rows))) for x in (self.m, self.m * self.group)
        )
        return self.group > 1 and alone < 0.9 * packed


def _toward_zero(a: int, b: int) -> int:
    return -(-a // b) if a < 0 else a // b


def _up(a: int, b: int) -> int:
    """Return (a + b - 1) / b truncated toward zero, as cute::ceil_div."""
    return _toward_zero(a + b - 1, b)
