// Commands that ask an app something, to be copied.
import { quoted } from "./shell.js";

export type Ask = "chat" | "completions" | "embeddings" | "get";

/** Paths and bodies of the API that engines share, and a request of nothing in particular. */
const bodies: Record<Exclude<Ask, "get">, (model: string, text: string) => [path: string, body: object]> = {
  chat: (model, text) => ["/v1/chat/completions", { model, messages: [{ role: "user", content: text }], stream: true }],
  completions: (model, text) => ["/v1/completions", { model, prompt: text, stream: true }],
  embeddings: (model, text) => ["/v1/embeddings", { model, input: text }],
};

/** With a key, the value of the app key is read from $APP_KEY, so that it is not in the history of a shell. */
export function tryCommand(ask: Ask, url: string, model: string, text: string, withKey: boolean): string {
  const key = withKey ? [' -H "Authorization: Bearer $APP_KEY"'] : [];
  if (ask === "get") return [`curl -i ${quoted(`${url}/`)}`, ...key].join(" \\\n ");
  const [path, body] = bodies[ask](model, text);
  return [`curl -sN ${quoted(`${url}${path}`)}`, ...key, ` -H 'Content-Type: application/json'`, ` -d ${quoted(JSON.stringify(body))}`].join(" \\\n ");
}
