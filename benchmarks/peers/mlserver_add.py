"""A model of MLServer's for `serving_vs_peers.py`: y = x + 1."""

from __future__ import annotations

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class AddOne(MLModel):
    """Answers the first input, plus one."""

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        values = NumpyCodec.decode_input(payload.inputs[0])
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", values + 1)])
