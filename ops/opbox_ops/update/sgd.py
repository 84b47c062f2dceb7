"""sgd_update and its kin: steps along the gradient, with momentum, with Nesterov's, or along its sign alone.

With d = clip(rescale_grad * grad) + wd * weight:

    sgd_update         weight - lr * d
    sgd_mom_update     mom = momentum * mom - lr * d;  weight + mom
    nag_mom_update     mom as above;  weight + momentum * mom - lr * d
    signsgd_update     (1 - lr * wd) * weight - lr * sign(grad)
    signum_update      mom = momentum * mom - (1 - momentum) * d;  (1 - lr * wd_lh) * weight + lr * sign(mom)

All arrays and the output, the new weight, have one shape.

The mp_ forms keep weight32, a float32 copy of a float16 weight, and compute with it.
"""

from __future__ import annotations

from typing import ClassVar

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


_SGD = "y = x - lr * q"
_MOMENTUM = """
mom = momentum * mom - lr * q
y = x + mom"""
_NESTEROV = """
mom = momentum * mom - lr * q
y = x + (momentum * mom - lr * q)"""
_SIGN = "y = (1 - lr * wd) * x - lr * sign(grad)"
_SIGNUM = """
mom = momentum * mom - (1 - momentum) * q
y = (1 - lr * wd_lh) * x + lr * sign(mom)"""

_SGD_CUDA = "y = x - lr * q;"
_MOMENTUM_CUDA = "mom = momentum * mom - lr * q; y = x + mom;"
_NESTEROV_CUDA = "mom = momentum * mom - lr * q; y = x + momentum * mom - lr * q;"
_SIGN_CUDA = "y = (1 - lr * wd) * x - lr * ((grad > 0) - (grad < 0));"
_SIGNUM_CUDA = "mom = momentum * mom - (1 - momentum) * q; y = (1 - lr * wd_lh) * x + lr * ((mom > 0) - (mom < 0));"

declare("sgd_update", SgdParams, (), _SGD, _SGD_CUDA, "clip first", "One step of SGD.")
declare("mp_sgd_update", SgdParams, (), _SGD, _SGD_CUDA, "clip first", "One step of SGD on a float32 copy.", mixed=True)
declare(
    "sgd_mom_update",
    SgdMomentumParams,
    ("mom",),
    _MOMENTUM,
    _MOMENTUM_CUDA,
    "clip first",
    "One step of SGD with momentum.",
)
declare(
    "mp_sgd_mom_update",
    SgdMomentumParams,
    ("mom",),
    _MOMENTUM,
    _MOMENTUM_CUDA,
    "clip first",
    "One step of SGD with momentum on a float32 copy.",
    mixed=True,
)
declare(
    "nag_mom_update",
    MomentumParams,
    ("mom",),
    _NESTEROV,
    _NESTEROV_CUDA,
    "clip first",
    "One step of SGD with Nesterov's momentum.",
)
declare(
    "mp_nag_mom_update",
    MomentumParams,
    ("mom",),
    _NESTEROV,
    _NESTEROV_CUDA,
    "clip first",
    "One step of SGD with Nesterov's momentum on a float32 copy.",
    mixed=True,
)
declare("signsgd_update", UpdateParams, (), _SIGN, _SIGN_CUDA, "raw", "One step along the gradient's sign.")
declare(
    "signum_update", SignumParams, ("mom",), _SIGNUM, _SIGNUM_CUDA, "clip first", "One step along the momentum's sign."
)
