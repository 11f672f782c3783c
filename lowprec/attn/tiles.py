"""Tiles of keys that a block of queries visits: tables by head size, and the base class of schedulers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import NamedTuple

from .._values import Value, normalize_fields
from ..special.exp2 import Exp2

ALL_KEYS, ANY_SIZE = 1 << 30, 1 << 16  # number of keys of a tile that holds all; head size that means any


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

    @property
    def sizes(self) -> tuple[int, int]:
        """Largest head sizes of Q and K, and of V."""
        return self.head_dim, self.value_dim or self.head_dim

    def has(self, head_dim: int, value_dim: int) -> bool:
        """Return whether the tile is large enough for these head sizes."""
        return head_dim <= self.sizes[0] and value_dim <= self.sizes[1]

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
    """Tile that a block visits: its first key, and whether a maximum of -inf counts as 0 in the rescaling.

    The output lacks the tile, and is not rescaled for it, unless `is_added`. In Triton's tiles, a mask is added to
    the scores if `is_masked`.
    """

    start: int
    is_guarded: bool = True
    is_added: bool = True
    is_masked: bool = False


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
    #: Whether the backward pass is FlashAttention-3's, with one sum of dQ, and one of dK and dV per group of heads.
    has_one_gradient = False
    #: Whether two warpgroups compute the tiles in pairs, see `paired.PairedSoftmax`.
    is_paired = False
    #: Whether the maxima of the online softmax are those of scores times their scale.
    has_scaled_maxima = False
    #: Whether only the head sizes of `key_tiles` are supported, and no smaller ones.
    has_fixed_sizes = False
    #: Whether the library's function takes any mask.
    takes_masks = False

    @abstractmethod
    def normalized(self, call: Call) -> Call:
        """Return the call with the mask that the library's wrapper passes to its kernel."""

    def differentiated(self, call: Call) -> Call:
        """Return the call with the mask of the backward pass."""
        return self.normalized(call)

    def paged(self, call: Call, table: tuple[KeyTile, ...]) -> Call:
        """Return a normalized call, with `page_size` 0 if pages change nothing but addresses."""
        return call._replace(page_size=0)

    def tile(self, call: Call, table: tuple[KeyTile, ...]) -> KeyTile | None:
        """Return the tile in a table for the head sizes of a normalized call, or None."""
        sizes = call.head_dim, call.value_dim
        return next((row for row in table if (row.sizes == sizes if self.has_fixed_sizes else row.has(*sizes))), None)

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


@dataclass(frozen=True, eq=False, repr=False)
class SquareSchedule(Schedule):
    """Base class of tiles from the first key, with a causal mask for as many queries as keys only, and no windows."""

    #: Words for the library's kernels in messages.
    library = ""
    page_multiple = 0

    def __post_init__(self) -> None:
        normalize_fields(self)

    def normalized(self, call: Call) -> Call:
        """Return the call with a causal mask replaced by the equivalent window: no keys to the right.

        Raises
        ------
        ValueError
            If the mask is a window, or causal with unequal numbers of queries and keys: the library then hides other
            keys.
        """
        if call.left >= 0 or call.right > 0 or (call.right == 0 and not call.causal):
            raise ValueError(f"attention: window must be None for {self.library}, got ({call.left}, {call.right})")
        if call.causal and call.queries != call.keys:
            sizes = f"{call.queries} queries and {call.keys} keys"
            raise ValueError(f"attention: causal must be False for {sizes} in {self.library}, got True")
        return call._replace(causal=False, right=0 if call.causal else -1)

    def visits(self, call: Call, keys: int, first: int, stop: int) -> list[Visit]:
        """Return the tiles up to the last key that the block sees."""
        last = call.keys if call.right < 0 else min(stop, call.keys)
        return [Visit(start) for start in range(0, last, keys)][::-1]
