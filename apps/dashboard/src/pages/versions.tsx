import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { useEffect, useId, useRef, useState } from "react";
import { apps, deployments, explain, freezes, mutation } from "../api/clients.js";
import { useRefetchOnFleetNews, useRefetchOnNews } from "../api/news.js";
import { usePages } from "../api/pages.js";
import { useApp } from "../api/watch.js";
import type { App } from "../gen/windlass/v1/app_pb.js";
import type { Deployment } from "../gen/windlass/v1/deployment_pb.js";
import { Freeze_OnStart, type Freeze } from "../gen/windlass/v1/freeze_pb.js";
import type { Pin } from "../gen/windlass/v1/pin_pb.js";
import { changedMeanwhile } from "../model/changed.js";
import { diffVersions } from "../model/diff.js";
import { appPath } from "../model/fleet.js";
import { ms } from "../model/time.js";
import { canPin, canRollBack, freezesOf, rollbackEffect } from "../model/versions.js";
import { deploymentStatus, steers } from "../model/words.js";
import { Confirm } from "../ui/confirm.js";
import { Differences } from "../ui/differences.js";
import { Badge, Command, Loading, Panel, Reason, Time, useTitle } from "../ui/pieces.js";
import { Paged, Rows } from "../ui/rows.js";
import { useSession } from "../ui/session.js";
import { useToast } from "../ui/toast.js";
import { Head, NoApp, Outdated, Pins } from "./app.js";

const route = getRouteApi("/apps/$project/$environment/$name/versions");

const compareId = "compare";

type Asked = { what: "rollback"; version: Deployment } | { what: "pin"; version: number; pin?: Pin } | { what: "unpin"; pin: Pin };

const sources: Record<string, string> = { deploy: "deploy", environment: "variables", rollback: "rollback" };

function Name({ d }: { d: Deployment }) {
  return (
    <div className="title">
      <b className="num">v{d.version}</b>
      {d.live ? <span className="chip live">live</span> : null}
      {d.pinnedWeight > 0 ? <span className="chip">pinned {d.pinnedWeight} %</span> : null}
      {d.spec?.versionLabel ? <span className="chip wrap">{d.spec.versionLabel}</span> : null}
    </div>
  );
}

function Status({ d }: { d: Deployment }) {
  return (
    <>
      <Badge word={deploymentStatus(d.status)} /> {d.stable && !d.live ? <span className="dim small">was stable</span> : null}
      {d.reason || d.message ? (
        <div className="small">
          {d.reason ? <Reason reason={d.reason} of="rollout" /> : null} {d.message}
        </div>
      ) : null}
    </>
  );
}

/** A digest is told by its beginning. Compare shows it whole. */
const short = (image: string) => image.replace(/(@sha256:[0-9a-f]{12})[0-9a-f]+$/, "$1…");

function What({ app, d }: { app: string; d: Deployment }) {
  const program = d.spec?.command.join(" ") ?? "";
  return (
    <>
      {d.spec?.message ? <div>{d.spec.message}</div> : null}
      <div className="mono dim" title={d.resolvedImage || undefined}>
        {short(d.resolvedImage) || d.spec?.image || program || "–"}
      </div>
      {d.spec?.generatedBy ? (
        <div className="dim small">
          made by preset{" "}
          <Link to="/presets/$preset" params={{ preset: d.spec.generatedBy.replace(/\/[^/]*$/, "") }} search={{ app: d.live ? app : undefined }}>
            {d.spec.generatedBy}
          </Link>
        </div>
      ) : null}
      {d.spec?.sourceCommit ? <div className="dim small">commit {d.spec.sourceCommit}</div> : null}
    </>
  );
}

function Who({ d }: { d: Deployment }) {
  return (
    <>
      <Time at={ms(d.createdAt)} /> <span className="dim">by {d.createdBy}</span>
      <div className="dim small">
        {sources[d.source] ?? d.source}
        {d.source === "rollback" && d.fromVersion > 0 ? ` to v${d.fromVersion}` : ""}
      </div>
    </>
  );
}

