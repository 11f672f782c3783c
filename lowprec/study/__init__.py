"""Ablations: their description, the protocol that runs them, statistics, figures and reports."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .ablation import Ablation, Arm, Setting, load, names
    from .error_study import ErrorArm, ErrorFigure, ErrorSetting, ErrorStudy, PublishedTable
    from .study import Plan, plan, run_study
    from .tensor_study import Claim, Measured, Operands, TensorArm, TensorSetting, TensorStudy

# Loaded on first use: listing ablations must not wait for the statistics.
_HOME = {
    "Ablation": "ablation",
    "Arm": "ablation",
    "Setting": "ablation",
    "load": "ablation",
    "names": "ablation",
    "ErrorArm": "error_study",
    "ErrorFigure": "error_study",
    "ErrorSetting": "error_study",
    "ErrorStudy": "error_study",
    "PublishedTable": "error_study",
    "Plan": "study",
    "plan": "study",
    "run_study": "study",
    "Claim": "tensor_study",
    "Measured": "tensor_study",
    "Operands": "tensor_study",
    "TensorArm": "tensor_study",
    "TensorSetting": "tensor_study",
    "TensorStudy": "tensor_study",
}

__all__ = [
    "Ablation",
    "Arm",
    "Claim",
    "ErrorArm",
    "ErrorFigure",
    "ErrorSetting",
    "ErrorStudy",
    "Measured",
    "Operands",
    "Plan",
    "PublishedTable",
    "Setting",
    "TensorArm",
    "TensorSetting",
    "TensorStudy",
    "load",
    "names",
    "plan",
    "run_study",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
