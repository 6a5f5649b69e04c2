// Reads an app's file in the browser, by the rules of the CLI (apps/windlass/internal/cli): one YAML document or JSON value
// with the fields of the API's messages, durations such as 10m, choices by their short names. The control plane takes
// messages, not texts of files. A value about which YAML parsers disagree is refused.
import { fromJson, type DescEnum, type DescField, type DescMessage, type JsonObject, type JsonValue } from "@bufbuild/protobuf";
import { ScalarType } from "@bufbuild/protobuf";
import { isAlias, isMap, isScalar, isSeq, LineCounter, parseAllDocuments, Scalar, type Document, type Node } from "yaml";
import { FileFreezeSchema, type FileFreeze } from "../gen/windlass/v1/freeze_pb.js";
import { RolloutPolicySchema, type RolloutPolicy } from "../gen/windlass/v1/rollout_pb.js";
import { ScalingPolicySchema, type ScalingPolicy } from "../gen/windlass/v1/scaling_pb.js";
import { DeploymentSpecSchema, type DeploymentSpec } from "../gen/windlass/v1/spec_pb.js";

/** What is wrong with the file, at a field of it; line 0: not known. */
export type Fault = { path: string; line: number; text: string };

export type AppFile = {
  /** "project/environment/name". */
  app: string;
  spec: DeploymentSpec;
  rollout: RolloutPolicy | undefined;
  freeze: FileFreeze | undefined;
  scaling: ScalingPolicy | undefined;
  lines: ReadonlyMap<string, number>;
};

export type Read = { file: AppFile; faults: [] } | { file: null; faults: Fault[] };

export const maxFileBytes = 4 << 20;
const maxValues = 100_000;
const maxDepth = 64;
const maxFaults = 20;

/** A scalar without quotes that is no text: a number, or one that YAML parsers disagree about. */
class Plain {
  constructor(
    readonly kind: "number" | "odd",
    readonly text: string,
  ) {}
}
type Value = string | boolean | null | Plain | Value[] | Fields;
type Fields = Map<string, Value>;

class Wrong extends Error {
  constructor(
    readonly path: string,
    readonly text: string,
    readonly line = 0,
  ) {
    super(text);
  }
}

const decimal = /^[-+]?(0|[1-9][0-9]*)$/;
const fraction = /^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$/;
const oddNumber = /^[-+]?(0[0-9_]+|0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|[0-9][0-9_]*(\.[0-9_]*)?|\.(inf|Inf|INF))$|^\.(nan|NaN|NAN)$/;
const oddTrue = /^(y|yes|on)$/i;
const oddFalse = /^(n|no|off)$/i;
const jsonNumber = /^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$/;

function plain(text: string): Value {
  if (/^(|~|null|Null|NULL)$/.test(text)) return null;
  if (/^(true|True|TRUE)$/.test(text)) return true;
  if (/^(false|False|FALSE)$/.test(text)) return false;
  if (decimal.test(text)) return new Plain("number", text.replace(/^\+/, ""));
  if (jsonNumber.test(text)) return new Plain("number", text);
  if (fraction.test(text) || oddNumber.test(text) || oddTrue.test(text) || oddFalse.test(text)) return new Plain("odd", text);
  return text;
}

const join = (path: string, key: string) => (path ? `${path}.${key}` : key);
const clip = (text: string) => (text.length > 200 ? `${text.slice(0, 200)}...` : text);

function shown(v: Value): string {
  if (v === null) return "nothing";
  if (v instanceof Plain) return clip(v.text);
  if (v instanceof Map) return "a mapping";
  if (Array.isArray(v)) return "a list";
  return clip(String(v));
}

class Reader {
  readonly lines = new Map<string, number>();
  private values = 0;
  private readonly within = new Set<Node>();

  constructor(
    private readonly doc: Document.Parsed,
    private readonly counter: LineCounter,
  ) {}

