"""A process that times PyTorch modules for `cpu_vs_peers.py` and `gpu_vs_peers.py`.

    python modules.py [last] [cuda] [graphs] [tf32] [deterministic]

Eager, channels first; `last`: channels last; `cuda`: on a GPU; `graphs`: as CUDA graphs; `tf32`: products of float32 in
TF32; `deterministic`: convolutions whose every run has the same bits, as opbox's have. Tasks and answers are those of
`symbols.py`; the networks are the same ones, as PyTorch's users write them.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[1]))
from more_networks import MOBILENET, SQUEEZENET

LAST, CUDA, GRAPHS = ("last" in sys.argv), ("cuda" in sys.argv), ("graphs" in sys.argv)
DEVICE = "cuda" if CUDA else "cpu"
WARM_RUNS = 3
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = "tf32" in sys.argv
torch.backends.cudnn.benchmark = CUDA
torch.backends.cudnn.deterministic = "deterministic" in sys.argv


class Unit(nn.Module):
    """BN-ReLU-convolution three times, and a shortcut around them."""

    def __init__(self, channels: int, filters: int, stride: int, first: bool) -> None:
        super().__init__()
        inner = filters // 4
        self.norm1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, inner, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(inner), nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.norm3, self.conv3 = nn.BatchNorm2d(inner), nn.Conv2d(inner, filters, 1, bias=False)
        self.shortcut = nn.Conv2d(channels, filters, 1, stride, bias=False) if first else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.relu(self.norm1(x))
        y = torch.relu(self.norm2(self.conv1(first)))
        y = self.conv3(torch.relu(self.norm3(self.conv2(y))))
        return y + (x if self.shortcut is None else self.shortcut(first))


def resnet50() -> nn.Module:
    layers: list = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, (units, filters) in enumerate(((3, 256), (4, 512), (6, 1024), (3, 2048))):
        for unit in range(units):
            layers.append(Unit(channels, filters, 2 if stage and not unit else 1, not unit))
            channels = filters
    layers += [nn.BatchNorm2d(2048), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)]
    return nn.Sequential(*layers)


def vgg16() -> nn.Module:
    layers: list = []
    channels = 3
    for count, filters in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU()]
            channels = filters
        layers.append(nn.MaxPool2d(2))
    head = [nn.Linear(25088, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)]
    return nn.Sequential(*layers, nn.Flatten(), *head)


def lenet() -> nn.Module:
    convolutions = [nn.Conv2d(1, 20, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.Tanh(), nn.MaxPool2d(2)]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(800, 500), nn.Tanh(), nn.Linear(500, 10))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


class Lstm(nn.Module):
    """PyTorch's fused LSTM, its last state classified."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(128, 256, batch_first=True), nn.Linear(256, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0][:, -1])


class LstmCells(nn.Module):
    """The LSTM of `Lstm`, a cell a step, as `peer_networks.lstm` has it."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTMCell(128, 256), nn.Linear(256, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.out(state[0])


def mobilenet() -> nn.Module:
    layers: list = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    channels = 32
    for filters, stride in MOBILENET:
        layers += [nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False)]
        layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, filters, 1, bias=False)]
        layers += [nn.BatchNorm2d(filters), nn.ReLU()]
        channels = filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class Fire(nn.Module):
    """SqueezeNet's module."""

    def __init__(self, channels: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeeze, 1)
        self.one, self.three = nn.Conv2d(squeeze, expand, 1), nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.squeeze(x))
        return torch.cat([torch.relu(self.one(x)), torch.relu(self.three(x))], 1)


def squeezenet() -> nn.Module:
    layers: list = [nn.Conv2d(3, 96, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2)]
    channels = 96
    for i, (squeeze, expand) in enumerate(SQUEEZENET):
        layers.append(Fire(channels, squeeze, expand))
        channels = 2 * expand
        layers += [nn.MaxPool2d(3, 2)] if i in (2, 6) else []
    return nn.Sequential(*layers, nn.Conv2d(channels, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class DenseLayer(nn.Module):
    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 4 * growth, 1, bias=False)),
            *(nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.layers(x)], 1)


def densenet121() -> nn.Module:
    layers: list = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for block, count in enumerate((6, 12, 24, 16)):
        if block:
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1, bias=False)]
            layers.append(nn.AvgPool2d(2))
            channels //= 2
        for _ in range(count):
            layers.append(DenseLayer(channels, 32))
            channels += 32
    layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*layers)


