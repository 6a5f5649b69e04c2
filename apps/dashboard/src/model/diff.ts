// What differs between the specs of two versions, by the paths that a plan of the control plane has.
import { toJson, type JsonValue } from "@bufbuild/protobuf";
import type { Deployment } from "../gen/windlass/v1/deployment_pb.js";
import { DeploymentSpecSchema, OverrideSchema, type DeploymentSpec, type Override, type SecretReference } from "../gen/windlass/v1/spec_pb.js";

/** Hidden is the value of a variable: that it differs is shown, and what it is is not. */
type Leaf = { value: string; hidden: boolean };
type Leaves = Map<string, Leaf>;

export type Change = { path: string; kind: "added" | "changed" | "removed"; old: string; new: string; hidden: boolean };

const joined = (path: string, key: string) => (path && key ? `${path}.${key}` : path || key);

function walk(out: Leaves, path: string, value: JsonValue): void {
  if (Array.isArray(value)) value.forEach((v, i) => walk(out, `${path}[${i}]`, v));
  else if (value !== null && typeof value === "object") for (const [k, v] of Object.entries(value)) walk(out, joined(path, k), v);
  else out.set(path, { value: String(value), hidden: false });
}

function variables(out: Leaves, path: string, env: Record<string, string>, secrets: SecretReference[]): void {
  for (const s of secrets) {
    const value = s.imagePull ? "pulls the image" : `${s.secret}${s.version > 0 ? `, version ${s.version}` : ""}`;
    out.set(joined(path, `secrets["${s.imagePull ? s.secret : s.envName}"]`), { value, hidden: false });
  }
  for (const [name, value] of Object.entries(env)) out.set(joined(path, `env["${name}"]`), { value, hidden: true });
}

const isFlag = (arg: string) => arg.length > 1 && arg.startsWith("-") && !/[0-9.]/.test(arg.charAt(1));

/** Args that a preset made: words by index up to the first flag, then flags by name with their values. */
function generatedArgs(out: Leaves, path: string, args: string[]): void {
  let name = "";
  const values = new Map<string, string[]>();
  args.forEach((arg, i) => {
    if (isFlag(arg)) values.set((name = arg), []);
    else if (name) values.get(name)?.push(arg);
    else out.set(joined(path, `args[${i}]`), { value: arg, hidden: false });
  });
  for (const [flag, list] of values) out.set(joined(path, `args["${flag}"]`), { value: list.join(" ") || "true", hidden: false });
}

/**
 * The leaves of a spec: regions and secrets by name, as their order means nothing, and of overrides what they come to in
 * each region. Args that a preset made are told by flag. What else it generated is in the fields that it is for. The control plane's package preview has the same rules.
 */
export function specLeaves(spec: DeploymentSpec | undefined): Leaves {
  const out: Leaves = new Map();
  if (!spec) return out;
  const plain = { ...spec, regions: [], secrets: [], env: {}, inheritedEnv: [], overrides: [], pinnedOverrides: [], generated: undefined };
  const byFlag = spec.generatedBy !== "";
  walk(out, "", toJson(DeploymentSpecSchema, byFlag ? { ...plain, args: [] } : plain));
  if (byFlag) generatedArgs(out, "", spec.args);
  for (const r of spec.regions) out.set(`regions["${r}"]`, { value: r, hidden: false });
  variables(out, "", spec.env, spec.secrets);
  for (const p of spec.pinnedOverrides) {
    if (!p.values) continue;
    const region = `regions["${p.region}"]`;
    const values: Override = { ...p.values, env: {}, secrets: [] };
    walk(out, region, toJson(OverrideSchema, byFlag ? { ...values, args: [] } : values));
    if (byFlag) generatedArgs(out, region, p.values.args);
    variables(out, region, p.values.env, p.values.secrets);
  }
  return out;
}

function leavesOf(d: Deployment): Leaves {
  const out = specLeaves(d.spec);
  // Two versions of one tag may run different images.
  if (d.resolvedImage) out.set("image, resolved", { value: d.resolvedImage, hidden: false });
  return out;
}

/** What changes from one version to the other, by path. */
export function diffVersions(from: Deployment, to: Deployment): Change[] {
  const before = leavesOf(from);
  const after = leavesOf(to);
  const out: Change[] = [];
  for (const path of [...new Set([...before.keys(), ...after.keys()])].sort()) {
    const was = before.get(path);
    const is = after.get(path);
    if (was && is && was.value === is.value && was.hidden === is.hidden) continue;
    const hidden = Boolean(was?.hidden || is?.hidden);
    out.push({
      path,
      kind: !was ? "added" : !is ? "removed" : "changed",
      old: hidden ? "" : (was?.value ?? ""),
      new: hidden ? "" : (is?.value ?? ""),
      hidden,
    });
  }
  return out;
}