  line(n: Node | null): number {
    return n?.range ? this.counter.linePos(n.range[0]).line : 0;
  }

  value(path: string, n: Node | null, depth: number): Value {
    this.values++;
    if (this.values > maxValues) throw new Wrong(path, `the file has more than ${maxValues} values, counting the values that aliases repeat: write fewer`, this.line(n));
    if (depth > maxDepth) throw new Wrong(path, `more than ${maxDepth} nested mappings and lists: no field is nested so deeply`, this.line(n));
    if (!n) return null;
    if (isAlias(n)) {
      const target = n.resolve(this.doc) as Node | undefined;
      if (!target) throw new Wrong(path, `*${clip(n.source)} names no anchor before it`, this.line(n));
      if (this.within.has(target)) throw new Wrong(path, `*${clip(n.source)} is within what it stands for: write the value out`, this.line(n));
      return this.value(path, target, depth + 1);
    }
    this.lines.set(path, this.line(n));
    if (n.tag && !/^(!|tag:yaml\.org,2002:(str|map|seq))$/.test(n.tag)) throw new Wrong(path, `the tag ${clip(n.tag)} is not known here: remove it`, this.line(n));
    this.within.add(n);
    try {
      if (isSeq(n)) return n.items.map((item, i) => this.value(`${path}[${i}]`, item as Node | null, depth + 1));
      if (isMap(n)) return this.mapping(path, n.items as { key: Node | null; value: Node | null }[], depth);
      if (isScalar(n)) return n.type === Scalar.PLAIN && !n.tag ? plain(String(n.value ?? "")) : String(n.value ?? "");
    } finally {
      this.within.delete(n);
    }
    throw new Wrong(path, "not a value", this.line(n));
  }

  private mapping(path: string, items: { key: Node | null; value: Node | null }[], depth: number): Fields {
    const out: Fields = new Map();
    const merged: Fields[] = [];
    for (const { key, value } of items) {
      const name = isAlias(key) ? (key.resolve(this.doc) as Node | undefined) : key;
      if (!name || !isScalar(name)) throw new Wrong(path, "a name is a mapping or a list: write NAME: VALUE", this.line(key));
      const text = String(name.value ?? "");
      if (name.type === Scalar.PLAIN && text === "<<") {
        const v = this.value(path, value, depth + 1);
        for (const one of Array.isArray(v) ? v : [v]) {
          if (!(one instanceof Map)) throw new Wrong(join(path, "<<"), "want an alias of a mapping, such as <<: *base", this.line(key));
          merged.push(one);
        }
        continue;
      }
      if (text === "") throw new Wrong(path, "a value has no name: write NAME: VALUE", this.line(key));
      if (out.has(text)) throw new Wrong(join(path, text), "given twice: keep one of them", this.line(key));
      out.set(text, this.value(join(path, text), value, depth + 1));
      this.lines.set(join(path, text), this.line(key));
    }
    for (const m of merged) for (const [k, v] of m) if (!out.has(k)) out.set(k, v);
    return out;
  }
}

const units: Record<string, number> = { ns: 1, us: 1e3, "µs": 1e3, "μs": 1e3, ms: 1e6, s: 1e9, m: 60e9, h: 3600e9 };

/** Turns 10m or 1.5s into the API's form, seconds. */
function duration(v: Value): string {
  if (typeof v !== "string") throw new Error(`${shown(v)} has no unit: write for example 10s or 5m`);
  if (!/^[-+]?(\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))*$/.test(v)) throw new Error(`"${clip(v)}" is not a duration: write for example 10s or 5m`);
  let ns = 0;
  for (const [, n, unit] of v.matchAll(/(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)/g)) ns += Number(n) * (units[unit!] ?? 0);
  ns = Math.round(ns);
  if (!Number.isSafeInteger(ns)) throw new Error(`"${clip(v)}" is too long`);
  return `${v.startsWith("-") ? "-" : ""}${Math.floor(ns / 1e9)}.${String(ns % 1e9).padStart(9, "0")}s`;
}

