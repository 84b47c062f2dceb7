"""Commands on a saved symbol: `infer-shape`, `summary`, `plot`, `run` and `bench`."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from opbox_protocol.near_names import near_names

from .. import _schema, inference
from .. import ndarray as nd
from .. import symbol as symbols
from .. import visualization as viz
from ..byte_counts import bytes_text
from ..checkpoint import split_params
from ..context import Context, current_context
from ..drawing.drawing import FORMATS
from ..drawing.labels import family
from ..initializer import InitDesc, Xavier
from .engine_operators import find_operator, load_symbol, ops_option
from .output import json_option, print_json, write

__all__ = ["bench", "infer_shape", "plot", "run", "summary"]

FILE = click.argument("file", type=click.Path(dir_okay=False))
SHAPES = click.argument("shapes", nargs=-1, metavar="[name=1,3,224,224]...")
DEVICE = click.option("--device", metavar="cpu|gpu:N", help="Where it runs; the engine's first device by default.")
PARAMS = click.option("--params", type=click.Path(dir_okay=False), help="A .params file of opbox or MXNet.")
SEED = 0
"""Seed of drawn arrays and parameters, so that each run draws the same."""


def _named(words: Sequence[str], expected: str) -> dict[str, str]:
    """Parse words such as data=1,3 into a dict.

    Raises:
        ValueError: a word without "=".
    """
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"{expected}, got {word!r}")
        pairs[name] = value
    return pairs


def _dims(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(d) for d in text.strip("()[] ").split(",") if d.strip())
    except ValueError:
        raise ValueError(f"shape of {name}: expected whole numbers with commas, got {text!r}") from None


def _shapes(words: Sequence[str]) -> dict[str, tuple[int, ...]]:
    pairs = _named(words, "shapes: expected name=1,3,224,224")
    return {name: _dims(name, text) for name, text in pairs.items()}


def _context(device: str | None) -> Context:
    if device is None:
        return current_context()
    kind, _, number = device.partition(":")
    if kind not in ("cpu", "gpu") or not (number or "0").isdigit():
        raise ValueError(f"device: expected cpu, gpu or gpu:1, got {device!r}")
    return Context(kind, int(number or 0))


@click.command("infer-shape")
@FILE
@SHAPES
@ops_option
@json_option
def infer_shape(file: str, shapes: Sequence[str], as_json: bool) -> None:
    """The shapes inside a saved symbol: a -symbol.json FILE of opbox or MXNet.

    Shapes that are known are given as name=1,3,224,224, with 0 for sizes that are not. The status is 1 if some stay
    unknown.
    """
    net = load_symbol(file)
    known = _shapes(shapes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inside = net.get_internals()
        inference.infer_shape(net, True, (), known)
        _, outputs, _ = inference.infer_shape(inside, True, (), known)
    assert outputs is not None
    kinds = dict.fromkeys(net.list_arguments(), "argument") | dict.fromkeys(net.list_auxiliary_states(), "state")
    kinds |= dict.fromkeys(net.list_outputs(), "output")
    listed = list(zip(inside.list_outputs(), outputs, strict=True))
    complete = all(shape and 0 not in shape for _, shape in listed)
    if as_json:
        rows = [
            {"name": name, "shape": [d or None for d in dims] or None, "kind": kinds.get(name)} for name, dims in listed
        ]
        print_json({"shapes": rows, "complete": complete})
    else:
        write(("name", "shape", ""), [(name, _dims_text(dims), kinds.get(name, "")) for name, dims in listed])
    if not complete:
        click.echo("opbox: the shapes given leave some unknown (?)", err=True)
        raise click.exceptions.Exit(1)


def _dims_text(dims: Sequence[int]) -> str:
    if not dims:
        return "?"
    return "(" + ", ".join(str(d) if d else "?" for d in dims) + ("," if len(dims) == 1 else "") + ")"


@click.command()
@FILE
@SHAPES
@click.option("--line-length", type=click.IntRange(40, 500), default=120, show_default=True)
@ops_option
@json_option
def summary(file: str, shapes: Sequence[str], line_length: int, as_json: bool) -> None:
    """The layers of a saved symbol, with the numbers of their parameters, from the shapes of its inputs."""
    net = load_symbol(file)
    known = _shapes(shapes) or None
    if not as_json:
        viz.print_summary(net, known, line_length)
        return
    rows = viz.layers(net, known)
    listed = [
        {"name": r.name, "op": r.op, "shape": r.shape, "parameters": r.parameters, "inputs": r.inputs} for r in rows
    ]
    print_json({"layers": listed, "parameters": sum(row.parameters for row in rows)})


@click.command()
@FILE
@SHAPES
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="A .svg, .pdf, .png or .dot file.")
@click.option("--title", help="Of the drawing; the file's name by default.")
@click.option("--weights", is_flag=True, help="Draw learnt variables too.")
@click.option("--unfolded", is_flag=True, help="Draw blocks that repeat as often as they do.")
@ops_option
@json_option
def plot(
    file: str,
    shapes: Sequence[str],
    output: str | None,
    title: str | None,
    weights: bool,
    unfolded: bool,
    as_json: bool,
) -> None:
    """Draw a saved symbol to a file, by default an SVG beside it."""
    suffix = Path(output or "").suffix[1:].lower()
    if suffix and suffix not in FORMATS:
        raise ValueError(f"plot: expected a .svg, .pdf, .png or .dot file, got {output!r}")
    net = load_symbol(file)
    name = Path(file).name.removesuffix(".json").removesuffix("-symbol")
    drawing = viz.plot_network(
        net, title or name, "svg", _shapes(shapes) or None, hide_weights=not weights, fold=not unfolded
    )
    path = drawing.render(output or Path(file).with_name(f"{name}.svg"))
    if as_json:
        print_json({"file": path})
    else:
        print(path)


def _arrays(words: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays that words name: of a file, drawn, or constant."""
    generator = np.random.default_rng(SEED)
    makers: dict[str, Callable[[tuple[int, ...]], Any]] = {
        "zeros": lambda dims: np.zeros(dims, np.float32),
        "ones": lambda dims: np.ones(dims, np.float32),
        "random": lambda dims: generator.standard_normal(dims, np.float32),
    }
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name, text in _named(words, "inputs: expected name=file.npy or name=random:1,3,224,224").items():
        kind, colon, dims = text.partition(":")
        if colon and kind in makers:
            arrays[name] = makers[kind](_dims(name, dims))
        elif text.endswith(".npy"):
            arrays[name] = np.load(text, allow_pickle=False)
        else:
            raise ValueError(f"{name}: expected a .npy file, or zeros:, ones: or random: and a shape, got {text!r}")
    return arrays


