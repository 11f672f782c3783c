"""Tiles and blocks as FlashAttention-2 to 4, FlashInfer and SageAttention select them, one class per library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._values import normalize_fields
from ..special.exp2 import Exp2, PolynomialExp2
from .tiles import Call, KeyTile, Schedule, SquareSchedule, Visit

_UNCHECKED = (32, 64, 96, 128)  # head sizes with kernels of FlashAttention-2 that do not check bounds


def _range(call: Call, keys: int, first: int, stop: int) -> tuple[int, int]:
    """Return the first tile that a block of queries sees, and one past the last: an empty range if it sees none."""
    low, high = 0, -(-call.keys // keys)
    if call.right >= 0:
        high = min(high, -(-(stop + call.shift + call.right) // keys))
    if call.left >= 0:
        low = max(0, (first + call.shift - call.left) // keys)
    return low, high


@dataclass(frozen=True, eq=False, repr=False)
class FlashAttention2(Schedule):
    """Tiles of FlashAttention-2: flash_api.cpp, flash_fwd_kernel.h, flash_fwd_launch_template.h, softmax.h.

    Parameters
    ----------
    one_split : tuple of KeyTile
        Tiles of calls that do not split the keys; empty: the kernel's `key_tiles`.
    page_multiple : int
        Number that must divide page sizes; 0: the kernel does not support pages.
    """

    one_split: tuple[KeyTile, ...] = ()
    page_multiple: int = 0
    guards_shift = True

    def __post_init__(self) -> None:
        normalize_fields(self)
        object.__setattr__(self, "one_split", tuple(KeyTile(*row) for row in self.one_split))

    def tile(self, call: Call, table: tuple[KeyTile, ...]) -> KeyTile | None:
        """Return the tile in the table, or in `one_split` for a call without splits."""
        return super().tile(call, self.one_split if self.one_split and call.splits == 1 else table)

    def normalized(self, call: Call) -> Call:
        """Return the call with a normalized mask.

        Limits of N or more keys are removed, a mask for one query is not causal, and a window has two limits.
        """
        n = call.keys
        left, right = (-1 if side >= n else side for side in (call.left, call.right))
        if call.causal and call.queries > 1:
            right = 0
        if left < 0 < right or left >= 0 > right:
            left, right = (n if side < 0 else side for side in (left, right))
        return call._replace(causal=False, left=left, right=right)

    def guarded(self, call: Call, keys: int, rows: int) -> int:
        """Return the number of tiles that a causal mask may cut, and one more if the kernel checks bounds."""
        is_even = call.keys % keys == 0 and call.queries % rows == 0 and call.head_dim in _UNCHECKED
        return -(-rows // keys) + (not is_even) if call.is_causal else 1

    def visits(self, call: Call, keys: int, first: int, stop: int) -> list[Visit]:
        """Return the tiles, of which those that may hold masked keys are guarded."""
        low, high = _range(call, keys, first, stop)
        guarded = self.guarded(call, keys, stop - first)
        return [
            Visit(tile * keys, call.is_local or (call.is_causal and high - 1 - tile < guarded))
            for tile in range(high - 1, low - 1, -1)
        ]


@dataclass(frozen=True, eq=False, repr=False)
class FlashAttention3(Schedule):
    """Tiles of FlashAttention-3: hopper/flash_api.cpp, block.h, heuristics.h, mainloop_fwd_sm90_tma_gmma_ws.hpp.

    Parameters
    ----------
    starts_at_window : bool
        Whether the first tile of a window starts at the first key that its block sees, not at a multiple of the tile.
    small_tiles : tuple of KeyTile
        Tiles of calls without a window in which a group of heads has at most `small_queries` rows, for some head sizes.
    small_queries : int
        Largest number of rows for which `small_tiles` apply.
    paged_tiles : tuple of KeyTile
        Tiles if pages are not copied by TMA, which copies whole tiles; empty: the kernel's `key_tiles`.
    packs_groups : bool
        Whether blocks always hold the query heads of a group, as for sequences of different lengths.
    """

    starts_at_window: bool = False
    small_tiles: tuple[KeyTile, ...] = ()
    small_queries: int = 64
    paged_tiles: tuple[KeyTile, ...] = ()
    packs_groups: bool = False
    has_one_gradient = True

    def __post_init__(self) -> None:
        normalize_fields(self)
        for field in ("small_tiles", "paged_tiles"):
            object.__setattr__(self, field, tuple(KeyTile(*row) for row in getattr(self, field)))

    def normalized(self, call: Call) -> Call:
        """Return the call with a normalized mask.

        Limits that hide no key are removed, one query without a window is not causal, and a window has two limits.
        """
        left = -1 if call.left >= call.keys - 1 else call.left
        right = -1 if call.right >= call.queries - 1 else call.right
        if call.causal and not (call.queries == 1 and left == right == -1):
            right = 0
        if left < 0 < right or left >= 0 > right:
            left, right = (side if side >= 0 else most - 1 for side, most in ((left, call.keys), (right, call.queries)))
        return call._replace(causal=False, left=left, right=right)

    def differentiated(self, call: Call) -> Call:
        """Return the call with a normalized mask, which is causal even for one query."""
        normal = self.normalized(call)
        return normal._replace(right=0) if call.causal else normal

    def paged(self, call: Call, table: tuple[KeyTile, ...]) -> Call:
        """Return the call, with `page_size` 0 if TMA copies the pages, so that only addresses change.

        TMA does so if pages consist of whole tiles and there is more than one block of rows, unless tiles start at the
        window.
        """
        tile = self.tile(call._replace(page_size=0), table)
        is_far = self.starts_at_window and call.is_local  # a tile then starts anywhere in a page
        if tile is None or is_far or call.page_size % tile.keys_of(call) or call.queries * call.group <= tile.queries:
            return call
        return call._replace(page_size=0)

    def tile(self, call: Call, table: tuple[KeyTile, ...]) -> KeyTile | None:
        """Return the tile in the table, in `small_tiles` or in `paged_tiles`."""
        if call.page_size and self.paged_tiles:
            table = self.paged_tiles
        if not call.is_local and call.queries * call.group <= self.small_queries:
            for row in self.small_tiles:
                if row.head_dim == call.head_dim and row.has(call.head_dim, call.value_dim):
                    return row
        return super().tile(call, table)

    def packs(self, call: Call, queries: int) -> bool:
        """Return whether blocks hold the heads of a group: always, with splits, without TMA, or to have fewer rows."""
        if self.packs_groups or call.splits > 1 or call.page_size:
            return call.group > 1
        alone, packed = (
            float(np.float32(rows) / np.float32(-(-rows // queries) * queries))
            for rows in (call.queries, call.queries * call.group)
        )
        return call.group > 1 and alone < 0.9 * packed

    def visits(self, call: Call, keys: int, first: int, stop: int) -> list[Visit]:
        """Return the tiles, of which the last one and those that may hold masked keys are guarded."""
        offset = 0
        if self.starts_at_window and call.is_local:
            offset = max(0, first + call.shift - call.left)
        low, high = _range(call._replace(keys=call.keys - offset), keys, first, stop)
        if self.starts_at_window:
            low = 0
        masked_from, whole_from = high - 1, low
        if call.right >= 0:
            masked_from = min(masked_from, max(low, (first + call.shift + call.right) // keys))
        if call.is_local:
            whole_from = max(low, -(-(stop + call.shift - call.left) // keys))
        return [
            Visit(offset + tile * keys, tile >= masked_from or tile < whole_from)
            for tile in range(high - 1, low - 1, -1)
        ]


class Period(NamedTuple):
    """Periods of the columns that compute 2^x by a polynomial, for head sizes up to `head_dim`.

    Without a mask, `packed` applies to packed heads, `pair` to pairs of CTAs, and `plain` to all other calls.
    """

    head_dim: int
    plain: int
    causal: int
    window: int
    pair: int
    packed: int


@dataclass(frozen=True, eq=False, repr=False)
class FlashAttention4(Schedule):
    """Tiles of FlashAttention-4 on sm_100: flash_attn/cute/interface.py, block_info.py, flash_fwd_sm100.py.

    Parameters
    ----------
    periods : tuple of Period
        Periods of `PolynomialExp2` by head size, rounded up to a multiple of 16; empty: the function's own.
    """

    periods: tuple[Period, ...] = ()

    def __post_init__(self) -> None:
        normalize_fields(self)
        object.__setattr__(self, "periods", tuple(Period(*row) for row in self.periods))

    def normalized(self, call: Call) -> Call:
        """Return the call with a causal mask replaced by the equivalent window: no keys to the right."""
        return call._replace(causal=False, right=0 if call.causal else call.right)

    def paged(self, call: Call, table: tuple[KeyTile, ...]) -> Call:
        """Return the call, with `page_size` 0 if each page holds one tile: TMA copies it, so only addresses change."""
        tile = self.tile(call, table)
        if tile is None:
            return call
        if call.page_size and call.page_size != tile.keys:
            for name, size in (("head_dim", call.head_dim), ("value_dim", call.value_dim)):
                if size % 16:
                    raise ValueError(f"attention: {name} must be a multiple of 16 for such pages, got {size}")
            return call
        return call._replace(page_size=0)

    def exp2(self, exp2: Exp2, call: Call) -> Exp2:
        """Return the function that computes 2^x, with the period of the call."""
        row = next((row for row in self.periods if call.head_dim <= row.head_dim), None)
        if row is None or not isinstance(exp2, PolynomialExp2):
            return exp2
        is_packed = self.packs(call, 0)
        period = row.causal if call.is_causal else row.window if call.is_local else row.plain
        if not call.is_causal and not call.is_local:
            has_pair = min(call.head_dim, call.value_dim) > 112 and call.queries * call.group > 256
            has_pair = has_pair and call.splits == 1 and not call.page_size
            if is_packed:
                period = row.packed
            elif has_pair:
                period = row.pair
        return exp2.with_(period=period)

    def packs(self, call: Call, queries: int) -> bool:
        """Return whether a key head has several query heads."""
        return call.group > 1

    def queries(self, call: Call, tile: KeyTile) -> int:
        """Return the number of rows of a block: half a tile of queries if all rows fit into it."""
        half = tile.queries // 2
        return tile.queries if call.queries * call.group > half else half

    def visits(self, call: Call, keys: int, first: int, stop: int) -> list[Visit]:
        """Return the tiles, all guarded: at least one, which may precede the first key."""
        low, high = _range(call, keys, first, stop)
        return [Visit(tile * keys) for tile in range(high - 1, min(low, high - 1) - 1, -1)]


@dataclass(frozen=True, eq=False, repr=False)
class FlashInfer(Schedule):
    """Tiles of FlashInfer on sm_90: include/flashinfer/attention/hopper, quantization/prefill_sm90.cuh, utils.cuh.

    Parameters
    ----------
    paged_tiles : tuple of KeyTile
        Tiles of calls with pages, which no TMA copies.
    """

    paged_tiles: tuple[KeyTile, ...]
    has_fixed_sizes = True

    def __post_init__(self) -> None:
        normalize_fields(self)
        object.__setattr__(self, "paged_tiles", tuple(KeyTile(*row) for row in self.paged_tiles))

    def normalized(self, call: Call) -> Call:
        """Return the call with a causal mask replaced by the equivalent window: no keys to the right.

        Raises
        ------
        ValueError
            If the window is limited to the right, which the library does not support.
        """
        if call.right > 0:
            raise ValueError(
                f"attention: window must be (left, 0 or -1) for FlashInfer, got ({call.left}, {call.right})"
            )
        return call._replace(causal=False, right=0 if call.causal or call.right == 0 else -1)

    def paged(self, call: Call, table: tuple[KeyTile, ...]) -> Call:
        """Return the call: pages of any size have other tiles."""
        return call

    def tile(self, call: Call, table: tuple[KeyTile, ...]) -> KeyTile | None:
        """Return the tile in the table, or in `paged_tiles`."""
        return super().tile(call, self.paged_tiles if call.page_size else table)

    def visits(self, call: Call, keys: int, first: int, stop: int) -> list[Visit]:
        """Return the tiles, all guarded, down to one before the first that a window needs."""
        high = -(-call.keys // keys)
        if call.right == 0:
            high = min(high, -(-(stop + call.shift) // keys))
        low = 0 if call.left < 0 else max(int((first + call.shift - call.left) / keys) - 1, 0)
        return [Visit(tile * keys) for tile in range(high - 1, min(low, high - 1) - 1, -1)] if high > 0 else []


@dataclass(frozen=True, eq=False, repr=False)
class SageAttention(SquareSchedule):
    """Tiles of SageAttention on sm_89: csrc/qattn/qk_int_sv_f8_cuda_sm89.cuh, sageattention/core.py."""

    library = "SageAttention"

    def normalized(self, call: Call) -> Call:
        """Return the call with a causal mask replaced by the equivalent window: no keys to the right.

        Raises
        ------
        ValueError
            If the mask is a window, or causal with unequal numbers of queries and keys, or if the head sizes differ.
        """
        if call.value_dim != call.head_dim:
            sizes = f"D = {call.head_dim}, Dv = {call.value_dim}"
            raise ValueError(f"attention: head sizes must be equal for {self.library}, got {sizes}")
        if not call.keys:
            raise ValueError(f"attention: k must have at least 1 key for {self.library}, got 0")
        return super().normalized(call)


@dataclass(frozen=True, eq=False, repr=False)
class SageAttention3(SageAttention):
    """Tiles of SageAttention 3 on sm_120: blackwell/mainloop_tma_ws.h, from the last key to the first.

    Keys are hidden in the first tile of a block only: with a causal mask, that of the diagonal.

    Parameters
    ----------
    hides_columns : bool
        Whether the mask compares columns of the tensor core's result, as the library does, instead of the keys that
        they hold: column ``8i + 2t + e`` of 32 holds key ``8t + 2i + e``.
    omits_second : bool
        Whether, with a causal mask, the second tile of a block is part of the sum but not of the output, as in the
        library.
    """

    hides_columns: bool = True
    omits_second: bool = True
    library = "SageAttention 3"
    has_fixed_sizes = True

    def normalized(self, call: Call) -> Call:
        """Return the call as `SageAttention`; raise ValueError if several query heads share a key head."""
        if call.group > 1:
            raise ValueError(
                f"attention: heads of q must be as many as those of k for {self.library}, got groups of {call.group}"
            )
        return super().normalized(call)

    def visits(self, call: Call, keys: int, first: int, stop: int) -> list[Visit]:
        """Return the tiles up to the last key that the block sees."""
        found, omits = super().visits(call, keys, first, stop), self.omits_second and call.right == 0
        return [visit._replace(is_added=not (omits and i == 1)) for i, visit in enumerate(found)]

    def is_hidden(self, limits: NDArray[np.int64], keys: int) -> NDArray[np.bool_]:
        """Return which keys of a tile are hidden [M, keys], given the number of columns that each row sees."""
        place = key = np.arange(keys)
        if self.hides_columns:
            place = key // 32 * 32 + key % 8 // 2 * 8 + key % 32 // 8 * 2 + key % 2
        return place >= limits[:, None]


@dataclass(frozen=True, eq=False, repr=False)
class TritonFused(SquareSchedule):
    """Tiles of Triton's tutorial on fused attention: python/tutorials/06-fused-attention.py.

    With a causal mask, the tiles from a block's first query on come last, and add -1e6 to the scaled scores of hidden
    keys.
    """

    library = "Triton's fused attention"
    has_fixed_sizes = has_scaled_maxima = True

    def tile(self, call: Call, table: tuple[KeyTile, ...]) -> KeyTile | None:
        """Return the tile; raise ValueError if the keys are not whole tiles, beyond which the kernel reads."""
        found = super().tile(call, table)
        if found is not None and call.keys % (keys := found.keys_of(call)):
            raise ValueError(f"attention: k must have a multiple of {keys} keys for {self.library}, got {call.keys}")
        return found

    def visits(self, call: Call, keys: int, first: int, stop: int) -> list[Visit]:
        """Return the tiles up to the last key that the block sees; those from its first query on are masked."""
        found = super().visits(call, keys, first, stop)
        return [visit._replace(is_masked=call.right == 0 and visit.start >= first) for visit in found]
