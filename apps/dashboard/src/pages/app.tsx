import { getRouteApi, Link } from "@tanstack/react-router";
import { Fragment, type ReactNode } from "react";
import { useFleet } from "../api/fleet.js";
import { useInstances, useApp } from "../api/watch.js";
import type { App, WatchAppResponse } from "../gen/windlass/v1/app_pb.js";
import { InstanceStatus } from "../gen/windlass/v1/common_pb.js";
import type { Deployment, Instance, RegionTopology, RoleTopology } from "../gen/windlass/v1/deployment_pb.js";
import type { HistoryEntry } from "../gen/windlass/v1/history_pb.js";
import type { Pin } from "../gen/windlass/v1/pin_pb.js";
import type { Rollout } from "../gen/windlass/v1/rollout_pb.js";
import { appPath } from "../model/fleet.js";
import { instanceLabel } from "../model/logs.js";
import { gangText, groupInstances, hasRoles, isPooled, keepsSlot, orderText, pairsText, poolRoles, replicaText, roleFacts, roleOrder, rolesOf, sortInstances } from "../model/roles.js";
import { running, trafficShare, waits } from "../model/rollout.js";
import { windlass } from "../model/shell.js";
import { absolute, ms } from "../model/time.js";
import { appStatus, deploymentStatus, instanceStatus, pinState, rolloutStatus } from "../model/words.js";
import { explain } from "../api/clients.js";
import { Badge, Command, Loading, Panel, Ready, Reason, Time, Urls, useNow, useTitle } from "../ui/pieces.js";
import { Rows } from "../ui/rows.js";
import { Tabs } from "../ui/tabs.js";
import { Scaling } from "./scaling.js";
import { Steer } from "./steer.js";

const route = getRouteApi("/apps/$project/$environment/$name");

function Cell({ place, share, pooled }: { place: RegionTopology | undefined; share: number; pooled: boolean }) {
  if (!place || (place.replicas === 0 && place.instances === 0)) return <span className="dim">–</span>;
  return (
    <div className="cell small">
      <div className="row">
        <span className="num nowrap">
          {pooled ? `${place.ready} of ${place.replicas} % of the pool ready` : `${place.ready} of ${place.replicas} ready`}
        </span>
        <span className="chip num">{share} %</span>
      </div>
      <BarOf place={place} />
      {place.failed > 0 ? <span className="num">{place.failed} failed</span> : null}
      {place.reason || place.message ? (
        <span className="dim">
          {place.reason ? <Reason reason={place.reason} of="instance" /> : null} {place.message}
        </span>
      ) : null}
    </div>
  );
}

const BarOf = ({ place }: { place: RegionTopology }) => (
  <span className="bar" aria-hidden="true">
    {place.ready > 0 ? <i className={place.regionUnreachable ? "idle" : "good"} style={{ flexGrow: place.ready }} /> : null}
    {place.failed > 0 ? <i className="bad" style={{ flexGrow: place.failed }} /> : null}
    {place.replicas > place.ready ? <i className="idle" style={{ flexGrow: Math.max(0, place.replicas - place.ready - place.failed) }} /> : null}
  </span>
);

/** How many hosts an instance, or each instance of a role, has. Nothing for one host. */
function HostsChip({ of }: { of: { hosts: number } }) {
  if (of.hosts < 2) return null;
  return (
    <span className="chip" title="One pod on each, ready and restarted as one">
      {of.hosts} hosts
    </span>
  );
}

/** What one role of a version has in a region. */
function RoleCell({ role }: { role: RoleTopology | undefined }) {
  if (!role) return <span className="dim">–</span>;
  return (
    <div className="small">
      <span className="num nowrap">
        {role.ready} of {role.wanted} ready
      </span>
      {role.reason || role.message ? (
        <div className="dim">
          {role.reason ? <Reason reason={role.reason} of="instance" /> : null} {role.message}
        </div>
      ) : null}
    </div>
  );
}