function Compare({ app, versions, from, to, choose }: { app: string; versions: Deployment[]; from: number; to: number; choose: (from: number, to: number) => void }) {
  const id = useId();
  const numbers = [...new Set([...versions.map((d) => d.version), from, to])].sort((a, b) => b - a);
  // A version of the address may be on a page of the list that was not read.
  const one = (version: number) => ({
    queryKey: ["version", app, version],
    queryFn: async ({ signal }: { signal: AbortSignal }) => (await deployments.getDeployment({ app, version }, { signal })).deployment ?? null,
    enabled: !versions.some((d) => d.version === version),
    staleTime: 60_000,
  });
  const readFrom = useQuery(one(from));
  const readTo = useQuery(one(to));
  const before = versions.find((d) => d.version === from) ?? readFrom.data;
  const after = versions.find((d) => d.version === to) ?? readTo.data;
  const error = readFrom.error ?? readTo.error;
  const select = (which: "from" | "to", label: string, value: number) => (
    <span className="inline-field">
      <label htmlFor={`${id}${which}`}>{label}</label>
      <select id={`${id}${which}`} className="select num" value={value} onChange={(e) => choose(which === "from" ? Number(e.target.value) : from, which === "to" ? Number(e.target.value) : to)}>
        {numbers.map((n) => (
          <option key={n} value={n}>
            v{n}
          </option>
        ))}
      </select>
    </span>
  );
  return (
    <div className="stack tight">
      <div className="filters">
        {select("from", "From", from)}
        {select("to", "to", to)}
      </div>
      {before && after ? (
        <Differences changes={diffVersions(before, after)} before={`v${from}`} after={`v${to}`} none={from === to ? "Choose two versions." : `v${from} and v${to} do not differ.`} />
      ) : error ? (
        <p className="note bad">{explain(error)}</p>
      ) : (
        <Loading what="the versions" />
      )}
    </div>
  );
}

function FreezeNote({ freeze: f }: { freeze: Freeze }) {
  const of = f.app ? "the app" : f.project ? `project ${f.project}` : "the workspace";
  const holds = f.onStart === Freeze_OnStart.HOLD;
  return (
    <li className={`note ${f.inForce ? "warn" : "idle"}`}>
      <b>{f.name}</b>, a freeze of {of}
      {f.fromFile ? " from the app's file" : ""}: {f.reason}
      <div className="small">
        {f.inForce ? (
          <>
            New versions {holds ? "wait" : "are refused"} {f.inForceUntil > 0n ? "until it ends" : "until it is lifted"}
            {f.inForceUntil > 0n ? (
              <>
                {" "}
                <Time at={ms(f.inForceUntil)} />
              </>
            ) : null}
            . Rolling back is never frozen.
          </>
        ) : (
          <>
            It is in force next <Time at={ms(f.nextAt)} />.
          </>
        )}
      </div>
    </li>
  );
}

function Freezes({ app }: { app: App }) {
  const read = useQuery({
    queryKey: ["freezes"],
    queryFn: async ({ signal }) => {
      const all: Freeze[] = [];
      for (let token = ""; ; ) {
        const res = await freezes.listFreezes({ page: { size: 200, token } }, { signal });
        all.push(...res.freezes);
        token = res.page?.next ?? "";
        if (!token) return all;
      }
    },
  });
  useRefetchOnFleetNews(() => void read.refetch({ cancelRefetch: false }));
  if (read.isError && !read.data) return <p className="note warn">Freezes could not be read: {explain(read.error)}</p>;
  const shown = freezesOf(app, read.data ?? []);
  if (shown.length === 0) return null;
  return (
    <ul className="stack tight" aria-label="Freezes">
      {shown.map((f) => (
        <FreezeNote key={f.id} freeze={f} />
      ))}
    </ul>
  );
}

function AskRollback({ app, live, version: d, close }: { app: App; live: Deployment | undefined; version: Deployment; close: () => void }) {
  const say = useToast();
  const [withSteps, setSteps] = useState(false);
  const [withSecrets, setSecrets] = useState(false);
  // The differences that are shown are to this version, so another live version refuses the call.
  const [liveVersion] = useState(live?.version ?? 0);
  const changes = live ? diffVersions(live, d) : [];
  return (
    <Confirm
      ask={{ title: `Roll back to v${d.version}: ${appPath(app)}`, effect: rollbackEffect(app, d, withSteps, withSecrets).join(" "), label: `Roll back to v${d.version}`, grave: true, reason: "Why, for the history (optional)" }}
      act={async (message) => {
        const res = await apps.rollback({ mutation: mutation(), app: app.id, version: d.version, liveVersion, message, withSteps, withSecrets });
        say([res.retained ? `v${res.version} is live again.` : `The app goes back to v${d.version}${res.version !== d.version ? `, as v${res.version}` : ""}.`, ...res.warnings].join(" "));
      }}
      onClose={close}
      explain={explain}
    >
      <div className="stack tight">
        {live ? (
          <p className="small">
            {changes.length === 0 ? `v${d.version} does not differ from v${live.version}.` : `${changes.length} field${changes.length === 1 ? "" : "s"} differ${changes.length === 1 ? "s" : ""} from v${live.version}: `}
            {changes.slice(0, 5).map((c, i) => (
              <span key={c.path}>
                {i > 0 ? ", " : ""}
                <code>{c.path}</code>
              </span>
            ))}
            {changes.length > 5 ? ` and ${changes.length - 5} more` : ""}
          </p>
        ) : null}
        <label className="choice">
          <input type="checkbox" checked={withSteps} onChange={(e) => setSteps(e.target.checked)} /> Take the policy's steps on the way
        </label>
        <label className="choice">
          <input type="checkbox" checked={withSecrets} onChange={(e) => setSecrets(e.target.checked)} /> Take the versions of secrets of then
        </label>
      </div>
    </Confirm>
  );
}

