"""Hardware, as data: the bandwidths and the compute of one GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowprec._checks import check_int, check_positive
from lowprec._values import normalize_fields
from lowprec.registry import Registry

from .fields import from_mapping, label, load, resolve


@dataclass(frozen=True)
class Hardware:
    """One GPU and its links; bandwidths are in bytes per second and direction.

    Attributes
    ----------
    name : str
        Name in the catalogue.
    bandwidth : float
        Bandwidth of the link for all-to-all traffic.
    effective_bandwidth : float, optional
        Bandwidth reached in practice; `bandwidth` by default.
    scale_up_bandwidth : float, optional
        Bandwidth of the links within a node (NVLink); `bandwidth` by default.
    effective_scale_up_bandwidth : float, optional
        Bandwidth reached on those links in practice; `scale_up_bandwidth` by default.
    gpus_per_node : int
        Number of GPUs that the links within a node connect.
    peak_flops : float
        Number of dense BF16 operations per second, the base of model FLOPs utilization.
    latency : float
        Latency of an all-to-all in seconds, to which the time of its bytes is added.
    source : str
        Source of the numbers.

    Raises
    ------
    ValueError
        If a number is not positive and finite, or an effective bandwidth exceeds the link's.

    Examples
    --------
    >>> from lowprec.costs import Hardware, hardware
    >>> hardware["h800_ib400"].bandwidth
    50000000000.0
    >>> Hardware("mine", bandwidth=-1.0)
    Traceback (most recent call last):
    ValueError: hardware 'mine': bandwidth must be a finite number > 0, got -1.0
    """

    name: str
    bandwidth: float
    effective_bandwidth: float | None = None
    scale_up_bandwidth: float | None = None
    effective_scale_up_bandwidth: float | None = None
    gpus_per_node: int = 8
    peak_flops: float = 989e12
    latency: float = 0.0
    source: str = "user-defined"

    def __post_init__(self) -> None:
        normalize_fields(self)
        owner = label("hardware", self.name)
        for field in ("effective_bandwidth", "scale_up_bandwidth"):
            if getattr(self, field) is None:
                object.__setattr__(self, field, self.bandwidth)
        if self.effective_scale_up_bandwidth is None:
            object.__setattr__(self, "effective_scale_up_bandwidth", self.scale_up_bandwidth)
        for field in (
            "bandwidth", "effective_bandwidth", "scale_up_bandwidth", "effective_scale_up_bandwidth", "peak_flops",
        ):  # fmt: skip
            check_positive(owner, field, getattr(self, field))
        check_positive(owner, "latency", self.latency, zero=True)
        check_int(owner, "gpus_per_node", self.gpus_per_node, 1)
        for part, all_ in (
            ("effective_bandwidth", "bandwidth"),
            ("effective_scale_up_bandwidth", "scale_up_bandwidth"),
        ):
            if getattr(self, part) > getattr(self, all_):
                raise ValueError(
                    f"{owner}: {part} must be at most {all_}={getattr(self, all_):g}, got {getattr(self, part):g}"
                )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Hardware:
        """Read hardware from plain data; an unknown or missing key is an error."""
        return from_mapping(cls, data, f"hardware {data.get('name')!r}" if isinstance(data, Mapping) else "hardware")

    @classmethod
    def from_toml(cls, path: str | Path) -> Hardware:
        """Read hardware from a TOML file; the default name is that of the file."""
        return load(path, cls.from_dict)


hardware: Registry[Hardware] = Registry("hardware", Hardware)
"""Shipped hardware by name."""

for _machine in (
    Hardware(
        "h800_ib400", bandwidth=50e9, effective_bandwidth=40e9, scale_up_bandwidth=200e9,
        effective_scale_up_bandwidth=160e9, gpus_per_node=8, peak_flops=989e12,
        source="arXiv 2505.09343, sections 2.3.2 and 4.3; 989 TFLOPS is the peak behind its table 4",
    ),
    Hardware(
        "gb200_nvl72", bandwidth=900e9, gpus_per_node=72, peak_flops=2500e12,
        source="arXiv 2505.09343, section 2.3.2; peak: NVIDIA GB200 NVL72 data sheet, 180 PFLOPS dense of 72 GPUs",
    ),
):  # fmt: skip
    hardware.register(_machine.name, _machine)


def find_hardware(machine: str | Hardware | Mapping[str, Any]) -> Hardware:
    """Return hardware from its name, a TOML file's path (``*.toml``), a mapping, or itself."""
    return resolve(machine, hardware, Hardware.from_dict)
