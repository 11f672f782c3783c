"""Tiles of keys that a block of queries visits: tables by head size, and one class per library's scheduler."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import NamedTuple

import numpy as np

from .._values import Value, normalize_fields
from ..special.exp2 import Exp2, PolynomialExp2

ALL_KEYS, ANY_SIZE = 1 << 30, 1 << 16  # number of keys of a tile that holds all; head size that means any
_UNCHECKED = (32, 64, 96, 128)  # head sizes with kernels of FlashAttention-2 that do not check bounds


class KeyTile(NamedTuple):
    """Keys per tile for head sizes up to `head_dim`: without a mask, with a causal mask, and with a sliding window.

    `queries` is the number of rows of a block. `capped_window` is the number of keys per tile with a window and a
    softcap (0: as `window`), `value_dim` the largest head size of V (0: as `head_dim`).
    """

    head_dim: int
    keys: int
    causal: int
    window: int
    queries: int = 128
    capped_window: int = 0
    value_dim: int = 0

    def __repr__(self) -> str:
        shown = list(self)
        while self._field_defaults.get(self._fields[len(shown) - 1]) == shown[-1]:
            shown.pop()
        return f"KeyTile({', '.join(map(str, shown))})"

    def has(self, head_dim: int, value_dim: int) -> bool:
        """Return whether the tile is large enough for these head sizes."""
        return head_dim <= self.head_dim and value_dim <= (self.value_dim or self.head_dim)

    def keys_of(self, call: Call) -> int:
        """Return the keys per tile of a call with a normalized mask."""
        if call.is_local:
            return self.capped_window or self.window if call.softcap else self.window
        return self.causal if call.is_causal else self.keys


def list_tiles(tiles: Sequence[KeyTile]) -> list[str]:
    """Return for each tile, as text, its number of keys without a mask and its largest head sizes.

    A kernel uses the first tile that is large enough. The number is "all" for a tile with all keys of a call.

    Examples
    --------
    >>> list_tiles([KeyTile(64, 128, 96, 96), KeyTile(128, 128, 96, 96), KeyTile(256, 64, 64, 64)])
    ['128 (D <= 128)', '64 (D <= 256)']
    """
    found = []
    for tile, after in zip_longest(tiles, tiles[1:]):
        if after is not None and after.keys == tile.keys and not (tile.value_dim or after.value_dim):
            continue  # the next head size includes this one
        limits = f"D <= {tile.head_dim}" + (f", Dv <= {tile.value_dim}" if tile.value_dim else "")
        keys = "all" if tile.keys == ALL_KEYS else str(tile.keys)
        found.append(keys if tile.head_dim == ANY_SIZE else f"{keys} ({limits})")
    return found


class Call(NamedTuple):
    """Shapes and mask that determine a kernel's tiles; `group` is the number of query heads per key head.

    Query i sees `left` keys to the left of position i + keys - queries and `right` keys to its right; -1: all.
    `splits` is the number of ranges of keys, `page_size` the number of keys in a page of the cache; 0: no pages.
    """

    queries: int
    keys: int
    head_dim: int
    value_dim: int
    group: int = 1
    causal: bool = False
    left: int = -1
    right: int = -1
    softcap: bool = False
    splits: int = 1
    page_size: int = 0

    @property
    def is_causal(self) -> bool:
        """Whether a normalized mask hides all keys to the right of a query's position."""
        return self.left < 0 and self.right == 0

    @property
    def is_local(self) -> bool:
        """Whether a normalized mask is a window."""
        return (self.left >= 0 or self.right >= 0) and not self.is_causal

    @property
    def shift(self) -> int:
        """Position of query 0 among the keys."""
        return self.keys - self.queries


class Visit(NamedTuple):
    """Tile that a block visits: its first key, and whether a maximum of -inf counts as 0 in the rescaling."""

    start: int
    is_guarded: bool = True


class Block(NamedTuple):
    """Consecutive rows of a head, and the tiles that they visit, in order.

    `guarded` is the number of tiles, at the start of each split, in which a maximum of -inf counts as 0.
    """

    first: int
    stop: int
    visits: tuple[Visit, ...]
    guarded: int = 1


