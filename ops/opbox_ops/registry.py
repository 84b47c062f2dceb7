"""The operator registry, in NNVM's manner: names, and open attributes of any key.

An operator is declared in its own file:

    op = register("FullyConnected", FullyConnectedParams,
                  inputs=("data", "weight", Slot("bias", unless("no_bias"))))

    @op.infer_shape
    def _(p, ins, outs): ...

Anyone may attach an attribute of any key to any operator (`op.set_attr`, also from a plug-in) and read it over all
(`attribute`). What an operator is, and how its inputs and outputs are declared, is in `operator`.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from threading import RLock
from types import FrameType
from typing import Any

from opbox_protocol.collector import collection_paused
from opbox_protocol.errors import BadRequestError, ConflictError, MXNetError, NotFoundError, UnknownOperatorError
from opbox_protocol.near_names import near_names

from . import methods
from .operator import GradientRule, Op
from .params import NoParams, Params
from .slots import Counted, Inputs, Outputs, Slot, Variadic, When, unless, when
from .user_line import user_line

__all__ = [
    "Counted",
    "GradientRule",
    "Op",
    "Slot",
    "Variadic",
    "When",
    "attribute",
    "extend",
    "find",
    "get",
    "load",
    "loading",
    "module",
    "names",
    "register",
    "register_backward",
    "unless",
    "unregister",
    "when",
    "when_loaded",
]

_ops: dict[str, Op] = {}
_names: dict[str, Op] = {}
_waiting: list[Callable[[], None]] = []
_version = 0
_homes: dict[str, str] = {}
"""The files that registered them."""
_modules: dict[str, str] = {}
"""The modules whose import registered them, which is another file where a family has a function for it."""
_lock = RLock()
_loaded = False
_loading = False
_broken: Exception | None = None


def register(
    name: str,
    params: type[Params] = NoParams,
    *,
    inputs: Inputs = ("data",),
    outputs: Outputs = ("output",),
    aliases: Sequence[str] = (),
    doc: str | None = None,
) -> Op:
    """Register an operator and return it, for its rules to be attached.

    Args:
        name: the canonical name, MXNet's where it has one.
        params: the parameter model.
        inputs: names, `Slot`s, a `Variadic`, or a function of the params.
        outputs: suffixes, `Slot`s, a `Counted`, or a function of the params.
        aliases: further names of the same operator.
        doc: what it computes; by default the first paragraph of the declaring module's docstring.

    Raises:
        ConflictError: a name is taken. Use `extend(name)` to add attributes to an operator that exists.
    """
    frame = inspect.currentframe()
    caller = frame.f_back.f_globals if frame is not None and frame.f_back is not None else {}
    if doc is None:
        text = caller.get("__doc__") or ""
        doc = text.strip().split("\n\n")[0].replace("\n", " ")
    op = Op(name, params, inputs, outputs, aliases, doc)
    with _lock:
        for alias in (name, *aliases):
            if alias in _names:
                where = _homes[_names[alias].name]
                raise ConflictError(
                    f"operator {alias!r} is registered already; use extend({alias!r}) to add to it (it is of {where})"
                )
        _ops[name] = op
        _homes[name] = Path(caller.get("__file__") or "").name or str(caller.get("__name__"))
        _modules[name] = _importing(frame)
        for alias in (name, *aliases):
            _names[alias] = op
    return op


def register_backward(
    name: str, params: type[Params] = NoParams, *, inputs: Inputs = (), outputs: Outputs = ("output",)
) -> Op:
    """Register the gradient of an operator (TIsBackward): each output is shaped and typed as a forward input.

    Output i belongs to the forward node's i-th input that is not an auxiliary state. Inputs and outputs are counted on
    the node that the gradient rule builds, so `inputs` may stay empty.
    """
    op = register(name, params, inputs=inputs, outputs=outputs, doc=f"Gradient; see {name.removeprefix('_backward_')}.")
    return op.set_attr("TIsBackward", True)


def extend(name: str) -> Op:
    """The registered operator `name`, to attach further attributes to."""
    return get(name)


def find(name: str) -> Op | None:
    """The operator of that name or alias, or None."""
    load()
    return _names.get(name)


def get(name: str) -> Op:
    """The operator of that name or alias; UnknownOperatorError gives the nearest names."""
    op = find(name)
    if op is None:
        near = near_names(name, (known for known in _names if not known.startswith("_backward")))
        hint = f"did you mean {' or '.join(near)}?" if near else "GET /v1/ops lists what there is"
        raise UnknownOperatorError(f"operator {name!r} is not registered: {hint}")
    return op


def names() -> list[str]:
    """Canonical names, sorted; without the operators whose code a user brings (attribute `TUserCode`)."""
    load()
    return sorted(name for name, op in _ops.items() if not op.get_attr("TUserCode"))


def module(name: str) -> str:
    """The module that declares an operator, for documents: its docstring says what is computed, and of what shapes."""
    return _modules[get(name).name]


def attribute(key: str) -> dict[str, Any]:
    """The values of attribute `key` over all operators that have it, by canonical name."""
    load()
    return {name: op.get_attr(key) for name, op in sorted(_ops.items()) if op.get_attr(key) is not None}


def unregister(name: str) -> None:
    """Take an operator and its aliases out again; NotFoundError when there is none (for plug-ins and tests)."""
    global _version
    with _lock:
        _version += 1
        op = _ops.pop(name, None)
        if op is None:
            raise NotFoundError(f"operator {name!r} is not registered")
        for alias in (name, *op.aliases):
            _names.pop(alias, None)


def version() -> int:
    """A number that grows when a name no longer stands for the operator that it stood for."""
    return _version


def load() -> None:
    """Import the built-in operator files and the installed plug-ins (entry point `opbox.ops`), once.

    A file that cannot be imported raises here, at this call and at every later one: a registry with holes would only
    say that operators are not registered.
    """
    global _loaded, _loading, _broken
    if _loaded:
        return
    with _lock:
        if _broken is not None:
            raise _broken
        if _loaded or _loading:  # loading: an operator file looks another operator up
            return
        _loading = True
        try:
            with collection_paused():  # what is loaded stays: the collector would look at all of it again and again
                _import_all()
            _loaded = True
        except Exception as error:
            _broken = error
            raise
        finally:
            _loading = False


def _importing(frame: FrameType | None) -> str:
    """The module that is being imported, among those that called; "" where none is."""
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


def when_loaded(work: Callable[[], None]) -> None:
    """Call `work` when all built-in operators are there, before the plug-ins come; at once where they are already.

    For a file that attaches to operators of files that may be imported after it.
    """
    if _loaded:
        work()
    else:
        _waiting.append(work)


def _import_all() -> None:
    package = importlib.import_module(__package__)
    for module in pkgutil.walk_packages(package.__path__, f"{__package__}."):
        # Device libraries are imported when a device is asked for, not before; the self-check in its own process.
        if not module.name.startswith(tuple(f"{__package__}.{name}" for name in ("backend", "rtc", "selfcheck"))):
            importlib.import_module(module.name)
    methods.attach(_names.get)
    while _waiting:
        _waiting.pop(0)()
    for plugin in entry_points(group="opbox.ops"):
        owner = plugin.dist.name if plugin.dist is not None else plugin.value
        with loading(f"operator package {owner} (entry point {plugin.name} = {plugin.value})"):
            plugin.load()


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Report an error in a user's operator file in a sentence: the file loaded, the error, and its line there.

    Raises:
        BadRequestError: from the error.
    """
    try:
        yield
    except Exception as error:
        reason = str(error) if isinstance(error, MXNetError) else f"{type(error).__name__}: {error}"
        raise BadRequestError(f"{what}: {reason}{user_line(error)}") from error
