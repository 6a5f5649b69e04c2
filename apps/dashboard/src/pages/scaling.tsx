import { createClient } from "@connectrpc/connect";
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { explain, transport } from "../api/clients.js";
import { useRefetchOnFleetNews, useRefetchOnNews } from "../api/news.js";
import { mergeHistory, type Watched } from "../api/watch.js";
import type { App } from "../gen/windlass/v1/app_pb.js";
import { HistoryService, type HistoryEntry } from "../gen/windlass/v1/history_pb.js";
import { ScalingMetric_Type, ScalingPolicy_Mode, ScalingService, type MetricWant, type RegionScaling } from "../gen/windlass/v1/scaling_pb.js";
import { appPath } from "../model/fleet.js";
import { windlass } from "../model/shell.js";
import { absolute, ms } from "../model/time.js";
import { Command, Loading, Panel, Time } from "../ui/pieces.js";
import { Rows } from "../ui/rows.js";

const scaling = createClient(ScalingService, transport);
const history = createClient(HistoryService, transport);

/** Entries of the history about scaling, as `windlass scaling why` shows them. */
const entries = new Set([
  "Scaled", "ScalingDecided", "ScalingLimited", "ScalingMetricMissing", "ScalingPolicyChanged", "ScalingHeld", "ScalingHoldEnded",
  "ScalingRaised", "ScalingRaiseRefused",
]);
const decisionsShown = 8;
const decisionsRead = 200;

const metrics: Partial<Record<ScalingMetric_Type, string>> = {
  [ScalingMetric_Type.IN_FLIGHT]: "requests in flight",
  [ScalingMetric_Type.REQUESTS_PER_SECOND]: "requests a second",
  [ScalingMetric_Type.QUEUE]: "requests in queues",
  [ScalingMetric_Type.KV_CACHE]: "KV cache in use",
  [ScalingMetric_Type.MODELS]: "Room that models need",
  [ScalingMetric_Type.CPU]: "CPU, percent",
  [ScalingMetric_Type.MEMORY]: "memory, percent",
  [ScalingMetric_Type.FIRST_TOKEN]: "time to first token",
  [ScalingMetric_Type.LATENCY]: "latency",
  [ScalingMetric_Type.PROMETHEUS]: "PromQL",
};

const isTime = (type: ScalingMetric_Type) => type === ScalingMetric_Type.FIRST_TOKEN || type === ScalingMetric_Type.LATENCY;

function Want({ want: w }: { want: MetricWant }) {
  const type = w.metric?.type ?? ScalingMetric_Type.UNSPECIFIED;
  const value = w.value === undefined ? "missing" : isTime(type) ? `${Math.round(w.value * 1000)} ms` : String(Math.round(w.value * 100) / 100);
  return (
    <div className="small">
      {metrics[type] ?? "a metric"} <span className="num">{value}</span>
      {w.metric?.target ? <span className="dim"> of {w.metric.target}</span> : null}
      {w.value === undefined ? null : <span className="num"> → {w.replicas}</span>}
      {w.problem ? <div className="dim">{w.problem}</div> : null}
    </div>
  );
}

/** The last decisions: those that the stream of the app brought, and those before. */
function Decisions({ app, watched }: { app: App; watched: Watched }) {
  const before = useQuery({
    queryKey: ["decisions", app.id],
    queryFn: async ({ signal }) => (await history.listHistory({ app: app.id, page: { size: decisionsRead } }, { signal })).entries.filter((e) => entries.has(e.what)),
  });
  const all = useMemo(() => mergeHistory(before.data ?? [], watched.history.filter((e) => entries.has(e.what))).slice(0, decisionsShown), [before.data, watched.history]);
  return (
    <>
      <h3>Decisions</h3>
      {all.length > 0 ? (
        <ol className="history">
          {all.map((e: HistoryEntry) => (
            <li key={e.id}>
              <span className="dim small">
                <Time at={ms(e.at)} />
              </span>
              <div>
                {e.what === "ScalingDecided" ? null : <b>{e.what} </b>}
                {e.region ? <span className="chip">{e.region}</span> : null} {e.why}
                {e.who === "windlass" ? null : <span className="dim small"> by {e.who}</span>}
              </div>
            </li>
          ))}
        </ol>
      ) : before.isPending ? (
        <Loading what="the decisions" />
      ) : (
        <p className="dim">{before.isError ? explain(before.error) : "None changed the number of replicas lately."}</p>
      )}
      <Command text={windlass("scaling why", [appPath(app)])} what="the command" />
    </>
  );
}