def _bound(
    net: Any, context: Context, arrays: Mapping[str, Any], params: str | None, *, train: bool, draw: bool
) -> Any:
    """The executor of a network with its parameters.

    Args:
        net, context: what to run, and where.
        arrays: inputs by name.
        params: the file of its parameters.
        train: whether gradients are wanted.
        draw: whether parameters that no file has are drawn.

    Raises:
        ValueError: a parameter is missing.
    """
    shapes = {name: tuple(array.shape) for name, array in arrays.items()}
    # Only what a file says is of another type than float32: what is drawn and inferred is not.
    types = {name: array.dtype for name, array in arrays.items() if array.dtype != np.float64}
    learnt = [n for n in net.list_arguments() if n not in arrays and not n.endswith("label")]
    args, auxs = split_params(nd.load(params), params) if params is not None else ({}, {})
    missing = [name for name in (*learnt, *net.list_auxiliary_states()) if name not in args and name not in auxs]
    if missing and not draw:
        listed = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        raise ValueError(f"run: expected values for {listed}: give --params FILE, --draw-params, or name=file.npy")
    requests = {name: "write" if train and name in learnt else "null" for name in net.list_arguments()}
    executor = net.simple_bind(context, requests, types, **shapes)
    executor.copy_params_from(
        {name: value for name, value in args.items() if name in executor.arg_dict},
        {name: value for name, value in auxs.items() if name in executor.aux_dict},
    )
    initializer, attrs = Xavier(), net.attr_dict()
    generator = np.random.default_rng(SEED)
    for name in missing:
        if name in executor.aux_dict:
            executor.aux_dict[name][:] = 1 if name.endswith("var") else 0
            continue
        array = executor.arg_dict[name]
        try:
            initializer(InitDesc(name, attrs.get(name)), array)
        except ValueError:  # a name that no rule knows
            array[:] = generator.uniform(-0.1, 0.1, array.shape)
    return executor


def _loaded(file: str, words: Sequence[str]) -> tuple[Any, list[str]]:
    """The symbol of a file, or of the operator of that name, and the words that name its inputs.

    An operator takes its parameters among the words: `FullyConnected data=ones:2,3 num_hidden=4`. A file goes first.

    Raises:
        ValueError: there is no such file and no such operator.
    """
    if Path(file).exists():
        return load_symbol(file), list(words)
    is_path = Path(file).suffix or Path(file).name != file
    op = _schema.find(file) if is_path else find_operator(file)
    if op is None:
        if is_path:
            return load_symbol(file), list(words)
        near = near_names(file, [op.name for op in _schema.operators()])
        hint = f"did you mean {near[0]}?" if near else "`opbox ops` lists the operators"
        raise ValueError(f"run: expected a file or an operator, got {file!r}, which is neither: {hint}")
    pairs = _named(words, f"{file}: expected name=random:2,3, name=file.npy or parameter=value")
    attrs = {name: text for name, text in pairs.items() if name in op.params}
    inputs = {name: symbols.Variable(name) for name in pairs if name not in op.params}
    make = getattr(symbols, file, None) or getattr(symbols._internal, file)
    net = make(name=file.lstrip("_"), **inputs, **attrs)
    if net.list_arguments() and not inputs:
        raise ValueError(f"run: {file}: expected an input, as name=random:2,3, got none: `opbox ops {file}` names them")
    return net, [word for word in words if word.partition("=")[0] in inputs]


