import { Link, getRouteApi } from "@tanstack/react-router";
import { useState } from "react";
import { useFleet } from "../api/fleet.js";
import { RegionStatus, Role } from "../gen/windlass/v1/common_pb.js";
import type { GpuCapacity, Region } from "../gen/windlass/v1/region_pb.js";
import { appPath, byName, gpus, lag, lagText } from "../model/fleet.js";
import { sortedLabels } from "../model/labels.js";
import { windlass } from "../model/shell.js";
import { ms } from "../model/time.js";
import { appStatus, isolationText, regionStatus } from "../model/words.js";
import { Once, type Made } from "../ui/once.js";
import { Badge, Bar, Command, Copy, Loading, Panel, Time, useTitle } from "../ui/pieces.js";
import { Rows } from "../ui/rows.js";
import { useSession } from "../ui/session.js";
import { RegionButtons, RegionDialog, type RegionAsked } from "./region-actions.js";

const route = getRouteApi("/fleet/$region");

const cores = (millicores: bigint) => (millicores > 0n ? `${(Number(millicores) / 1000).toFixed(1)} cores` : "not known");
const memory = (mib: bigint) => (mib > 0n ? `${(Number(mib) / 1024).toFixed(1)} GiB` : "not known");

const columns = [
  {
    name: "GPU",
    cell: (g: GpuCapacity) => (
      <>
        <b>{g.product || g.resourceName || "GPU"}</b>
        {g.memoryMib > 0n ? <span className="dim"> {memory(g.memoryMib)}</span> : null}
        {g.resourceName ? <div className="small dim mono">{g.resourceName}</div> : null}
      </>
    ),
  },
  { name: "Pool", cell: (g: GpuCapacity) => (g.pool ? <span className="chip">{g.pool}</span> : <span className="dim">no pool</span>) },
  {
    name: "Hosts",
    cell: (g: GpuCapacity) => (
      <span className="num">
        {/* An agent of an earlier release does not report them. */}
        {g.hosts > 0 || g.allocatable === 0 ? g.hosts : "not known"} <span className="only-narrow">{g.hosts === 1 ? "host" : "hosts"}</span>
      </span>
    ),
  },
  {
    name: "In use",
    cell: (g: GpuCapacity) => {
      const of = gpus(g);
      return (
        <div className="cell">
          <span className="num">
            {of.used} of {of.total} used, {of.free} free{of.away > 0 ? `, ${of.away} on hosts that take nothing` : ""}
          </span>
          <Bar
            parts={[
              { size: of.used, tone: "busy" },
              { size: of.free, tone: "good" },
              { size: of.away, tone: "warn" },
            ]}
          />
        </div>
      );
    },
  },
  {
    name: "Largest block",
    cell: (g: GpuCapacity) => (
      <span className="num">
        {g.largestFree} <span className="dim">free on one host</span>
      </span>
    ),
  },
  {
    name: "Quota",
    cell: (g: GpuCapacity) => (
      <span className="num">
        {g.quota > 0 ? (
          <>
            <span className="only-narrow">quota </span>
            {g.quota}
          </>
        ) : (
          <span className="dim">no quota</span>
        )}
      </span>
    ),
  },
];

/** The number of apps that the page lists at most. The list of apps has them all. */
const appsShown = 12;

function AppsThere({ region }: { region: Region }) {
  const fleet = useFleet();
  const apps = [...fleet.apps.values()].filter((a) => a.regions.includes(region.name)).sort(byName);
  if (apps.length === 0) return <p className="dim">No app of the workspace runs here.</p>;
  return (
    <div className="stack tight">
      <Rows
        label="Apps that run here"
        items={apps.slice(0, appsShown)}
        keyOf={(a) => a.id}
        columns={[
          {
            name: "App",
            cell: (a) => (
              <Link to="/apps/$project/$environment/$name" params={{ project: a.projectName, environment: a.environmentName, name: a.name }}>
                {appPath(a)}
              </Link>
            ),
          },
          { name: "Status", cell: (a) => <Badge word={appStatus(a.status)} /> },
          { name: "Message", cell: (a) => <span className="clip-2">{a.message}</span> },
        ]}
      />
      <p>
        <Link to="/apps" search={{ region: region.name }}>
          Show {apps.length > appsShown ? `all ${apps.length} of them` : "them"} in the list of apps
        </Link>
      </p>
    </div>
  );
}

function Agent({ region }: { region: Region }) {
  const facts: [string, React.ReactNode][] = [
    ["Last report", <Time key="t" at={ms(region.lastReportAt)} />],
    ["Feed", lagText(lag(region))],
    ["Agent", region.agentVersion || "–"],
    ["Runtime", region.runtime || "–"],
    ["Isolation", isolationText(region.isolation)],
    ["CPU", cores(region.cpuMillicores)],
    ["Memory", memory(region.memoryMib)],
    ...(region.workspaceId !== "" ? ([["Instances", region.instances]] as [string, React.ReactNode][]) : []),
  ];
  return (
    <dl className="facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd className="num">{value}</dd>
        </div>
      ))}
      {region.gatewayUrl ? (
        <div className="whole">
          <dt>Gateways</dt>
          <dd>
            <code>{region.gatewayUrl}</code> <Copy text={region.gatewayUrl} what="the address of the gateways" />
            {region.gatewayApproved ? null : <div className="small dim plain">The platform's regions hand no requests over to it until an operator approves it.</div>}
          </dd>
        </div>
      ) : null}
    </dl>
  );
}

