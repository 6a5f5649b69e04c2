// How the browser signs in and out. The session's cookie is not visible to scripts, and the page
// keeps no API key: see the control plane's package api.

const header = "Windlass-Dashboard";
export const dashboardHeader: [string, string] = [header, "1"];

export type SessionTimes = { expiresInMs: number; renewAfterMs: number };

export class SessionError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

async function post(path: string, body?: unknown): Promise<unknown> {
  const res = await fetch(`/ui/session/${path}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", [header]: "1" },
    body: body === undefined ? "" : JSON.stringify(body),
    credentials: "same-origin",
    cache: "no-store",
  });
  const text = await res.text();
  let answer: unknown;
  try {
    answer = JSON.parse(text);
  } catch {
    throw new SessionError(res.status, "The control plane did not answer. Is it running?");
  }
  if (!res.ok) throw new SessionError(res.status, sentence(answer));
  return answer;
}

/** An error of Connect, as JSON. */
type Refusal = { message?: string; details?: { debug?: { fix?: string } }[] } | null;

function sentence(answer: unknown): string {
  const refusal = answer as Refusal;
  const text = refusal?.message ?? "the control plane refused it";
  const fix = refusal?.details?.[0]?.debug?.fix;
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.${fix ? ` ${fix}` : ""}`;
}

export async function signInWithKey(key: string): Promise<void> {
  await post("sign-in", { key });
}

export async function signInWithLink(link: string): Promise<void> {
  await post("sign-in", { link });
}

export async function renew(): Promise<SessionTimes> {
  return (await post("renew")) as SessionTimes;
}

export async function signOut(everywhere: boolean): Promise<void> {
  await post(everywhere ? "sign-out-everywhere" : "sign-out");
}

/** Whether people can sign in at an issuer. It is false while the control plane does not answer. */
export async function hasIssuer(signal: AbortSignal): Promise<boolean> {
  try {
    const res = await fetch("/ui/sso/provider", { credentials: "same-origin", cache: "no-store", signal });
    return res.ok && ((await res.json()) as { enabled?: boolean }).enabled === true;
  } catch {
    return false;
  }
}

/** The address at which a person signs in at the issuer, and comes back to the page. */
export const issuerSignIn = (location: Pick<Location, "pathname" | "search">) => `/ui/sso/login?return=${encodeURIComponent(location.pathname + location.search)}`;

/** Takes the value of a sign-in link out of the address, so that it is neither in the history nor copied with it. */
export function takeLink(location: Location, history: History): string | null {
  const match = /^#link=(wll_[\w-]+)$/.exec(location.hash);
  if (!match) return null;
  history.replaceState(history.state, "", location.pathname + location.search);
  return match[1] ?? null;
}
