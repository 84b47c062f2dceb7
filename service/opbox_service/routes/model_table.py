"""The table of models' routes: the Open Inference Protocol, publishing, and the server's own calls for models."""

from __future__ import annotations

from opbox_protocol import routes as paths

from . import model_gradients, model_networks, published_models, served_models, server_settings, shared_memory
from .models import Body
from .route import RUN_ERRORS, Handler, Route, RunsOn

__all__ = ["DROP_MODELS", "MODEL_FIGURES", "MODEL_ROUTES", "OWN_CALLS", "PREPARE_CODE", "PREPARE_MODEL"]

MODEL_ROUTES = (
    Route(
        method="POST",
        path=paths.REPOSITORY_INDEX,
        handler=served_models.index,
        tag="models",
        operation="list_models",
        request=served_models.IndexRequest,
        answer=served_models.ModelIndex,
        runs_on=RunsOn.API_WITH_BODY,
        errors=(400,),
    ),
    Route(
        method="POST",
        path=paths.MODEL_LOAD,
        handler=served_models.load,
        tag="models",
        operation="load_model",
        request=served_models.LoadRequest,
        large=True,
        answer=served_models.Finished,
        runs_on=RunsOn.API_WITH_BODY,
        scope=("run", "admin"),
        errors=(400, 403, 404, 507),
    ),
    Route(
        method="POST",
        path=paths.MODEL_UNLOAD,
        handler=served_models.unload,
        tag="models",
        operation="unload_model",
        request=Body,
        answer=served_models.Finished,
        runs_on=RunsOn.API_WITH_BODY,
        scope=("run", "admin"),
        errors=(400, 403, 404),
    ),
    *(
        Route(
            method="GET",
            path=path,
            handler=handler,
            tag="models",
            operation=operation + suffix,
            answer=answer,
            runs_on=RunsOn.API,
            errors=(400, 404),
        )
        for suffix, of in (("", paths.MODEL), ("_version", paths.MODEL_VERSION))
        for path, handler, operation, answer in (
            (of, served_models.metadata, "get_model", served_models.ModelMetadata),
            (of + "/config", served_models.config, "get_model_config", served_models.ModelConfiguration),
            (of + "/ready", served_models.ready, "get_model_ready", served_models.ModelReady),
        )
    ),
    *(
        Route(
            method="POST",
            path=path,
            handler=served_models.infer,
            tag="models",
            operation=operation,
            request=served_models.InferRequest,
            answer=served_models.InferenceAnswer,
            runs_on=RunsOn.MODEL_WORKER,
            tensors=True,
            takes_raw=True,
            errors=RUN_ERRORS,
        )
        for path, operation in ((paths.MODEL_INFER, "infer"), (paths.MODEL_VERSION_INFER, "infer_version"))
    ),
    *(
        Route(
            method="POST",
            path=path,
            handler=served_models.generate,
            tag="models",
            operation=operation,
            request=served_models.GenerateRequest,
            answer=served_models.Finished,
            runs_on=RunsOn.API_WITH_BODY,
            errors=(400, 501),
        )
        for path, operation in zip(
            paths.MODEL_TEXTS,
            ("generate", "generate_stream", "generate_version", "generate_stream_version"),
            strict=True,
        )
    ),
    *(
        Route(
            method="POST",
            path=path,
            handler=model_gradients.model_backward,
            tag="models",
            operation=operation,
            request=model_gradients.ModelBackwardRequest,
            answer=served_models.InferenceAnswer,
            runs_on=RunsOn.MODEL_WORKER,
            tensors=True,
            errors=RUN_ERRORS,
        )
        for path, operation in (
            (paths.MODEL_BACKWARD, "model_backward"),
            (paths.MODEL_VERSION_BACKWARD, "model_version_backward"),
        )
    ),
    *(
        Route(
            method="GET",
            path=path,
            handler=model_gradients.list_outputs,
            tag="models",
            operation=operation,
            answer=model_gradients.ModelOutputs,
            runs_on=RunsOn.MODEL_WORKER,
            errors=(400, 404),
        )
        for path, operation in (
            (paths.MODEL_OUTPUTS, "get_model_outputs"),
            (paths.MODEL_VERSION_OUTPUTS, "get_model_version_outputs"),
        )
    ),
    Route(
        method="GET",
        path=paths.MODELS,
        handler=served_models.models,
        tag="models",
        operation="describe_models",
        answer=served_models.ModelList,
        runs_on=RunsOn.API_WITH_BODY,
        scope=("run", "admin"),
    ),
    Route(
        method="GET",
        path=paths.ADMIN_MODELS,
        handler=served_models.all_models,
        tag="models",
        operation="list_all_models",
        answer=served_models.ModelList,
        runs_on=RunsOn.API_WITH_BODY,
        scope="admin",
        all_owners=True,
    ),
    Route(
        method="GET",
        path=paths.LISTED_VERSION,
        handler=model_networks.model_network,
        tag="models",
        operation="get_model_network",
        answer=model_networks.ServedNetwork,
        runs_on=RunsOn.MODEL_WORKER,
        errors=(400, 404, 413),
    ),
    Route(
        method="GET",
        path=paths.MODEL_DRAWING,
        handler=model_networks.model_drawing,
        tag="models",
        operation="get_model_drawing",
        answer=None,
        media_type="image/svg+xml",
        runs_on=RunsOn.MODEL_WORKER,
        errors=(400, 404, 413),
    ),
    Route(
        method="PUT",
        path=paths.LISTED_MODEL,
        handler=published_models.publish,
        tag="models",
        operation="publish_model",
        request=published_models.PublishRequest,
        answer=published_models.PublishedModel,
        runs_on=RunsOn.API_WITH_BODY,
        tensors=True,
        errors=(400, 409, 413, 422, 501, 504, 507),
    ),
    *(
        Route(
            method="DELETE",
            path=path,
            handler=published_models.remove,
            tag="models",
            operation=operation,
            answer=published_models.RemovedModel,
            runs_on=RunsOn.API_WITH_BODY,
            errors=(400, 404, 501, 504, 507),
        )
        for path, operation in (
            (paths.LISTED_MODEL, "remove_model"),
            (paths.LISTED_VERSION, "remove_model_version"),
        )
    ),
    Route(
        method="GET",
        path=paths.MODELS_STATISTICS,
        handler=served_models.all_statistics,
        tag="models",
        operation="get_statistics",
        answer=served_models.StatisticsAnswer,
        runs_on=RunsOn.API_WITH_BODY,
    ),
    *(
        Route(
            method="GET",
            path=path + "/stats",
            handler=served_models.statistics,
            tag="models",
            operation=operation,
            answer=served_models.StatisticsAnswer,
            runs_on=RunsOn.MODEL_WORKER,
            errors=(400, 404),
        )
        for path, operation in (
            (paths.MODEL, "get_model_statistics"),
            (paths.MODEL_VERSION, "get_model_version_statistics"),
        )
    ),
    # -- shared memory
    *(
        Route(
            method="GET",
            path=path,
            handler=handler,
            tag="models",
            operation=operation,
            answer=shared_memory.RegionList,
            runs_on=RunsOn.API,
            errors=(400, 501),
        )
        for path, handler, operation in (
            (paths.SYSTEM_MEMORY + "/status", shared_memory.regions, "list_regions"),
            (paths.SYSTEM_MEMORY_REGION + "/status", shared_memory.region, "get_region"),
            (paths.CUDA_MEMORY + "/status", shared_memory.cuda_regions, "list_cuda_regions"),
            (paths.CUDA_MEMORY_REGION + "/status", shared_memory.cuda_region, "get_cuda_region"),
        )
    ),
    *(
        Route(
            method="POST",
            path=path,
            handler=handler,
            tag="models",
            operation=operation,
            request=request,
            answer=served_models.Finished,
            runs_on=RunsOn.API_WITH_BODY,
            local=handler is shared_memory.register,
            errors=(400, 403, 429, 501),
        )
        for path, handler, operation, request in (
            (
                paths.SYSTEM_MEMORY_REGION + "/register",
                shared_memory.register,
                "register_region",
                shared_memory.RegionRequest,
            ),
            (paths.SYSTEM_MEMORY_REGION + "/unregister", shared_memory.drop_region, "unregister_region", Body),
            (paths.SYSTEM_MEMORY + "/unregister", shared_memory.drop_regions, "unregister_regions", Body),
            (
                paths.CUDA_MEMORY_REGION + "/register",
                shared_memory.register_cuda,
                "register_cuda_region",
                shared_memory.CudaRegionRequest,
            ),
            (
                paths.CUDA_MEMORY_REGION + "/unregister",
                shared_memory.drop_cuda_region,
                "unregister_cuda_region",
                Body,
            ),
            (paths.CUDA_MEMORY + "/unregister", shared_memory.drop_cuda_region, "unregister_cuda_regions", Body),
        )
    ),
    # -- what clients ask of traces and the log
    *(
        Route(
            method="GET",
            path=path,
            handler=handler,
            tag="health",
            operation=operation,
            answer=answer,
            runs_on=RunsOn.API,
            errors=(400, 404),
        )
        for path, handler, operation, answer in (
            (paths.TRACE, server_settings.get_trace, "get_trace_settings", server_settings.TraceSettings),
            (
                paths.MODEL_TRACE,
                server_settings.get_trace,
                "get_model_trace_settings",
                server_settings.TraceSettings,
            ),
            (paths.LOGGING, server_settings.get_logging, "get_log_settings", server_settings.LogSettings),
        )
    ),
    *(
        Route(
            method="POST",
            path=path,
            handler=handler,
            tag="health",
            operation=operation,
            request=request,
            answer=answer,
            runs_on=RunsOn.API_WITH_BODY,
            errors=(400, 404, 501),
        )
        for path, handler, operation, request, answer in (
            (
                paths.TRACE,
                server_settings.change_trace,
                "change_trace_settings",
                server_settings.TraceChange,
                server_settings.TraceSettings,
            ),
            (
                paths.MODEL_TRACE,
                server_settings.change_trace,
                "change_model_trace_settings",
                server_settings.TraceChange,
                server_settings.TraceSettings,
            ),
            (
                paths.LOGGING,
                server_settings.change_logging,
                "change_log_settings",
                server_settings.LogChange,
                server_settings.LogSettings,
            ),
        )
    ),
)


def _own_call(verb: str, handler: Handler, request: type[Body] | None = None, *, tensors: bool = False) -> Route:
    """A route of the server's own calls to the worker that has a model; no request finds it."""
    return Route(
        method="POST",
        path=f"/internal/models/{{model}}/{verb}",
        handler=handler,
        tag="models",
        request=request,
        answer=None,
        runs_on=RunsOn.MODEL_WORKER,
        tensors=tensors,
        documented=False,
    )


PREPARE_MODEL = _own_call("prepare", served_models.describe)
DROP_MODELS = _own_call("drop", served_models.drop, served_models.DropRequest)
MODEL_FIGURES = _own_call("figures", served_models.figures)
PREPARE_CODE = _own_call("prepare_code", published_models.prepare, published_models.PrepareRequest, tensors=True)
OWN_CALLS = (PREPARE_MODEL, DROP_MODELS, MODEL_FIGURES, PREPARE_CODE)
"""The routes that workers serve to the server alone."""
