"""Devices and connections by name, each number with its source; docs/fleet.md lists them."""

from __future__ import annotations

from dataclasses import dataclass

from undrift.check import require, require_choice, require_positive
from undrift.fleet.fleet import Device

# Training is assumed, not measured, to sustain this share of the peak rate. Large runs
# report 0.38 to 0.43 (Llama Team, "The Llama 3 Herd of Models", 2024, model FLOPs utilisation);
# a Raspberry Pi 4 reaches a third of its peak in Linpack (8 of 24 GFLOP/s in double precision:
# W. Feiereisen, "Benchmarking the Raspberry Pi 4", 2022). Small models in small batches get less.
EFFICIENCY = 0.3


@dataclass(frozen=True)
class Connection:
    """A kind of network access; its latency is one way, half of the published round trip."""

    up: float  # bit/s
    down: float  # bit/s
    latency: float  # seconds
    source: str


@dataclass(frozen=True)
class Preset:
    """A device that has a published peak rate in 32-bit floating point, and a connection."""

    name: str
    peak: float  # FLOP/s
    link: Connection
    device_source: str

    @property
    def source(self) -> str:
        """Return where the numbers come from, as one sentence."""
        return f"{self.device_source}. Connection: {self.link.source}."


MOBILE = Connection(
    up=9.3e6,
    down=78.9e6,
    latency=0.031 / 2,
    source="Ookla Speedtest Global Index, medians of mobile access in the United States at the "
    "end of 2022: 78.9 Mbit/s down, 9.3 Mbit/s up, 31 ms round trip",
)
MOBILE_5G = Connection(
    up=21.08e6,
    down=166.13e6,
    latency=0.028 / 2,
    source="Ookla, Growing and Slowing: The State of 5G Worldwide in 2021, global medians over 5G "
    "in Q3 2021: 166.13 Mbit/s down, 21.08 Mbit/s up; global median mobile round trip 28 ms in "
    "November 2022 (Ookla, reported by RCR Wireless News, 5 January 2023)",
)
FIXED = Connection(
    up=22.6e6,
    down=193.7e6,
    latency=0.014 / 2,
    source="Ookla Speedtest Global Index, medians of fixed broadband in the United States at the "
    "end of 2022: 193.7 Mbit/s down, 22.6 Mbit/s up, 14 ms round trip",
)
_DEAN = (
    "round trip 0.5 ms within a data centre (J. Dean, Software Engineering Advice from Building "
    "Large-Scale Distributed Systems, Numbers Everyone Should Know)"
)
GIGABIT = Connection(
    up=949e6,
    down=949e6,
    latency=0.0005 / 2,
    source="Gigabit Ethernet (IEEE 802.3ab): 949 Mbit/s of TCP payload, 1460 of 1538 bytes in a "
    "frame, measured on a Raspberry Pi 4B (tomcore.io, Raspberry PI 4B Network Performance); "
    f"{_DEAN}",
)
INFINIBAND = Connection(
    up=200e9,
    down=200e9,
    latency=0.0005 / 2,
    source=f"NVIDIA DGX A100: one 200 Gbit/s HDR InfiniBand port for each of eight GPUs; {_DEAN}",
)
INFINIBAND_8 = Connection(
    up=8 * INFINIBAND.up,
    down=8 * INFINIBAND.down,
    latency=INFINIBAND.latency,
    source=f"NVIDIA DGX A100: eight 200 Gbit/s HDR InfiniBand ports; {_DEAN}",
)

