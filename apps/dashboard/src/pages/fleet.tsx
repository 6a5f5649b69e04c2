import { Link } from "@tanstack/react-router";
import { lazy, Suspense, useState, type FunctionComponent, type ReactNode } from "react";
import { useFleet } from "../api/fleet.js";
import { RegionStatus, Role } from "../gen/windlass/v1/common_pb.js";
import type { GpuCapacity, Region } from "../gen/windlass/v1/region_pb.js";
import { gpus, lag, lagText, sortRegions, sumGpus } from "../model/fleet.js";
import { windlass } from "../model/shell.js";
import { ms } from "../model/time.js";
import { administers, isolationText, regionStatus } from "../model/words.js";
import { Once, type Made } from "../ui/once.js";
import { Badge, Bar, Command, Loading, Time, useTitle } from "../ui/pieces.js";
import { useSession } from "../ui/session.js";
import { RegionButtons, RegionDialog, type RegionAsked } from "./region-actions.js";

const mapKey = "windlass-map";

/** The map is not part of the first view's script. Without it, the list of regions is there all the same. */
const FleetMap = lazy<FunctionComponent<{ regions: Region[] }>>(() =>
  import("./fleet-map.js").then(
    (m) => ({ default: m.FleetMap }),
    () => ({ default: NoMap }),
  ),
);

const NoMap = () => <p className="note warn">The map could not be loaded. Load the page anew to see it.</p>;

function FleetMapPanel({ regions }: { regions: Region[] }) {
  const [shown, setShown] = useState(() => localStorage.getItem(mapKey) !== "hidden");
  const toggle = () => {
    setShown(!shown);
    try {
      if (shown) localStorage.setItem(mapKey, "hidden");
      else localStorage.removeItem(mapKey);
    } catch {
      // A browser that keeps nothing shows the map again next time.
    }
  };
  return (
    <section className="panel above" aria-labelledby="map">
      <header>
        <h2 id="map">Map</h2>
        <div className="end">
          <button type="button" className="button small" aria-expanded={shown} aria-controls="map-body" onClick={toggle}>
            {shown ? "Hide the map" : "Show the map"}
          </button>
        </div>
      </header>
      <div className="body" id="map-body" hidden={!shown}>
        {shown ? (
          <Suspense fallback={<div className="map-wait"><Loading what="the map" /></div>}>
            <FleetMap regions={regions} />
          </Suspense>
        ) : null}
      </div>
    </section>
  );
}

function Gpu({ capacity }: { capacity: GpuCapacity }) {
  const g = gpus(capacity);
  return (
    <div className="gpu">
      <div className="head">
        <b>{capacity.product || "GPU"}</b>
        {capacity.pool ? <span className="chip">pool {capacity.pool}</span> : null}
      </div>
      <Bar
        parts={[
          { size: g.used, tone: "busy" },
          { size: g.free, tone: "good" },
          { size: g.away, tone: "warn" },
        ]}
      />
      <div className="head small dim num">
        <span>
          {g.used} of {g.total} used, {g.free} free{g.away > 0 ? `, ${g.away} on hosts that take nothing` : ""}
        </span>
        <span>
          largest block {g.largest}
          {g.quota > 0 ? `, quota ${g.quota}` : ""}
        </span>
      </div>
    </div>
  );
}

