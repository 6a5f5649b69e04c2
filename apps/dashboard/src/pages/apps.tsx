import { getRouteApi, Link } from "@tanstack/react-router";
import { useWindowVirtualizer } from "@tanstack/react-virtual";
import { useDeferredValue, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { useFleet } from "../api/fleet.js";
import type { App } from "../gen/windlass/v1/app_pb.js";
import { AppStatus } from "../gen/windlass/v1/common_pb.js";
import { countByStatus, filterApps } from "../model/fleet.js";
import { ms } from "../model/time.js";
import { appStatus, steers } from "../model/words.js";
import { Badge, Command, Loading, Ready, Time, useTitle } from "../ui/pieces.js";
import { useSession } from "../ui/session.js";
import { useViews } from "../ui/views.js";

const route = getRouteApi("/apps");
const narrow = window.matchMedia("(max-width: 760px)");
const rowHeight = () => (narrow.matches ? 124 : 62);

const statuses = [AppStatus.FAILED, AppStatus.DEGRADED, AppStatus.PROGRESSING, AppStatus.READY, AppStatus.IDLE, AppStatus.DELETING];

const example = `app: echo
regions: [us-east-1]
replicas: 2
command: [modelserver]
args: [--model, echo]
ports: [{name: http, port: 0}]
healthCheck: {path: /health}`;

function Empty({ region }: { region: string }) {
  const { me } = useSession();
  return (
    <section className="panel">
      <div className="empty">
        <h2>No apps yet</h2>
        <p>An app is a model service with a host of its own. Describe it in a file, see what a deploy would do, and deploy it:</p>
        <Command text={example.replace("us-east-1", region || "us-east-1")} what="the example of app.yaml" />
        <Command text={"windlass plan -f app.yaml\nwindlass deploy -f app.yaml"} what="the commands" />
        <p>
          Or <Link to="/plan">paste the file here</Link>.
        </p>
        <p className="dim small">
          This page shows the app as soon as it is there.
          {steers(me.key?.role) ? "" : " Your key reads only: a deploy needs a deployer's key."}
        </p>
      </div>
    </section>
  );
}

function Row({ app, top, index, height }: { app: App; top: number; index: number; height: number }) {
  const moving = app.rolloutId !== "" && app.latestVersion !== app.liveVersion;
  const version = app.liveVersion > 0 ? `v${app.liveVersion}` : "–";
  return (
    <div className="apps-row" role="row" aria-rowindex={index + 2} style={{ transform: `translateY(${top}px)`, height }}>
      <div role="cell" className="clip">
        <Link to="/apps/$project/$environment/$name" params={{ project: app.projectName, environment: app.environmentName, name: app.name }}>
          {app.name}
        </Link>
        <div className="dim small clip">
          {app.projectName}/{app.environmentName}
        </div>
      </div>
      <div role="cell">
        <Badge word={appStatus(app.status)} />
      </div>
      <div role="cell" className="num nowrap">
        {version}
        {moving ? (
          <span className="dim">
            {" "}
            → v{app.latestVersion}
          </span>
        ) : null}
      </div>
      <div role="cell" className="cell small">
        {app.liveVersion > 0 || app.replicas > 0 ? <Ready ready={app.readyReplicas} wanted={app.replicas} /> : <span className="dim">–</span>}
      </div>
      <div role="cell" className="small dim clip-2">
        {app.message || app.regions.join(", ") || "–"}
      </div>
      <div role="cell" className="small dim">
        <Time at={ms(app.updatedAt)} />
      </div>
    </div>
  );
}

function List({ apps }: { apps: App[] }) {
  const parent = useRef<HTMLDivElement>(null);
  const [margin, setMargin] = useState(0);
  const [height, setHeight] = useState(rowHeight);
  useLayoutEffect(() => {
    const measure = () => setMargin((parent.current?.getBoundingClientRect().top ?? 0) + window.scrollY);
    measure();
    window.addEventListener("resize", measure);
    return () => window.removeEventListener("resize", measure);
  }, [apps.length]);
  const rows = useWindowVirtualizer({ count: apps.length, estimateSize: () => height, overscan: 12, scrollMargin: margin, getItemKey: (i) => apps[i]?.id ?? i });
  useEffect(() => {
    const change = () => setHeight(rowHeight());
    narrow.addEventListener("change", change);
    return () => narrow.removeEventListener("change", change);
  }, []);
  useEffect(() => rows.measure(), [height, rows]);
  return (
    <div className="panel apps" role="table" aria-label="Apps" aria-rowcount={apps.length + 1}>
      <div className="apps-head" role="row" aria-rowindex={1}>
        <span role="columnheader">App</span>
        <span role="columnheader">Status</span>
        <span role="columnheader">Version</span>
        <span role="columnheader">Replicas</span>
        <span role="columnheader">Where, or what limits it</span>
        <span role="columnheader">Changed</span>
      </div>
      <div className="apps-list" role="rowgroup" ref={parent} style={{ height: rows.getTotalSize() }}>
        {rows.getVirtualItems().map((item) => {
          const app = apps[item.index];
          return app ? <Row key={item.key} app={app} index={item.index} top={item.start - margin} height={height} /> : null;
        })}
      </div>
    </div>
  );
}

export function AppsPage() {
  useTitle("Apps");
  const fleet = useFleet();
  const search = route.useSearch();
  const navigate = route.useNavigate();
  const filter = useDeferredValue(search);
  const all = useMemo(() => [...fleet.apps.values()], [fleet.apps]);
  const shown = useMemo(() => filterApps(all, { text: filter.q ?? "", status: filter.status ?? 0, region: filter.region ?? "" }), [all, filter]);
  const counts = useMemo(() => countByStatus(all), [all]);
  const regions = useMemo(() => [...new Set(all.flatMap((a) => a.regions))].sort(), [all]);
  const set = (change: Partial<typeof search>) => void navigate({ search: (old) => ({ ...old, ...change }), replace: true });
  // The address follows what is typed, and late: the field has a state of its own, and takes only what others put there.
  const [typed, setTyped] = useState(search.q ?? "");
  const sent = useRef<{ q: string | undefined } | null>(null);
  const type = (text: string) => {
    const q = text || undefined;
    sent.current = { q };
    setTyped(text);
    set({ q });
  };
  useEffect(() => {
    if (!sent.current) setTyped(search.q ?? "");
    else if (sent.current.q === search.q) sent.current = null;
  }, [search.q]);
  const filtered = Boolean(search.q || search.status || search.region);
  const views = useViews(search, filtered);
  if (!fleet.ready)
    return (
      <>
        <div className="page-head">
          <h1>Apps</h1>
        </div>
        <Loading what="the apps" />
      </>
    );
  return (
    <>
      <div className="page-head">
        <h1>Apps</h1>
        <span className="dim num" role="status">
          {filtered ? `${shown.length} of ${all.length}` : `${all.length}`}
        </span>
        <div className="end">{views.button}</div>
      </div>
      {all.length === 0 ? (
        <Empty region={[...fleet.regions.values()].map((r) => r.name).sort()[0] ?? ""} />
      ) : (
        <>
          {views.list}
          <div className="filters" role="search">
            <input
              className="input search"
              type="search"
              aria-label="Search apps"
              placeholder="Search by name, region or message"
              maxLength={200}
              value={typed}
              onChange={(e) => type(e.target.value)}
            />
            <div className="toggles" role="group" aria-label="Status">
              {statuses
                .filter((s) => (counts.get(s) ?? 0) > 0 || search.status === s)
                .map((s) => (
                  <button
                    key={s}
                    type="button"
                    className="toggle num"
                    aria-pressed={search.status === s}
                    onClick={() => set({ status: search.status === s ? undefined : s })}
                  >
                    {appStatus(s).text} {counts.get(s) ?? 0}
                  </button>
                ))}
            </div>
            {regions.length > 1 || search.region ? (
              <select className="select" aria-label="Region" value={search.region ?? ""} onChange={(e) => set({ region: e.target.value || undefined })}>
                <option value="">all regions</option>
                {[...new Set([...regions, ...(search.region ? [search.region] : [])])].map((r) => (
                  <option key={r}>{r}</option>
                ))}
              </select>
            ) : null}
          </div>
          {shown.length === 0 ? (
            <section className="panel">
              <div className="empty">
                <h2>No app is like that</h2>
                <div className="buttons">
                  <button type="button" className="button" onClick={() => {
                      type("");
                      set({ q: undefined, status: undefined, region: undefined });
                    }}
                  >
                    Show all {all.length}
                  </button>
                </div>
              </div>
            </section>
          ) : (
            <List apps={shown} />
          )}
        </>
      )}
    </>
  );
}
