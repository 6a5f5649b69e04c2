// What instances write, as the page keeps it: the newest rows, within bounds.
import type { Instance } from "../gen/windlass/v1/deployment_pb.js";
import { LogNote_Kind, type FollowLogsResponse, type InstancePosition, type LogNote } from "../gen/windlass/v1/logs_pb.js";
import { windlass } from "./shell.js";
import type { Tone } from "./words.js";

export type LogRow =
  | { kind: "line"; key: number; at: number; instance: string; text: string }
  /** `instances` are those that a note of what is followed names. */
  | { kind: "note"; key: number; tone: Tone; text: string; instances: string[] };

const maxRows = 5000;
const maxCharacters = 4 << 20;
const maxLineCharacters = 4000;
/** The limit of the API. */
const maxPositions = 1000;

// Programs that think that they write to a terminal colour their lines.
// eslint-disable-next-line no-control-regex
const escapes = /\u001b\[[0-?]*[ -/]*[@-~]/g;

function plain(text: string): string {
  const clean = text.includes("\u001b") ? text.replace(escapes, "") : text;
  return clean.length > maxLineCharacters ? `${clean.slice(0, maxLineCharacters)} … (${clean.length - maxLineCharacters} characters more)` : clean;
}

/** The name of an instance for people, as `windlass logs` has it. */
export const instanceLabel = (i: Instance | undefined, id: string) => (i ? `v${i.version} ${i.region} ${i.role}/${i.group}.${i.slot}` : id);

export class LogBuffer {
  rows: LogRow[] = [];
  /** Rows that were received, and older ones of them that are not kept. */
  total = 0;
  dropped = 0;
  /** Instances that were followed, in the order in which they came, and those of them that are gone. */
  about = new Map<string, Instance | undefined>();
  ended = new Set<string>();
  private at = new Map<string, InstancePosition>();
  private characters = 0;

  add(res: FollowLogsResponse): void {
    for (const n of res.notes) this.note(n);
    for (const l of res.lines) this.push({ kind: "line", key: this.total, at: Number(l.at), instance: l.instance, text: plain(l.text) });
    for (const p of res.positions) this.at.set(p.instance, p);
    this.trim();
  }

  /** Where the next stream goes on, so that no line is repeated or left out. Ids are in the order of time: the newest are kept. */
  positions(): InstancePosition[] {
    return [...this.at.values()].sort((a, b) => (a.instance < b.instance ? -1 : 1)).slice(-maxPositions);
  }

  /** Which of the colours an instance has. */
  colour(instance: string): number {
    return [...this.about.keys()].indexOf(instance);
  }

  private note(n: LogNote): void {
    const name = n.instance ? instanceLabel(n.about ?? this.about.get(n.instance), n.instance) : "";
    const add = (tone: Tone, text: string, instances: string[] = []) => this.push({ kind: "note", key: this.total, tone, text, instances });
    if (n.kind === LogNote_Kind.BEGAN) {
      this.about.set(n.instance, n.about);
      this.ended.delete(n.instance);
      // What begins at once is said at once.
      const last = this.rows.at(-1);
      if (last?.kind !== "note" || last.instances.length === 0) return add("idle", `Follows ${name}`, [n.instance]);
      last.instances.push(n.instance);
      last.text = last.instances.length > 3 ? `Follows ${last.instances.length} instances` : `${last.text}, ${name}`;
      return;
    }
    if (n.kind === LogNote_Kind.ENDED) {
      this.ended.add(n.instance);
      return add("idle", `${name} is gone${n.message ? `: ${n.message}` : ""}`);
    }
    const tones: Partial<Record<LogNote_Kind, Tone>> = { [LogNote_Kind.BACK]: "good", [LogNote_Kind.UNREACHABLE]: "bad" };
    add(tones[n.kind] ?? "warn", `${name ? `${name}: ` : ""}${n.message}`);
  }

  private push(row: LogRow): void {
    this.rows.push(row);
    this.characters += row.text.length;
    this.total++;
  }

  private trim(): void {
    let from = 0;
    while (this.rows.length - from > maxRows || this.characters > maxCharacters) this.characters -= this.rows[from++]!.text.length;
    if (from > 0) this.rows.splice(0, from);
    this.dropped += from;
  }
}

const two = (n: number) => String(n).padStart(2, "0");

/** The time of day, to the millisecond. */
export function clockTime(at: number): string {
  const d = new Date(at);
  return `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}.${String(d.getMilliseconds()).padStart(3, "0")}`;
}

export type LogFilter = { instance: string; region: string; role: string; version: number; minutes: number; grep: string };

/** The same in a terminal. */
export function logsCommand(app: string, f: LogFilter): string {
  const flags: string[] = [];
  if (f.region) flags.push("--region", f.region);
  if (f.version > 0) flags.push("--version", `v${f.version}`);
  if (f.role) flags.push("--role", f.role);
  if (f.minutes > 0) flags.push("--since", `${f.minutes}m`);
  if (f.grep) flags.push("--grep", f.grep);
  return windlass("logs -f", [f.instance || app], flags);
}
