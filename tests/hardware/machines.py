"""Invented machines and models, with figures near those of real ones, and described machines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from localspec.hardware.described import read_machine
from localspec.hardware.device_info import DeviceInfo, Machine, MemoryRate
from localspec.hardware.memory.needs import CacheTypes
from localspec.llama.division import DividedWeights
from localspec.models.pair_request import USUAL_FAN_OUT, ModelRequest, PairRequest
from localspec.models.shape import ExpertWeights, LayerShape, ModelShape
from localspec.types.models import SplitMode
from localspec.types.request import Mode

GIB = 2**30
GB = 10**9
_DESCRIBED = Path(__file__).with_name("described")
DESCRIBED = tuple(sorted(path.stem for path in _DESCRIBED.glob("*.toml")))
"""Names of machines with true devices, whose rates are what the makers state."""


def described(name: str) -> Machine:
    """Return one of the described machines."""
    return read_machine(_DESCRIBED / f"{name}.toml")


def cpu(free: float = 28, cores: int = 8) -> DeviceInfo:
    return DeviceInfo("CPU", "cpu", "CPU", "A processor", int((free + 4) * GIB), int(free * GIB), cores=cores)


def card(number: int, memory: float, *, used: float = 0.3, display: bool = False) -> DeviceInfo:
    return DeviceInfo(
        f"CUDA{number}",
        "gpu",
        "CUDA",
        "A graphics card",
        int(memory * GIB),
        int((memory - used) * GIB),
        drives_display=display,
        pcie_generation=4,
        pcie_width=8,
    )


def machine(
    *cards: tuple[DeviceInfo, float], processor: DeviceInfo | None = None, rate: float = 50
) -> Machine:
    """Return a machine with GPUs and their rates in GB/s."""
    processor = processor or cpu()
    devices = (*(device for device, _ in cards), processor)
    return Machine(
        devices=devices,
        rates=(
            *(MemoryRate(device.id, read * GB) for device, read in cards),
            MemoryRate("CPU", rate * GB),
        ),
    )


def remote(memory: float, trip_s: float) -> DeviceInfo:
    return replace(
        card(0, memory), id="RPC0", kind="remote", backend="RPC", pcie_width=None, round_trip_s=trip_s
    )


def beside(link: float, trip_s: float, *cards: tuple[DeviceInfo, float], free: float = 48) -> Machine:
    """Return a machine with a server behind a line of N bytes per second."""
    there = MemoryRate("RPC0", 900 * GB, link, 900 * GB, 0.02)
    where = machine(*cards, processor=cpu(24))
    return replace(where, devices=(remote(free, trip_s), *where.devices), rates=(there, *where.rates))


def apple(memory: float = 32) -> Machine:
    """Return a machine whose graphics share the CPU's memory."""
    metal = DeviceInfo(
        "Metal", "integrated", "Metal", "Apple M2 Max", int(0.75 * memory * GIB), int(0.74 * memory * GIB)
    )
    processor = replace(cpu(memory - 6, cores=12), memory_total=int(memory * GIB), name="Apple M2 Max")
    return Machine((metal, processor))


def model(
    gib: float, layers: int, *, width: int = 4096, vocabulary: int = 128_000, quant: str = "Q4_K_M"
) -> ModelShape:
    """Return a model with grouped heads, whose layers weigh `gib` in all."""
    weight = int(gib * GIB) // layers
    table = vocabulary * width * 9 // 16
    return ModelShape(
        name=f"Model {gib:g}",
        architecture="llama",
        quant=quant,
        parameters=int(gib * GIB * 16 / 9),
        file_bytes=weight * layers + 2 * table,
        layers=(LayerShape(weight, weight, 1024, 1024),) * layers,
        input_bytes=table,
        output_bytes=table,
        width=width,
        feed_forward=3 * width,
        heads=width // 128,
        vocabulary=vocabulary,
        training_context=131_072,
        vocabulary_family="a family",
    )


def divisible(shape: ModelShape, heads: int = 8) -> ModelShape:
    """Return a model of which a split by tensor divides nearly everything."""
    [weight] = {layer.weight_bytes for layer in shape.layers}
    attention = DividedWeights(weight // 4, weight // 4, heads * 128, 128, 32)
    feed_forward = DividedWeights(weight * 3 // 4 - 2**14, weight * 3 // 4 - 2**14, 64 * 128, 128, 32)
    layers = tuple(replace(each, attention=attention, feed_forward=feed_forward) for each in shape.layers)
    return replace(shape, layers=layers, output_divided=shape.output_bytes, splits_by_tensor=True)


def mixture(gib: float, layers: int, share: float) -> ModelShape:
    """Return a mixture of experts of which one token reads a share, in three tensors for each layer."""
    shape = model(gib, layers)

    def sparse(layer: LayerShape) -> LayerShape:
        names = ("ffn_down_exps", "ffn_gate_exps", "ffn_up_exps")
        experts = tuple(ExpertWeights(name, layer.weight_bytes // 3) for name in names)
        return replace(layer, read_bytes=int(share * layer.weight_bytes), experts=experts)

    return replace(shape, layers=tuple(map(sparse, shape.layers)))


def recurrent(gib: float, layers: int) -> ModelShape:
    """Return a model that has a recurrent state in half of its layers."""
    shape = model(gib, layers)
    states = (replace(shape.layers[0], key_values=0, value_values=0, state_bytes=2**20),) * (layers // 2)
    return replace(shape, layers=(*states, *shape.layers[layers // 2 :]))


SMALL = model(0.4, 28, width=1024)
MIDDLE = model(4.2, 32)
LARGE = model(18, 64, width=5120)
HUGE = model(39, 80, width=8192)
TINY = model(0.008, 2, width=320, vocabulary=4096, quant="BF16")


def asking(
    *,
    context: int = 0,
    cache: CacheTypes | None = None,
    devices: tuple[str, ...] | None = None,
    gpu_layers: int | None = None,
    tensor_split: tuple[float, ...] = (),
    threads: int | None = None,
    draft_cache: CacheTypes | None = None,
    draft_devices: tuple[str, ...] | None = None,
    draft_gpu_layers: int | None = None,
    draft_threads: int | None = None,
    flash_attention: bool | None = None,
    micro_batch: int | None = None,
    max_fan_out: int = USUAL_FAN_OUT,
    reserve: tuple[tuple[str, int], ...] = (),
    mode: Mode | None = None,
    split_mode: SplitMode | None = None,
) -> PairRequest:
    """Return what a user asks of a placement, whatever the models are."""
    cache, draft_cache = cache or CacheTypes(), draft_cache or CacheTypes()
    return PairRequest(
        ModelRequest(None, devices, gpu_layers, threads, cache.keys, cache.values),
        ModelRequest(
            None, draft_devices, draft_gpu_layers, draft_threads, draft_cache.keys, draft_cache.values
        ),
        context=context,
        tensor_split=tensor_split,
        flash_attention=flash_attention,
        micro_batch=micro_batch,
        max_fan_out=max_fan_out,
        reserve=reserve,
        mode=mode,
        split_mode=split_mode,
    )