const changed = (opened: Pin | undefined, now: Pin | undefined) => (opened?.resourceVersion === now?.resourceVersion ? null : <p className="note warn">{changedMeanwhile}</p>);

export function AskPin({ app, version, pin: asked, now, close }: { app: App; version: number; pin: Pin | undefined; now: Pin | undefined; close: () => void }) {
  const say = useToast();
  // Another pin by then refuses the call.
  const [pin] = useState(asked);
  const id = useId();
  const [weight, setWeight] = useState(String(pin?.weight ?? 10));
  const [replicas, setReplicas] = useState("");
  return (
    <Confirm
      ask={{
        title: `${pin ? "Change the pin of" : "Pin"} v${version}: ${appPath(app)}`,
        effect: pin
          ? `v${version} keeps serving beside the live version with the share below. Where it failed it is tried again.`
          : `v${version} serves beside the live version, with replicas of its own, until the pin is ended. Replicas that it has no longer start again, and count in quotas. It gets its share once they are ready.`,
        label: pin ? "Change the pin" : `Pin v${version}`,
        grave: false,
        reason: "Why, for the history (optional)",
      }}
      act={async (why) => {
        const res = await apps.pinVersion({ mutation: mutation(), app: app.id, version, weight: Number(weight), why, resourceVersion: pin?.resourceVersion ?? 0n, ...(replicas ? { replicas: Number(replicas) } : {}) });
        say(res.unchanged ? `v${version} is pinned so already.` : `v${version} is pinned at ${weight} % of the traffic.`);
      }}
      onClose={close}
      explain={explain}
    >
      <div className="pair">
        <div className="field">
          <label htmlFor={`${id}w`}>Percent of the traffic</label>
          <input id={`${id}w`} className="input num" type="number" min={1} max={99} required value={weight} onChange={(e) => setWeight(e.target.value)} />
        </div>
        <div className="field">
          <label htmlFor={`${id}n`}>Replicas in each region (optional)</label>
          <input id={`${id}n`} className="input num" type="number" min={1} max={10_000} placeholder="as it has or had" value={replicas} onChange={(e) => setReplicas(e.target.value)} />
        </div>
      </div>
      {changed(pin, now)}
    </Confirm>
  );
}

export function AskUnpin({ app, pin: asked, now, close }: { app: App; pin: Pin; now: Pin | undefined; close: () => void }) {
  const say = useToast();
  const [pin] = useState(asked);
  return (
    <Confirm
      ask={{
        title: `Unpin v${pin.version}: ${appPath(app)}`,
        effect: `The ${pin.weight} % of the traffic that v${pin.version} has go to the other versions, and then its replicas are stopped.`,
        label: `Unpin v${pin.version}`,
        grave: true,
        reason: "Why, for the history (optional)",
      }}
      act={async (why) => {
        await apps.unpinVersion({ mutation: mutation(), app: app.id, version: pin.version, why, resourceVersion: pin.resourceVersion });
        say(`v${pin.version} is pinned no longer.`);
      }}
      onClose={close}
      explain={explain}
    >
      {changed(pin, now)}
    </Confirm>
  );
}