# A peak is cores times clock times two, because a fused multiply-add counts as two operations.
PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            "phone",
            2 * 128 * 600e6,
            MOBILE,
            "Qualcomm Snapdragon 650, a mid-range phone of 2016: Adreno 510, 128 ALUs at 600 MHz, "
            "153 GFLOP/s (nanoreview.net, Qualcomm Snapdragon 650)",
        ),
        Preset(
            "phone-fast",
            2 * 256 * 1350e6,
            MOBILE_5G,
            "Apple A13 (iPhone 11): 256 shaders at 1350 MHz, 0.69 TFLOP/s FP32 (hmc-tech.com, "
            "4-Core A13)",
        ),
        Preset(
            "laptop",
            2.6e12,
            FIXED,
            "Apple M1, GPU of eight cores: 2.6 TFLOP/s (Apple, Apple unleashes M1, 10 November "
            "2020)",
        ),
        Preset(
            "raspberry-pi",
            8 * 4 * 1.5e9,
            GIGABIT,
            "Raspberry Pi 4 Model B: four Cortex-A72 at 1.5 GHz (Raspberry Pi Ltd, data sheet); "
            "the NEON unit takes four floats at a time (Arm, DUI 0472J, section 3.10), reckoned as "
            "one fused multiply-add of four, 8 FLOP, in each cycle",
        ),
        Preset(
            "jetson",
            2 * 128 * 921.6e6,
            GIGABIT,
            "NVIDIA Jetson Nano: 128 Maxwell cores at 921.6 MHz, 472 GFLOP/s in FP16, half of it "
            "in FP32 (NVIDIA, Jetson Nano data sheet)",
        ),
        Preset(
            "gtx-1080-ti",
            2 * 3584 * 1582e6,
            GIGABIT,
            "NVIDIA GeForce GTX 1080 Ti: 3584 CUDA cores at 1582 MHz boost, 11.3 TFLOP/s FP32 "
            "(NVIDIA, GeForce GTX 1080 Ti specifications)",
        ),
        Preset(
            "rtx-2080-ti",
            2 * 4352 * 1545e6,
            GIGABIT,
            "NVIDIA GeForce RTX 2080 Ti: 4352 CUDA cores at 1545 MHz boost, 13.4 TFLOP/s FP32 "
            "(NVIDIA, Turing GPU Architecture white paper)",
        ),
        Preset(
            "rtx-3080-ti",
            2 * 10240 * 1665e6,
            GIGABIT,
            "NVIDIA GeForce RTX 3080 Ti: 10240 CUDA cores at 1665 MHz boost, 34.1 TFLOP/s FP32 "
            "(NVIDIA, GeForce RTX 3080 Ti specifications)",
        ),
        Preset(
            "a100",
            19.5e12,
            INFINIBAND,
            "NVIDIA A100: 19.5 TFLOP/s FP32, without tensor cores (NVIDIA, A100 Tensor Core GPU "
            "data sheet)",
        ),
        Preset(
            "gpu-node",
            8 * 19.5e12,
            INFINIBAND_8,
            "NVIDIA DGX A100: eight A100, 19.5 TFLOP/s FP32 each, without tensor cores (NVIDIA, "
            "A100 Tensor Core GPU data sheet)",
        ),
    )
}


@dataclass(frozen=True)
class Mix:
    """Makes the first tenth of the clients, at least one, fast and the others slow."""

    fast: str
    slow: str

    def counts(self, clients: int) -> tuple[int, int]:
        """Return how many of the clients are fast, and how many are slow."""
        fast = max(1, clients // 10)
        return fast, clients - fast


# Table 4.2 of the thesis on FedaGrac has one fast node and nine slow ones.
MIXES: dict[str, Mix] = {
    f"thesis-{slow}": Mix("rtx-3080-ti", slow)
    for slow in ("raspberry-pi", "jetson", "gtx-1080-ti", "rtx-2080-ti")
}


def preset(name: str, *, efficiency: float = EFFICIENCY) -> Device:
    """Return a device by name, which sustains this share of its published peak rate."""
    require_choice("preset", "name", name, PRESETS)
    require_positive("preset", efficiency=efficiency)
    expected = "efficiency <= 1, a share of the peak rate"
    require(efficiency <= 1, "preset", expected, efficiency)
    known = PRESETS[name]
    link = known.link
    return Device(name, efficiency * known.peak, link.up, link.down, link.latency)