class Encoder(nn.Module):
    """PyTorch's encoder layers; the first token classified."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, activation="gelu", batch_first=True)
        self.layers, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(x)[:, 0])


class Layers(nn.Module):
    """Two layers of PyTorch's fused LSTM or GRU over (time, batch, inputs), the last state classified."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.layers, self.out = kind(200, 256, num_layers=2), nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(x)[0][-1])


def dcgan() -> nn.Module:
    layers: list = []
    channels = 100
    for i, filters in enumerate((512, 256, 128, 64)):
        layers.append(nn.ConvTranspose2d(channels, filters, 4, 2 if i else 1, 1 if i else 0, bias=False))
        layers += [nn.BatchNorm2d(filters), nn.ReLU()]
        channels = filters
    return nn.Sequential(*layers, nn.ConvTranspose2d(channels, 3, 4, 2, 1, bias=False), nn.Tanh(), nn.Flatten())


class Pointwise(nn.Module):
    """The chain of `peer_networks.pointwise`, then classes."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(1024, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x
        for _ in range(250):
            x = torch.tanh(x) * first + first
            x = torch.relu(x)
        return self.out(x)


BUILDERS = {
    "resnet50": resnet50,
    "vgg16": vgg16,
    "lenet": lenet,
    "mlp": mlp,
    "lstm": Lstm,
    "lstm_cells": LstmCells,
    "pointwise": Pointwise,
    "mobilenet": mobilenet,
    "squeezenet": squeezenet,
    "densenet121": densenet121,
    "dcgan": dcgan,
    "transformer": Encoder,
    "lstm_layers": lambda: Layers(nn.LSTM),
    "gru_layers": lambda: Layers(nn.GRU),
}


def work(module: nn.Module, data: torch.Tensor, labels: torch.Tensor, backward: bool) -> None:
    module.train(backward)
    if backward:
        nn.functional.cross_entropy(module(data), labels).backward()
    else:
        with torch.inference_mode():
            torch.softmax(module(data), 1)


def captured(module: nn.Module, data: torch.Tensor, labels: torch.Tensor, backward: bool) -> torch.cuda.CUDAGraph:
    """A graph of the work, after the runs on a stream of their own that PyTorch asks for."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            module.zero_grad(set_to_none=True)
            work(module, data, labels, backward)
    torch.cuda.current_stream().wait_stream(stream)
    module.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work(module, data, labels, backward)
    return graph


def seconds(prepared: tuple, backward: bool) -> float:
    *arrays, graphs = prepared
    start = time.perf_counter()
    if graphs:
        graphs[backward].replay()
    else:
        arrays[0].zero_grad(set_to_none=True)
        work(*arrays, backward)
    if CUDA:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def repeated(prepared: tuple, backward: bool, task: dict) -> list[float]:
    times: list[float] = []
    until = time.perf_counter() + task.get("seconds", 0)
    while len(times) < task["runs"] or time.perf_counter() < until:
        times.append(seconds(prepared, backward))
    return times


def release() -> None:
    """Let the memory of the network go: the device is shared with the other processes."""
    gc.collect()
    if CUDA:
        torch.cuda.empty_cache()


name, prepared = "", ()
arrays, module, data, graphs = (), None, None, None
for line in sys.stdin:
    task = json.loads(line)
    if name != task["name"]:
        name, prepared = task["name"], ()
        dtype = getattr(torch, task.get("dtype", "float32"))
        data = torch.ones(*task["shapes"]["data"], device=DEVICE, dtype=dtype)
        module = BUILDERS[task["network"]]().to(DEVICE, dtype)
        if LAST and data.ndim == 4:
            data, module = data.to(memory_format=torch.channels_last), module.to(memory_format=torch.channels_last)
        batch = data.shape[1] if task["network"].endswith("_layers") else len(data)  # these have time in front
        arrays = (module, data, torch.zeros(batch, dtype=torch.long, device=DEVICE))
        graphs = [captured(*arrays, backward) for backward in (False, True)] if GRAPHS else None
        prepared = (*arrays, graphs)
        for backward in (False, True) * WARM_RUNS:
            seconds(prepared, backward)
    answer = [repeated(prepared, backward, task) for backward in (False, True)]
    print(json.dumps(answer), flush=True)
    if task.get("release"):
        name, prepared, arrays, module, data, graphs = "", (), (), None, None, None
        release()