class Schedule(Value):
    """Base class of the rules by which libraries choose tiles and blocks."""

    #: Whether a maximum of -inf counts as 0 in the argument of 2^x of every tile, not only of those that are guarded.
    guards_shift = False
    #: Number that divides the page sizes of the library's caches; 0: pages are not supported.
    page_multiple = 1
    #: Whether the last tile has only the remaining keys, without padding.
    is_ragged = False

    @abstractmethod
    def normalized(self, call: Call) -> Call:
        """Return the call with the mask that the library's wrapper passes to its kernel."""

    def paged(self, call: Call, table: tuple[KeyTile, ...]) -> Call:
        """Return a normalized call, with `page_size` 0 if pages change nothing but addresses."""
        return call._replace(page_size=0)

    def tile(self, call: Call, table: tuple[KeyTile, ...]) -> KeyTile | None:
        """Return the tile in a table for the head sizes of a normalized call, or None."""
        return next((row for row in table if row.has(call.head_dim, call.value_dim)), None)

    def exp2(self, exp2: Exp2, call: Call) -> Exp2:
        """Return the function that computes 2^x in a normalized call."""
        return exp2

    def packs(self, call: Call, queries: int) -> bool:
        """Return whether a block contains the query heads of a group, for one query after the other (PackGQA)."""
        return False

    def queries(self, call: Call, tile: KeyTile) -> int:
        """Return the number of rows of a block."""
        return tile.queries

    def guarded(self, call: Call, keys: int, rows: int) -> int:
        """Return the number of guarded tiles at the start of each split; see `Block`."""
        return 1

    @abstractmethod
    def visits(self, call: Call, keys: int, first: int, stop: int) -> list[Visit]:
        """Return the tiles that a block of the queries first to stop - 1 visits, from the last key to the first."""

    def covers(self, rows: int, keys: int, head_dim: int, channels: int) -> bool:
        """Return whether the order of additions is known for both products of a tile."""
        return True

    def blocks(self, call: Call, tile: KeyTile, member: int) -> list[Block]:
        """Return the blocks of one query head, the `member`-th of its group, in a normalized call."""
        size = self.queries(call, tile)
        group, member = (call.group, member) if self.packs(call, size) else (1, 0)
        found = []
        for block, rows in groupby(range(call.queries), lambda i: (i * group + member) // size):
            held = list(rows)
            first, stop = block * size // group, -(-(block + 1) * size // group)
            keys = tile.keys_of(call)
            visits = tuple(self.visits(call, keys, first, stop))
            found.append(Block(held[0], held[-1] + 1, visits, self.guarded(call, keys, stop - first)))
        return found


def _range(call: Call, keys: int, first: int, stop: int) -> tuple[int, int]:
    """Return the first tile that a block of queries sees, and one past the last; for no tile, at most the first."""
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
        Number of which page sizes are multiples; 0: the kernel does not support pages.
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
        """Return the call without limits of N or more keys, and not causal for one query; a window has two limits."""
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
    packs_windows : tuple of (int, int)
        Heads per group and head size for which blocks are always packed if there is a window.
    """

    starts_at_window: bool = False
    small_tiles: tuple[KeyTile, ...] = ()
    small_queries: int = 64
    paged_tiles: tuple[KeyTile, ...] = ()
    packs_windows: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        normalize_fields(self)
        for field in ("small_tiles", "paged_tiles"):
            object.__setattr__(self, field, tuple(KeyTile(*row) for row in getattr(self, field)))
        object.__setattr__(self, "packs_windows", tuple(tuple(row) for row in self.packs_windows))

    def normalized(self, call: Call) -> Call:
        """Return the call without limits that hide no key, and not causal for one query; a window has two limits."""
        left = -1 if call.left >= call.keys - 1 else call.left
        right = -1 if call.right >= call.queries - 1 else call.right
        if call.causal and not (call.queries == 1 and left == right == -1):
            right = 0
        if left < 0 < right or left >= 0 > right:
            left, right = (side if side >= 0 else most - 1 for side, most in ((left, call.keys), (right, call.queries)))
        return call._replace(causal=False, left=left, right=right)

    def paged(self, call: Call, table: tuple[KeyTile, ...]) -> Call:
        """Return the call; `page_size` is 0 if TMA copies the pages: whole tiles, and more than one block of rows."""
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
        """Return whether keys are split, pages are not copied by TMA, or packing clearly reduces the empty rows."""
        is_window = call.is_local and call.head_dim == call.value_dim
        if call.splits > 1 or call.page_size or (is_window and (call.group, call.head_dim) in self.packs_windows):
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
    """Periods of the columns with 2^x as a polynomial, up to a head size: by mask, for CTA pairs, for packed heads."""

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
        """Return the call; `page_size` is 0 if a page is one tile, which TMA copies."""
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
