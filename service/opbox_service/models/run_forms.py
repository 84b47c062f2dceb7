"""RunForms: how a request for a model runs, by its outputs and shapes: alone or with others, and by which plan."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from cachetools import LRUCache

from .batch_axis import keeps_examples
from .inner_values import InnerValues
from .known_requests import RunForm
from .model_plans import PlanKind
from .model_signature import ModelSignature

__all__ = ["RunForms"]

Array: TypeAlias = "np.ndarray[Any, Any]"
KEPT_CHECKS = 64
"""Number of answers to keep, for inner values and shapes that come again."""


class RunForms:
    """Finds out how requests run that have been checked. Safe to call from many threads.

    Args:
        signature: of the model's inputs and outputs.
        inner: the values inside it.
        params: shapes by argument and auxiliary state.
        largest: the most examples that run together; None for a model without batching.
    """

    def __init__(
        self,
        signature: ModelSignature,
        inner: InnerValues,
        params: Mapping[str, tuple[int, ...]],
        largest: int | None,
    ) -> None:
        self._signature = signature
        self._inner = inner
        self._params = params
        self._largest = largest
        self._batched: LRUCache[tuple[Any, ...], bool] = LRUCache(KEPT_CHECKS)
        self._lock = threading.Lock()

    def of(self, tensors: Mapping[str, Array], outputs: Sequence[str]) -> RunForm:
        """How a request runs.

        Args:
            tensors: by input.
            outputs: names of those that are wanted.

        Raises:
            BadRequestError: inputs have different numbers of examples.
        """
        examples = self._signature.examples(tensors, alike=self._largest is not None)
        names = self._inner.needed(outputs)
        alone = self.is_alone(examples) or not self._keeps_examples(names, tensors)
        computed = self._inner.names_of(names)
        return RunForm(
            tuple(outputs),
            examples,
            alone,
            () if alone else (names, *self._signature.shapes_of_one(tensors)),
            self._inner.graph_of(names),
            self.kind(names),
            self._signature.forms(tensors),
            tuple(computed.index(name) for name in outputs),
        )

    def is_alone(self, examples: int) -> bool:
        """Whether a request with so many examples is a run of its own, whatever it wants."""
        return self._largest is None or examples > self._largest

    def kind(self, names: tuple[str, ...]) -> PlanKind:
        """What a plan computes that has these values; see `InnerValues.needed`."""
        return PlanKind(names, inner=not self._inner.are_outputs(names))

    def _keeps_examples(self, names: tuple[str, ...], tensors: Mapping[str, Array]) -> bool:
        """Whether all these values have the batch axis, so that they may be computed for several requests at once."""
        if not names:
            return True
        signature = self._signature
        key = (names, *signature.shapes_of_one(tensors))
        with self._lock:
            known = self._batched.get(key)
        if known is None:
            inputs = {one.name: tensors[one.name].shape for one in signature.inputs}
            graph, axis = self._inner.graph_of(names), signature.batch_axis or 0
            known = keeps_examples(graph, {**self._params, **inputs}, set(inputs), axis)
            with self._lock:
                self._batched[key] = known
        return known