/** Regions by versions: replicas that are ready, and the share of the traffic. An app with several roles has a row for each below its region. */
function Topology({ app, versions }: { app: App; versions: Deployment[] }) {
  const shown = versions.filter((d) => d.live || d.regions.some((r) => r.replicas > 0 || r.instances > 0));
  const regions = [...new Set(shown.flatMap((d) => d.regions.map((r) => r.region)))].sort();
  const away = new Set(shown.flatMap((d) => d.regions.filter((r) => r.regionUnreachable).map((r) => r.region)));
  if (regions.length === 0) return <p className="dim">Nothing of it runs anywhere.</p>;
  return (
    <div className="scroll" tabIndex={0} role="region" aria-label="Topology, regions by versions">
      <table className="topology" role="table" aria-label="Topology">
        <thead role="rowgroup">
          <tr role="row">
            <th scope="col" role="columnheader">
              Region
            </th>
            {shown.map((d) => (
              <th scope="col" role="columnheader" key={d.id}>
                v{d.version} {d.live ? <span className="chip live">live</span> : null} {d.pinnedWeight > 0 ? <span className="chip">pinned {d.pinnedWeight} %</span> : null}{" "}
                {!d.live ? <Badge word={deploymentStatus(d.status)} /> : null}
              </th>
            ))}
          </tr>
        </thead>
        <tbody role="rowgroup">
          {regions.map((name) => (
            <Fragment key={name}>
            <tr role="row">
              <th scope="row" role="rowheader">
                {name}
                {away.has(name) ? (
                  <div>
                    <Badge word={{ text: "unreachable", tone: "bad" }} />
                  </div>
                ) : null}
              </th>
              {shown.map((d) => {
                const place = d.regions.find((r) => r.region === name);
                return (
                  <td key={d.id} role="cell" data-label={`v${d.version}`}>
                    <Cell place={place} share={place ? trafficShare(app, d.id, place) : 0} pooled={isPooled(d)} />
                  </td>
                );
              })}
            </tr>
            {rolesOf(shown, name).map((role) => (
              <tr role="row" key={role.role} className="role">
                <th scope="row" role="rowheader">
                  <span className="visually-hidden">{name}, role</span> {role.role} <HostsChip of={role} /> {role.entry ? <span className="chip" title="Requests go to its instances">entry</span> : null}
                </th>
                {shown.map((d) => (
                  <td key={d.id} role="cell" data-label={`v${d.version}`}>
                    <RoleCell role={d.regions.find((r) => r.region === name)?.roles.find((r) => r.role === role.role)} />
                  </td>
                ))}
              </tr>
            ))}
            </Fragment>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** What a version says of its roles, of the pairs that gateways make of them, and of the gangs in which pods start. */
function Roles({ version: d }: { version: Deployment }) {
  const pairs = pairsText(d.spec);
  const gangs = gangText(d.spec);
  return (
    <div className="stack tight">
      <dl className="facts">
        <div>
          <dt>Replica</dt>
          <dd>{replicaText(d.spec)}</dd>
        </div>
        {isPooled(d) ? (
          <div>
            <dt>Update order</dt>
            <dd>{orderText(d.spec?.update)}</dd>
          </div>
        ) : null}
        {pairs ? (
          <div>
            <dt>Pairs</dt>
            <dd>{pairs}</dd>
          </div>
        ) : null}
        {gangs ? (
          <div>
            <dt>Gangs</dt>
            <dd>{gangs}</dd>
          </div>
        ) : null}
      </dl>
      <Rows
        label={`Roles of v${d.version}`}
        items={roleFacts(d.spec)}
        keyOf={(r) => r.name}
        columns={[
          {
            name: "Role",
            cell: (r) => (
              <>
                <b>{r.name}</b> {r.entry ? <span className="chip" title="Requests go to its instances">entry</span> : null}
              </>
            ),
          },
          { name: "Instances", cell: (r) => <span className="num">{r.count}</span> },
          { name: "What else it says", cell: (r) => (r.facts.length > 0 ? r.facts.join("; ") : <span className="dim">nothing</span>) },
        ]}
      />
    </div>
  );
}

const SlotChip = () => (
  <span className="chip" title="A successor takes the slot">
    stable slot
  </span>
);

function InstanceRow({ app, instance: i, grouped, stable }: { app: App; instance: Instance; grouped: boolean; stable: boolean }) {
  return (
    <tr className={grouped ? "in-group" : undefined}>
      <td>
        {grouped ? (
          <>
            {i.role} <span className="dim num">{i.slot}</span> <HostsChip of={i} /> {stable ? <SlotChip /> : null}
          </>
        ) : (
          <>
            <span className="nowrap">{i.region}</span> <span className="dim">replica {i.group}</span> <HostsChip of={i} /> {stable ? <SlotChip /> : null}
          </>
        )}
        <div className="mono dim">{i.runtimeName || i.id}</div>
      </td>
      <td>
        <Badge word={instanceStatus(i.status)} />
      </td>
      <td className="num">v{i.version}</td>
      <td className="num nowrap">
        {i.restarts} <span className="dim">restart{i.restarts === 1 ? "" : "s"}</span>
      </td>
      <td>
        <Link
          to="/apps/$project/$environment/$name/logs"
          params={{ project: app.projectName, environment: app.environmentName, name: app.name }}
          search={{ instance: i.id }}
          aria-label={`Logs of ${instanceLabel(i, i.id)}`}
        >
          Logs
        </Link>
      </td>
      <td className="wide">
        {i.reason || i.message ? (
          <>
            {i.reason ? <Reason reason={i.reason} of="instance" /> : null} {i.message}
          </>
        ) : (
          <span className="dim">
            ready <Time at={ms(i.readyAt)} />
          </span>
        )}
        {i.gpus.length > 0 ? <div className="dim small">GPUs {i.gpus.join(", ")}</div> : null}
      </td>
    </tr>
  );
}

/** The first row of a replica that has instances of several roles. */
function GroupRow({ first, instances }: { first: Instance; instances: Instance[] }) {
  const ready = instances.filter((i) => i.status === InstanceStatus.READY).length;
  return (
    <tr className="group">
      <th scope="rowgroup" colSpan={6}>
        {first.region} <span className="dim">replica {first.group}</span> <span className="chip num">v{first.version}</span>{" "}
        <span className="small num">
          {ready} of {instances.length} ready
        </span>
      </th>
    </tr>
  );
}

function Instances({ app, revision, versions }: { app: App; revision: number; versions: Deployment[] }) {
  const read = useInstances(app.id, revision);
  if (read.isPending) return <Loading what="the instances" />;
  if (read.isError && !read.data) return <p className="note warn">{explain(read.error)}</p>;
  const rows = sortInstances(read.data?.instances ?? [], roleOrder(versions));
  if (rows.length === 0) return <p className="dim">No instance exists.</p>;
  return (
    <>
      <table className="instances">
        <thead>
          <tr>
            <th scope="col">Instance</th>
            <th scope="col">Status</th>
            <th scope="col">Version</th>
            <th scope="col">Restarts</th>
            <th scope="col">Output</th>
            <th scope="col">Reason</th>
          </tr>
        </thead>
        {groupInstances(rows).map(({ key, instances }) => {
          const grouped = instances.some((i) => i.role !== instances[0]?.role);
          return (
            <tbody key={key}>
              {grouped ? <GroupRow first={instances[0]!} instances={instances} /> : null}
              {instances.map((i) => (
                <InstanceRow key={i.id} app={app} instance={i} grouped={grouped} stable={keepsSlot(versions, i.version, i.role)} />
              ))}
            </tbody>
          );
        })}
      </table>
      {read.data?.more ? <p className="dim small">There are more: `windlass list instances` shows all.</p> : null}
    </>
  );
}

export function History({ entries }: { entries: HistoryEntry[] }) {
  if (entries.length === 0) return <p className="dim">Nothing happened yet.</p>;
  return (
    <ol className="history">
      {entries.map((h) => (
        <li key={h.id}>
          <span className="dim small" title={absolute(ms(h.at))}>
            <Time at={ms(h.at)} />
          </span>
          <div>
            <b>{h.what}</b> {h.version > 0 ? <span className="chip num">v{h.version}</span> : null} {h.region ? <span className="chip">{h.region}</span> : null}{" "}
            <span className="dim small">by {h.who}</span>
            {h.why ? <div>{h.why}</div> : null}
          </div>
        </li>
      ))}
    </ol>
  );
}

/** Versions that are pinned beside the live one, by region. `buttons` are what can be done about a pin. */
export function Pins({ app, buttons }: { app: App; buttons?: (pin: Pin) => ReactNode }) {
  return (
    <ul className="stack tight">
      {app.pins.map((p) => (
        <li key={p.version}>
          <b className="num">v{p.version}</b> with {p.weight} % of the traffic{" "}
          <span className="dim small">
            by {p.by}
            {p.why ? `: ${p.why}` : ""}
          </span>{" "}
          {p.removing ? <span className="chip">being taken away</span> : buttons?.(p)}
          {p.regions.map((r) => (
            <div key={r.region} className="check small">
              <span>{r.region}</span> <Badge word={r.regionUnreachable ? { text: "unreachable", tone: "bad" } : pinState(r.state)} />
              <span className="num">
                {r.ready} of {r.replicas} ready, {r.weight} % now
              </span>
              {r.reason || r.message ? (
                <span className="dim">
                  {r.reason ? <Reason reason={r.reason} of="instance" /> : null} {r.message}
                </span>
              ) : null}
            </div>
          ))}
        </li>
      ))}
    </ul>
  );
}

export function Head({ app, sub }: { app: App; sub?: string }) {
  const params = { project: app.projectName, environment: app.environmentName, name: app.name };
  return (
    <>
      <nav className="crumbs" aria-label="Where this is">
        <Link to="/apps">Apps</Link>
        <span aria-hidden="true">/</span>
        <span>
          {app.projectName}/{app.environmentName}
        </span>
        {sub ? (
          <>
            <span aria-hidden="true">/</span>
            <Link to="/apps/$project/$environment/$name" params={params}>
              {app.name}
            </Link>
          </>
        ) : null}
      </nav>
      <div className="page-head">
        <div className="grow">
          <div className="title">
            <h1>{sub ?? app.name}</h1>
            {sub ? null : <Badge word={appStatus(app.status)} />}
          </div>
          {!sub && app.description ? <p className="dim">{app.description}</p> : null}
        </div>
      </div>
      <Tabs label={`Pages of ${app.name}`}>
        <Link to="/apps/$project/$environment/$name" params={params} activeOptions={{ exact: true }}>
          Overview
        </Link>
        <Link to="/apps/$project/$environment/$name/versions" params={params}>
          Versions
        </Link>
        <Link to="/apps/$project/$environment/$name/load" params={params}>
          Load
        </Link>
        <Link to="/apps/$project/$environment/$name/chat" params={params}>
          Chat
        </Link>
        <Link to="/apps/$project/$environment/$name/logs" params={params}>
          Logs
        </Link>
        <Link to="/apps/$project/$environment/$name/variables" params={params}>
          Variables
        </Link>
        <Link to="/apps/$project/$environment/$name/hosts" params={params}>
          Hosts
        </Link>
      </Tabs>
    </>
  );
}

/** Why a rollout that is over did not succeed. */
export function Ended({ rollout: r }: { rollout: Rollout }) {
  if (running(r) || (!r.reason && !r.message)) return null;
  return (
    <p className="note bad">
      {r.reason ? (
        <>
          <Reason reason={r.reason} of="rollout" />:{" "}
        </>
      ) : null}
      {r.message}
    </p>
  );
}

/** What is shown instead of an app: it is being read, or it is not there. */
export function NoApp({ watched, path }: { watched: ReturnType<typeof useApp>; path: string }) {
  const { link } = watched;
  const why = link.state === "stale" ? link.why : "";
  if (link.state === "refused")
    return (
      <section className="panel">
        <div className="empty">
          <h1>{path}</h1>
          <p className="note bad">{link.why}</p>
          <Link to="/apps">Show all apps</Link>
        </div>
      </section>
    );
  return (
    <>
      <h1>{path}</h1>
      {why ? <p className="note warn">{why} The page tries again by itself.</p> : <Loading what="the app" />}
    </>
  );
}

/** Says that news of the app do not come, where those of the fleet do: else the banner says it. */
export function Outdated({ watched: { link } }: { watched: ReturnType<typeof useApp> }) {
  const fleet = useFleet();
  if (link.state === "refused") return <p className="note warn">No more news of this app comes: {link.why}</p>;
  if (link.state !== "stale" || fleet.link.state !== "live") return null;
  return (
    <p className="note warn">
      No news of this app comes at the moment. {link.why} What you see may be old. The page asks again by itself.
    </p>
  );
}

function RolloutSummary({ picture, app, history }: { picture: WatchAppResponse; app: App; history: HistoryEntry[] }) {
  const now = useNow();
  const r = picture.rollout;
  const params = { project: app.projectName, environment: app.environmentName, name: app.name };
  if (!r)
    return (
      <>
        <p className="dim">No rollout yet.</p>
        <Command text="windlass deploy -f app.yaml" what="the command" />
      </>
    );
  const words = waits(r, app, now, history);
  return (
    <div className="stack tight">
      <p className="title">
        <Link to="/apps/$project/$environment/$name/rollouts/$rollout" params={{ ...params, rollout: r.id }}>
          {r.fromVersion > 0 ? `v${r.fromVersion} → v${r.version}` : `v${r.version}, the first`}
        </Link>
        <Badge word={running(r) && r.progress?.paused ? { text: "paused", tone: "warn" } : rolloutStatus(r.status)} />
        <span className="dim small">
          begun <Time at={ms(r.createdAt)} /> by {r.createdBy}
        </span>
      </p>
      <Ended rollout={r} />
      {words.length > 0 ? (
        <ul className="note">
          {words.slice(0, 4).map((w) => (
            <li key={w}>{w}</li>
          ))}
          {words.length > 4 ? <li>and {words.length - 4} more</li> : null}
        </ul>
      ) : null}
      <Steer app={app} rollout={r} />
    </div>
  );
}

export function AppPage() {
  const { project, environment, name } = route.useParams();
  const path = `${project}/${environment}/${name}`;
  const watched = useApp(path);
  useTitle(name);
  const picture = watched.picture;
  const app = picture?.app;
  if (!picture || !app) return <NoApp watched={watched} path={path} />;
  if (picture.deleted)
    return (
      <>
        <Head app={app} />
        <p className="note idle">The app was deleted.</p>
      </>
    );
  const pool = poolRoles(picture.deployments, app.liveVersion);
  const shown = picture.deployments.find((d) => d.version === app.liveVersion) ?? picture.deployments.find((d) => d.version === app.latestVersion);
  return (
    <>
      <Head app={app} />
      <div className="stack">
        <Outdated watched={watched} />
        {app.message ? <p className={`note ${appStatus(app.status).tone === "bad" ? "bad" : appStatus(app.status).tone === "warn" ? "warn" : "idle"}`}>{app.message}</p> : null}
        <dl className="tiles">
          <div className="panel tile">
            <dt>Live version</dt>
            <dd className="num">
              {app.liveVersion > 0 ? `v${app.liveVersion}` : "none"} <small>{app.previousVersion > 0 ? `before it v${app.previousVersion}` : "none before it"}</small>
            </dd>
          </div>
          <div className="panel tile">
            <dt>{pool.length > 0 ? "Instances" : "Replicas"}</dt>
            <dd className="num small">
              {pool.length > 0 ? (
                <>
                  {pool.map((r) => (
                    <div key={r.role}>
                      {r.role}: <Ready ready={r.ready} wanted={r.wanted} />
                    </div>
                  ))}
                  <small>update order {orderText(picture.deployments.find((d) => d.version === app.liveVersion)?.spec?.update)}</small>
                </>
              ) : (
                <Ready ready={app.readyReplicas} wanted={app.replicas} />
              )}
            </dd>
          </div>
          <div className="panel tile">
            <dt>Regions</dt>
            <dd className="num">
              {app.regions.length} <small>{app.regions.join(", ") || "none"}</small>
            </dd>
          </div>
        </dl>
        <Panel id="rollout" title="Rollout">
          <RolloutSummary picture={picture} app={app} history={watched.history} />
        </Panel>
        <Panel id="topology" title="Topology">
          <Topology app={app} versions={picture.deployments} />
        </Panel>
        {shown && hasRoles(shown.spec) ? (
          <Panel id="roles" title={`Roles of v${shown.version}`}>
            <Roles version={shown} />
          </Panel>
        ) : null}
        <Scaling app={app} watched={watched} />
        {app.pins.length > 0 ? (
          <Panel id="pins" title="Pins">
            <Pins app={app} />
          </Panel>
        ) : null}
        <Panel id="hosts" title="Hosts">
          {app.urls.length > 0 ? <Urls urls={app.urls} /> : <p className="dim">No host yet: no instance is ready.</p>}
        </Panel>
        <Panel id="instances" title="Instances">
          <Instances app={app} revision={watched.revision} versions={picture.deployments} />
        </Panel>
        <Panel id="history" title="History">
          <History entries={watched.history} />
          <p className="dim small">
            <code>{windlass("history", [appPath(app)])}</code> shows all.
          </p>
        </Panel>
      </div>
    </>
  );
}