function RegionCard({ region, buttons }: { region: Region; buttons: ReactNode }) {
  const away = region.status === RegionStatus.UNREACHABLE;
  const behind = lag(region);
  const id = `region-${region.id}`;
  return (
    <article className={`panel region${away ? " away" : ""}`} aria-labelledby={id}>
      <header>
        <h2 id={id}>
          <Link to="/fleet/$region" params={{ region: region.name }}>
            {region.name}
          </Link>
        </h2>
        {region.workspaceId === "" ? <span className="chip">platform</span> : null}
        <div className="end">
          <Badge word={regionStatus(region.status)} />
        </div>
      </header>
      <div className="body stack tight">
        {away ? (
          <p className="note bad">
            Its agent was last heard of <Time at={ms(region.lastReportAt)} never="when it joined" />. Instances there keep running, and nothing is deleted. What is shown below is as of
            then.
          </p>
        ) : null}
        {region.message ? <p className="note warn">{region.message}</p> : null}
        {region.status === RegionStatus.PENDING ? (
          <>
            <p className="dim small">No agent has joined yet. Make a token, and start an agent with it:</p>
            <Command text={windlass("region token", [region.name])} what="the command" />
          </>
        ) : (
          <dl className="facts">
            <div>
              <dt>Last report</dt>
              <dd>
                <Time at={ms(region.lastReportAt)} />
              </dd>
            </div>
            <div>
              <dt>Feed</dt>
              <dd className="num">{lagText(behind)}</dd>
            </div>
            <div>
              <dt>Agent</dt>
              <dd>{region.agentVersion || "–"}</dd>
            </div>
            <div>
              <dt>Runtime</dt>
              <dd>{region.runtime || "–"}</dd>
            </div>
            {region.workspaceId !== "" ? (
              <div>
                <dt>Instances</dt>
                <dd className="num">{region.instances}</dd>
              </div>
            ) : null}
            <div>
              <dt>Isolation</dt>
              <dd>{isolationText(region.isolation)}</dd>
            </div>
          </dl>
        )}
        {region.quarantined > 0 ? (
          <p className="note warn">
            {region.quarantined} workload{region.quarantined === 1 ? "" : "s"} there that the control plane does not know: see <code>{windlass("region prune", [region.name])}</code>.
          </p>
        ) : null}
        {region.notes.map((n) => (
          <p key={n} className="note idle small">
            {n}
          </p>
        ))}
        {region.gpus.length > 0 ? (
          <div>
            {region.gpus.map((g) => (
              <Gpu key={`${g.product}/${g.pool}`} capacity={g} />
            ))}
          </div>
        ) : region.status === RegionStatus.PENDING ? null : (
          <p className="small dim">It reports no GPUs.</p>
        )}
        {Object.keys(region.labels).length > 0 ? (
          <ul className="toggles" aria-label="Labels">
            {Object.entries(region.labels)
              .sort(([a], [b]) => a.localeCompare(b))
              .map(([k, v]) => (
                <li key={k} className="chip">
                  {k}={v}
                </li>
              ))}
          </ul>
        ) : null}
        {buttons}
      </div>
    </article>
  );
}

function Totals({ regions }: { regions: Region[] }) {
  const sum = { used: 0, free: 0, total: 0 };
  for (const r of regions) {
    const of = sumGpus(r);
    sum.used += of.used;
    sum.free += of.free;
    sum.total += of.total;
  }
  const connected = regions.filter((r) => r.status === RegionStatus.CONNECTED).length;
  const away = regions.filter((r) => r.status === RegionStatus.UNREACHABLE).length;
  const behind = regions.reduce((n, r) => n + lag(r), 0);
  return (
    <dl className="tiles">
      <div className="panel tile">
        <dt>Regions connected</dt>
        <dd className="num">
          {connected} of {regions.length} <small>{away > 0 ? `${away} unreachable` : "none unreachable"}</small>
        </dd>
      </div>
      <div className="panel tile">
        <dt>Instances</dt>
        <dd className="num">
          {regions.reduce((n, r) => n + r.instances, 0)} <small>in regions of the workspace</small>
        </dd>
      </div>
      <div className="panel tile">
        <dt>GPUs in use</dt>
        <dd className="num">
          {sum.total > 0 ? `${sum.used} of ${sum.total}` : "none"} <small>{sum.total > 0 ? `${sum.free} free in reach` : "no region reports any"}</small>
        </dd>
      </div>
      <div className="panel tile">
        <dt>Feed</dt>
        <dd className="num">
          {behind === 0 ? "up to date" : behind} <small>{behind === 0 ? "every agent has every change" : "changes that agents have yet to get"}</small>
        </dd>
      </div>
    </dl>
  );
}

export function FleetPage() {
  useTitle("Fleet");
  const fleet = useFleet();
  const { me } = useSession();
  const role = me.key?.role;
  const [asked, setAsked] = useState<RegionAsked | null>(null);
  const [made, setMade] = useState<Made | null>(null);
  const regions = sortRegions(fleet.regions.values());
  return (
    <>
      <div className="page-head">
        <h1 className="grow">Fleet</h1>
        {administers(role) ? (
          <button type="button" className="button" onClick={() => setAsked({ what: "create" })}>
            Create a region
          </button>
        ) : null}
      </div>
      {made ? (
        <div className="above">
          <Once made={made} close={() => setMade(null)} />
        </div>
      ) : null}
      {!fleet.ready ? (
        <Loading what="the regions" />
      ) : regions.length === 0 ? (
        <section className="panel">
          <div className="empty">
            <h2>No regions yet</h2>
            <p>A region is a place that runs instances. Make one, make a token for its agent, and start the agent there:</p>
            <Command text={"windlass region create eu-west-1\nwindlass region token eu-west-1"} what="the commands" />
          </div>
        </section>
      ) : (
        <>
          <Totals regions={regions} />
          <FleetMapPanel regions={regions} />
          <div className="cards">
            {regions.map((r) => (
              <RegionCard key={r.id} region={r} buttons={<RegionButtons region={r} role={role} ask={setAsked} />} />
            ))}
          </div>
        </>
      )}
      {asked ? <RegionDialog asked={asked} platform={role === Role.OPERATOR} done={setMade} close={() => setAsked(null)} /> : null}
    </>
  );
}