const fold = (text: string) => text.replace(/[-_]/g, "").toLowerCase();

function choice(e: DescEnum, v: Value): string {
  if (typeof v !== "string") throw new Error(`want one of ${choices(e)}, got ${shown(v)}`);
  const found = e.values.find((x) => fold(x.name) === fold(v) || (x.number !== 0 && fold(x.localName) === fold(v)));
  if (!found) throw new Error(`"${clip(v)}" is none of ${choices(e)}`);
  return found.name;
}
const choices = (e: DescEnum) =>
  e.values
    .filter((x) => x.number !== 0)
    .map((x) => x.localName.toLowerCase().replaceAll("_", "-"))
    .join(", ");

/** Texts that may be a number, or a percentage or a range of them. */
const amounts = new Set([
  "windlass.v1.RolloutPolicy.max_surge", "windlass.v1.RolloutPolicy.max_unavailable", "windlass.v1.AutoRollback.failed_instances",
  "windlass.v1.AutoRollback.unhealthy", "windlass.v1.CanaryStep.pause", "windlass.v1.HealthCheck.expected_codes",
  "windlass.v1.ScalingMetric.target", "windlass.v1.ScalingMetric.up", "windlass.v1.ScalingMetric.down", "windlass.v1.ScalingPace.step",
]);

function number(v: Value): number | null {
  if (!(v instanceof Plain)) return null;
  if (v.kind === "odd") throw new Error(`${clip(v.text)} is not a number to every YAML parser: write it in decimal digits`);
  return Number(v.text);
}

function scalar(field: DescField, type: ScalarType, v: Value): JsonValue {
  switch (type) {
    case ScalarType.INT32: {
      const n = number(v);
      if (n === null) throw new Error(`want a whole number, got ${shown(v)}`);
      if (!Number.isInteger(n) || n < -(2 ** 31) || n > 2 ** 31 - 1) throw new Error(`${shown(v)} is not a whole number in range`);
      return n;
    }
    case ScalarType.INT64: {
      const text = typeof v === "string" ? v : v instanceof Plain && number(v) !== null ? v.text : "";
      if (!/^-?[0-9]{1,18}$/.test(text)) throw new Error(`want a whole number, got ${shown(v)}`);
      return text;
    }
    case ScalarType.DOUBLE: {
      const n = number(v);
      if (n === null || !Number.isFinite(n)) throw new Error(`want a number, got ${shown(v)}`);
      return n;
    }
    case ScalarType.BOOL: {
      const on = truth(v);
      if (on === undefined) throw new Error(`want true or false, got ${shown(v)}`);
      return on;
    }
    case ScalarType.STRING:
      if (typeof v === "string") return v;
      if (v instanceof Plain && amounts.has(`${field.parent.typeName}.${field.name}`)) {
        number(v);
        return v.text;
      }
      if (v === null || v instanceof Map || Array.isArray(v)) throw new Error(`want a text, got ${shown(v)}`);
      throw new Error(`${shown(v)} is not a text: put it in quotes`);
    default:
      throw new Error("the field's type is not known here: deploy the file with `windlass deploy`");
  }
}

function truth(v: Value): boolean | undefined {
  if (typeof v === "boolean") return v;
  if (v instanceof Plain && oddTrue.test(v.text)) return true;
  if (v instanceof Plain && oddFalse.test(v.text)) return false;
  return undefined;
}

/** The field that was perhaps meant, or all there are. */
function suggest(key: string, schema: DescMessage): string {
  const names = schema.fields.map((f) => f.jsonName);
  let best = "";
  let least = 4;
  for (const n of names) {
    const d = distance(key.toLowerCase().slice(0, 64), n.toLowerCase());
    if (d < least) [best, least] = [n, d];
  }
  return best ? `did you mean ${best}?` : `there are ${names.sort().join(", ")}`;
}