@click.command()
@click.argument("file", metavar="FILE|OPERATOR")
@click.argument("inputs", nargs=-1, metavar="name=file.npy...")
@PARAMS
@click.option("--draw-params", is_flag=True, help="Draw the parameters that no file has.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="A .npz file for the outputs.")
@DEVICE
@ops_option
@json_option
def run(
    file: str,
    inputs: Sequence[str],
    params: str | None,
    draw_params: bool,
    output: str | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Run a saved symbol, or one operator, forward on arrays of files.

    An operator takes its parameters beside its inputs: opbox run FullyConnected data=ones:2,3 num_hidden=4
    --draw-params.

    Inputs are name=file.npy, or name=random:1,3,224,224 (also zeros: and ones:). The outputs' shapes, types and ranges
    are printed; -o writes their values.
    """
    net, words = _loaded(file, inputs)
    arrays = _arrays(words)
    executor = _bound(net, _context(device), arrays, params, train=False, draw=draw_params)
    outputs = executor.forward(is_train=False, **arrays)
    values = {name: array.asnumpy() for name, array in zip(net.list_outputs(), outputs, strict=True)}
    if output is not None:
        np.savez(output, allow_pickle=False, **values)
    rows = [_described(name, value) for name, value in values.items()]
    if as_json:
        print_json({"outputs": rows, "file": output})
        return
    columns = ("output", "shape", "type", "least", "mean", "most")
    numbers = [[_number(row[key]) for key in columns[3:]] for row in rows]
    write(
        columns,
        [(row["output"], _dims_text(row["shape"]), row["type"], *n) for row, n in zip(rows, numbers, strict=True)],
    )


def _described(name: str, value: np.ndarray[Any, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"output": name, "shape": list(value.shape), "type": value.dtype.name}
    for key, reduce in (("least", np.min), ("mean", np.mean), ("most", np.max)):
        number = float(reduce(value.astype(np.float64))) if value.size else float("nan")
        row[key] = number if np.isfinite(number) else None
    return row


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


@click.command()
@FILE
@SHAPES
@PARAMS
@click.option("--train", is_flag=True, help="Forward and backward, in training mode.")
@click.option(
    "--seconds", type=click.FloatRange(0.05, 600), default=3.0, show_default=True, help="How long to measure."
)
@DEVICE
@ops_option
@json_option
def bench(
    file: str, shapes: Sequence[str], params: str | None, train: bool, seconds: float, device: str | None, as_json: bool
) -> None:
    """Time a saved symbol on drawn inputs of the given shapes; parameters that no file has are drawn.

    A step is a call and its answer: with a server, what a client waits for. The median is printed, with the times that
    a tenth of the steps stays under and over; samples are counted along the first axis of the first shape.
    """
    net = load_symbol(file)
    known = _shapes(shapes)
    if not known:
        raise click.UsageError("expected the shape of an input, as data=1,3,224,224, got none")
    arrays = _arrays([f"{name}=random:{','.join(map(str, dims))}" for name, dims in known.items()])
    executor = _bound(net, _context(device), arrays, params, train=train, draw=True)
    losses = all(node.op is not None and family(node.op.name) == "loss" for node, _ in net._heads)

    def step() -> None:
        outputs = executor.forward(is_train=train)
        if train:
            executor.backward(None if losses else [nd.ones(out.shape, out.context) for out in outputs])
        outputs[0].asnumpy()

    for name, array in arrays.items():
        executor.arg_dict[name][:] = array
    step()  # compiles the plan
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < until:
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    tenths = statistics.quantiles(times, n=10)
    batch = next(iter(known.values()))[0] if next(iter(known.values())) else 1
    result = {
        "steps": len(times),
        "median_ms": statistics.median(times) * 1e3,
        "p10_ms": tenths[0] * 1e3,
        "p90_ms": tenths[8] * 1e3,
        "samples_per_s": batch / statistics.median(times),
        "device": str(executor._ctx),
        "parameter_bytes": sum(
            a.size * np.dtype(a.dtype).itemsize for n, a in executor.arg_dict.items() if n not in known
        ),
    }
    if as_json:
        print_json(result)
        return
    print(f"{result['steps']} steps of {Path(file).name} on {result['device']}, {'training' if train else 'forward'}")
    print(f"median {result['median_ms']:.3f} ms, tenths {result['p10_ms']:.3f} to {result['p90_ms']:.3f} ms")
    print(f"{result['samples_per_s']:.1f} samples/s, parameters {bytes_text(float(result['parameter_bytes']))}")
