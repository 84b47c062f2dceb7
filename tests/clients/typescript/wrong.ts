// What the types refuse: each line marked here must be an error of tsc.
import createClient from "openapi-fetch";
import type { paths } from "./opbox";

const client = createClient<paths>({ baseUrl: "" });
await client.POST("/v1/forwards", {}); // error: no such route
await client.POST("/v1/sessions/{id}/commands", { body: { commands: [] } }); // error: the path's id is missing
const data = { name: "x", shape: [1], datatype: "FLOAT", data: [1] } as const;
await client.POST("/v1/forward", { body: { graph: "sha256:0", inputs: [data] } }); // error: no such datatype
