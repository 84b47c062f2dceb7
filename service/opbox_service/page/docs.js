// The HTTP API, drawn by Swagger UI from the server's own OpenAPI document.

import { at, PATHS, takeTokenFromAddress, token } from "./api.js";

const PLACEHOLDER = "$OPBOX_TOKEN";
const SIGN_IN = at("/#/docs");

/** Send the tab's token where the placeholder stands, and home only; curl's lines on the page have the placeholder. */
function authorize(request) {
  if (new URL(request.url, location.href).origin !== location.origin) throw new Error("expected an address of this server");
  const placeholder = request.headers?.Authorization === `Bearer ${PLACEHOLDER}`;
  if (request.loadSpec || placeholder) request.headers = { ...request.headers, Authorization: `Bearer ${token.get()}` };
  return request;
}

function leaveWhenRefused(response) {
  if (response.status === 401 && response.url.endsWith(PATHS.openapi)) {
    token.clear();
    location.replace(SIGN_IN);
  }
  return response;
}

/** Double quotes, so that a shell fills in the variable. */
function quoteForTheShell(system) {
  const name = "requestSnippetGenerator_curl_bash";
  const curl = system.fn[name];
  const line = (request) => curl(request).replace(`'Authorization: Bearer ${PLACEHOLDER}'`, `"Authorization: Bearer ${PLACEHOLDER}"`);
  return { fn: { [name]: line } };
}

/** What Swagger UI leaves out: the name of the list of servers, and headings whose levels follow each other. */
function tidy() {
  document.getElementById("servers")?.setAttribute("aria-label", "Server");
  for (const heading of document.querySelectorAll(":is(h3.opblock-tag, .models > h4):not([aria-level])")) heading.setAttribute("aria-level", "2");
}

function show() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
  dark.addEventListener("change", follow);
  follow();
  new MutationObserver(tidy).observe(document.getElementById("main"), { childList: true, subtree: true });
  const ui = SwaggerUIBundle({
    url: at(PATHS.openapi),
    domNode: document.getElementById("main"),
    plugins: [quoteForTheShell],
    deepLinking: true,
    filter: true,
    validatorUrl: null,
    defaultModelsExpandDepth: 0,
    displayRequestDuration: true,
    showMutatedRequest: false,
    requestSnippetsEnabled: true,
    requestSnippets: { languages: ["curl_bash"], defaultExpanded: true },
    requestInterceptor: authorize,
    responseInterceptor: leaveWhenRefused,
    onComplete: () => ui.preauthorizeApiKey("token", PLACEHOLDER),
  });
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
takeTokenFromAddress();
if (token.get()) show();
else location.replace(SIGN_IN);
