"""Evaluation metrics, as MXNet's: what `fit` and `score` report. Values are computed here, from fetched outputs.

Nothing here waits for a training step: an update holds on to the values under way, and reading the metric settles it.
"""

from ..absent import module_getattr
from .classification import (
    F1,
    MCC,
    PCC,
    Accuracy,
    CrossEntropy,
    NegativeLogLikelihood,
    Perplexity,
    TopKAccuracy,
)
from .composite import CompositeEvalMetric, CustomMetric, create, np
from .eval_metric import EvalMetric, alias, check_label_shapes, register
from .regression import MAE, MSE, RMSE, Caffe, Loss, PearsonCorrelation, Torch

__all__ = [
    "F1",
    "MAE",
    "MCC",
    "MSE",
    "PCC",
    "RMSE",
    "Accuracy",
    "Caffe",
    "CompositeEvalMetric",
    "CrossEntropy",
    "CustomMetric",
    "EvalMetric",
    "Loss",
    "NegativeLogLikelihood",
    "PearsonCorrelation",
    "Perplexity",
    "TopKAccuracy",
    "Torch",
    "alias",
    "check_label_shapes",
    "create",
    "np",
    "register",
]

__getattr__ = module_getattr(__name__, __all__)