/** How the replicas of an app follow the load; nothing of an app whose replicas do not. */
export function Scaling({ app, watched }: { app: App; watched: Watched }) {
  const read = useQuery({ queryKey: ["scaling", app.id], queryFn: ({ signal }) => scaling.getScaling({ app: app.id }, { signal }), enabled: app.scaling !== undefined });
  const refetch = () => {
    if (app.scaling) void read.refetch({ cancelRefetch: false });
  };
  useRefetchOnNews(watched.revision, refetch);
  // Decisions that change nothing are no news of the app's stream.
  useRefetchOnFleetNews(refetch);
  if (!app.scaling) return null;
  const { regions = [], holds = [] } = read.data ?? {};
  return (
    <Panel id="scaling" title="Scaling">
      <div className="stack tight">
        {app.scaling.mode === ScalingPolicy_Mode.ADVISE ? <p className="dim">The policy is to advise: decisions are shown and change nothing.</p> : null}
        {holds.map((h) => (
          <p key={`${h.region}/${h.role}`} className="note idle">
            {h.who} holds {h.replicas} {h.role ? `instances of role ${h.role}` : "replicas"} in {h.region || "every region"} until {absolute(ms(h.until))}.
          </p>
        ))}
        {regions.length > 0 ? (
          <Rows<RegionScaling>
            label="Scaling, by region"
            items={[...regions].sort((a, b) => a.region.localeCompare(b.region) || a.role.localeCompare(b.role))}
            keyOf={(r) => `${r.region}/${r.role}`}
            columns={[
              {
                name: "Region",
                cell: (r) => (
                  <>
                    <b>{r.region}</b>
                    {r.role ? <div className="small">role {r.role}</div> : null}
                  </>
                ),
              },
              {
                name: regions.some((r) => r.role) ? "Instances" : "Replicas",
                cell: (r) => (
                  <>
                    <span className="num">
                      {r.wanted} wanted <span className="dim">of {r.min} to {r.max}</span>
                    </span>
                    <div className="small dim num">
                      {r.ready} ready{r.starting > 0 ? `, ${r.starting} starting` : ""}
                    </div>
                  </>
                ),
              },
              {
                name: "By metrics",
                cell: (r) => (
                  <>
                    {r.wants.map((w, i) => (
                      <Want key={i} want={w} />
                    ))}
                  </>
                ),
              },
              {
                name: "Why",
                cell: (r) => (
                  <div className="small">
                    {r.limit ? <b>{r.limit}: </b> : null}
                    {r.why || <span className="dim">no decision yet</span>}
                    {r.limit && r.unlimited !== r.wanted ? <span className="dim num"> ({r.unlimited} without the limit)</span> : null}
                  </div>
                ),
              },
              {
                name: "Decided",
                cell: (r) => (
                  <span className="small dim">
                    decided <Time at={ms(r.at)} />
                  </span>
                ),
              },
            ]}
          />
        ) : read.isPending ? (
          <Loading what="the decisions of regions" />
        ) : read.isError ? (
          <p className="note warn">{explain(read.error)}</p>
        ) : (
          <p className="dim">No decision yet: the regions have not reported their load.</p>
        )}
        <Decisions app={app} watched={watched} />
      </div>
    </Panel>
  );
}
