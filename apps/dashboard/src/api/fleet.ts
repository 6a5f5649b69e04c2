// All regions and apps of the workspace, as the one stream of this page brings them.
import { useSyncExternalStore } from "react";
import type { App } from "../gen/windlass/v1/app_pb.js";
import type { WatchFleetResponse } from "../gen/windlass/v1/fleet_pb.js";
import type { Region } from "../gen/windlass/v1/region_pb.js";
import { explain, fleet } from "./clients.js";
import { follow, type Link } from "./follow.js";
import { whileLookedAt } from "./looked-at.js";

export type Fleet = {
  /** Whether a whole picture was received. */
  ready: boolean;
  regions: ReadonlyMap<string, Region>;
  apps: ReadonlyMap<string, App>;
  link: Link;
  /** How often the stream was broken and is opened again. */
  reopened: number;
  /** How often the stream brought news. */
  news: number;
};

export const emptyFleet: Fleet = { ready: false, regions: new Map(), apps: new Map(), link: { state: "connecting" }, reopened: 0, news: 0 };

type Draft = { regions: Map<string, Region>; apps: Map<string, App> };

/** Puts a response on top of the draft, or begins a new one. */
export function apply(draft: Draft, res: WatchFleetResponse): Draft {
  const next: Draft = res.reset ? { regions: new Map(), apps: new Map() } : draft;
  for (const r of res.regions) next.regions.set(r.id, r);
  for (const id of res.removedRegions) next.regions.delete(id);
  for (const a of res.apps) next.apps.set(a.id, a);
  for (const id of res.removedApps) next.apps.delete(id);
  return next;
}

/** Three of the server's beats. */
const silenceMs = 40_000;

class FleetStore {
  private state: Fleet = emptyFleet;
  private listeners = new Set<() => void>();
  private stop: (() => void) | undefined;
  private draft: Draft = { regions: new Map(), apps: new Map() };
  private more = false;
  private heard = 0;

  subscribe = (listener: () => void) => {
    this.listeners.add(listener);
    if (this.listeners.size === 1)
      this.stop = whileLookedAt(
        () => this.start(),
        () => this.set({ link: { state: "connecting" } }),
      );
    return () => {
      this.listeners.delete(listener);
      if (this.listeners.size > 0) return;
      this.stop?.();
      this.state = emptyFleet;
      this.heard = 0;
    };
  };

  get = () => this.state;

  private start(): () => void {
    return follow<WatchFleetResponse>({
      open: (signal) => fleet.watchFleet({}, { signal }),
      onMessage: (res) => {
        this.heard = Date.now();
        this.draft = apply(this.draft, res);
        const wasMore = this.more;
        this.more = res.more;
        const news = wasMore || res.reset || res.regions.length + res.apps.length + res.removedRegions.length + res.removedApps.length > 0;
        if (!res.more && news) this.set({ ready: true, regions: new Map(this.draft.regions), apps: new Map(this.draft.apps), news: this.state.news + 1 });
      },
      onLink: (link) => this.set({ link, reopened: this.state.reopened + (link.state === "live" && this.state.link.state === "stale" ? 1 : 0) }),
      silenceMs,
      heard: this.heard,
      explain,
    });
  }

  private set(change: Partial<Fleet>) {
    this.state = { ...this.state, ...change };
    for (const listener of this.listeners) listener();
  }
}

const store = new FleetStore();

export const useFleet = (): Fleet => useSyncExternalStore(store.subscribe, store.get);
