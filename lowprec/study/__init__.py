"""Ablations: their description, the protocol that runs them, statistics, figures and reports."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import sources
    from .ablation import Ablation
    from .arms import Arm, Tail
    from .catalogue import load, names
    from .claims import ClaimArm, Claims, ClaimSetting
    from .error_study import ErrorArm, ErrorFigure, ErrorSetting, ErrorStudy, PublishedTable
    from .expectations import Expectation
    from .plans import Plan, plan
    from .runner import run_study
    from .same_weights import SameWeights, WeightsSetting
    from .settings import Setting
    from .stress import AlignedSwiGLU, ChannelOutliers, Healthy, ScaledLoss, UnevenTokens
    from .tensor_study import Claim, Measured, Operands, TensorArm, TensorSetting, TensorStudy

# Loaded on first use: listing ablations must not wait for the statistics.
_NAMES = {
    "ablation": ("Ablation",),
    "arms": ("Arm", "Tail"),
    "catalogue": ("load", "names"),
    "claims": ("ClaimArm", "ClaimSetting", "Claims"),
    "error_study": ("ErrorArm", "ErrorFigure", "ErrorSetting", "ErrorStudy", "PublishedTable"),
    "expectations": ("Expectation",),
    "plans": ("Plan", "plan"),
    "runner": ("run_study",),
    "same_weights": ("SameWeights", "WeightsSetting"),
    "settings": ("Setting",),
    "stress": ("AlignedSwiGLU", "ChannelOutliers", "Healthy", "ScaledLoss", "UnevenTokens"),
    "tensor_study": ("Claim", "Measured", "Operands", "TensorArm", "TensorSetting", "TensorStudy"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "Ablation", "AlignedSwiGLU", "Arm", "ChannelOutliers", "Claim", "ClaimArm", "ClaimSetting", "Claims", "ErrorArm",
    "ErrorFigure", "ErrorSetting", "ErrorStudy", "Expectation", "Healthy", "Measured", "Operands", "Plan",
    "PublishedTable", "SameWeights", "ScaledLoss", "Setting", "Tail", "TensorArm", "TensorSetting",
    "TensorStudy", "UnevenTokens", "WeightsSetting", "load", "names", "plan", "run_study", "sources",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "sources":
        return importlib.import_module(f"{__name__}.sources")
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
