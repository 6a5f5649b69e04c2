import { createClient } from "@connectrpc/connect";
import { useQuery } from "@tanstack/react-query";
import { useId, useState, type ReactNode } from "react";
import { explain, mutation, transport } from "../api/clients.js";
import { useRefetchOnFleetNews } from "../api/news.js";
import { Role } from "../gen/windlass/v1/common_pb.js";
import { WorkspaceService, type Limits, type Quota, type Usage } from "../gen/windlass/v1/workspace_pb.js";
import { changedMeanwhile } from "../model/changed.js";
import { Confirm } from "../ui/confirm.js";
import { Bar, Command, Loading, Panel, useTitle } from "../ui/pieces.js";
import { Rows } from "../ui/rows.js";
import { useSession } from "../ui/session.js";
import { WorkspaceHead } from "../ui/workspace-tabs.js";

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

/** Reads limits and usage of a workspace; empty: of the caller's own. */
export function useQuota(workspace: string) {
  const read = useQuery({ queryKey: ["quota", workspace], queryFn: async ({ signal }) => (await workspaces.getQuota({ workspace }, { signal })).quota ?? null });
  useRefetchOnFleetNews(() => void read.refetch({ cancelRefetch: false }));
  return read;
}

export function QuotaPanel({ quota, end }: { quota: Quota; end?: ReactNode }) {
  return (
    <Panel id="limits" title={`Limits of workspace ${quota.workspaceName}`} end={end}>
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
  );
}

/** Sets a workspace's own limits. An empty field leaves the limit to the control plane's default. The call is refused if they changed since the dialog was opened. */
export function AskQuota({ quota: now, done, close }: { quota: Quota; done: () => void; close: () => void }) {
  const id = useId();
  const [quota] = useState(now);
  const [own, setOwn] = useState<Partial<Record<Name, string>>>(Object.fromEntries(limits.map((l) => [l.name, quota.own?.[l.name]?.toString() ?? ""])));
  return (
    <Confirm
      ask={{
        title: `Limits of workspace ${quota.workspaceName}`,
        effect: "Calls that would exceed a limit are refused from now on. What runs stays, also if it is more than the limit. An empty field takes the control plane's default, and 0 is no limit.",
        label: "Set the limits",
        grave: false,
        reason: "",
      }}
      act={async () => {
        const set = Object.fromEntries(limits.filter((l) => own[l.name]).map((l) => [l.name, BigInt(own[l.name] ?? 0)]));
        await workspaces.setQuota({ mutation: mutation(), workspace: quota.workspaceId, own: set, resourceVersion: quota.resourceVersion });
        done();
      }}
      onClose={close}
      explain={explain}
    >
      {now.resourceVersion === quota.resourceVersion ? null : <p className="note warn">{changedMeanwhile}</p>}
      <div className="stack tight">
        {limits.map((l) => (
          <div key={l.name} className="split">
            <label htmlFor={`${id}${l.name}`}>{l.label}</label>
            <input
              id={`${id}${l.name}`}
              className="input num"
              type="number"
              min={0}
              max={l.used ? 1_000_000_000 : 1_000_000}
              step={1}
              placeholder="default"
              value={own[l.name] ?? ""}
              onChange={(e) => setOwn({ ...own, [l.name]: e.target.value })}
            />
          </div>
        ))}
      </div>
    </Confirm>
  );
}

export function QuotaPage() {
  useTitle("Quota");
  const { me } = useSession();
  const read = useQuota("");
  const quota = read.data;
  const [asking, setAsking] = useState(false);
  return (
    <>
      <WorkspaceHead title="Quota" />
      <div className="stack">
        {read.isError ? <p className="note warn">{explain(read.error)}</p> : null}
        {read.isPending ? (
          <Loading what="the quota" />
        ) : quota ? (
          <QuotaPanel
            quota={quota}
            end={
              me.key?.role === Role.OWNER ? (
                <button type="button" className="button small" onClick={() => setAsking(true)}>
                  Lower limits
                </button>
              ) : null
            }
          />
        ) : null}
        {quota && me.key?.role === Role.OWNER ? (
          <div className="stack tight">
            <p className="small dim">Owners lower limits, and only an operator raises them again:</p>
            <Command text="windlass workspace quota --gpus 64" what="the command" />
          </div>
        ) : null}
      </div>
      {asking && quota ? <AskQuota quota={quota} done={() => void read.refetch()} close={() => setAsking(false)} /> : null}
    </>
  );
}