function distance(a: string, b: string): number {
  let prev = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 0; i < a.length; i++) {
    const next = [i + 1];
    for (let j = 0; j < b.length; j++) next.push(Math.min(next[j]! + 1, prev[j + 1]! + 1, prev[j]! + (a[i] === b[j] ? 0 : 1)));
    prev = next;
  }
  return prev[b.length]!;
}

/** A mapping whose values are texts, numbers, true or false, and lists of these. */
function options(path: string, v: Value, faults: Wrong[]): JsonObject {
  if (!(v instanceof Map)) throw new Wrong(path, `want a mapping, got ${shown(v)}`);
  const one = (at: string, value: Value): JsonValue => {
    if (value instanceof Plain) return number(value);
    if (typeof value === "string" || typeof value === "boolean") return value;
    throw new Wrong(at, `want a text, a number, true or false, got ${shown(value)}`);
  };
  const out: JsonObject = {};
  for (const [key, value] of v) {
    const at = join(path, key);
    try {
      if (key === "__proto__") throw new Wrong(at, "the page cannot send this name: deploy the file with `windlass deploy`");
      out[key] = Array.isArray(value) ? value.map((item) => one(at, item)) : one(at, value);
    } catch (e) {
      faults.push(e instanceof Wrong ? e : new Wrong(at, (e as Error).message));
    }
  }
  return out;
}

/** Fields of roles that a later release will have, by message, and what to do without them. */
const notYet: Record<string, string> = {
  "RoleSpec.update": "leave it out; update of the app says in which order roles move",
};

/** The message's JSON form, and what is wrong with each of its fields. */
function normalise(path: string, fields: Fields, schema: DescMessage, faults: Wrong[]): JsonObject {
  const out: JsonObject = {};
  const attempt = (where: string, f: () => JsonValue): JsonValue | undefined => {
    try {
      return f();
    } catch (e) {
      faults.push(e instanceof Wrong ? e : new Wrong(where, (e as Error).message));
      return undefined;
    }
  };
  for (const [key, value] of fields) {
    const field = schema.fields.find((f) => f.jsonName === key || f.name === key);
    const where = join(path, key);
    if (!field) {
      const fix = notYet[`${schema.name}.${key}`];
      faults.push(new Wrong(where, fix ? `not supported yet: ${fix}` : `no such field: ${suggest(key, schema)}`));
      continue;
    }
    const message = (at: string, v: Value, of: DescMessage): JsonValue => {
      if (of.typeName === "google.protobuf.Duration") return duration(v);
      if (of.typeName === "google.protobuf.Struct") return options(at, v, faults);
      if (!(v instanceof Map)) throw new Wrong(at, `want a mapping, got ${shown(v)}`);
      return normalise(at, v, of, faults);
    };
    const done = attempt(where, () => {
      switch (field.fieldKind) {
        case "map": {
          if (!(value instanceof Map)) throw new Error(`want a mapping of names to texts, got ${shown(value)}`);
          const m: JsonObject = {};
          for (const [k, v] of value) {
            // An object of a script has no such field of its own.
            if (k === "__proto__") faults.push(new Wrong(join(where, k), "the page cannot send this name: deploy the file with `windlass deploy`"));
            else if (typeof v === "string") m[k] = v;
            else faults.push(new Wrong(join(where, k), `${shown(v)} is not a text: put it in quotes`));
          }
          return m;
        }
        case "list": {
          if (!Array.isArray(value)) throw new Error(`want a list, got ${shown(value)}: write [${shown(value)}]`);
          const l: JsonValue[] = [];
          value.forEach((v, i) => {
            const at = `${where}[${i}]`;
            const one = attempt(at, () =>
              field.listKind === "message" ? message(at, v, field.message) : field.listKind === "enum" ? choice(field.enum, v) : scalar(field, field.scalar, v),
            );
            if (one !== undefined) l.push(one);
          });
          return l;
        }
        case "message":
          return message(where, value, field.message);
        case "enum":
          return choice(field.enum, value);
        case "scalar":
          return scalar(field, field.scalar, value);
      }
    });
    if (done !== undefined) out[field.jsonName] = done;
  }
  return out;
}

