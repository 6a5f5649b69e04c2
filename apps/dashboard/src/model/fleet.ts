// What the Fleet and Apps pages show, from what the stream brought.
import type { App } from "../gen/windlass/v1/app_pb.js";
import { AppStatus, RegionStatus } from "../gen/windlass/v1/common_pb.js";
import type { GpuCapacity, Region } from "../gen/windlass/v1/region_pb.js";
import { regionStatus, type Tone, type Word } from "./words.js";

/** Changes of what should run there that the agent does not have yet. */
export const lag = (r: Region) => Number(r.revision > r.receivedRevision ? r.revision - r.receivedRevision : 0n);

export const byName = <T extends { name: string }>(a: T, b: T) => a.name.localeCompare(b.name);

/** Regions that need a look first, then by name. */
export function sortRegions(regions: Iterable<Region>): Region[] {
  const rank = (r: Region) => (r.status === RegionStatus.UNREACHABLE ? 0 : r.status === RegionStatus.CONNECTED ? 1 : 2);
  return [...regions].sort((a, b) => rank(a) - rank(b) || byName(a, b));
}

export type Gpus = { used: number; free: number; away: number; total: number; quota: number; largest: number };

/** `away` are GPUs that are neither used nor free: their hosts are cordoned or lost. */
export function gpus(g: GpuCapacity): Gpus {
  const used = Math.min(g.requested, g.allocatable);
  const free = Math.min(g.free, g.allocatable - used);
  return { used, free, away: g.allocatable - used - free, total: g.allocatable, quota: g.quota, largest: g.largestFree };
}

/** GPUs of all products and pools together. `free` are none while the region is out of reach. */
export function sumGpus(region: Region): { used: number; free: number; total: number } {
  const sum = { used: 0, free: 0, total: 0 };
  for (const c of region.gpus) {
    const g = gpus(c);
    sum.used += g.used;
    sum.total += g.total;
    if (region.status === RegionStatus.CONNECTED) sum.free += g.free;
  }
  return sum;
}

export const gpusText = (g: { used: number; total: number }) => (g.total > 0 ? `${g.used} of ${g.total} GPUs used` : "no GPUs");

export const lagText = (behind: number) => (behind === 0 ? "up to date" : `${behind} change${behind === 1 ? "" : "s"} behind`);

/** The health of a region, with the lag of its feed. */
export function healthOf(region: Region): Word {
  const word = regionStatus(region.status);
  const behind = lag(region);
  return region.status === RegionStatus.CONNECTED && behind > 0 ? { tone: "warn", text: lagText(behind) } : word;
}

const severity: Tone[] = ["good", "busy", "idle", "warn", "bad"];

/** The worst of several, for one mark of all. */
export const worstTone = (tones: Tone[]): Tone => tones.reduce((worst, t) => (severity.indexOf(t) > severity.indexOf(worst) ? t : worst), "good" as Tone);

export const appPath = (a: App) => `${a.projectName}/${a.environmentName}/${a.name}`;

export type Filter = { text: string; status: AppStatus | 0; region: string };

export const noFilter: Filter = { text: "", status: 0, region: "" };

/** Every word has to be in the app's path, description, message or regions. */
export function filterApps(apps: Iterable<App>, filter: Filter): App[] {
  const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
  const out: App[] = [];
  for (const a of apps) {
    if (filter.status !== 0 && a.status !== filter.status) continue;
    if (filter.region !== "" && !a.regions.includes(filter.region)) continue;
    if (words.length > 0) {
      const text = `${appPath(a)} ${a.description} ${a.message} ${a.regions.join(" ")}`.toLowerCase();
      if (!words.every((w) => text.includes(w))) continue;
    }
    out.push(a);
  }
  return out.sort((a, b) => byName(a, b) || appPath(a).localeCompare(appPath(b)));
}

/** How many apps have each status. */
export function countByStatus(apps: Iterable<App>): Map<AppStatus, number> {
  const out = new Map<AppStatus, number>();
  for (const a of apps) out.set(a.status, (out.get(a.status) ?? 0) + 1);
  return out;
}
