// Entries of the audit log, as people look for them.
import type { AuditEntry } from "../gen/windlass/v1/history_pb.js";
import type { Change } from "./diff.js";
import type { Word } from "./words.js";

export type AuditFilter = { who: string; call: string; since: number };

/** The service and the call, without the package that all have. */
export const callName = (procedure: string) => procedure.replace(/^\//, "").replace(/^windlass\.v\d+\./, "");

/** Entries whose caller and call have the texts, from `since` on (unix ms; 0: all). */
export function filterAudit(entries: AuditEntry[], f: AuditFilter): AuditEntry[] {
  const who = f.who.trim().toLowerCase();
  const call = f.call.trim().toLowerCase();
  return entries.filter(
    (e) =>
      (who === "" || `${e.actor} ${e.actorId} ${e.source}`.toLowerCase().includes(who)) &&
      (call === "" || `${callName(e.procedure)} ${e.resourceKind} ${e.resourceId}`.toLowerCase().includes(call)) &&
      Number(e.at) >= f.since,
  );
}

function parsed(text: string): unknown {
  if (text === "") return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** How the calls of the entry ended, and how many they were. */
export function auditOutcome(e: AuditEntry): Word {
  const after = parsed(e.after) as { outcome?: unknown; count?: unknown } | undefined | null;
  if (e.before !== "" || typeof after !== "object" || after === null || typeof after.outcome !== "string" || after.outcome === "") return { text: "changed", tone: "idle" };
  const count = Number(after.count);
  return { text: count > 1 ? `${after.outcome} (${count} times)` : after.outcome, tone: after.outcome === "refused" ? "warn" : "idle" };
}

function leaves(out: Map<string, string>, path: string, v: unknown): void {
  if (Array.isArray(v) && v.length > 0) v.forEach((x, i) => leaves(out, `${path}[${i}]`, x));
  else if (typeof v === "object" && v !== null && Object.keys(v).length > 0) for (const [k, x] of Object.entries(v)) leaves(out, path ? `${path}.${k}` : k, x);
  else if (v !== undefined) out.set(path || "value", typeof v === "string" ? v : JSON.stringify(v));
}

/** What the call changed, by path. */
export function auditChanges(e: AuditEntry): Change[] {
  const before = new Map<string, string>();
  const after = new Map<string, string>();
  leaves(before, "", parsed(e.before));
  leaves(after, "", parsed(e.after));
  const out: Change[] = [];
  for (const path of [...new Set([...before.keys(), ...after.keys()])].sort()) {
    const was = before.get(path);
    const is = after.get(path);
    if (was !== is) out.push({ path, kind: was === undefined ? "added" : is === undefined ? "removed" : "changed", old: was ?? "", new: is ?? "", hidden: false });
  }
  return out;
}
