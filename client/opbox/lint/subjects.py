"""The operators of a file: what it registers with mx.operator, its NumpyOps and NDArrayOps, and registry operators."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from opbox_protocol.errors import MXNetError

from .. import _schema, connection, symbol
from ..operator import CustomOpProp, NDArrayOp, NumpyOp, PythonOp
from ..operator.custom import collecting, known_here
from ..operator.keywords import make_prop
from .cases import Case, read_cases

__all__ = ["Subject", "find_subjects"]


class Subject:
    """An operator to be checked.

    Args:
        name: what it is registered as, or its class or variable.
        kind: "CustomOp", "NumpyOp", "NDArrayOp" or "registry".
        build: makes the symbol for a case's parameters, of variables named like the inputs.
        cases: its own; empty: usual shapes are tried.
        is_loss: whether it says for the parameters that its gradient is not the derivative of its output.

    Attributes:
        prop: makes a CustomOpProp for a case's parameters; None for other kinds.
        instance: makes a NumpyOp or NDArrayOp; None for other kinds.
        source: the line that begins it.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        build: Callable[[Mapping[str, Any]], Any],
        cases: Sequence[Case],
        is_loss: Callable[[Mapping[str, Any]], bool] = lambda params: False,
        prop: Callable[[Mapping[str, Any]], CustomOpProp] | None = None,
        instance: Callable[[Mapping[str, Any]], PythonOp] | None = None,
        source: str | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.build = build
        self.cases = list(cases)
        self.is_loss = is_loss
        self.prop = prop
        self.instance = instance
        self.source = source


def find_subjects(path: Path) -> list[Subject]:
    """Load a file and list its operators, in the order they are written.

    Raises:
        MXNetError: there is no such file, or loading it failed.
    """
    if not path.is_file():
        got = "a folder" if path.is_dir() else "a name that is not there"
        raise MXNetError(f"lint: {str(path)!r}: expected a Python file, got {got}")
    source = path.read_text("utf-8")
    registered = _registry_names(path, source)
    if registered:
        _load_registry(path, registered)
        module: ModuleType | None = None
        props: dict[str, type[CustomOpProp]] = {}
    else:
        props = {}
        with collecting(props):
            module = _load(path)
        known_here(props)
    natives = _native(module) if module is not None else []
    # What the file imports is checked where it is written, unless importing is all it does.
    own = {name: prop for name, prop in props.items() if module is not None and prop.__module__ == module.__name__}
    subjects = [_custom(name, prop) for name, prop in (own if own or natives else props).items()]
    subjects += natives
    subjects += [_registry(name, _registry_cases(source, name)) for name in registered]
    return subjects


