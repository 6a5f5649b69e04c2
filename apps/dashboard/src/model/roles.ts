// Roles of an app, and its instances by the replica that they are of.
import type { Deployment, Instance, RoleTopology } from "../gen/windlass/v1/deployment_pb.js";

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
