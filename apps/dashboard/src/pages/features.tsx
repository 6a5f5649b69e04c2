import { useQuery } from "@tanstack/react-query";
import { createClient } from "@connectrpc/connect";
import { useId, useState, type ReactNode } from "react";
import { explain, mutation, transport } from "../api/clients.js";
import { useRefetchOnFleetNews } from "../api/news.js";
import { WorkspaceService, type Feature, type Tier, type WorkspaceFeatures } from "../gen/windlass/v1/workspace_pb.js";
import { changedMeanwhile } from "../model/changed.js";
import { featureAbout, featureName, featureRows } from "../model/features.js";
import { Confirm } from "../ui/confirm.js";
import { Badge, Command, Loading, Panel, useTitle } from "../ui/pieces.js";
import { Rows } from "../ui/rows.js";
import { WorkspaceHead } from "../ui/workspace-tabs.js";

const workspaces = createClient(WorkspaceService, transport);

const setBy = (w: WorkspaceFeatures) => ({ tier: `as tier ${w.tier} has it`, allowed: "allowed to this workspace", denied: "denied to this workspace" });

/** Reads which features a workspace may use; empty: the caller's own. */
export function useFeatures(workspace: string) {
  const read = useQuery({ queryKey: ["features", workspace], queryFn: async ({ signal }) => (await workspaces.getFeatures({ workspace }, { signal })).features ?? null });
  useRefetchOnFleetNews(() => void read.refetch({ cancelRefetch: false }));
  return read;
}

type Choice = "tier" | "allowed" | "denied";

/** Sets the tier of a workspace, and what is allowed or denied to it alone. The call is refused if they changed since the dialog was opened. */
export function AskFeatures({ of, tiers, done, close }: { of: WorkspaceFeatures; tiers: Tier[]; done: () => void; close: () => void }) {
  const id = useId();
  const [w] = useState(of);
  const [tier, setTier] = useState(w.tier);
  const rows = featureRows(w);
  const [by, setBy] = useState<ReadonlyMap<Feature, Choice>>(new Map(rows.map((r) => [r.feature, r.by])));
  const has = tiers.find((t) => t.name === tier)?.features ?? [];
  const chosen = (choice: Choice) => rows.map((r) => r.feature).filter((f) => by.get(f) === choice);
  return (
    <Confirm
      ask={{
        title: `Features of workspace ${w.workspaceName}`,
        effect: "A deploy with which an app starts to use a feature that is not allowed is refused from now on. Apps that use one keep it.",
        label: "Set the features",
        grave: false,
        reason: "",
      }}
      act={async () => {
        await workspaces.setFeatures({ mutation: mutation(), workspace: w.workspaceId, tier, allowed: chosen("allowed"), denied: chosen("denied"), resourceVersion: w.resourceVersion });
        done();
      }}
      onClose={close}
      explain={explain}
    >
      {of.resourceVersion === w.resourceVersion ? null : <p className="note warn">{changedMeanwhile}</p>}
      <div className="field">
        <label htmlFor={`${id}t`}>Tier</label>
        <select id={`${id}t`} className="select" value={tier} onChange={(e) => setTier(e.target.value)}>
          {[...new Set([...tiers.map((t) => t.name), w.tier])].map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
      </div>
      <div className="stack tight">
        {rows.map(({ feature }) => (
          <div key={feature} className="split">
            <label htmlFor={`${id}${feature}`}>{featureName(feature)}</label>
            <select id={`${id}${feature}`} className="select" value={by.get(feature)} onChange={(e) => setBy(new Map(by).set(feature, e.target.value as Choice))}>
              <option value="tier">as the tier: {has.includes(feature) ? "yes" : "no"}</option>
              <option value="allowed">allowed</option>
              <option value="denied">denied</option>
            </select>
          </div>
        ))}
      </div>
    </Confirm>
  );
}

export function FeaturesPanel({ features: w, end }: { features: WorkspaceFeatures; end?: ReactNode }) {
  return (
    <Panel id="features" title={`Features that workspace ${w.workspaceName} may use`} end={end}>
      <Rows
        label="Features"
        items={featureRows(w)}
        keyOf={(r) => String(r.feature)}
        columns={[
          {
            name: "Feature",
            cell: (r) => (
              <>
                <b>{featureName(r.feature)}</b>
                <div className="dim small">{featureAbout[r.feature]}</div>
              </>
            ),
          },
          { name: "May be used", cell: (r) => <Badge word={r.allowed ? { text: "yes", tone: "good" } : { text: "no", tone: "idle" }} /> },
          { name: "Set by", cell: (r) => <span className="dim small">{setBy(w)[r.by]}</span> },
        ]}
      />
    </Panel>
  );
}

export function FeaturesPage() {
  useTitle("Features");
  const read = useFeatures("");
  return (
    <>
      <WorkspaceHead title="Features" />
      <div className="stack">
        {read.isError ? <p className="note warn">{explain(read.error)}</p> : null}
        {read.isPending ? <Loading what="the features" /> : read.data ? <FeaturesPanel features={read.data} /> : null}
        <div className="stack tight">
          <p className="small dim">Operators change them. A plan lists the features that a file uses:</p>
          <Command text={"windlass workspace features\nwindlass plan -f app.yaml"} what="the commands" />
        </div>
      </div>
    </>
  );
}