/** Minutes that clocks of the zone are ahead of UTC at a time. */
function ahead(at: number, zone: string): number {
  const parts = new Intl.DateTimeFormat("en-US", { timeZone: zone, hourCycle: "h23", year: "numeric", month: "numeric", day: "numeric", hour: "numeric", minute: "numeric" }).formatToParts(at);
  const of = (type: string) => Number(parts.find((p) => p.type === type)?.value);
  return Math.round((Date.UTC(of("year"), of("month") - 1, of("day"), of("hour"), of("minute")) - at) / 60_000);
}

/** Unix ms of a time as people write it; times without an offset are by the zone's clocks. */
export function clockTime(text: string, zone: string): number {
  if (/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[-+]\d\d:\d\d)$/.test(text) && !Number.isNaN(Date.parse(text))) return Date.parse(text);
  const m = /^(\d{4}-\d\d-\d\d)(?: (\d\d:\d\d))?$/.exec(text);
  const local = m ? Date.parse(`${m[1]}T${m[2] ?? "00:00"}:00Z`) : Number.NaN;
  if (Number.isNaN(local)) throw new Error(`"${clip(text)}": write it as 2026-12-24T18:00:00Z, "2026-12-24 18:00" or 2026-12-24`);
  const first = local - ahead(local, zone) * 60_000;
  return local - ahead(first, zone) * 60_000;
}

/** The app's own freeze: times as people write them, and windows as `windlass freeze set` takes them. */
function prepareFreeze(fields: Fields, faults: Wrong[]): Fields {
  const out: Fields = new Map(fields);
  let zone = "UTC";
  const named = out.get("timeZone");
  if (typeof named === "string") {
    try {
      zone = new Intl.DateTimeFormat("en-US", { timeZone: named }).resolvedOptions().timeZone;
    } catch {
      faults.push(new Wrong("freeze.timeZone", `${clip(named)} names no time zone: write for example Europe/London`));
    }
  }
  for (const key of ["from", "until"]) {
    const text = out.get(key);
    if (typeof text !== "string") continue;
    try {
      out.set(key, new Plain("number", String(clockTime(text, zone))));
    } catch (e) {
      out.delete(key);
      faults.push(new Wrong(`freeze.${key}`, (e as Error).message));
    }
  }
  const weekly = out.get("weekly");
  if (Array.isArray(weekly))
    out.set(
      "weekly",
      weekly.map((w, i): Value => {
        if (typeof w !== "string") return w;
        const [start, ...rest] = w.split("-");
        if (rest.length === 0) faults.push(new Wrong(`freeze.weekly[${i}]`, `"${clip(w)}": write "Fri 16:00 - Mon 08:00", or "22:00 - 06:00" for every day`));
        return new Map([["start", (start ?? "").trim()], ["end", rest.join("-").trim()]]);
      }),
    );
  else out.delete("timeZone"); // it was of the times that were written
  return out;
}

/** The line of a field, or of what holds it; 0: not known. */
export function lineOf(lines: ReadonlyMap<string, number>, path: string): number {
  for (let p = path; p !== ""; p = p.slice(0, Math.max(0, Math.max(p.lastIndexOf("."), p.lastIndexOf("["))))) {
    const line = lines.get(p);
    if (line !== undefined) return line;
  }
  return 0;
}

/** The path in the file of a field of the request that carries it. */
export const filePath = (field: string) => field.replace(/^spec\./, "");

