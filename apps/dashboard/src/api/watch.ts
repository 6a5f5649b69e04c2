// One app as its stream brings it, and its instances.
import { useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import type { WatchAppResponse } from "../gen/windlass/v1/app_pb.js";
import type { Instance } from "../gen/windlass/v1/deployment_pb.js";
import type { HistoryEntry } from "../gen/windlass/v1/history_pb.js";
import { apps, deployments, explain } from "./clients.js";
import { follow, type Link } from "./follow.js";

export type Watched = { picture: WatchAppResponse | null; history: HistoryEntry[]; link: Link; revision: number };

const nothing: Watched = { picture: null, history: [], link: { state: "connecting" }, revision: 0 };
const keptHistory = 100;

/** The newest entry first, each once. */
export function mergeHistory(known: HistoryEntry[], more: HistoryEntry[]): HistoryEntry[] {
  const byId = new Map([...known, ...more].map((h) => [h.id, h]));
  return [...byId.values()].sort((a, b) => (a.id < b.id ? 1 : -1)).slice(0, keptHistory);
}

/** Follows the app and, with an id, a rollout of it. What was received stays while the stream is opened again. */
export function useApp(app: string, rollout = ""): Watched {
  const [watched, setWatched] = useState<Watched>(nothing);
  useEffect(() => {
    setWatched(nothing);
    let stop: (() => void) | undefined;
    let hide: ReturnType<typeof setTimeout> | undefined;
    const start = () => {
      stop = follow<WatchAppResponse>({
        open: (signal) => apps.watchApp({ app, rollout }, { signal }),
        onMessage: (picture) =>
          setWatched((w) => ({ ...w, picture, history: mergeHistory(w.history, picture.history), revision: w.revision + 1 })),
        onLink: (link) => setWatched((w) => ({ ...w, link })),
        silenceMs: 0,
        explain,
      });
    };
    const onVisibility = () => {
      clearTimeout(hide);
      if (document.hidden)
        hide = setTimeout(() => {
          stop?.();
          stop = undefined;
        }, 20_000);
      else if (!stop) start();
    };
    start();
    document.addEventListener("visibilitychange", onVisibility);
    return () => {
      document.removeEventListener("visibilitychange", onVisibility);
      clearTimeout(hide);
      stop?.();
    };
  }, [app, rollout]);
  return watched;
}

const instancesShown = 500;

export type Instances = { instances: Instance[]; more: boolean };

/** The app's instances, read anew with each picture of the stream. */
export function useInstances(app: string, revision: number) {
  return useQuery<Instances>({
    queryKey: ["instances", app, revision],
    queryFn: async ({ signal }) => {
      const res = await deployments.listInstances({ app, page: { size: instancesShown } }, { signal });
      return { instances: res.instances, more: res.page?.next !== undefined && res.page.next !== "" };
    },
    enabled: revision > 0,
    placeholderData: (before, query) => (query?.queryKey[1] === app ? before : undefined),
    // Between two pictures restarts and reasons of single instances may change.
    refetchInterval: 10_000,
    gcTime: 30_000,
  });
}
