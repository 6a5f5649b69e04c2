// The samples of an app, by region, and what charts show of them. Unknown values are null, never 0.
import type { SeriesSample, WatchSeriesResponse } from "../gen/windlass/v1/series_pb.js";
import { ms } from "./time.js";

const keptMs = 3_600_000;
/** How long after the end of a step its sample may come before it counts as missing. */
const lateMs = 45_000;

export type RegionSamples = { samples: ReadonlyMap<number, SeriesSample>; first: number; last: number; keptSince: number; problem: string };
export type SeriesState = { regions: ReadonlyMap<string, RegionSamples>; stepMs: number; sentAt: number };

export const noSeries: SeriesState = { regions: new Map(), stepMs: 30_000, sentAt: 0 };

/** The state after a response. What is older than an hour is dropped. */
export function addSeries(state: SeriesState, res: WatchSeriesResponse): SeriesState {
  const regions = new Map(res.reset ? [] : state.regions);
  for (const name of res.removedRegions) regions.delete(name);
  for (const r of res.regions) {
    const samples = new Map(regions.get(r.region)?.samples);
    for (const s of r.samples) samples.set(ms(s.at), s);
    const last = Math.max(0, ...samples.keys());
    for (const at of samples.keys()) if (at < last - keptMs) samples.delete(at);
    regions.set(r.region, { samples, first: samples.size > 0 ? Math.min(...samples.keys()) : 0, last, keptSince: ms(r.keptSince), problem: r.problem });
  }
  return { regions, stepMs: ms(res.stepMs) || state.stepMs, sentAt: ms(res.sentAt) };
}

export type Values = {
  requests: number | null;
  failed: number | null;
  latency: number | null;
  firstToken: number | null;
  queued: number | null;
  ready: number | null;
  wanted: number | null;
};

export const unknown: Values = { requests: null, failed: null, latency: null, firstToken: null, queued: null, ready: null, wanted: null };

/** Values of one region: requests a second, failed ones in percent, times in seconds. */
function valuesOf(s: SeriesSample | undefined): Values {
  if (!s) return unknown;
  const span = ms(s.spanMs);
  const requests = s.requests === undefined ? null : Number(s.requests);
  return {
    requests: requests === null || span === 0 ? null : (requests * 1000) / span,
    failed: requests === null || requests === 0 ? null : (100 * Number(s.errors ?? 0n)) / requests,
    latency: s.latencyP95 ?? null,
    firstToken: s.firstTokenP95 ?? null,
    queued: s.queued ?? null,
    ready: s.ready ?? null,
    wanted: s.wanted ?? null,
  };
}

const sum = (all: (number | null)[]) => all.reduce((a, b) => (b === null ? a : (a ?? 0) + b), null);
const highest = (all: (number | null)[]) => all.reduce((a, b) => (b === null ? a : Math.max(a ?? b, b)), null);

/** Values of several regions together: sums, and of times the highest. */
function together(samples: (SeriesSample | undefined)[]): Values {
  const all = samples.map(valuesOf);
  const known = samples.filter((s) => s?.requests !== undefined);
  const requests = known.reduce((n, s) => n + Number(s?.requests ?? 0n), 0);
  const errors = known.reduce((n, s) => n + Number(s?.errors ?? 0n), 0);
  return {
    requests: sum(all.map((v) => v.requests)),
    failed: requests === 0 ? null : (100 * errors) / requests,
    latency: highest(all.map((v) => v.latency)),
    firstToken: highest(all.map((v) => v.firstToken)),
    queued: sum(all.map((v) => v.queued)),
    ready: sum(all.map((v) => v.ready)),
    wanted: sum(all.map((v) => v.wanted)),
  };
}

/** Whether the region's sample of the step should be there and is not. An app that was not in the region yet misses nothing. */
function isMissing(r: RegionSamples, at: number, stepMs: number, now: number): boolean {
  if (r.samples.has(at) || at + stepMs + lateMs > now) return false;
  return r.keptSince === 0 || at < r.keptSince || (r.first > 0 && at > r.first);
}

export type Chart = {
  /** Begins of the steps of the last hour, in ms. */
  times: number[];
  values: Values[];
  /** Steps of which the sample of a region is missing. */
  missing: boolean[];
};

/** What to draw of the regions with these names. */
export function chartOf(state: SeriesState, names: string[]): Chart {
  const regions = names.flatMap((n) => state.regions.get(n) ?? []);
  const { stepMs } = state;
  const now = state.sentAt; // not the newest sample: the clock of its region may be ahead
  const end = Math.floor(now / stepMs) * stepMs;
  const chart: Chart = { times: [], values: [], missing: [] };
  if (now === 0) return chart;
  for (let at = end - keptMs; at <= end; at += stepMs) {
    chart.times.push(at);
    chart.values.push(together(regions.map((r) => r.samples.get(at))));
    chart.missing.push(regions.some((r) => isMissing(r, at, stepMs, now)));
  }
  return chart;
}

/** Values of one region at a step, and whether its sample is missing. */
export function regionAt(state: SeriesState, name: string, at: number): { values: Values; missing: boolean } {
  const r = state.regions.get(name);
  if (!r) return { values: unknown, missing: true };
  return { values: valuesOf(r.samples.get(at)), missing: isMissing(r, at, state.stepMs, state.sentAt) };
}

/** The newest step that has a value, by its index. */
export function newest(chart: Chart): number {
  for (let i = chart.values.length - 1; i >= 0; i--) if (Object.values(chart.values[i]!).some((v) => v !== null)) return i;
  return chart.values.length - 1;
}

const two = (n: number) => String(n).padStart(2, "0");

/** The time of day, in the browser's time zone: "21:03:30". */
export function clock(at: number): string {
  const d = new Date(at);
  return `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
}

const places = (v: number) => (v >= 100 || Number.isInteger(v) ? 0 : v >= 10 ? 1 : 2);
export const plain = (v: number) => v.toFixed(places(v));
export const percent = (v: number) => `${plain(v)} %`;
export const seconds = (v: number) => (v < 1 ? `${Math.round(v * 1000)} ms` : `${plain(v)} s`);
export const orUnknown = (v: number | null, text: (v: number) => string) => (v === null ? "–" : text(v));
