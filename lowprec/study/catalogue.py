"""The studies that there are: what a file of `ablations/` defines, where the files are, and how one is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import lowprec
from lowprec._files import safe_name
from lowprec.registry import Registry

from .design import modules, registration
from .design.registration import REGISTER_FILE, Registration

#: What a study asks of the trainer, from nothing to a training: the more, the longer it takes.
TIERS = {
    "T1": "tensors alone: seconds",
    "T2": "one batch through the same weights: gradients and predictions, no noise, seconds to minutes",
    "T3": "branches of a BF16 checkpoint: minutes to hours",
    "T4": "training from scratch",
}


@runtime_checkable
class Study(Protocol):
    """What every file of `ablations/` defines as `ablation`, whatever it measures.

    Its kind, which says how it is run and reported, is found by its class: `lowprec.study.kinds.catalogue`.
    """

    @property
    def tier(self) -> str:
        """One of `TIERS`."""

    @property
    def name(self) -> str:
        """Name on the command line."""

    @property
    def question(self) -> str:
        """The question in one sentence."""

    @property
    def arms(self) -> tuple[Any, ...]:
        """What is compared; each has a `name`."""

    @property
    def quick(self) -> Any:
        """A size for minutes."""

    @property
    def full(self) -> Any:
        """A size for a result."""


def folder() -> Path:
    """Return the folder with the ablation files: the checkout's, or the one inside an installed wheel."""
    package = Path(lowprec.__file__).resolve().parent
    checkout = package.parent / "ablations"
    if checkout.is_dir() and (package.parent / "pyproject.toml").is_file():
        return checkout
    return package / "_ablations"


def names() -> list[str]:
    """Return the names of the ablations that come with the package."""
    return sorted(path.stem for path in folder().glob("*.py") if not path.stem.startswith("_"))


def home(name: str) -> Path:
    """Return the folder where an ablation's file lies, by its name or path: `registered.json` stands there."""
    return Path(name).resolve().parent if name.endswith(".py") else folder()


def registered_of(name: str, study: str) -> Registration:
    """Return what is registered of a study whose file has this name or path."""
    return registration.read(home(name)).get(study, Registration())


def registered_in(runs: Path, study: str) -> Registration:
    """Return what was registered of a study when the runs in a folder began.

    The folder has a copy of that since then; without one, what the package's own file says of a study of this name.
    """
    where = runs if (runs / REGISTER_FILE).is_file() else folder()
    return registration.read(where).get(study, Registration())


def load(name: str) -> Study:
    """Load an ablation by name, or from a Python file that defines `ablation`.

    Parameters
    ----------
    name : str
        A name of `names()`, or the path of a file ending in `.py`.

    Raises
    ------
    UnknownNameError
        If no ablation has this name.
    FileNotFoundError
        If the file does not exist.
    ValueError
        If the file defines no `ablation`, or its name cannot be that of a folder.

    Examples
    --------
    >>> load("fp8_vs_bf16").name
    'fp8_vs_bf16'
    """
    if name.endswith(".py"):
        path = Path(name)
        if not path.is_file():
            raise FileNotFoundError(f"no such ablation file: {name!r}")
    else:
        known: Registry[Path] = Registry("ablation", Path)
        for stem in names():
            known.register(stem, folder() / f"{stem}.py")
        path = known[name]
    try:
        module = modules.load(path)
    except SyntaxError as error:
        if error.filename is None:  # of a file with null bytes
            raise ValueError(f"{path}: {error.msg}") from None
        raise
    found = getattr(module, "ablation", None)
    if not isinstance(found, Study):
        raise ValueError(f"{path}: defines no `ablation = Ablation(...)`")
    safe_name("study", found.name)
    return found
