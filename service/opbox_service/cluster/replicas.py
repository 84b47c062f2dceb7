"""Replicas: on which nodes each model is loaded, in which version, and how many of them there are."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..models.model_config import ModelConfig
from .documents import ModelTerms, NodeReport, ReplicaReport, kind_of

__all__ = ["Replicas", "terms_of"]

CALM_S = 30.0
"""Seconds for which a model needs fewer replicas before it has one less."""


def terms_of(config: ModelConfig, nbytes: int = 0, version: str = "") -> ModelTerms:
    """Return how many replicas a model.toml asks for, and where.

    Args:
        config: what it says.
        nbytes: memory of a replica; 0: unknown.
        version: "" for the one that it says to serve.

    Raises:
        BadRequestError: min is greater than max.

    Example:
        >>> terms_of(ModelConfig(replicas=2)).minimum
        2
    """
    device = config.device[0] if isinstance(config.device, list) and config.device else config.device
    kind = kind_of(device) if isinstance(device, str) else "cpu"
    replicas = config.replicas
    if replicas is None or isinstance(replicas, int):
        number = 1 if replicas is None else replicas
        return ModelTerms(number, number, device=kind, bytes=nbytes, version=version)
    return ModelTerms(replicas.min, replicas.max, replicas.target, kind, nbytes, version)


@dataclass(slots=True)
class _Model:
    """A model's terms, and its replicas.

    Attributes:
        assigned: by node, the version that it has to have there.
        reported: by node, what it reported last.
        calm_since: when it began to need fewer replicas than it has; None if it does not.
    """

    terms: ModelTerms
    assigned: dict[str, str] = field(default_factory=dict)
    reported: dict[str, ReplicaReport] = field(default_factory=dict)
    calm_since: float | None = None

    def is_ready(self, node: str) -> bool:
        """Whether the version that is assigned to the node is ready there."""
        report, version = self.reported.get(node), self.assigned.get(node)
        return report is not None and version is not None and _serves(report, version)

    def fits(self, node: str) -> bool:
        """Whether the node has the version that the terms say."""
        return self.assigned.get(node) == self.terms.version


def _serves(report: ReplicaReport, version: str) -> bool:
    return bool(report.versions) and version in ("", *report.versions)


class Replicas:
    """Assigns models to nodes.

    Args:
        choose: returns the node for one more replica of a model, none of those to avoid; None if there is none. It
            counts the replica's bytes as used there.
        release: counts them no longer: the replica is ready, so that the node reports them, or it goes.

    Example:
        >>> replicas = Replicas(lambda model, terms, avoid: "a", lambda model, node: None)
        >>> replicas.set("resnet", ModelTerms())
        >>> replicas.tick({"a"}, 0.0)
        >>> replicas.orders("a")
        ((('resnet', ''),), ())
    """

    def __init__(
        self,
        choose: Callable[[str, ModelTerms, tuple[str, ...]], str | None],
        release: Callable[[str, str], object],
    ) -> None:
        self._choose, self._release = choose, release
        self._models: dict[str, _Model] = {}
        self._forgotten: dict[str, None] = {}
        self._on_node: dict[str, dict[str, None]] = {}

    def set(self, name: str, terms: ModelTerms) -> None:
        """Serve a model by these terms; a new version goes replica by replica."""
        self._forgotten.pop(name, None)
        if name in self._models:
            model = self._models[name]
            if (terms.device, terms.bytes) != (model.terms.device, model.terms.bytes):
                for node in list(model.assigned):
                    self._unassign(name, model, node)
            model.terms = terms
        else:
            self._models[name] = _Model(terms)

    def forget(self, name: str) -> None:
        """Unload a model from all nodes."""
        model = self._models.pop(name, None)
        if model is not None:
            for node in list(model.assigned):
                self._unassign(name, model, node)
            self._forgotten[name] = None

    def let_go(self, name: str) -> None:
        """Decide no longer about a model; nodes serve it as they do."""
        model = self._models.pop(name, None)
        if model is not None:
            for node in list(model.assigned):
                self._unassign(name, model, node)

    def report(self, node: str, report: NodeReport) -> bool:
        """Take a node's report; return whether the nodes of a model may have changed."""
        changed = False
        names = self._on_node.get(node, {})
        if not names and not report.models:
            return False
        for name in [*names, *(name for name in report.models if name not in names)]:
            model = self._models.get(name)
            if model is not None:
                before, now = model.reported.get(node), report.models.get(name)
                changed = changed or (before is None) != (now is None)
                if now is None:
                    model.reported.pop(node, None)
                else:
                    changed = changed or (before is not None and before.versions != now.versions)
                    model.reported[node] = now
                    if model.is_ready(node):
                        self._release(name, node)
        here = {name: None for name in report.models if name in self._models}
        self._on_node[node] = here | {name: None for name in names if self._has(name, node)}
        return changed

    def lost(self, node: str) -> None:
        """Forget a node's replicas."""
        for name in self._on_node.pop(node, {}):
            model = self._models.get(name)
            if model is not None:
                model.reported.pop(node, None)
                if node in model.assigned:
                    self._unassign(name, model, node)

    def orders(self, node: str) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
        """What a node has to load and to unload, as (model, version)."""
        load, unload = [], []
        for name in self._on_node.get(node, {}):
            model = self._models.get(name)
            if model is None:
                continue
            report, version = model.reported.get(node), model.assigned.get(node)
            if version is None:
                unload.append((name, ""))
            elif report is None or version not in ("", *report.versions):
                load.append((name, version))
            elif version:
                unload += [(name, old) for old in report.versions if old != version]
        return tuple(load), tuple(unload)

    def forgotten(self, report: NodeReport) -> tuple[tuple[str, str], ...]:
        """What a node has of models that were forgotten, to unload."""
        return tuple((name, "") for name in report.models if name in self._forgotten) if self._forgotten else ()

    def serving(self) -> dict[str, tuple[str, ...]]:
        """By model, the nodes where a version is ready."""
        nodes = {
            name: tuple(sorted(n for n, r in m.reported.items() if r.versions)) for name, m in self._models.items()
        }
        return dict(sorted(nodes.items()))

    def is_on(self, node: str) -> bool:
        """Whether a model is assigned to a node or loaded there."""
        return any(node in model.assigned or node in model.reported for model in self._of(node))

    def assigned(self) -> dict[str, dict[str, str]]:
        """By model and node, the version that it has to have."""
        return {name: dict(sorted(model.assigned.items())) for name, model in sorted(self._models.items())}

    def terms(self) -> dict[str, ModelTerms]:
        """By model, its terms."""
        return {name: model.terms for name, model in sorted(self._models.items())}

    # -- deciding -----------------------------------------------------------------------------------------------

    def tick(self, ready: Collection[str], now: float) -> None:
        """Set how many replicas each model has and where; `ready` are the nodes that new ones may go to or stay on."""
        for name, model in sorted(self._models.items()):
            wanted = self._wanted(model, now)
            staying = [node for node in model.assigned if node in ready]
            is_full = False
            for _ in range(wanted - len(staying)):
                node = self._choose(name, model.terms, tuple(model.assigned))
                if node is None:
                    is_full = True
                    break
                model.assigned[node] = model.terms.version
                self._on_node.setdefault(node, {})[name] = None
                staying.append(node)
            self._leave(name, model, staying, wanted, is_full)
            self._renew(model, staying)

    def _wanted(self, model: _Model, now: float) -> int:
        terms = model.terms
        have = max(len(model.assigned), 1)
        in_flight = sum(report.in_flight for report in model.reported.values())
        needed = min(max(math.ceil(in_flight / terms.target), terms.minimum), terms.maximum)
        if needed >= len(model.assigned) or in_flight > terms.target * (have - 1) / 2:
            model.calm_since = None
            return min(max(needed, len(model.assigned)), terms.maximum) if needed < len(model.assigned) else needed
        if model.calm_since is None:
            model.calm_since = now
        if now - model.calm_since < CALM_S:
            return min(len(model.assigned), terms.maximum)
        model.calm_since = now
        return max(len(model.assigned) - 1, terms.minimum)

    def _leave(self, name: str, model: _Model, staying: list[str], wanted: int, is_full: bool) -> None:
        """Take replicas away that are too many, and those of draining nodes that others have replaced.

        Where no node has room for another (`is_full`), those that are left have to do, if there are any.
        """
        while len(staying) > wanted:
            idle = min(staying, key=lambda node: (model.is_ready(node), _in_flight(model, node), node))
            staying.remove(idle)
            self._unassign(name, model, idle)
        leaving = sorted(set(model.assigned) - set(staying))
        if (
            leaving
            and (len(staying) >= wanted or (is_full and staying))
            and all(model.is_ready(node) for node in staying)
        ):
            for node in leaving:
                self._unassign(name, model, node)

    def _renew(self, model: _Model, staying: list[str]) -> None:
        """Give one replica more the terms' version, once those that were given it have it ready."""
        old = sorted(node for node in staying if not model.fits(node))
        if old and all(model.is_ready(node) for node in staying if model.fits(node)):
            model.assigned[old[0]] = model.terms.version

    def _unassign(self, name: str, model: _Model, node: str) -> None:
        del model.assigned[node]
        self._release(name, node)

    def _has(self, name: str, node: str) -> bool:
        model = self._models.get(name)
        return model is not None and (node in model.assigned or node in model.reported)

    def _of(self, node: str) -> list[_Model]:
        return [model for name in self._on_node.get(node, {}) if (model := self._models.get(name)) is not None]

    # -- state --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All models, as JSON."""
        models = {
            name: {
                "terms": asdict(model.terms),
                "assigned": dict(sorted(model.assigned.items())),
                "reported": {node: [list(r.versions), r.in_flight] for node, r in sorted(model.reported.items())},
                "calm_since": model.calm_since,
            }
            for name, model in self._models.items()
        }
        return {"models": dict(sorted(models.items())), "forgotten": sorted(self._forgotten)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take a state; the memory of replicas is counted already."""
        for name, row in state["models"].items():
            reported = {node: ReplicaReport(tuple(versions), n) for node, (versions, n) in row["reported"].items()}
            self._models[name] = _Model(ModelTerms(**row["terms"]), dict(row["assigned"]), reported, row["calm_since"])
            for node in {**row["assigned"], **row["reported"]}:
                self._on_node.setdefault(node, {})[name] = None
        self._forgotten = dict.fromkeys(state["forgotten"])


def _in_flight(model: _Model, node: str) -> int:
    report = model.reported.get(node)
    return report.in_flight if report is not None else 0
