import { createClient } from "@connectrpc/connect";
import { useQuery } from "@tanstack/react-query";
import { explain, transport } from "../api/clients.js";
import type { App } from "../gen/windlass/v1/app_pb.js";
import { ScalingMetric_Type, ScalingPolicy_Mode, ScalingService, type MetricWant, type RegionScaling } from "../gen/windlass/v1/scaling_pb.js";
import { absolute, ms } from "../model/time.js";
import { Panel, Time } from "../ui/pieces.js";
import { Rows } from "../ui/rows.js";

const scaling = createClient(ScalingService, transport);

const metrics: Partial<Record<ScalingMetric_Type, string>> = {
  [ScalingMetric_Type.IN_FLIGHT]: "requests in flight",
  [ScalingMetric_Type.REQUESTS_PER_SECOND]: "requests a second",
  [ScalingMetric_Type.QUEUE]: "requests in queues",
  [ScalingMetric_Type.KV_CACHE]: "KV cache in use",
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
    </div>
  );
}

/** How the replicas of an app follow the load; nothing of an app whose replicas do not. */
export function Scaling({ app }: { app: App }) {
  const read = useQuery({
    queryKey: ["scaling", app.id],
    queryFn: ({ signal }) => scaling.getScaling({ app: app.id }, { signal }),
    // Decisions that change nothing are no news of the app's stream.
    refetchInterval: (query) => (query.state.data?.policy ? 10_000 : false),
  });
  const { policy, regions = [], holds = [] } = read.data ?? {};
  if (read.isError && !read.data)
    return (
      <Panel id="scaling" title="Scaling">
        <p className="note warn">{explain(read.error)}</p>
      </Panel>
    );
  if (!policy) return null;
  return (
    <Panel id="scaling" title="Scaling">
      {policy.mode === ScalingPolicy_Mode.ADVISE ? <p className="dim">The policy is to advise: decisions are shown and change nothing.</p> : null}
      {holds.map((h) => (
        <p key={h.region} className="note idle">
          {h.who} holds {h.replicas} replicas in {h.region || "every region"} until {absolute(ms(h.until))}.
        </p>
      ))}
      {regions.length === 0 ? (
        <p className="dim">No decision yet: the regions have not reported their load.</p>
      ) : (
        <Rows<RegionScaling>
          label="Scaling, by region"
          items={[...regions].sort((a, b) => a.region.localeCompare(b.region))}
          keyOf={(r) => r.region}
          columns={[
            { name: "Region", cell: (r) => r.region },
            {
              name: "Replicas",
              cell: (r) => (
                <span className="num">
                  {r.wanted} wanted <span className="dim">of {r.min} to {r.max}</span>
                </span>
              ),
            },
            { name: "By metrics", cell: (r) => r.wants.map((w, i) => <Want key={i} want={w} />) },
            {
              name: "Limit",
              cell: (r) =>
                r.limit ? (
                  <>
                    {r.limit} <div className="dim small">{r.why}</div>
                  </>
                ) : (
                  <span className="dim">none</span>
                ),
            },
            { name: "Decided", cell: (r) => <Time at={ms(r.at)} /> },
          ]}
        />
      )}
    </Panel>
  );
}