/** Reads the text of an app's file. */
export function readAppFile(text: string): Read {
  const fail = (faults: Fault[]): Read => ({ file: null, faults: faults.slice(0, maxFaults) });
  if (new TextEncoder().encode(text).length > maxFileBytes) return fail([{ path: "", line: 0, text: `the file is larger than ${maxFileBytes >> 20} MiB` }]);
  const counter = new LineCounter();
  // All scalars as they are written: what they mean is up to the field.
  const parsed = parseAllDocuments(text, { schema: "failsafe", lineCounter: counter, prettyErrors: false, uniqueKeys: false, keepSourceTokens: false });
  const docs = (Array.isArray(parsed) ? parsed : []).filter((d) => d.errors.length > 0 || (d.contents && !(isScalar(d.contents) && d.contents.type === Scalar.PLAIN && d.contents.value === "")));
  const noMapping: Fault = { path: "", line: 0, text: "the file is not a mapping of fields: start with `app: NAME`" };
  const doc = docs[0];
  if (!doc) return fail([noMapping]);
  for (const d of docs) if (d.errors.length > 0) return fail(d.errors.map((e) => ({ path: "", line: counter.linePos(e.pos[0]).line, text: e.message })));
  const reader = new Reader(doc as Document.Parsed, counter);
  if (docs.length > 1) return fail([{ path: "", line: reader.line(docs[1]!.contents as Node), text: "a second document begins: a file holds one app, so put it into a file of its own" }]);
  const faults: Wrong[] = [];
  try {
    const root = reader.value("", doc.contents as Node, 0);
    if (!(root instanceof Map)) return fail([noMapping]);
    const name = (key: string, otherwise: string) => {
      const v = root.get(key);
      root.delete(key);
      if (v === undefined) return otherwise;
      if (typeof v === "string") return v;
      faults.push(new Wrong(key, `want a name, got ${shown(v)}`));
      return otherwise;
    };
    const app = name("app", "");
    const project = name("project", "default");
    const environment = name("environment", "production");
    if (app === "" && faults.length === 0) faults.push(new Wrong("app", "missing: give the app a name, for example `app: echo`"));
    const block = (key: string, start: string): Fields | undefined => {
      const v = root.get(key);
      root.delete(key);
      if (v === undefined || v instanceof Map) return v;
      faults.push(new Wrong(key, `want a mapping, got ${shown(v)}: start with \`${start}\``));
      return undefined;
    };
    const rollout = block("rollout", "strategy: rolling");
    const back = rollout && truth(rollout.get("autoRollback") ?? null);
    if (rollout && back !== undefined) rollout.set("autoRollback", new Map([["enabled", back]]));
    const freeze = block("freeze", "reason: no on-call engineer");
    const scaling = block("scaling", "max: 10");
    const policyJson = rollout && normalise("rollout", rollout, RolloutPolicySchema, faults);
    const freezeJson = freeze && normalise("freeze", prepareFreeze(freeze, faults), FileFreezeSchema, faults);
    const scalingJson = scaling && normalise("scaling", scaling, ScalingPolicySchema, faults);
    const specJson = normalise("", root, DeploymentSpecSchema, faults);
    if (faults.length > 0) return fail(faults.map((f) => ({ path: f.path, line: f.line || lineOf(reader.lines, f.path), text: f.text })));
    return {
      file: {
        app: `${project}/${environment}/${app}`,
        spec: fromJson(DeploymentSpecSchema, specJson),
        rollout: policyJson && fromJson(RolloutPolicySchema, policyJson),
        freeze: freezeJson && fromJson(FileFreezeSchema, freezeJson),
        scaling: scalingJson && fromJson(ScalingPolicySchema, scalingJson),
        lines: reader.lines,
      },
      faults: [],
    };
  } catch (e) {
    return fail([e instanceof Wrong ? { path: e.path, line: e.line || lineOf(reader.lines, e.path), text: e.text } : { path: "", line: 0, text: (e as Error).message }]);
  }
}
