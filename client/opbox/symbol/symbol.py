"""Symbol: one or more outputs of a graph of operators.

data = mx.sym.Variable("data")
net = mx.sym.FullyConnected(data, num_hidden=10, name="fc1")
net.list_arguments()            # ['data', 'fc1_weight', 'fc1_bias']
net.infer_shape(data=(32, 20))
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from opbox_protocol.collector import collection_paused
from opbox_protocol.errors import GraphError
from opbox_protocol.mxnet import dtype_name, hidden_key

from .. import _schema, inference
from ..base import value_text
from ..binding import bind, simple_bind
from ..context import current_context
from ..executor import Executor
from ..file_errors import file_errors, path_of
from ..operator import saved
from ..tensor_members import member_error
from . import json as files
from .arithmetic import SymbolArithmetic
from .compose import create, recompose
from .fluent import SymbolFluent
from .node import Entry, Node, copied, merged, ordered, with_subgraphs
from .showing import mimebundle

__all__ = ["Symbol", "load", "load_json"]


class Symbol(SymbolArithmetic, SymbolFluent):
    """Outputs of a graph; made by `Variable`, by the operators' functions, and by Python's operators."""

    __slots__ = ("_heads", "_order")
    __array_priority__ = 1000.0
    _tensor: ClassVar[type[Symbol]]

    if not TYPE_CHECKING:  # every name would pass

        def __getattr__(self, name: str) -> Any:
            raise member_error(self, name)

    def __init__(self, heads: Sequence[Entry]) -> None:
        self._heads = list(heads)
        self._order: list[Node] | None = None

    # -- identity ---------------------------------------------------------------------------------------------

    @property
    def name(self) -> str | None:
        """The node's name; None for a group."""
        node = self._node()
        return node.name if node is not None else None

    def _node(self) -> Node | None:
        first = self._heads[0][0]
        return first if all(node is first for node, _ in self._heads) else None

    def __repr__(self) -> str:
        name = self.name
        if name is None:
            return f"<{type(self).__name__} group [{', '.join(str(output.name) for output in self)}]>"
        return f"<{type(self).__name__} {name}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """The network drawn, for a notebook."""
        return mimebundle(self)

    def __copy__(self) -> Symbol:
        return Symbol(copied(self._heads))

    def __deepcopy__(self, memo: Any) -> Symbol:
        return Symbol(copied(self._heads))

    @collection_paused()
    def __reduce__(self) -> Any:
        return _unpickled, (json.dumps(self._document()),)

    # -- outputs ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._heads)

    def __iter__(self) -> Iterator[Symbol]:
        return (Symbol([head]) for head in self._heads)

    def __getitem__(self, index: int | str | slice) -> Symbol:
        """One output by position or name, or several as a group.

        Raises:
            IndexError: there are fewer outputs.
            ValueError: no output, or more than one, has that name.
        """
        if isinstance(index, slice):
            stop = len(self) if index.stop is None else index.stop
            return Symbol([self[i]._heads[0] for i in range(index.start or 0, stop, index.step or 1)])
        if isinstance(index, str):
            positions = [i for i, name in enumerate(self.list_outputs()) if name == index]
            if len(positions) > 1:
                raise ValueError(f"output {index!r}: {len(positions)} outputs have this name: take one by its number")
            if not positions:
                raise ValueError(f"output {index!r}: expected one of {', '.join(self.list_outputs()[:20])}")
            index = positions[0]
        if not isinstance(index, int):
            raise TypeError(f"output: expected a number, a name or a slice, got {type(index).__name__}")
        if not 0 <= index < len(self._heads):
            raise IndexError(f"output {index}: expected 0 to {len(self._heads) - 1}")
        return Symbol([self._heads[index]])

    def list_outputs(self) -> list[str]:
        """Names of the outputs: `fc1_output`."""
        return [node.output_name(index) for node, index in self._heads]

    def list_arguments(self) -> list[str]:
        """Names of the arguments: inputs and parameters, in the order of `bind`."""
        variables, states = self._variables()
        return [node.name for node in variables if id(node) not in states]

    def list_auxiliary_states(self) -> list[str]:
        """Names of the states that operators update as they run, such as BatchNorm's moving averages."""
        variables, states = self._variables()
        return [node.name for node in variables if id(node) in states]

    def list_inputs(self) -> list[str]:
        """Names of arguments and auxiliary states together, in the graph's order."""
        return [node.name for node in self._variables()[0]]

    def _variables(self) -> tuple[list[Node], set[int]]:
        nodes = self._nodes()
        states = {id(node.inputs[i][0]) for node in nodes if node.op is not None for i in node.aux()}
        return [node for node in nodes if node.op is None], states

    def get_internals(self) -> Symbol:
        """A group of every output inside, in the graph's order: `net.get_internals()["fc1_output"]`."""
        return Symbol([(node, i) for node in self._nodes() for i in range(node.visible_outputs())])

    def get_children(self) -> Symbol | None:
        """A group of what the outputs' own nodes read; None when they read nothing."""
        nodes = {id(node): node for node, _ in self._heads}
        children = [entry for node in nodes.values() for entry in node.inputs]
        return Symbol(children) if children else None

    # -- attributes -------------------------------------------------------------------------------------------

    def attr(self, key: str) -> str | None:
        """An attribute of the node, or None: a parameter, `__shape__`, or `lr_mult` for `__lr_mult__`."""
        node = self._node()
        if node is None:
            return None
        if key == "name":
            return node.name
        return node.attrs.get(hidden_key(key))

    def list_attr(self, recursive: bool = False) -> dict[str, str]:
        """The attributes of the (first) node; `attr_dict` has those of the whole graph."""
        if recursive:
            raise DeprecationWarning("list_attr(recursive=True) is gone: use attr_dict")
        return _attributes(self._heads[0][0])

    def attr_dict(self) -> dict[str, dict[str, str]]:
        """The attributes of every node that has some, by the node's name."""
        return {node.name: _attributes(node) for node in self._nodes() if node.attrs}

    def _set_attr(self, **kwargs: Any) -> None:
        """Set attributes of the node.

        Raises:
            ValueError: a value is not a string, or the symbol is a group.
            ParamError: the operator has no such parameter.
        """
        node = self._node()
        if node is None:
            raise ValueError("_set_attr: expected a symbol of one node, got a group")
        attrs = dict(node.attrs)
        for key, value in kwargs.items():
            if not isinstance(value, str):
                raise ValueError(f"attribute {key!r}: expected a string, got {type(value).__name__}")
            attrs[hidden_key(key)] = value
        if node.op is not None:
            node.op.check(attrs, node.name)
        node.attrs = attrs

    # -- composing --------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Symbol:
        """A copy with symbols in the place of variables: `net(data=other, name="renamed")`.

        Raises:
            TypeError: something else than symbols is given.
            MXNetError: there is no such variable.
        """
        name = kwargs.pop("name", None)
        if args and kwargs:
            raise TypeError("compose: expected symbols by position or by name, got both")
        others = [value for value in (*args, *kwargs.values()) if not isinstance(value, Symbol)]
        if others:
            raise TypeError(
                f"compose: expected Symbols in the place of variables, got {value_text(others[0])}: values are "
                "computed by eval(data=…), or by an executor of simple_bind or mx.mod.Module"
            )
        if args:
            arguments = self.list_arguments()
            if len(args) > len(arguments):
                raise TypeError(f"compose: expected at most {len(arguments)} symbols, got {len(args)}")
            kwargs = dict(zip(arguments, args, strict=False))
        return Symbol(recompose(self._heads, name, kwargs))

    def astype(self, dtype: Any, **kwargs: Any) -> Any:
        """This, with another element type."""
        return self._operator("Cast", "cast", {"dtype": dtype_name(dtype), **kwargs})

    def squeeze(self, axis: Any = None, inplace: bool = False, **kwargs: Any) -> Any:
        """Remove the axes of size 1: all of them, or those of `axis`."""
        return self._operator("squeeze", "squeeze", {"axis": axis, **kwargs})

    def split_v2(self, indices_or_sections: Any, axis: int = 0, squeeze_axis: bool = False) -> Symbol:
        """Parts along an axis: a number of equal ones, or those between indices."""
        if isinstance(indices_or_sections, int):
            indices, sections = [], indices_or_sections
        elif isinstance(indices_or_sections, tuple):
            indices, sections = [0, *indices_or_sections], 0
        else:
            raise ValueError(
                f"indices_or_sections: expected a number or a tuple of numbers, got {indices_or_sections!r}"
            )
        params = {"indices": indices, "axis": axis, "squeeze_axis": squeeze_axis, "sections": sections}
        return self._operator("_split_v2", "_split_v2", params)

    @staticmethod
    def _shortened(op: _schema.Operator, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`: no call of an operator recurs, for each makes a node of its own."""
        return function

    @classmethod
    def _apply(
        cls,
        op: _schema.Operator,
        hint: str,
        tensors: Sequence[Any],
        named: Mapping[str, Any],
        params: Mapping[str, Any],
        keywords: Mapping[str, Any],
    ) -> Symbol:
        """Call an operator on symbols, for the functions that are made from the catalogue."""
        return Symbol(create(op, hint, tensors, named, params, keywords.get("name"), keywords.get("attr")))

    def _operator(self, op: str, hint: str, arguments: Mapping[str, Any]) -> Symbol:
        """A call of an operator of one input on this."""
        params = dict(arguments)
        name, attr = params.pop("name", None), params.pop("attr", None)
        return Symbol(create(_schema.get(op), hint, [self], {}, params, name, attr))

    # -- inference --------------------------------------------------------------------------------------------

    def infer_shape(self, *args: Any, **kwargs: Any) -> inference.Shapes:
        """Shapes of arguments, outputs and auxiliary states from some known ones; 0 is an unknown dimension.

        Returns:
            Three lists of tuples; (None, None, None) and a warning when the known ones do not determine the rest.

        Raises:
            ShapeError: shapes contradict each other: node, argument, expected, got, the user's line.
        """
        return inference.infer_shape(self, False, args, kwargs)

    def infer_shape_partial(self, *args: Any, **kwargs: Any) -> inference.Shapes:
        """As `infer_shape`, and what MXNet 1.9.1 tells of the rest: 0 for unknown dimensions, () for unknown shapes."""
        return inference.infer_shape(self, True, args, kwargs, as_mxnet=True)

    def infer_type(self, *args: Any, **kwargs: Any) -> inference.Shapes:
        """Element types of arguments, outputs and auxiliary states from some known ones."""
        return inference.infer_type(self, False, args, kwargs)

    def infer_type_partial(self, *args: Any, **kwargs: Any) -> inference.Shapes:
        """As `infer_type`, with None for what stays unknown."""
        return inference.infer_type(self, True, args, kwargs)

    # -- binding ----------------------------------------------------------------------------------------------

    def simple_bind(
        self, ctx: Any = None, grad_req: Any = "write", type_dict: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> Executor:
        """An executor with arrays of its own, shaped by inference from `kwargs`.

        Args:
            ctx: the device; the current one when None.
            grad_req: "write", "add" or "null", for all arguments or by name or in a list.
            type_dict: element types by argument name.
            kwargs: shapes by argument name; those of other names are passed over, as in MXNet. `shared_exec` is an
                executor whose arrays take the place of new ones of equal name, shape and type, those of
                `shared_arg_names` where these are given.
                `group2ctx` is as of `bind`. `shared_buffer` and `stype_dict` have no effect.
        """
        return simple_bind(self, ctx, grad_req, type_dict, kwargs)

    def bind(
        self,
        ctx: Any,
        args: Any,
        args_grad: Any = None,
        grad_req: Any = "write",
        aux_states: Any = None,
        group2ctx: Any = None,
        shared_exec: Any = None,
    ) -> Executor:
        """An executor over given arrays.

        Args:
            ctx: the device.
            args: arrays of all arguments, a list or by name.
            args_grad: arrays for gradients, a list (None for none) or by name.
            grad_req: "write", "add" or "null", for all or by name or in a list.
            aux_states: arrays of the auxiliary states, a list or by name.
            group2ctx: contexts by the groups of `AttrScope(ctx_group=…)`: where the outputs lie. All is computed on
                `ctx`'s device.
            shared_exec: has no effect.
        """
        return bind(self, ctx, args, args_grad, grad_req, aux_states, group2ctx=group2ctx)

    def eval(self, ctx: Any = None, **kwargs: Any) -> Any:
        """The outputs for arguments and auxiliary states: `(a + b).eval(a=mx.nd.ones((2,)), b=mx.nd.ones((2,)))`."""
        states = {name: kwargs.pop(name) for name in self.list_auxiliary_states() if name in kwargs}
        device = ctx if ctx is not None else current_context()
        return self.bind(device, kwargs, grad_req="null", aux_states=states).forward()

    # -- files ------------------------------------------------------------------------------------------------

    def tojson(self, remove_amp_cast: bool = True) -> str:
        """The graph as MXNet's JSON."""
        return files.text(self._heads)

    def save(self, fname: str | Path, remove_amp_cast: bool = True) -> None:
        """Write the graph to a file, which MXNet reads too; `-ops.json` beside it has its own operators' sources."""
        path = path_of(fname, "save: fname")
        with file_errors(path, "written"):
            path.write_text(self.tojson(), encoding="utf-8")
            saved.write(path, self._every_node())

    def _every_node(self) -> list[Node]:
        """All nodes, those of subgraphs before the nodes that they are in."""
        return with_subgraphs(self._nodes())

    def _nodes(self) -> list[Node]:
        """All nodes, in the order of files. What nodes read never changes, so it is worked out once."""
        if self._order is None:
            self._order = ordered(self._heads)
        return self._order

    def _document(self) -> dict[str, Any]:
        """The graph for the engine, with the user's lines."""
        return files.document(self._heads, sources=True, nodes=self._nodes())

    def _merged(self, stands: Mapping[int, int], heads: Sequence[tuple[int, int, int]]) -> Symbol:
        """This with nodes in the place of others; see `node.merged`."""
        return Symbol(merged(self._nodes(), stands, heads))

    def debug_str(self) -> str:
        """The graph as readable text, one node after the other."""
        if len(self._heads) == 1 and self._heads[0][0].op is None:
            return f"Variable:{self._heads[0][0].name}\n"
        lines = ["Symbol Outputs:"]
        lines += [f"\toutput[{i}]={node.name}({index})" for i, (node, index) in enumerate(self._heads)]
        for node in self._nodes():
            if node.op is None:
                lines.append(f"Variable:{node.name}")
                continue
            lines += ["-" * 20, f"Op:{node.op.name}, Name={node.name}", "Inputs:"]
            written = node.aux()
            for i, (child, index) in enumerate(node.inputs):
                version = f" version={int(i in written)}" if child.op is None else ""
                lines.append(f"\targ[{i}]={child.name}({index}){version}")
            if node.attrs:
                lines += ["Attrs:", *(f"\t{key}={value}" for key, value in sorted(node.attrs.items()))]
        return "\n".join(lines) + "\n"


Symbol._tensor = Symbol


def _attributes(node: Node) -> dict[str, str]:
    """A node's attributes; the well-known hidden ones also under their plain names."""
    plain = {key[2:-2]: value for key, value in node.attrs.items() if hidden_key(key[2:-2]) == key}
    return {**node.attrs, **plain}


def _unpickled(document: str) -> Symbol:
    return Symbol(files.parse(document))


def load(fname: str | Path) -> Symbol:
    """Read a symbol from a file of opbox or of any version of MXNet.

    Operators that the user wrote are those of its `-ops.json`, unless this program has registered their names.

    Raises:
        FileError: the file cannot be read.
        GraphError: the file is no symbol's; UnknownOperatorError and ParamError for what its nodes say.
    """
    path = path_of(fname, "load: fname")
    try:
        with file_errors(path, "read"):
            text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise GraphError(
            f"{fname}: expected a symbol's JSON, got bytes that are no text: mx.nd.load reads parameters"
        ) from None
    try:
        return Symbol(files.parse(text, saved.read(path)))
    except GraphError as error:
        error.reword(f"{fname}: {error}")
        raise


def load_json(json_str: str) -> Symbol:
    """Read a symbol from JSON text.

    Raises:
        MXNetError: it is no graph; UnknownOperatorError and ParamError for what its nodes say.
    """
    if not isinstance(json_str, str):
        raise TypeError(f"json_str: expected a string, got {type(json_str).__name__}")
    return Symbol(files.parse(json_str))
