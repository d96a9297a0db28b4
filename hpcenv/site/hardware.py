"""Processors, accelerators and fabrics of the node that is looked at."""

from __future__ import annotations

from collections import Counter

from hpcenv.base.known import Fact, Known, Unknown
from hpcenv.base.version import Version
from hpcenv.site import captured
from hpcenv.site.host import Host, first_known
from hpcenv.site.model import Fabric, Gpu

_PCI = "/sys/bus/pci/devices"
_DRIVER = "/proc/driver/nvidia/version"
_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
# PCI base class 03: display controllers; 0302 is the 3D controller that a data-centre GPU is, and
# 1200 a processing accelerator (PCI Code and ID Assignment Specification).
_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
_ON_A_NODE = "on a node with GPUs: nvidia-smi"


def driver(host: Host, scheduled_gpus: str | None) -> Fact[Version | None]:
    """Learn the NVIDIA driver's version.

    Parameters
    ----------
    scheduled_gpus : str, optional
        GPUs that the scheduler knows on other nodes; then what this node lacks says nothing.
    """
    fact = first_known(
        (
            lambda: host.read(_DRIVER, captured.nvidia_driver, _ON_A_NODE),
            lambda: host.ran(["nvidia-smi"], captured.nvidia_driver, _ON_A_NODE),
        ),
        _ON_A_NODE,
    )
    if isinstance(fact, Known):
        return fact
    if any(gpu.vendor == "NVIDIA" for gpu in _pci_gpus(host)):
        return Unknown(f"there is an NVIDIA GPU, but {fact.why}", "install the driver; nvidia-smi")
    if scheduled_gpus:
        return Unknown(f"this node has no GPU, others do ({scheduled_gpus})", _ON_A_NODE)
    return Known(None, "read", f"{_DRIVER} and {_PCI}: no NVIDIA GPU in this node")


def gpus(host: Host, scheduled_gpus: str | None) -> Fact[tuple[Gpu, ...]]:
    """Learn the node's GPUs, by name where their own tool tells it."""
    fact = host.ran(["nvidia-smi", "-L"], lambda text: captured.nvidia_gpus(text) or None, "")
    if isinstance(fact, Known):
        return fact
    found = _pci_gpus(host)
    if not found and scheduled_gpus:
        return Unknown(f"this node has no GPU, others do ({scheduled_gpus})", _ON_A_NODE)
    return Known(found, "read", _PCI)


def _pci_gpus(host: Host) -> tuple[Gpu, ...]:
    kinds: Counter[tuple[str, str]] = Counter()
    for slot in host.folder(_PCI):
        read = {
            name: (host.text(f"{_PCI}/{slot}/{name}") or "").strip()
            for name in ("class", "vendor", "device")
        }
        vendor = _VENDORS.get(read["vendor"])
        graphics = read["class"].startswith(_GPU_CLASSES)
        # A server's Intel display controller is no accelerator.
        if vendor and graphics and not (vendor == "Intel" and read["class"].startswith("0x0300")):
            kinds[vendor, f"PCI device {read['device']}"] += 1
    return tuple(Gpu(vendor, name, count) for (vendor, name), count in sorted(kinds.items()))


def fabrics(host: Host) -> Fact[tuple[Fabric, ...]]:
    """Learn which networks this node has that are up: InfiniBand, RoCE, Omni-Path, Slingshot …"""
    found = [*_verbs(host), *_slingshot(host), *_ethernet(host)]
    where = "/sys/class/infiniband, /sys/class/cxi, /sys/class/net"
    if not host.folder("/sys/class/net"):
        return Unknown("/sys/class/net cannot be read", "ibstat; fi_info; ip link")
    return Known(tuple(found), "read", where)


def _verbs(host: Host) -> list[Fabric]:
    found = []
    for device in host.folder("/sys/class/infiniband"):
        for port in host.folder(f"/sys/class/infiniband/{device}/ports"):
            folder = f"/sys/class/infiniband/{device}/ports/{port}"
            read = {
                name: (host.text(f"{folder}/{name}") or "").strip()
                for name in ("state", "rate", "link_layer")
            }
            if "ACTIVE" in read["state"]:
                kind = _verbs_kind(host, device, read["link_layer"])
                found.append(Fabric(kind, f"{device}:{port}", read["rate"]))
    return found


def _verbs_kind(host: Host, device: str, link_layer: str) -> str:
    module = host.at(f"/sys/class/infiniband/{device}/device/driver").resolve().name
    if module == "efa":
        return "efa"
    if device.startswith("hfi1"):
        return "omni-path"
    return "roce" if link_layer == "Ethernet" else link_layer.lower() or "infiniband"


def _slingshot(host: Host) -> list[Fabric]:
    return [Fabric("slingshot", device) for device in host.folder("/sys/class/cxi")]


def _ethernet(host: Host) -> list[Fabric]:
    found = []
    for device in host.folder("/sys/class/net"):
        folder = f"/sys/class/net/{device}"
        up = (host.text(f"{folder}/operstate") or "").strip() == "up"
        # Bridges, tunnels and the loopback have no device behind them; type 1 is ARPHRD_ETHER.
        ether = (host.text(f"{folder}/type") or "").strip() == "1"
        if up and ether and host.is_folder(f"{folder}/device"):
            speed = (host.text(f"{folder}/speed") or "").strip()
            rate = f"{int(speed) / 1000:g} Gb/s" if speed.isdigit() and int(speed) else ""
            found.append(Fabric("ethernet", device, rate))
    return found
