"""Loading models and text from local folders with transformers, without downloads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._files.npy import read_npy


def transformers_module() -> Any:
    """Import and return transformers; if it is missing, the error has installation instructions."""
    try:
        import transformers
    except ImportError:
        raise ImportError("a folder of a model needs transformers: pip install 'lowprec[hf]'") from None
    transformers.utils.logging.disable_progress_bar()
    return transformers


def load_model(folder: str | os.PathLike[str], dtype: torch.dtype = torch.bfloat16) -> torch.nn.Module:
    """Return the language model in a folder with config.json and safetensors files.

    Raises
    ------
    ValueError
        If the folder does not contain a model.
    ImportError
        If transformers is missing.
    """
    where = Path(folder)
    if not (where / "config.json").is_file():
        raise ValueError(f"{where} is not the folder of a model: it has no config.json")
    auto = transformers_module().AutoModelForCausalLM
    model: torch.nn.Module = auto.from_pretrained(where, dtype=dtype, local_files_only=True)
    return model.eval()


def load_tokens(data: str | os.PathLike[str], folder: str | os.PathLike[str], vocabulary: int) -> Tensor:
    """Return the tokens of a file: integers in .npy, or text encoded by the folder's tokenizer.

    Raises
    ------
    ValueError
        If a number is not a token, or the file is text and the folder has no tokenizer.
    """
    if Path(data).suffix == ".npy":
        array = read_npy(data)
        if array.dtype.kind not in "iu" or array.ndim != 1:
            raise ValueError(f"{data}: tokens must be integers with one axis, got {array.dtype} {array.shape}")
        tokens = torch.from_numpy(array.astype(np.int64))
    else:
        if not (Path(folder) / "tokenizer.json").is_file():
            raise ValueError(f"{folder} has no tokenizer.json, so {data} cannot be read; give tokens as .npy")
        tokenizer = transformers_module().AutoTokenizer.from_pretrained(folder, local_files_only=True)
        tokens = torch.tensor(tokenizer(Path(data).read_bytes().decode())["input_ids"])
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary:
        raise ValueError(
            f"{data}: tokens must be from 0 to {vocabulary - 1}, got {int(tokens.min())} to {int(tokens.max())}"
        )
    return tokens


def windows(tokens: Tensor, length: int, most: int | None = None) -> Tensor:
    """Split tokens into at most `most` consecutive windows; tokens that do not fill a window are dropped.

    Raises
    ------
    ValueError
        If there are too few tokens for one window.
    """
    count = len(tokens) // length
    if count < 1:
        raise ValueError(f"tokens must fill a window of {length}, got {len(tokens)}; take a smaller window")
    return tokens[: count * length].reshape(count, length)[:most]
