import { createClient } from "@connectrpc/connect";
import { useQuery } from "@tanstack/react-query";
import { explain, transport } from "../api/clients.js";
import { useRefetchOnFleetNews } from "../api/news.js";
import { Role } from "../gen/windlass/v1/common_pb.js";
import { WorkspaceService, type Limits, type Usage } from "../gen/windlass/v1/workspace_pb.js";
import { Bar, Command, Loading, Panel, useTitle } from "../ui/pieces.js";
import { Rows } from "../ui/rows.js";
import { useSession } from "../ui/session.js";

const workspaces = createClient(WorkspaceService, transport);

type Name = Exclude<keyof Limits & string, "$typeName" | "$unknown">;
type Counted = Name & keyof Usage;

const limits: { name: Name; label: string; what: string; used?: Counted }[] = [
  { name: "apps", label: "Apps", what: "apps that there are", used: "apps" },
  { name: "deployments", label: "Deployments", what: "apps that have a deployment live or on its way", used: "deployments" },
  { name: "instances", label: "Instances", what: "instances of those, in all regions", used: "instances" },
  { name: "gpus", label: "GPUs", what: "GPUs of those instances", used: "gpus" },
  { name: "rollouts", label: "Rollouts", what: "rollouts in flight", used: "rollouts" },
  { name: "startsPerMinute", label: "Starts per minute", what: "calls that start work, in the long run" },
  { name: "startsBurst", label: "Starts at once", what: "how many of them may come at once" },
];

export function QuotaPage() {
  useTitle("Quota");
  const { me } = useSession();
  const read = useQuery({ queryKey: ["quota"], queryFn: async ({ signal }) => (await workspaces.getQuota({}, { signal })).quota ?? null });
  useRefetchOnFleetNews(() => void read.refetch({ cancelRefetch: false }));
  const quota = read.data;
  return (
    <>
      <div className="page-head">
        <h1 className="grow">Quota</h1>
      </div>
      <div className="stack">
        {read.isError ? <p className="note warn">{explain(read.error)} The page tries again by itself.</p> : null}
        {read.isPending ? (
          <Loading what="the quota" />
        ) : quota ? (
          <Panel id="limits" title={`Limits of workspace ${quota.workspaceName}`}>
            <Rows
              label="Limits"
              items={limits}
              keyOf={(l) => l.name}
              columns={[
                {
                  name: "Limit",
                  cell: (l) => (
                    <>
                      <b>{l.label}</b>
                      <div className="dim small">{l.what}</div>
                    </>
                  ),
                },
                {
                  name: "Used",
                  cell: (l) => {
                    const most = Number(quota.limits?.[l.name] ?? 0n);
                    const left = Number(quota.usage?.startsLeft ?? -1n);
                    if (!l.used)
                      return (
                        <span className="num">
                          {most > 0 ? most : "no limit"}
                          {l.name === "startsBurst" && left >= 0 ? <span className="dim">, {left} left now</span> : null}
                        </span>
                      );
                    const used = Number(quota.usage?.[l.used] ?? 0n);
                    return (
                      <div className="cell">
                        <span className="num">{most > 0 ? `${used} of ${most}` : `${used}, no limit`}</span>
                        {most > 0 ? (
                          <Bar
                            parts={[
                              { size: Math.min(used, most), tone: used >= most ? "bad" : used >= 0.8 * most ? "warn" : "good" },
                              { size: Math.max(0, most - used), tone: "idle" },
                            ]}
                          />
                        ) : null}
                      </div>
                    );
                  },
                },
                { name: "Set by", cell: (l) => <span className="dim">{quota.own?.[l.name] !== undefined ? "set for this workspace" : "as of the control plane"}</span> },
              ]}
            />
          </Panel>
        ) : null}
        {quota && me.key?.role === Role.OWNER ? (
          <div className="stack tight">
            <p className="small dim">Owners lower limits, and only an operator raises them again:</p>
            <Command text="windlass workspace quota --gpus 64" what="the command" />
          </div>
        ) : null}
      </div>
    </>
  );
}
