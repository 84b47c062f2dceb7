// A program on the client that openapi-typescript makes: run by tests/clients against a live server.
import createClient from "openapi-fetch";
import type { components, paths } from "./opbox";

type Tensor = components["schemas"]["Tensor"];

declare const process: { env: Record<string, string | undefined> };

const client = createClient<paths>({
  baseUrl: process.env["OPBOX_URL"] ?? "",
  headers: { Authorization: `Bearer ${process.env["OPBOX_TOKEN"]}` },
});

const graph = {
  nodes: [
    { op: "null", name: "x", inputs: [] },
    { op: "square", name: "y", inputs: [[0, 0, 0]] },
  ],
  arg_nodes: [0],
  heads: [[1, 0, 0]],
};
const x: Tensor = { name: "x", shape: [3], datatype: "FP32", data: [1, 2, 3] };

const shapes = await client.POST("/v1/infer_shape", { body: { graph, shapes: { x: [3] } } });
if (shapes.error) throw new Error(shapes.error.error);

const run = await client.POST("/v1/forward", { body: { graph, inputs: [x] } });
if (run.error) throw new Error(run.error.error);

const opened = await client.POST("/v1/sessions", { body: { device: "cpu" } });
if (opened.error) throw new Error(opened.error.error);
const path = { id: opened.data.id };
const batch = await client.POST("/v1/sessions/{id}/commands", {
  params: { path },
  body: {
    inputs: [x],
    commands: [
      { do: "put", id: 1, tensor: "x" },
      { do: "fetch", id: 1, as: "back" },
    ],
  },
});
if (batch.error) throw new Error(batch.error.error);
await client.DELETE("/v1/sessions/{id}", { params: { path } });

const wrong = await client.GET("/v1/ops/{name}", { params: { path: { name: "FullyConected" } } });
const answer = run.data;
const results = batch.data;
if (typeof answer === "string" || typeof results === "string" || !("outputs" in results)) throw new Error("no JSON");
console.log(
  JSON.stringify({
    shapes: shapes.data.out_shapes,
    outputs: answer.outputs,
    batch: results.outputs,
    error: wrong.error?.error,
  }),
);
