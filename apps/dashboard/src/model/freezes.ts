// Freezes and the form that makes one, in words.
import { Freeze_OnStart, type Freeze } from "../gen/windlass/v1/freeze_pb.js";
import { absolute, ms, relative } from "./time.js";
import type { Word } from "./words.js";

export type Scope = { kind: "workspace" | "project" | "app"; name: string };

export const scopeText = (s: { project: string; app: string }) => (s.app ? `app ${s.app}` : s.project ? `project ${s.project}` : "the workspace");

/** What a request says of the scope. */
export const scopeFields = (s: Scope) => ({ project: s.kind === "project" ? s.name : "", app: s.kind === "app" ? s.name : "" });

const window = /^((?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?((?:[01]\d|2[0-3]):[0-5]\d)\s*[-–]\s*((?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?((?:[01]\d|2[0-3]):[0-5]\d)$/;

/** Windows, one on each line. Throws with the line that is none. */
export function parseWindows(text: string): { start: string; end: string }[] {
  const out: { start: string; end: string }[] = [];
  text.split("\n").forEach((line, i) => {
    const trimmed = line.trim();
    if (!trimmed) return;
    const m = window.exec(trimmed);
    if (!m || Boolean(m[1]) !== Boolean(m[3])) throw new Error(`Window ${i + 1}, "${trimmed}", is none: write "Fri 16:00 - Mon 08:00" for every week, or "22:00 - 06:00" for every day.`);
    out.push({ start: `${m[1] ?? ""}${m[2]}`, end: `${m[3] ?? ""}${m[4]}` });
  });
  return out;
}

/** The time of a field for date and time, in the browser's time zone; 0: the field is empty. */
export const fieldTime = (value: string) => (value ? new Date(value).getTime() : 0);

export type FreezeForm = { scope: Scope; hold: boolean; from: number; until: number; weekly: string; zone: string };

/** What a freeze of the form will do. */
export function freezeEffect(f: FreezeForm): string {
  const where = f.scope.kind === "workspace" ? "the workspace" : `${f.scope.kind} ${f.scope.name || "…"}`;
  const when = `${f.from > 0 ? `From ${absolute(f.from)}` : "From now"} ${f.until > 0 ? `until ${absolute(f.until)}` : "until somebody lifts it"}`;
  const windows = f.weekly.trim() ? `, within the windows (${f.zone || "UTC"})` : "";
  const what = f.hold ? "deploys are accepted, and their rollouts wait for its end" : "deploys and changes of variables are refused";
  return `${when}${windows}, no rollout of ${where} starts: ${what}. New values of secrets that a frozen app runs with are refused. Rollouts that have begun go on. Scaling, rollback, abort and deletion are never frozen.`;
}

/** What lifting the freeze does. */
export const liftEffect = (f: Freeze) =>
  `${f.onStart === Freeze_OnStart.HOLD ? "Rollouts that it holds start at once, unless another freeze holds them." : "Deploys are accepted again at once, unless another freeze refuses them."} It is deleted.`;

export function freezeState(f: Freeze, now: number): { word: Word; text: string } {
  if (f.inForce) return { word: { text: "in force", tone: "warn" }, text: f.inForceUntil > 0n ? `until ${absolute(ms(f.inForceUntil))}` : "until it is lifted" };
  if (f.nextAt > 0n) return { word: { text: "waits", tone: "idle" }, text: `next ${relative(ms(f.nextAt), now)}, ${absolute(ms(f.nextAt))}` };
  return { word: { text: "over", tone: "idle" }, text: f.until > 0n ? `ended ${relative(ms(f.until), now)}` : "" };
}
