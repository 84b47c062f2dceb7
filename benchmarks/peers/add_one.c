/* A backend of Triton's in C: OUTPUT0 = INPUT0 + 1, for float32. The least that a backend can do; for
   benchmarks/serving_vs_peers.py. The declarations are those of Triton's backend interface that it uses. */

#include <stdint.h>

typedef struct Error Error;
typedef struct Request Request;
typedef struct Response Response;
typedef struct Input Input;
typedef struct Output Output;
typedef struct Instance Instance;

enum { COMPLETE = 1, RELEASE_ALL = 1 };

Error *TRITONBACKEND_RequestInputByIndex(Request *, uint32_t, Input **);
Error *TRITONBACKEND_InputProperties(Input *, const char **, int *, const int64_t **, uint32_t *, uint64_t *, uint32_t *);
Error *TRITONBACKEND_InputBuffer(Input *, uint32_t, const void **, uint64_t *, int *, int64_t *);
Error *TRITONBACKEND_ResponseNew(Response **, Request *);
Error *TRITONBACKEND_ResponseOutput(Response *, Output **, const char *, int, const int64_t *, uint32_t);
Error *TRITONBACKEND_OutputBuffer(Output *, void **, uint64_t, int *, int64_t *);
Error *TRITONBACKEND_ResponseSend(Response *, uint32_t, Error *);
Error *TRITONBACKEND_RequestRelease(Request *, uint32_t);

static Error *answer(Request *request) {
  Error *error;
  Input *input;
  Output *output;
  Response *response;
  const char *name;
  const int64_t *shape;
  uint64_t bytes;
  uint32_t axes, buffers;
  int type, memory = 0;
  int64_t device = 0;
  void *to;
  if ((error = TRITONBACKEND_RequestInputByIndex(request, 0, &input)) ||
      (error = TRITONBACKEND_InputProperties(input, &name, &type, &shape, &axes, &bytes, &buffers)) ||
      (error = TRITONBACKEND_ResponseNew(&response, request)) ||
      (error = TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT0", type, shape, axes)) ||
      (error = TRITONBACKEND_OutputBuffer(output, &to, bytes, &memory, &device)))
    return error;
  float *values = to;
  for (uint32_t i = 0; i < buffers; i++) {
    const void *from;
    uint64_t part;
    if ((error = TRITONBACKEND_InputBuffer(input, i, &from, &part, &memory, &device))) return error;
    for (uint64_t j = 0; j < part / sizeof(float); j++) *values++ = ((const float *)from)[j] + 1.0f;
  }
  return TRITONBACKEND_ResponseSend(response, COMPLETE, 0);
}

Error *TRITONBACKEND_ModelInstanceExecute(Instance *instance, Request **requests, const uint32_t count) {
  (void)instance;
  for (uint32_t i = 0; i < count; i++) {
    Error *error = answer(requests[i]);
    if (error) return error;
    TRITONBACKEND_RequestRelease(requests[i], RELEASE_ALL);
  }
  return 0;
}
