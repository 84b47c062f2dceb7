"""The arrays of a plan's values: the caller's own, and views of the arena that the memory planner placed them in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import Any

from opbox_ops.backend import Backend
from opbox_ops.compute import PLAIN, Array, ArraySpec
from opbox_ops.layout import logical, physical_shape

from ..task import NODES, checkpoint
from .allocation import allocate
from .plan import UNWANTED, Plan, Step, Value

__all__ = ["PlacedArrays", "written_apart"]


class PlacedArrays:
    """The arrays of a plan's values.

    Args:
        plan: whose values they are.
        backend: makes the views.
        external: the caller's arrays, and those of the outputs.
        arena: `plan.arena_bytes` bytes.
        used: the values to have arrays for; by default all.

    Attributes:
        arrays: an array a value; None for one that has none.
        backend: the device's.
    """

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        external: Mapping[tuple[str, str | int], Array],
        arena: Array,
        used: Container[int] | None = None,
    ) -> None:
        assert plan.memory is not None
        self._plan = plan
        self._memory = plan.memory
        self.backend = backend
        self._external = external
        self._arena = arena
        self._views: dict[Any, Array] = {}
        self._temps: dict[Any, tuple[Array, ...]] = {}
        self.arrays: list[Array] = []
        for i, value in enumerate(plan.values):
            if not i % NODES:
                checkpoint(NODES)
            self.arrays.append(self._array(i, value) if used is None or i in used else None)

    def of(self, values: Sequence[int]) -> list[Array]:
        """Return the arrays of values; None for unwanted values, and for those without an array."""
        return [None if value == UNWANTED else self.arrays[value] for value in values]

    def physical(self, values: Sequence[int]) -> list[Array]:
        """Return the arrays of values as they lie in memory, one object for each; None for unwanted values."""
        arrays = []
        for value in values:
            spec = None if value == UNWANTED else self._plan.values[value].spec
            array = None if spec is None else self.arrays[value]
            if spec is not None and spec.layout != PLAIN:
                home = self._memory.home[value]
                assert home is not None
                array = self._view(home, physical_shape(spec), spec.dtype)
            arrays.append(array)
        return arrays

    def _array(self, number: int, value: Value) -> Array:
        if value.array is not None:
            return self._external[value.array]
        if value.part is not None:
            base, begin, strides = value.part
            home = self._memory.home[base]
            if home is not None and strides is None:
                return self._view(home + begin, value.shape, value.dtype)
            whole = self._array(base, self._plan.values[base])
            return self.backend.view(whole, begin, value.shape, value.dtype, strides)
        home = self._memory.home[number]
        if home is not None:
            return self._placed(home, value.spec)
        owner = self._memory.owner[number]
        if owner is not None:
            external = self._plan.values[owner].array
            assert external is not None
            array = self._external[external]
            if array.dtype != value.dtype:
                # NumPy views nothing as elements of another size: an empty array is one of its own.
                array = array.view(value.dtype) if array.size else self.backend.empty(value.shape, value.dtype)
            return array.reshape(value.shape)
        return None

    def _placed(self, home: int, spec: ArraySpec) -> Array:
        """The array of a value at this place of the arena: one for all values that are there one after the other."""
        if spec.layout == PLAIN:
            return self._view(home, spec.shape, spec.dtype)
        key = (home, spec.shape, spec.dtype, spec.layout)
        array = self._views.get(key)
        if array is None:
            array = self._views[key] = logical(self._view(home, physical_shape(spec), spec.dtype), spec.layout)
        return array

    def _view(self, offset: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """The array at this place of the arena: one for all values that are there one after the other."""
        key = (offset, shape, dtype)
        array = self._views.get(key)
        if array is None:
            array = self._views[key] = self.backend.view(self._arena, offset, shape, dtype)
        return array

    def temps(self, step: Step, offsets: tuple[int, ...], *, packed: bool) -> tuple[Array, ...]:
        """A step's temporaries at these places of the arena; if `packed`, those that stay have their own memory."""
        if packed:
            return tuple(
                [
                    allocate(self.backend, temp.shape, temp.dtype)
                    if k in step.packed
                    else self._view(offset, temp.planned, temp.dtype)
                    for k, (offset, temp) in enumerate(zip(offsets, step.temps, strict=True))
                ]
            )
        key = (id(step.temps), offsets)
        temp = self._temps.get(key)
        if temp is None:
            places = zip(offsets, step.temps, strict=True)
            temp = self._temps[key] = tuple([self._view(offset, temp.planned, temp.dtype) for offset, temp in places])
        return temp


def written_apart(arrays: Mapping[tuple[str, str | int], Array]) -> bool:
    """True if none of the arrays that a plan writes outside its arena is in the memory of another; False in doubt."""
    owners: Counter[int] = Counter()
    written = []
    for (kind, _), array in arrays.items():
        owner = array
        while getattr(owner, "base", None) is not None:
            owner = owner.base
        owners[id(owner)] += 1
        if kind != "arg":
            written.append(id(owner))
    return all(owners[owner] == 1 for owner in written)
