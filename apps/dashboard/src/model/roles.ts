// Roles of an app, and its instances by the replica that they are of.
import type { Deployment, Instance, RoleTopology } from "../gen/windlass/v1/deployment_pb.js";
import { type DeploymentSpec, Gang_Of, Layout, Pairing_Engine, type PoolUpdate, PoolUpdate_Order, type RoleSpec, RoleSpec_Slots } from "../gen/windlass/v1/spec_pb.js";
import { short } from "./plan.js";

/** Whether the roles of a version are counted separately. Its replicas are then percent of the pool. */
export const isPooled = (d: Deployment | undefined) => d?.spec?.layout === Layout.POOLED;

/** The order in which roles of a pool move to the version: "sequential: decode, prefill". */
export function orderText(update: PoolUpdate | undefined): string {
  const order = update?.order || PoolUpdate_Order.COHERENT;
  const name = PoolUpdate_Order[order]?.toLowerCase() ?? `order ${order}`;
  return update?.sequence.length ? `${name}: ${update.sequence.join(", ")}` : name;
}

export type RoleCount = { role: string; ready: number; wanted: number };

/** Instances of the roles that a version has in a region, or in all its regions. None of a version that is no pool. */
export const poolRoles = (versions: Deployment[], version: number, region?: string): RoleCount[] =>
  isPooled(versions.find((v) => v.version === version)) ? roleCounts(versions, version, region) : [];

/** Instances of the roles that a version has in a region, or in all its regions. None of a version with one role. */
export function roleCounts(versions: Deployment[], version: number, region?: string): RoleCount[] {
  const d = versions.find((v) => v.version === version);
  const out = new Map<string, RoleCount>();
  if (!d) return [];
  for (const place of d.regions) {
    if (region !== undefined && place.region !== region) continue;
    for (const { role, ready, wanted } of place.roles) {
      const before = out.get(role) ?? { role, ready: 0, wanted: 0 };
      out.set(role, { role, ready: before.ready + ready, wanted: before.wanted + wanted });
    }
  }
  return [...out.values()];
}

/** Ready of wanted instances: "prefill 8 of 8, decode 1 of 2 ready". */
export const rolesText = (roles: RoleCount[]) => `${roles.map((r) => `${r.role} ${r.ready} of ${r.wanted}`).join(", ")} ready`;

/** Whether the version has roles worth a table: several, or one whose instances have several hosts or stable slots. */
export const hasRoles = (spec: DeploymentSpec | undefined): boolean => (spec?.roles.length ?? 0) > 1 || (spec?.roles.some((r) => r.hosts > 1 || isStable(r)) ?? false);

const isStable = (r: RoleSpec) => r.slots === RoleSpec_Slots.STABLE;
const list = (names: string[]) => (names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : (names[0] ?? ""));
const count = (n: number, what: string) => `${n} ${what}${n === 1 ? "" : "s"}`;

/** Which instances of which roles gateways pair. Empty: none. */
export function pairsText(spec: DeploymentSpec | undefined): string {
  const p = spec?.pairing;
  if (!spec || !p || p.engine === Pairing_Engine.UNSPECIFIED || p.engine === Pairing_Engine.NONE) return "";
  const prefill = p.prefill || "prefill";
  const decode = p.decode || "decode";
  const engine = Pairing_Engine[p.engine]?.toLowerCase() ?? `engine ${p.engine}`;
  const alone = p.minPromptBytes > 0n ? `. Prompts of fewer than ${p.minPromptBytes} bytes go to ${decode} alone` : "";
  return `${prefill} and ${decode} of one ${spec.layout === Layout.POOLED ? "version" : "replica"}, ${engine}${alone}`;
}

/** Which pods start all or nothing. Empty: each starts by itself. */
export function gangText(spec: DeploymentSpec | undefined): string {
  const of = spec?.gang?.of ?? Gang_Of.UNSPECIFIED;
  const wide = spec?.roles.some((r) => r.hosts > 1) ?? false;
  if (of === Gang_Of.NONE || (of !== Gang_Of.GROUP && !wide)) return "";
  const pods = of === Gang_Of.GROUP ? "All pods of a replica" : "All pods of an instance of several hosts";
  return `${pods} start or none does. They try again if one has no node for ${spec?.gang?.timeout ? short(spec.gang.timeout) : "10m"}`;
}

/** What one replica is: "a group of 3 instances". Of a pool: "one pool in each region". */
export function replicaText(spec: DeploymentSpec | undefined): string {
  if (spec?.layout === Layout.POOLED) return "one pool in each region, of which a version has a share";
  const n = (spec?.roles ?? []).reduce((sum, r) => sum + Math.max(r.instances, 1), 0);
  return n > 1 ? `a group of ${n} instances` : "one instance";
}

export type RoleFacts = { name: string; entry: boolean; count: string; hosts: number; facts: string[] };

/** What the spec says of each role. Numbers of a pool are those of its regions, which the topology shows. */
export function roleFacts(spec: DeploymentSpec | undefined): RoleFacts[] {
  const roles = spec?.roles ?? [];
  const together = roles.filter((r) => r.together).map((r) => r.name);
  const noEntry = !roles.some((r) => r.entry);
  return roles.map((r, i) => ({
    name: r.name,
    entry: r.entry || (noEntry && i === 0),
    count: spec?.layout === Layout.POOLED ? "counted separately" : `${Math.max(r.instances, 1)} in each replica`,
    hosts: Math.max(r.hosts, 1),
    facts: [
      ...(r.hosts > 1 ? [`${count(r.hosts, "host")} each, ready and restarted as one`] : []),
      ...(isStable(r) ? ["stable slots: a successor takes the slot"] : []),
      ...(r.startsAfter.length > 0 ? [`starts after ${list(r.startsAfter)}`] : []),
      ...(r.together && together.length > 1 ? [`changes as one with ${list(together.filter((n) => n !== r.name))}`] : []),
    ],
  }));
}

/** Whether instances of the role keep their slots in the version. */
export const keepsSlot = (versions: Deployment[], version: number, role: string): boolean =>
  versions.find((v) => v.version === version)?.spec?.roles.some((r) => r.name === role && isStable(r)) ?? false;

/** The roles that the versions have in a region, in the order of their specs, each once. */
export function rolesOf(versions: Deployment[], region: string): RoleTopology[] {
  const found = new Map<string, RoleTopology>();
  for (const d of versions) for (const place of d.regions) if (place.region === region) for (const r of place.roles) if (!found.has(r.role)) found.set(r.role, r);
  return [...found.values()];
}

/** Names of roles in the order of the specs. */
export const roleOrder = (versions: Deployment[]): string[] => [...new Set(versions.flatMap((d) => d.regions.flatMap((place) => place.roles.map((r) => r.role))))];

export function sortInstances(instances: Instance[], order: string[]): Instance[] {
  const rank = (role: string) => (order.includes(role) ? order.indexOf(role) : order.length);
  return [...instances].sort(
    (a, b) => a.region.localeCompare(b.region) || b.version - a.version || a.group - b.group || rank(a.role) - rank(b.role) || a.role.localeCompare(b.role) || a.slot - b.slot,
  );
}

/** Sorted instances, those of one replica together. */
export function groupInstances(sorted: Instance[]): { key: string; instances: Instance[] }[] {
  const out: { key: string; instances: Instance[] }[] = [];
  for (const i of sorted) {
    const key = `${i.region}/${i.version}/${i.group}`;
    const last = out.at(-1);
    if (last?.key === key) last.instances.push(i);
    else out.push({ key, instances: [i] });
  }
  return out;
}
