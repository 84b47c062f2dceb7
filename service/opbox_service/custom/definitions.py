"""A session's operators: their sources by hash, each run when it is first needed, in a module of its own.

Two sessions never see each other's: what runs and is registered belongs to the Definitions that are active in the
thread, and parsing an operator's parameters looks there.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from opbox.operator.bundle import Bundle, SourceError, run
from opbox.operator.custom import CustomOpProp, collecting
from opbox.operator.native import NDArrayOp, NumpyOp
from opbox_ops.backend import Backend, RandomSource
from opbox_protocol.errors import BadRequestError, LimitError, NotFoundError, UserCodeError

from ..quota import Budget
from .local_session import LocalSession
from .user_traceback import user_error

__all__ = ["BASES", "UploadedOperator", "Definitions", "active"]

BASES: Mapping[str, type] = {"Custom": CustomOpProp, "_NumpyOp": NumpyOp, "_NDArrayOp": NDArrayOp}
MAX_OPERATORS = 1000
"""Maximum number of operator sources per session."""
MAX_WARNINGS = 100
"""Maximum number of warnings that wait for the next answer."""
_active: ContextVar[Definitions | None] = ContextVar("opbox_definitions", default=None)
_numbers = itertools.count(1)


class UploadedOperator:
    """The code of one operator.

    Args:
        kind: Custom, _NumpyOp or _NDArrayOp.
        op_type: its name.
        code: its content hash.
        bundle: its source; or
        live: its class, when it comes from this very process.
    """

    def __init__(self, kind: str, op_type: str, code: str, bundle: Bundle | None, live: type | None) -> None:
        self.kind = kind
        self.op_type = op_type
        self.code = code
        self._bundle = bundle
        self._class = live
        self._module: str | None = None
        self._registered: dict[str, type[CustomOpProp]] = {}

    def cls(self) -> type:
        """The class; runs the source if that has not been done.

        Raises:
            UserCodeError: running the source failed, or it has no such class.
        """
        if self._class is None:
            self._class = self._run()
        return self._class

    def _run(self) -> type:
        assert self._bundle is not None
        module = ModuleType(f"opbox_code_{next(_numbers)}")
        sys.modules[module.__name__] = module
        self._module = module.__name__
        try:
            with self.names():
                run(self._bundle, vars(module))
        except BaseException as error:
            self.forget()
            raise user_error(f"the source of {self.op_type!r}", error) from error
        name = self._bundle.exports[0] if self._bundle.exports else ""
        # The decorator may have returned something else than the class.
        cls, base = self._registered.get(self.op_type) or vars(module).get(name), BASES[self.kind]
        if not (isinstance(cls, type) and issubclass(cls, base)):
            if name == base.__name__:
                return base  # NumpyOp itself, which copies its input: it is here, too
            self.forget()
            raise UserCodeError(f"the source of {self.op_type!r}: expected a {base.__name__} named {name!r}, got none")
        return cls

    def names(self) -> AbstractContextManager[None]:
        """A block in which operators are known by the names that its source registers."""
        return nullcontext() if self._bundle is None else collecting(self._registered)

    def forget(self) -> None:
        """Drop the module in which the source ran."""
        if self._module is not None:
            sys.modules.pop(self._module, None)
            self._module = None


class Definitions:
    """The operators that a session has been sent, by hash and by name.

    Args:
        backend, random, device, budget: the session's, for the arrays that operators make.
    """

    def __init__(self, backend: Backend, random: RandomSource, device: str, budget: Budget) -> None:
        self.local = LocalSession(backend, random, device, budget, self._take)
        self._by_code: dict[tuple[str, str, str], UploadedOperator] = {}
        self._by_name: dict[tuple[str, str], UploadedOperator] = {}
        self._warnings: dict[str, None] = {}

    def add_device(self, backend: Backend, random: RandomSource, device: str, budget: Budget) -> None:
        """Give operators another device of the session's, for those that run there."""
        self.local.add(backend, random, device, budget)

    def use_device(self, device: str) -> None:
        """Have operators run on another device that was added."""
        self.local = self.local.on(device)

    def __len__(self) -> int:
        return len(self._by_code)

    def add(self, kind: str, op_type: str, code: str, bundle: Any = None, live: Any = None) -> None:
        """Take an operator's source, or its class; nothing runs yet.

        Raises:
            BadRequestError: the source is none, or its hash another.
            LimitError: there are too many.
        """
        if kind not in BASES:
            raise BadRequestError(f"define {op_type!r}: op: expected one of {', '.join(BASES)}, got {kind!r}")
        self._by_name[kind, op_type] = self._take(kind, op_type, code, bundle, live)

    def _take(self, kind: str, op_type: str, code: str, bundle: Any = None, live: Any = None) -> UploadedOperator:
        definition = self._by_code.get((kind, op_type, code))
        if definition is None:
            if len(self._by_code) >= MAX_OPERATORS:
                raise LimitError(f"define {op_type!r}: expected at most {MAX_OPERATORS} operators in a session")
            definition = self._by_code[kind, op_type, code] = self._read(kind, op_type, code, bundle, live)
        return definition

    def _read(self, kind: str, op_type: str, code: str, bundle: Any, live: Any) -> UploadedOperator:
        if isinstance(live, type) and issubclass(live, BASES[kind]):
            return UploadedOperator(kind, op_type, code, None, live)
        try:
            source = Bundle.from_json(bundle)
        except SourceError as error:
            raise BadRequestError(f"define {op_type!r}: bundle: {error}") from None
        if source.sha256 != code:
            raise BadRequestError(
                f"define {op_type!r}: sha256: expected the bundle's, {source.sha256}, got {code[:64]!r}"
            )
        return UploadedOperator(kind, op_type, code, source, None)

    def find(self, kind: str, op_type: str, code: str | None) -> UploadedOperator:
        """By its hash, or else the last of that name; NotFoundError when there is none."""
        if code is None:
            definition = self._by_name.get((kind, op_type))
        else:
            definition = self._by_code.get((kind, op_type, code))
        if definition is None:
            known = ", ".join(sorted({name for _, name in self._by_name})) or "none"
            raise NotFoundError(
                f"op_type {op_type!r}: expected an operator that this session has defined ({known}): send a define "
                "command with its source first"
            )
        return definition

    def warn(self, sentence: str) -> None:
        """Keep a sentence for the program, which gets it with the next answer."""
        if len(self._warnings) < MAX_WARNINGS:
            self._warnings[sentence] = None

    def take_warnings(self) -> list[str]:
        """Return the sentences kept, and forget them."""
        warnings, self._warnings = list(self._warnings), {}
        return warnings

    def scope(self) -> AbstractContextManager[None]:
        """While the block runs, these are the definitions that graphs of this thread refer to."""
        return _Scope(self)

    def close(self) -> None:
        """Drop all modules and arrays."""
        for definition in self._by_code.values():
            definition.forget()
        self.local.clear()


class _Scope(AbstractContextManager[None]):
    """See `Definitions.scope`: a class, as each batch of a session has one, and a generator takes thrice as long."""

    __slots__ = ("_definitions", "_token")

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions

    def __enter__(self) -> None:
        self._token = _active.set(self._definitions)

    def __exit__(self, *error: object) -> None:
        _active.reset(self._token)


def active() -> Definitions:
    """The session's definitions; NotFoundError outside of a session."""
    definitions = _active.get()
    if definitions is None:
        raise NotFoundError(
            "operators of a user's own run in a session: make one with POST /v1/sessions, and send their source with a "
            "define command before the graph"
        )
    return definitions
