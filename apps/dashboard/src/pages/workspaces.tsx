import { createClient } from "@connectrpc/connect";
import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { useState } from "react";
import { explain, mutation, transport } from "../api/clients.js";
import { useRefetchOnFleetNews } from "../api/news.js";
import { usePages } from "../api/pages.js";
import { WorkspaceService, type Tier } from "../gen/windlass/v1/workspace_pb.js";
import { allFeatures, featureName } from "../model/features.js";
import { windlass } from "../model/shell.js";
import { ms } from "../model/time.js";
import { Confirm } from "../ui/confirm.js";
import { NameField } from "../ui/name-field.js";
import { Once, type Made } from "../ui/once.js";
import { Command, Loading, Panel, Time, useTitle } from "../ui/pieces.js";
import { Paged, Rows } from "../ui/rows.js";
import { useToast } from "../ui/toast.js";
import { AskFeatures, FeaturesPanel, useFeatures } from "./features.js";
import { AskQuota, QuotaPanel, useQuota } from "./quota.js";

const workspaces = createClient(WorkspaceService, transport);
const route = getRouteApi("/workspaces/$workspace");

function useTiers() {
  const read = useQuery({ queryKey: ["tiers"], queryFn: async ({ signal }) => (await workspaces.listTiers({}, { signal })).tiers });
  useRefetchOnFleetNews(() => void read.refetch({ cancelRefetch: false }));
  return read;
}

function Tiers() {
  const read = useTiers();
  if (read.isPending) return <Loading what="the tiers" />;
  if (read.isError && !read.data) return <p className="note warn">{explain(read.error)}</p>;
  return (
    <Rows<Tier>
      label="Tiers"
      items={read.data ?? []}
      keyOf={(t) => t.name}
      columns={[
        { name: "Tier", cell: (t) => <b>{t.name}</b> },
        {
          name: "Features",
          cell: (t) => (
            <span className="small">{t.features.length === 0 ? "none" : t.features.length >= allFeatures.length ? "all" : t.features.map(featureName).join(", ")}</span>
          ),
        },
      ]}
    />
  );
}

function AskCreate({ done, close }: { done: (made: Made) => void; close: () => void }) {
  const [name, setName] = useState("");
  return (
    <Confirm
      ask={{
        title: "Create a workspace",
        effect: "It gets the project default with the environment production, and an owner's key, whose value is shown once, here.",
        label: "Create the workspace",
        grave: false,
        reason: "",
      }}
      act={async () => done({ what: `The owner's key of workspace ${name}`, value: (await workspaces.createWorkspace({ mutation: mutation(), name })).apiKey })}
      onClose={close}
      explain={explain}
    >
      <NameField value={name} onChange={setName} />
    </Confirm>
  );
}

export function WorkspacesPage() {
  useTitle("Workspaces");
  const [asking, setAsking] = useState(false);
  const [made, setMade] = useState<Made | null>(null);
  const pages = usePages(["workspaces"], async (token, signal) => {
    const res = await workspaces.listWorkspaces({ page: { size: 100, token } }, { signal });
    return { items: res.workspaces, next: res.page?.next ?? "" };
  });
  return (
    <>
      <div className="page-head">
        <h1 className="grow">Workspaces</h1>
        <button type="button" className="button primary" onClick={() => setAsking(true)}>
          Create a workspace
        </button>
      </div>
      <div className="stack">
        {made ? <Once made={made} close={() => setMade(null)} /> : null}
        <section className="panel" aria-label="All workspaces">
          <div className="body">
            <Paged
              pages={pages}
              what="the workspaces"
              empty={
                <div className="stack tight">
                  <p className="dim">No workspace yet. People deploy with keys of one:</p>
                  <Command text="windlass workspace create search" what="the command" />
                </div>
              }
            >
              {(items) => (
                <Rows
                  label="Workspaces"
                  items={items}
                  keyOf={(w) => w.id}
                  columns={[
                    {
                      name: "Workspace",
                      cell: (w) => (
                        <>
                          <Link to="/workspaces/$workspace" params={{ workspace: w.name }}>
                            <b>{w.name}</b>
                          </Link>
                          <div className="mono dim">{w.id}</div>
                        </>
                      ),
                    },
                    {
                      name: "Made",
                      cell: (w) => (
                        <span className="dim">
                          made <Time at={ms(w.createdAt)} />
                        </span>
                      ),
                    },
                  ]}
                />
              )}
            </Paged>
          </div>
        </section>
        <Panel id="tiers" title="Tiers">
          <div className="stack tight">
            <Tiers />
            <Command text="windlass workspace tier set basic --features autoscaling,analysis" what="the command" />
          </div>
        </Panel>
      </div>
      {asking ? (
        <AskCreate
          done={(m) => {
            setMade(m);
            pages.refetch();
          }}
          close={() => setAsking(false)}
        />
      ) : null}
    </>
  );
}

export function WorkspacePage() {
  const { workspace } = route.useParams();
  useTitle(`Workspace ${workspace}`);
  const say = useToast();
  const quota = useQuota(workspace);
  const features = useFeatures(workspace);
  const tiers = useTiers();
  const [asked, setAsked] = useState<"quota" | "features" | null>(null);
  const close = () => setAsked(null);
  const failed = quota.error ?? features.error;
  const button = (what: "quota" | "features", label: string) => (
    <button type="button" className="button small" onClick={() => setAsked(what)}>
      {label}
    </button>
  );
  return (
    <>
      <nav className="crumbs" aria-label="Where this is">
        <Link to="/workspaces">Workspaces</Link>
      </nav>
      <div className="page-head">
        <h1 className="grow">{workspace}</h1>
      </div>
      <div className="stack">
        {failed ? <p className="note bad">{explain(failed)}</p> : null}
        {quota.data ? <QuotaPanel quota={quota.data} end={button("quota", "Set limits")} /> : quota.isPending ? <Loading what="the quota" /> : null}
        {features.data ? <FeaturesPanel features={features.data} end={button("features", "Set features")} /> : features.isPending ? <Loading what="the features" /> : null}
        <Command text={[windlass("workspace quota", [workspace], ["--gpus", "64"]), windlass("workspace features", [workspace], ["--tier", "basic", "--allow", "canary"])].join("\n")} what="the commands" />
      </div>
      {asked === "quota" && quota.data ? (
        <AskQuota
          quota={quota.data}
          done={() => {
            say(`The limits of ${workspace} are set.`);
            void quota.refetch();
          }}
          close={close}
        />
      ) : null}
      {asked === "features" && features.data ? (
        <AskFeatures
          of={features.data}
          tiers={tiers.data ?? []}
          done={() => {
            say(`The features of ${workspace} are set.`);
            void features.refetch();
          }}
          close={close}
        />
      ) : null}
    </>
  );
}
