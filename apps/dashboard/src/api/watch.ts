// One app as its stream brings it, and its instances.
import { useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import type { WatchAppResponse } from "../gen/windlass/v1/app_pb.js";
import type { Instance } from "../gen/windlass/v1/deployment_pb.js";
import type { HistoryEntry } from "../gen/windlass/v1/history_pb.js";
import { apps, deployments, explain } from "./clients.js";
import { useFleet } from "./fleet.js";
import { follow, type Link } from "./follow.js";
import { useRefetchOnFleetNews, useRefetchOnNews } from "./news.js";
import { whileLookedAt } from "./looked-at.js";

export type Watched = { picture: WatchAppResponse | null; history: HistoryEntry[]; link: Link; revision: number };

const nothing: Watched = { picture: null, history: [], link: { state: "connecting" }, revision: 0 };
const keptHistory = 100;

/** The newest entry first, each once. */
export function mergeHistory(known: HistoryEntry[], more: HistoryEntry[]): HistoryEntry[] {
  const byId = new Map([...known, ...more].map((h) => [h.id, h]));
  return [...byId.values()].sort((a, b) => (a.id < b.id ? 1 : -1)).slice(0, keptHistory);
}

/**
 * Follows the app and, with an id, a rollout of it. What was received stays while the stream is opened again. An app's
 * stream may be silent, so it is opened again with the fleet's, whose beats tell that a connection is gone.
 */
export function useApp(app: string, rollout = ""): Watched {
  const [watched, setWatched] = useState<Watched>(nothing);
  const { reopened } = useFleet();
  useEffect(() => setWatched(nothing), [app, rollout]);
  useEffect(() => {
    return whileLookedAt(() =>
      follow<WatchAppResponse>({
        open: (signal) => apps.watchApp({ app, rollout }, { signal }),
        onMessage: (picture) => setWatched((w) => ({ ...w, picture, history: mergeHistory(w.history, picture.history), revision: w.revision + 1 })),
        onLink: (link) => setWatched((w) => ({ ...w, link })),
        silenceMs: 0,
        explain,
      }),
    );
  }, [app, rollout, reopened]);
  return watched;
}

const instancesShown = 500;

export type Instances = { instances: Instance[]; more: boolean };

/** The app's instances, read again when the streams bring news. Restarts of single instances are news of the fleet's stream alone. */
export function useInstances(app: string, revision: number) {
  const read = useQuery<Instances>({
    queryKey: ["instances", app],
    queryFn: async ({ signal }) => {
      const res = await deployments.listInstances({ app, page: { size: instancesShown } }, { signal });
      return { instances: res.instances, more: res.page?.next !== undefined && res.page.next !== "" };
    },
  });
  const refetch = () => void read.refetch({ cancelRefetch: false });
  useRefetchOnNews(revision, refetch);
  useRefetchOnFleetNews(refetch);
  return read;
}
