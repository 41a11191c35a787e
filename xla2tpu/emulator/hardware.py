"""TPUs of this host, and the one that is emulated. torch is not needed for it."""

from __future__ import annotations

from pathlib import Path

PCI = Path("/sys/bus/pci/devices")
VFIO = Path("/dev/vfio")
GOOGLE = "0x1ae0"
# PCI devices that torch_tpu 0.2.0 takes for a TPU: v4, v5p, v5e, v6e, v7.
TPUS = frozenset({"0x005e", "0x0062", "0x0063", "0x006f", "0x0076"})

# The emulated generation is v5p: hosts of 1, 2, 4 and 8 devices exist.
NAME = "TPU v5p"
MEMORY = 95 * 1024**3
TOPOLOGIES = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,2,2"}


def real_tpus(pci: Path = PCI, vfio: Path = VFIO) -> int:
    """How many TPUs torch_tpu would find: on the PCI bus, and open to user code by VFIO."""
    count = 0
    try:
        devices = list(pci.iterdir())
    except OSError:
        return 0
    for device in devices:
        try:
            if (device / "vendor").read_text().strip() != GOOGLE:
                continue
            if (device / "device").read_text().strip() not in TPUS:
                continue
            (vfio / (device / "iommu_group").readlink().name).stat()
        except OSError:
            continue
        count += 1
    return count


def topology(count: int) -> str:
    """The mesh of ``count`` devices of a host, as torch_tpu writes it.

    Raises RuntimeError for a count that no host has, with torch_tpu's message.
    """
    if count not in TOPOLOGIES:
        raise RuntimeError(f"No TPU topology found for count: {count}")
    return TOPOLOGIES[count]
