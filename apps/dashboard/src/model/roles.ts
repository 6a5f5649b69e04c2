// Roles of an app, and its instances by the replica that they are of.
import type { Deployment, Instance, RoleTopology } from "../gen/windlass/v1/deployment_pb.js";
import { Layout, type PoolUpdate, PoolUpdate_Order } from "../gen/windlass/v1/spec_pb.js";

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
export function poolRoles(versions: Deployment[], version: number, region?: string): RoleCount[] {
  const d = versions.find((v) => v.version === version);
  const out = new Map<string, RoleCount>();
  if (!d || !isPooled(d)) return [];
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
