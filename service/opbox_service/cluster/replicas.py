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
UNLOADED_S = 30.0
"""Seconds after which a replica that was to be unloaded and is still there counts as ready again."""
WITHDRAWN_S = 2.0
"""Seconds for which a node keeps a replica that is not listed any more, so that all gateways know by then."""


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
        withdrawn: by node with a replica that is too many, since when it is not listed.
        unloading: by node, when it was told to unload its replica; until it says that it has, none is ready there.
        stuck: whether it is on nodes alone that it should leave, and no other node has room for it.
    """

    terms: ModelTerms
    assigned: dict[str, str] = field(default_factory=dict)
    reported: dict[str, ReplicaReport] = field(default_factory=dict)
    calm_since: float | None = None
    withdrawn: dict[str, float] = field(default_factory=dict)
    unloading: dict[str, float] = field(default_factory=dict)
    stuck: bool = False

    def is_ready(self, node: str) -> bool:
        """Whether the version that is assigned to the node is ready there."""
        report, version = self.reported.get(node), self.assigned.get(node)
        is_there = report is not None and version is not None and _serves(report, version)
        return is_there and node not in self.unloading

    def listed(self) -> tuple[str, ...]:
        """The nodes that get requests: those to which it is assigned, once one of them has a version ready."""
        ready = [node for node, report in self.reported.items() if report.versions and node not in self.unloading]
        return tuple(sorted([node for node in ready if node in self.assigned] or (ready if self.assigned else ())))

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
        self._on_node: dict[str, dict[str, None]] = {}
        self._now = 0.0

    def set(self, name: str, terms: ModelTerms) -> None:
        """Serve a model by these terms; a new version goes replica by replica."""
        if name in self._models:
            model = self._models[name]
            if (terms.device, terms.bytes) != (model.terms.device, model.terms.bytes):
                for node in list(model.assigned):
                    self._unassign(name, model, node)
            model.terms = terms
        else:
            self._models[name] = _Model(terms)

    def __contains__(self, name: object) -> bool:
        return name in self._models

    def let_go(self, name: str) -> None:
        """Decide no longer about a model; nodes serve it as they do."""
        model = self._models.pop(name, None)
        if model is not None:
            for node in list(model.assigned):
                self._unassign(name, model, node)

    def report(self, node: str, report: NodeReport) -> bool:
        """Take a node's report, as it came; return whether the nodes of a model may have changed."""
        changed = False
        names = self._on_node.setdefault(node, {})
        if not names and not report.models:
            return False
        for name in {**({} if report.since else names), **report.models, **dict.fromkeys(report.unloaded)}:
            model = self._models.get(name)
            if model is not None:
                before, now = model.reported.get(node), report.models.get(name)
                changed = changed or (before is None) != (now is None)
                if now is None:
                    model.reported.pop(node, None)
                    model.unloading.pop(node, None)
                else:
                    changed = changed or (before is not None and before.versions != now.versions)
                    model.reported[node] = now
                    if model.is_ready(node):
                        self._release(name, node)
            if self._has(name, node):
                names[name] = None
            else:
                names.pop(name, None)
        return changed

    def lost(self, node: str) -> None:
        """Forget a node's replicas."""
        for name in self._on_node.pop(node, {}):
            model = self._models.get(name)
            if model is not None:
                model.reported.pop(node, None)
                model.withdrawn.pop(node, None)
                model.unloading.pop(node, None)
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
                if self._now - model.withdrawn.get(node, self._now) >= WITHDRAWN_S:
                    unload.append((name, ""))
                    model.unloading.setdefault(node, self._now)
            elif report is None or version not in ("", *report.versions):
                load.append((name, version))
            elif version:
                unload += [(name, old) for old in report.versions if old != version]
        return tuple(load), tuple(unload)

    def serving(self) -> dict[str, tuple[str, ...]]:
        """By model, the nodes that get its requests."""
        return {name: model.listed() for name, model in self._models.items()}

    def holds(self, node: str) -> bool:
        """Whether a node has a replica that goes: others are to take its place, or it is to be unloaded."""
        models = self._of(node)
        return any((node in model.assigned or node in model.reported) and not model.stuck for model in models)

    def assigned(self) -> dict[str, dict[str, str]]:
        """By model and node, the version that it has to have."""
        return {name: dict(sorted(model.assigned.items())) for name, model in sorted(self._models.items())}

    def terms(self) -> dict[str, ModelTerms]:
        """By model, its terms."""
        return {name: model.terms for name, model in sorted(self._models.items())}

    # -- deciding -----------------------------------------------------------------------------------------------

    def tick(self, ready: Collection[str], now: float) -> None:
        """Set how many replicas each model has and where; `ready` are the nodes that new ones may go to or stay on."""
        self._now = now
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
            model.stuck = is_full and not staying
            self._leave(name, model, staying, wanted, is_full)
            self._renew(model, staying)
            model.unloading = {node: when for node, when in model.unloading.items() if now - when < UNLOADED_S}
            listed = model.listed()
            too_many = [node for node in model.reported if node not in model.assigned and node not in listed]
            model.withdrawn = {node: model.withdrawn.get(node, now) for node in too_many}

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
                "withdrawn": dict(sorted(model.withdrawn.items())),
                "unloading": dict(sorted(model.unloading.items())),
                "stuck": model.stuck,
            }
            for name, model in self._models.items()
        }
        return {"models": dict(sorted(models.items())), "now": self._now}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take a state; the memory of replicas is counted already."""
        for name, row in state["models"].items():
            reported = {node: ReplicaReport(tuple(versions), n) for node, (versions, n) in row["reported"].items()}
            model = _Model(ModelTerms(**row["terms"]), dict(row["assigned"]), reported, row["calm_since"])
            model.withdrawn, model.unloading = dict(row.get("withdrawn", {})), dict(row.get("unloading", {}))
            model.stuck = row.get("stuck", False)
            self._models[name] = model
            for node in {**row["assigned"], **row["reported"]}:
                self._on_node.setdefault(node, {})[name] = None
        self._now = state.get("now", 0.0)


def _in_flight(model: _Model, node: str) -> int:
    report = model.reported.get(node)
    return report.in_flight if report is not None else 0
