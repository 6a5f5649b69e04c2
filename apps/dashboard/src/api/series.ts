// The load of an app's regions, as its stream brings it.
import { createClient } from "@connectrpc/connect";
import { useEffect, useState } from "react";
import { SeriesService, type WatchSeriesResponse } from "../gen/windlass/v1/series_pb.js";
import { addSeries, noSeries, type SeriesState } from "../model/series.js";
import { explain, transport } from "./clients.js";
import { follow, type Link } from "./follow.js";
import { whileLookedAt } from "./looked-at.js";

const service = createClient(SeriesService, transport);

/** Three of the server's beats, which come every 15 s. */
const silenceMs = 45_000;

export type Series = { state: SeriesState; link: Link };

/** Follows the series of the app. What was received stays while the stream is opened again. */
export function useSeries(app: string): Series {
  const [series, setSeries] = useState<Series>({ state: noSeries, link: { state: "connecting" } });
  useEffect(() => {
    setSeries({ state: noSeries, link: { state: "connecting" } });
    return whileLookedAt(() =>
      follow<WatchSeriesResponse>({
        open: (signal) => service.watchSeries({ app }, { signal }),
        onMessage: (res) => setSeries((s) => ({ ...s, state: addSeries(s.state, res) })),
        onLink: (link) => setSeries((s) => ({ ...s, link })),
        silenceMs,
        explain,
      }),
    );
  }, [app]);
  return series;
}