export function VersionsPage() {
  const { project, environment, name } = route.useParams();
  const search = route.useSearch();
  const navigate = route.useNavigate();
  const path = `${project}/${environment}/${name}`;
  const watched = useApp(path);
  const { me } = useSession();
  const [asked, setAsked] = useState<Asked | null>(null);
  const [jump, setJump] = useState(0);
  useTitle(`Versions of ${name}`);
  const picture = watched.picture;
  const app = picture?.app;
  const list = usePages(
    ["versions", path],
    async (token, signal) => {
      const res = await deployments.listDeployments({ app: path, page: { size: 20, token } }, { signal });
      return { items: res.deployments, next: res.page?.next ?? "" };
    },
  );
  useRefetchOnNews(watched.revision, list.refetch);
  const heading = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (jump === 0) return;
    heading.current?.focus();
    heading.current?.scrollIntoView({ block: "start" });
  }, [jump]);
  if (!picture || !app) return <NoApp watched={watched} path={path} />;
  const versions = list.items;
  const live = versions.find((d) => d.live) ?? picture.deployments.find((d) => d.live);
  const from = search.from ?? versions[1]?.version ?? 0;
  const to = search.to ?? versions[0]?.version ?? 0;
  const choose = (from: number, to: number) => void navigate({ search: { from, to }, replace: true, resetScroll: false });
  const compare = (d: Deployment) => {
    // With what is live; the live one with the version before it.
    const other = d.live || !live ? (versions.find((v) => v.version < d.version)?.version ?? d.version) : live.version;
    choose(Math.min(other, d.version), Math.max(other, d.version));
    setJump((n) => n + 1);
  };
  const may = steers(me.key?.role) && !picture.deleted;
  const close = () => setAsked(null);
  return (
    <>
      <Head app={app} sub="Versions" />
      <div className="stack">
        {picture.deleted ? <p className="note idle">The app was deleted.</p> : <Outdated watched={watched} />}
        <Freezes app={app} />
        {app.pins.length > 0 ? (
          <Panel id="pins" title="Pins">
            <Pins
              app={app}
              buttons={(pin) =>
                may ? (
                  <span className="buttons inline">
                    <button type="button" className="button small" aria-label={`Change the pin of v${pin.version}`} onClick={() => setAsked({ what: "pin", version: pin.version, pin })}>
                      Change
                    </button>
                    <button type="button" className="button small grave" aria-label={`Unpin v${pin.version}`} onClick={() => setAsked({ what: "unpin", pin })}>
                      Unpin
                    </button>
                  </span>
                ) : null
              }
            />
          </Panel>
        ) : null}
        <Panel id="versions" title="Versions">
          <Paged
            pages={list}
            what="the versions"
            empty={
              <div className="stack tight">
                <p className="dim">No version was made yet.</p>
                <Command text="windlass deploy -f app.yaml" what="the command" />
              </div>
            }
          >
            {(items) => (
              <Rows
                label="Versions"
                items={items}
                keyOf={(d) => d.id}
                columns={[
                  { name: "Version", cell: (d) => <Name d={d} /> },
                  { name: "Status", cell: (d) => <Status d={d} /> },
                  { name: "What", cell: (d) => <What app={path} d={d} /> },
                  { name: "Made", cell: (d) => <Who d={d} /> },
                  {
                    name: "What can be done",
                    quiet: true,
                    cell: (d) => (
                      <div className="buttons end">
                        {versions.length > 1 ? (
                          <button type="button" className="button small" aria-label={`Compare v${d.version}`} onClick={() => compare(d)}>
                            Compare
                          </button>
                        ) : null}
                        {may && canPin(app, d) ? (
                          <button type="button" className="button small" aria-label={`Pin v${d.version}`} onClick={() => setAsked({ what: "pin", version: d.version })}>
                            Pin
                          </button>
                        ) : null}
                        {may && canRollBack(app, d) ? (
                          <button type="button" className="button small grave" aria-label={`Roll back to v${d.version}`} onClick={() => setAsked({ what: "rollback", version: d })}>
                            Roll back
                          </button>
                        ) : null}
                      </div>
                    ),
                  },
                ]}
              />
            )}
          </Paged>
        </Panel>
        {from > 0 && to > 0 ? (
          <div ref={heading} tabIndex={-1} className="anchor" aria-labelledby={compareId} role="group">
            <Panel id={compareId} title="Compare">
              <Compare app={path} versions={versions} from={from} to={to} choose={choose} />
            </Panel>
          </div>
        ) : null}
      </div>
      {asked?.what === "rollback" ? <AskRollback app={app} live={live} version={asked.version} close={close} /> : null}
      {asked?.what === "pin" ? <AskPin app={app} version={asked.version} pin={asked.pin} now={app.pins.find((p) => p.version === asked.version)} close={close} /> : null}
      {asked?.what === "unpin" ? <AskUnpin app={app} pin={asked.pin} now={app.pins.find((p) => p.version === asked.pin.version)} close={close} /> : null}
    </>
  );
}
