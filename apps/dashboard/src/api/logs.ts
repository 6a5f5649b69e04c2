// The output of an app's instances, as its stream brings it.
import { createClient } from "@connectrpc/connect";
import { useEffect, useState } from "react";
import type { Instance } from "../gen/windlass/v1/deployment_pb.js";
import { LogService, type FollowLogsResponse } from "../gen/windlass/v1/logs_pb.js";
import { LogBuffer, type LogFilter, type LogRow } from "../model/logs.js";
import { explain, transport } from "./clients.js";
import { follow, type Link } from "./follow.js";
import { whileLookedAt } from "./looked-at.js";

const service = createClient(LogService, transport);

/** Last lines of each instance to begin with. */
const tailLines = 200;
/** Three of the server's beats, which come every 15 s. */
const silenceMs = 45_000;
/** Least time between two pictures, however fast lines come. */
const leastMs = 150;

export type Logs = {
  rows: readonly LogRow[];
  about: ReadonlyMap<string, Instance | undefined>;
  colour: (instance: string) => number;
  total: number;
  dropped: number;
  link: Link;
  /** The one instance that is followed is gone. */
  over: boolean;
};

const nothing: Logs = { rows: [], about: new Map(), colour: () => 0, total: 0, dropped: 0, link: { state: "connecting" }, over: false };

/** Follows what matches the filter. After a broken stream it goes on where that ended. */
export function useLogs(app: string, { instance, region, role, version, minutes, grep }: LogFilter): Logs {
  const [logs, setLogs] = useState<Logs>(nothing);
  useEffect(() => {
    const buffer = new LogBuffer();
    const since = minutes > 0 ? BigInt(Date.now() - minutes * 60_000) : 0n;
    const isOver = () => instance !== "" && buffer.ended.has(instance);
    let timer: ReturnType<typeof setTimeout> | undefined;
    const show = () => {
      timer = undefined;
      setLogs((l) => ({ ...l, rows: buffer.rows.slice(), about: new Map(buffer.about), total: buffer.total, dropped: buffer.dropped, over: isOver() }));
    };
    setLogs({ ...nothing, colour: (id) => buffer.colour(id) });
    const stop = whileLookedAt(() => {
      if (isOver()) return () => {};
      return follow<FollowLogsResponse>({
        open: (signal) => {
          const of = instance ? { instance } : { app, region, role, version };
          return service.followLogs({ ...of, grep, since, tailLines: since > 0n ? 0 : tailLines, positions: buffer.positions() }, { signal });
        },
        onMessage: (res) => {
          buffer.add(res);
          timer ??= setTimeout(show, leastMs);
        },
        onLink: (link) => setLogs((l) => ({ ...l, link })),
        silenceMs,
        isOver,
        explain,
      });
    });
    return () => {
      clearTimeout(timer);
      stop();
    };
  }, [app, instance, region, role, version, minutes, grep]);
  return logs;
}