export function RegionPage() {
  const { region: name } = route.useParams();
  useTitle(name);
  const fleet = useFleet();
  const { me } = useSession();
  const role = me.key?.role;
  const [asked, setAsked] = useState<RegionAsked | null>(null);
  const [made, setMade] = useState<Made | null>(null);
  if (!fleet.ready) return <Loading what="the region" />;
  const region = [...fleet.regions.values()].find((r) => r.name === name || r.id === name);
  if (!region)
    return (
      <section className="panel">
        <div className="empty">
          <h1>There is no region {name}</h1>
          <p>It was removed, or it is not a region of yours.</p>
          <Link to="/fleet">Show all regions</Link>
        </div>
      </section>
    );
  const away = region.status === RegionStatus.UNREACHABLE;
  const pending = region.status === RegionStatus.PENDING;
  const labels = sortedLabels(region.labels);
  return (
    <>
      <nav className="crumbs" aria-label="Where this is">
        <Link to="/fleet">Fleet</Link>
        <span aria-hidden="true">/</span>
        <span>{region.name}</span>
      </nav>
      <div className="page-head">
        <div className="grow title">
          <h1>{region.name}</h1>
          <Badge word={regionStatus(region.status)} />
          {region.workspaceId === "" ? <span className="chip">platform</span> : null}
        </div>
        <RegionButtons region={region} role={role} ask={setAsked} />
      </div>
      <div className="stack">
        {made ? <Once made={made} close={() => setMade(null)} /> : null}
        {away ? (
          <p className="note bad">
            Its agent was last heard of <Time at={ms(region.lastReportAt)} never="when it joined" />. Instances there keep running, and nothing is deleted. What is shown here is as of then.
          </p>
        ) : null}
        {region.message ? <p className="note warn">{region.message}</p> : null}
        {region.quarantined > 0 ? (
          <p className="note warn">
            {region.quarantined} workload{region.quarantined === 1 ? "" : "s"} there that the control plane does not know: see <code>{windlass("region prune", [region.name])}</code>.
          </p>
        ) : null}
        {pending ? (
          <div className="stack tight">
            <p className="dim">No agent has joined yet. Make a token, and start an agent with it:</p>
            <Command text={windlass("region token", [region.name])} what="the command" />
          </div>
        ) : (
          <>
            <Panel id="agent" title="Agent">
              <Agent region={region} />
            </Panel>
            <Panel id="gpus" title="GPUs">
              {region.gpus.length > 0 ? <Rows label="GPUs by product and pool" items={region.gpus} keyOf={(g) => `${g.resourceName}/${g.product}/${g.pool}`} columns={columns} /> : <p className="dim">It reports no GPUs.</p>}
            </Panel>
            <Panel id="topology" title="Topology">
              {region.topologyWords.length > 0 ? (
                <div className="stack tight">
                  <ul className="toggles" aria-label="Words for parts of the region">
                    {region.topologyWords.map((w) => (
                      <li key={w} className="chip">
                        {w}
                      </li>
                    ))}
                  </ul>
                  <p className="small dim">
                    <code>topology: {"{"}pack: …{"}"}</code> in an app's file keeps the pods of a replica in one part of the region that such a word names.
                  </p>
                </div>
              ) : (
                <p className="dim">
                  It has no words for its parts, such as rack or zone. {region.runtime === "kubernetes" ? "The agent's flag --topology adds words." : "Only regions that run Kubernetes have them."}
                </p>
              )}
            </Panel>
          </>
        )}
        {region.notes.length > 0 ? (
          <Panel id="notes" title="Notes of the agent">
            <ul className="stack tight">
              {region.notes.map((n) => (
                <li key={n} className="note idle small">
                  {n}
                </li>
              ))}
            </ul>
          </Panel>
        ) : null}
        <Panel id="labels" title="Labels">
          {labels.length > 0 ? (
            <ul className="toggles" aria-label="Labels">
              {labels.map(([k, v]) => (
                <li key={k} className="chip wrap">
                  {k}={v}
                </li>
              ))}
            </ul>
          ) : (
            <p className="dim">It has no labels.</p>
          )}
        </Panel>
        {me.workspaceName ? (
          <Panel id="apps" title="Apps">
            <AppsThere region={region} />
          </Panel>
        ) : null}
      </div>
      {asked ? <RegionDialog asked={asked} platform={role === Role.OPERATOR} done={setMade} close={() => setAsked(null)} /> : null}
    </>
  );
}
