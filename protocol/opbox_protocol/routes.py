"""The paths of the HTTP interface: the server's table of routes and the client's calls name them from here."""

from __future__ import annotations

__all__ = [
    "ABOUT",
    "ADMIN_MODELS",
    "ADMIN_SESSION",
    "ADMIN_SESSIONS",
    "ADMIN_USAGE",
    "BACKWARD",
    "BLOCK",
    "BLOCKS",
    "CHECKPOINT",
    "CHECKPOINTS",
    "COMMANDS",
    "CUDA_MEMORY",
    "CUDA_MEMORY_REGION",
    "DATASET",
    "DATASETS",
    "DEVICES",
    "EVENTS",
    "EXECUTOR",
    "EXECUTORS",
    "EXECUTOR_DRAWING",
    "FORWARD",
    "GRAD",
    "GRAPHS",
    "GRAPH_PREFIX",
    "HEAD_GRAD",
    "HISTORY",
    "INFER_SHAPE",
    "INFER_TYPE",
    "LISTED_MODEL",
    "LISTED_VERSION",
    "LIVE",
    "LOGGING",
    "METRICS",
    "MODEL",
    "MODELS",
    "MODELS_STATISTICS",
    "MODEL_BACKWARD",
    "MODEL_DRAWING",
    "MODEL_INFER",
    "MODEL_LOAD",
    "MODEL_OUTPUTS",
    "MODEL_TEXTS",
    "MODEL_TRACE",
    "MODEL_UNLOAD",
    "MODEL_VERSION",
    "MODEL_VERSION_BACKWARD",
    "MODEL_VERSION_INFER",
    "MODEL_VERSION_OUTPUTS",
    "NO_ROUTE",
    "OPERATOR",
    "OPERATORS",
    "READY",
    "REPOSITORY_INDEX",
    "REQUEST",
    "SESSION",
    "SESSIONS",
    "SESSION_GRAPHS",
    "SYSTEM_MEMORY",
    "SYSTEM_MEMORY_REGION",
    "TRACE",
    "USAGE",
]

NO_ROUTE = "expected one of the routes of GET /openapi.json"
"""How the error for a path that is none ends."""
GRAPHS = "/v1/graphs"
INFER_SHAPE = "/v1/infer_shape"
INFER_TYPE = "/v1/infer_type"
FORWARD = "/v1/forward"
BACKWARD = "/v1/backward"
OPERATORS = "/v1/ops"
OPERATOR = "/v1/ops/{name}"
SESSIONS = "/v1/sessions"
SESSION = "/v1/sessions/{id}"
COMMANDS = "/v1/sessions/{id}/commands"
METRICS = "/v1/history/{session}"
HISTORY = "/v1/history"
CHECKPOINTS = "/v1/checkpoints"
CHECKPOINT = "/v1/checkpoints/{checkpoint}"
BLOCKS = "/v1/blocks"
BLOCK = "/v1/blocks/{block}"
DATASETS = "/v1/datasets"
DATASET = "/v1/datasets/{dataset}"
ADMIN_SESSIONS = "/v1/admin/sessions"
ADMIN_SESSION = "/v1/admin/sessions/{id}"
ADMIN_USAGE = "/v1/admin/usage"
ADMIN_MODELS = "/v1/admin/models"
USAGE = "/v1/usage"
EXECUTORS = "/v1/sessions/{id}/executors"
EXECUTOR = "/v1/sessions/{id}/executors/{executor}"
EXECUTOR_DRAWING = "/v1/sessions/{id}/executors/{executor}/drawings/{drawing}"
REQUEST = "/v1/requests/{request}"
DEVICES = "/v1/devices"
EVENTS = "/v1/events"
ABOUT = "/v2"
LIVE = "/v2/health/live"
READY = "/v2/health/ready"
MODEL = "/v2/models/{model}"
MODEL_BACKWARD = "/v2/models/{model}/backward"
MODEL_INFER = "/v2/models/{model}/infer"
MODEL_OUTPUTS = "/v2/models/{model}/outputs"
MODEL_VERSION = "/v2/models/{model}/versions/{version}"
MODEL_VERSION_BACKWARD = "/v2/models/{model}/versions/{version}/backward"
MODEL_VERSION_INFER = "/v2/models/{model}/versions/{version}/infer"
MODEL_VERSION_OUTPUTS = "/v2/models/{model}/versions/{version}/outputs"
MODEL_TEXTS = tuple(f"{path}/{verb}" for path in (MODEL, MODEL_VERSION) for verb in ("generate", "generate_stream"))
"""Triton's routes for texts, which no model takes."""
MODELS = "/v1/models"
MODEL_DRAWING = "/v1/models/{model}/versions/{version}/drawings/{drawing}"
LISTED_MODEL = "/v1/models/{model}"
LISTED_VERSION = "/v1/models/{model}/versions/{version}"
MODELS_STATISTICS = "/v2/models/stats"
REPOSITORY_INDEX = "/v2/repository/index"
MODEL_LOAD = "/v2/repository/models/{model}/load"
MODEL_UNLOAD = "/v2/repository/models/{model}/unload"
LOGGING = "/v2/logging"
TRACE = "/v2/trace/setting"
MODEL_TRACE = "/v2/models/{model}/trace/setting"
SYSTEM_MEMORY = "/v2/systemsharedmemory"
SYSTEM_MEMORY_REGION = "/v2/systemsharedmemory/region/{region}"
CUDA_MEMORY = "/v2/cudasharedmemory"
CUDA_MEMORY_REGION = "/v2/cudasharedmemory/region/{region}"

HEAD_GRAD = "head_grad:"
"""A tensor with this before its name is the gradient of that output, in a request for gradients."""
GRAD = "grad:"
"""A tensor with this before its name is the gradient of that argument, in the answer."""
GRAPH_PREFIX = "sha256:"
"""A graph that was sent before is named by this and its hash (`symbol_json.content_hash`)."""
SESSION_GRAPHS = 16
"""The graphs that a session surely knows by hash: those that it was last sent or asked about."""