def _load(path: Path) -> ModuleType:
    """The file as a module: of its package where it lies in one, so that its relative imports hold."""
    path = path.absolute()
    names, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    # A file that lies in no package may be called like a module of Python's.
    name = ".".join(names) if len(names) > 1 else f"opbox_lint_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise MXNetError(f"lint: expected a file ending in .py, got {str(path)!r}")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(folder))
    try:
        if len(names) > 1:
            importlib.import_module(name.rpartition(".")[0])
        sys.modules[name] = module
        spec.loader.exec_module(module)
    except Exception as error:
        raise MXNetError(f"lint: loading {path.name} failed: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(folder))
    return module


# -- CustomOp, NumpyOp, NDArrayOp -----------------------------------------------------------------------------------


def _custom(name: str, prop: type[CustomOpProp]) -> Subject:
    def build(params: Mapping[str, Any]) -> Any:
        prop_instance = _create(params)
        inputs: dict[str, Any] = {argument: symbol.Variable(argument) for argument in prop_instance.list_arguments()}
        return symbol.Custom(**inputs, **params, op_type=name, name="op")

    def _create(params: Mapping[str, Any]) -> CustomOpProp:
        return make_prop(name, prop, {key: str(value) for key, value in params.items()})

    def is_loss(params: Mapping[str, Any]) -> bool:
        return not _create(params).need_top_grad_

    return Subject(name, "CustomOp", build, _own_cases(name, prop), is_loss, prop=_create, source=_source(prop))


def _native(module: ModuleType) -> list[Subject]:
    subjects, covered = [], set()
    for name, value in vars(module).items():
        if isinstance(value, PythonOp):
            covered.add(type(value))
            subjects.append(_instance(name, value))
    for name, value in list(vars(module).items()):
        own = isinstance(value, type) and value.__module__ == module.__name__
        if own and issubclass(value, NumpyOp | NDArrayOp) and value not in covered:
            subjects.append(_class(name, value))
    return subjects


def _instance(name: str, instance: PythonOp) -> Subject:
    def build(params: Mapping[str, Any]) -> Any:
        return instance(**{argument: symbol.Variable(argument) for argument in instance.list_arguments()}, name="op")

    kind = "NumpyOp" if isinstance(instance, NumpyOp) else "NDArrayOp"
    cases = _own_cases(name, instance)
    return Subject(
        name,
        kind,
        build,
        cases,
        lambda params: not instance.need_top_grad(),
        instance=lambda params: instance,
        source=_source(type(instance)),
    )


def _class(name: str, cls: type[PythonOp]) -> Subject:
    def build(params: Mapping[str, Any]) -> Any:
        instance = cls(**params)
        return instance(**{argument: symbol.Variable(argument) for argument in instance.list_arguments()}, name="op")

    kind = "NumpyOp" if issubclass(cls, NumpyOp) else "NDArrayOp"
    return Subject(
        name,
        kind,
        build,
        _own_cases(name, cls),
        lambda params: not cls(**params).need_top_grad(),
        instance=lambda params: cls(**params),
        source=_source(cls),
    )


def _source(cls: type) -> str:
    return f"{Path(inspect.getfile(cls)).name}:{inspect.getsourcelines(cls)[1]}"


def _own_cases(name: str, owner: Any) -> list[Case]:
    declared = getattr(owner, "lint_cases", None)
    return [] if declared is None else read_cases(declared() if inspect.isroutine(declared) else declared, name)


# -- operators of the registry --------------------------------------------------------------------------------------


def _registry_names(path: Path, source: str) -> list[str]:
    """The names in calls of opbox_ops' `register("name", …)`; none in a file that does not import it."""
    tree = ast.parse(source, str(path))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    if not any("opbox_ops" in ast.unparse(node) for node in imports):
        return []
    return [
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "register"
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    ]


def _load_registry(path: Path, names: Sequence[str]) -> None:
    connection.refresh_operators()
    if all(_schema.find(name) is not None for name in names):
        return  # an installed package, or a server that was given the file
    transport = connection.transport()
    if not transport.in_process:
        raise MXNetError(
            f"lint: {names[0]}: the server does not have it: start it with opbox serve --ops {path.name}, or unset "
            "OPBOX_URL to check it in this process"
        )
    _load(path)
    connection.refresh_operators()


def _registry(name: str, cases: Sequence[Case]) -> Subject:
    op = _schema.get(name)

    def build(params: Mapping[str, Any]) -> Any:
        attrs = {key: str(value) for key, value in params.items()}
        names = [argument for i, argument in enumerate(op.input_names(attrs)) if i not in op.aux_indices(attrs)]
        return getattr(symbol, name)(**{argument: symbol.Variable(argument) for argument in names}, **params, name="op")

    return Subject(name, "registry", build, cases)


def _registry_cases(source: str, name: str) -> list[Case]:
    """The file's `lint_cases = {"name": [...]}`, which is read and not run: shapes and plain values."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "lint_cases" for target in node.targets):
            try:
                declared = ast.literal_eval(node.value)
            except ValueError:
                raise MXNetError("lint_cases: expected plain values: shapes, numbers, strings, lists, dicts") from None
            return read_cases(declared.get(name, []), name)
    return []
