// A conversation with an app by the API that engines share.

export type Message = { role: "user" | "assistant"; content: string };

/** Splits a stream of server-sent events. `rest` is the beginning of an event that is not complete yet. */
export function eventsOf(text: string): { data: string[]; rest: string } {
  const parts = text.split(/\r?\n\r?\n/);
  const rest = parts.pop() ?? "";
  const data = parts.flatMap((part) => {
    const lines = part.split(/\r?\n/).flatMap((line) => (line.startsWith("data:") ? [line.slice(5).replace(/^ /, "")] : []));
    return lines.length > 0 ? [lines.join("\n")] : [];
  });
  return { data, rest };
}

const isObject = (v: unknown): v is Record<string, unknown> => typeof v === "object" && v !== null;

/** The error text in a JSON answer of an engine or a gateway, or "". */
function errorIn(v: unknown): string {
  if (!isObject(v)) return "";
  if (typeof v.error === "string") return v.error;
  if (isObject(v.error) && typeof v.error.message === "string") return v.error.message;
  if (typeof v.message === "string") return v.message;
  return typeof v.detail === "string" ? v.detail : "";
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** What one event adds to the answer. Throws the error that the event reports. */
export function deltaOf(data: string): string {
  const v = parsed(data);
  const error = errorIn(v);
  if (error) throw new Error(error);
  if (!isObject(v) || !Array.isArray(v.choices)) return "";
  const choice: unknown = v.choices[0];
  if (!isObject(choice)) return "";
  const from = isObject(choice.delta) ? choice.delta : choice.message;
  if (!isObject(from)) return "";
  const text = from.content ?? from.reasoning_content;
  return typeof text === "string" ? text : "";
}

/** Says why an app answered with an error, and what to do. */
export function refusalOf(status: number, body: string): string {
  const said = errorIn(parsed(body)) || body.slice(0, 300).trim();
  const text = `The app answered ${status}${said ? `: ${said}` : ""}.`.replace(/\.\.$/, ".");
  if (status === 401 || status === 403) return `${text} Enter one of the app's keys, or the key that its engine asks for.`;
  if (status === 404 || status === 405) return `${text} The page needs an app with POST /v1/chat/completions, as vLLM and SGLang have it.`;
  return text;
}

/** What the app's file needs so that a browser may read its answers. */
export const corsOf = (origin: string) => `routing:\n  cors:\n    origins: [${origin}]\n    headers: [Authorization, Content-Type]`;

/** The names of the models that an app serves. */
export function modelsOf(body: string): string[] {
  const v = parsed(body);
  if (!isObject(v) || !Array.isArray(v.data)) return [];
  return v.data.flatMap((m: unknown) => (isObject(m) && typeof m.id === "string" ? [m.id] : []));
}

export type Pace = { firstMs: number; perSecond: number };

/** How fast an answer came. `parts` counts its events with text, which are tokens for most engines. */
export function paceOf(begunAt: number, firstAt: number, endedAt: number, parts: number): Pace {
  const seconds = (endedAt - firstAt) / 1000;
  return { firstMs: Math.max(0, Math.round(firstAt - begunAt)), perSecond: parts > 1 && seconds > 0 ? (parts - 1) / seconds : 0 };
}
