"""sgd_update and its kin: steps along the gradient, with momentum, with Nesterov's, or along its sign alone.

With d = clip(rescale_grad * grad) + wd * weight:

    sgd_update         weight - lr * d
    sgd_mom_update     mom = momentum * mom - lr * d;  weight + mom
    nag_mom_update     mom as above;  weight + momentum * mom - lr * d
    signsgd_update     (1 - lr * wd) * weight - lr * sign(grad)
    signum_update      mom = momentum * mom - (1 - momentum) * d;  (1 - lr * wd_lh) * weight + lr * sign(mom)

The mp_ forms keep weight32, a float32 copy of a float16 weight, and compute with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..compute import Array
from ..params import Bool, Field, Float
from .family import UpdateParams, declare


class SgdParams(UpdateParams):
    lazy_update: Bool = Field(True, description="Accepted; it concerns sparse gradients, and every array is dense.")


class MomentumParams(UpdateParams):
    positional: ClassVar[tuple[str, ...]] = ("lr", "momentum")
    momentum: Float = Field(0.0, description="How much of the last step is kept.")


class SgdMomentumParams(MomentumParams):
    lazy_update: Bool = Field(True, description="Accepted; it concerns sparse gradients, and every array is dense.")


class SignumParams(MomentumParams):
    wd_lh: Float = Field(0.0, description="Weight decay that acts on the weight and not through the gradient.")


def _sgd(p: SgdParams, w: Array, d: Array, t: Array, states: Sequence[Array], new: Array, grad: Array) -> None:
    d *= p.lr
    np.subtract(w, d, out=new)


def _momentum(
    p: MomentumParams, w: Array, d: Array, t: Array, states: Sequence[Array], new: Array, grad: Array
) -> None:
    (mom,) = states
    mom *= p.momentum
    d *= p.lr
    mom -= d
    np.add(w, mom, out=new)


def _nesterov(
    p: MomentumParams, w: Array, d: Array, t: Array, states: Sequence[Array], new: Array, grad: Array
) -> None:
    (mom,) = states
    mom *= p.momentum
    d *= p.lr
    mom -= d
    np.multiply(mom, p.momentum, out=t)
    t -= d
    np.add(w, t, out=new)


def _sign(p: UpdateParams, w: Array, d: Array, t: Array, states: Sequence[Array], new: Array, grad: Array) -> None:
    np.sign(grad, out=d)
    d *= p.lr
    np.multiply(w, 1.0 - p.lr * p.wd, out=t)
    np.subtract(t, d, out=new)


def _signum(p: SignumParams, w: Array, d: Array, t: Array, states: Sequence[Array], new: Array, grad: Array) -> None:
    (mom,) = states
    mom *= p.momentum
    d *= 1.0 - p.momentum
    mom -= d
    np.sign(mom, out=d)
    d *= p.lr
    np.multiply(w, 1.0 - p.lr * p.wd_lh, out=t)
    np.add(t, d, out=new)


_SGD = "y = x - lr * q;"
_MOMENTUM = "mom = momentum * mom - lr * q; y = x + mom;"
_NESTEROV = "mom = momentum * mom - lr * q; y = x + momentum * mom - lr * q;"
_SIGN = "y = (1 - lr * wd) * x - lr * ((grad > 0) - (grad < 0));"
_SIGNUM = "mom = momentum * mom - (1 - momentum) * q; y = (1 - lr * wd_lh) * x + lr * ((mom > 0) - (mom < 0));"

declare("sgd_update", SgdParams, (), _sgd, _SGD, "clip first", "One step of SGD.")
declare("mp_sgd_update", SgdParams, (), _sgd, _SGD, "clip first", "One step of SGD on a float32 copy.", mixed=True)
declare(
    "sgd_mom_update",
    SgdMomentumParams,
    ("mom",),
    _momentum,
    _MOMENTUM,
    "clip first",
    "One step of SGD with momentum.",
)
declare(
    "mp_sgd_mom_update",
    SgdMomentumParams,
    ("mom",),
    _momentum,
    _MOMENTUM,
    "clip first",
    "One step of SGD with momentum on a float32 copy.",
    mixed=True,
)
declare(
    "nag_mom_update",
    MomentumParams,
    ("mom",),
    _nesterov,
    _NESTEROV,
    "clip first",
    "One step of SGD with Nesterov's momentum.",
)
declare(
    "mp_nag_mom_update",
    MomentumParams,
    ("mom",),
    _nesterov,
    _NESTEROV,
    "clip first",
    "One step of SGD with Nesterov's momentum on a float32 copy.",
    mixed=True,
)
declare("signsgd_update", UpdateParams, (), _sign, _SIGN, "raw", "One step along the gradient's sign.")
declare("signum_update", SignumParams, ("mom",), _signum, _SIGNUM, "clip first", "One step along the momentum's sign.")
