"""Configurations from TOML files, and the check that their products fit a recipe's tiles."""

from __future__ import annotations

import os
import tomllib
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from lowprec.moe.model.config import MoEConfig, configs
from lowprec.recipe import Recipe
from lowprec.registry import suggest


def load_config(path: str | os.PathLike[str]) -> MoEConfig:
    r"""Read a configuration from a TOML file: the fields of `MoEConfig`, one per line.

    With ``base = "tiny"`` missing fields are those of that configuration in the catalogue; without it, fields without a
    default are required. The default name is that of the file.

    Parameters
    ----------
    path : str or path
        File to read.

    Returns
    -------
    MoEConfig
        Configuration.

    Raises
    ------
    ValueError
        If the file is not TOML, a field is unknown or missing, or the values do not fit together.
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "wide.toml"
    ...     _ = path.write_text('base = "tiny"\ndim = 512\nmtp_depth = 1\n')
    ...     config = load_config(path)
    >>> config.name, config.dim, config.heads
    ('wide', 512, 4)
    """
    file = Path(path)
    try:
        given: dict[str, Any] = tomllib.loads(file.read_bytes().decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"configuration {os.fspath(path)!r} is not TOML: {error}") from None
    base = given.pop("base", None)
    if base is not None and not isinstance(base, str):
        raise ValueError(f"configuration {os.fspath(path)!r}: base must be the name of a configuration, got {base!r}")
    values = asdict(configs[base]) if base is not None else {}
    known = {field.name: field for field in fields(MoEConfig)}
    for name in given:
        if name not in known:
            hint = suggest(name, ["base", *known])
            raise ValueError(f"configuration {os.fspath(path)!r}: unknown field {name!r}: {hint}")
    values |= {"name": file.stem} | given
    missing = [name for name, field in known.items() if name not in values and field.default is MISSING]
    if missing:
        raise ValueError(
            f'configuration {os.fspath(path)!r} has no {", ".join(missing)}; base = "tiny" would supply them'
        )
    try:
        return MoEConfig(**values)
    except ValueError as error:
        raise ValueError(f"configuration {os.fspath(path)!r}: {error}") from None


def get_config(config: MoEConfig | str | os.PathLike[str]) -> MoEConfig:
    """Return a configuration, given as an object, by name, or as a ``.toml`` file.

    Raises
    ------
    ValueError, OSError
        See `load_config`.
    UnknownNameError
        If the catalogue has no configuration of that name.

    Examples
    --------
    >>> get_config("nano").dim
    128
    """
    if not isinstance(config, MoEConfig) and os.fspath(config).endswith(".toml"):
        return load_config(config)
    return configs.get(config if isinstance(config, MoEConfig) else os.fspath(config))


def check_tiles(config: MoEConfig, recipe: Recipe) -> None:
    """Check that the forward products of a configuration consist of whole tiles of a recipe.

    The values of a tile share a scale. A row's last tile may be shorter, and sometimes must be: backward products sum
    over a layer's outputs, of which `wkv_a` has kv_rank + rope_dim, 1.25 tiles in the small models and 4.5 in the
    original.
    Inputs that end in part of a tile are usually a mistake: they cost no accuracy, but speed on all hardware.
    `allow_partial_tiles` allows them.

    Parameters
    ----------
    config : MoEConfig
        Shapes.
    recipe : Recipe
        Precision.

    Raises
    ------
    ValueError
        If a linear layer's inputs are not whole tiles; the message quotes its name and the tile.

    Examples
    --------
    >>> import dataclasses, lowprec as lp
    >>> odd = dataclasses.replace(configs["nano"], name="odd", kv_rank=200)
    >>> check_tiles(odd, lp.recipes["bf16"])
    >>> check_tiles(odd, lp.recipes["dsv3"])
    Traceback (most recent call last):
        ...
    ValueError: configuration 'odd' with recipe 'dsv3': inputs of layers.0.attn.wkv_b must be a multiple of 128
    (x in 1x128), got 200; or set allow_partial_tiles = true
    """
    if config.allow_partial_tiles:
        return
    for name, shape in config.parameter_shapes().items():
        if len(shape) != 2 or name == "embed":
            continue
        spec = recipe.spec(name, config.layers)
        for operand, tensor in (("x", spec.x), ("w", spec.w)):
            tile = tensor.tile
            if tile is not None and shape[1] % tile:
                raise ValueError(
                    f"configuration {config.name!r} with recipe {recipe.name!r}: inputs of {name} must be a multiple of"
                    f" {tile} ({operand} in {tensor.granularity}), got {shape[1]}; or set allow_partial_tiles = true"
                )
