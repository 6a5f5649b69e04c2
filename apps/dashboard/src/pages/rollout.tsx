import { getRouteApi } from "@tanstack/react-router";
import { useApp } from "../api/watch.js";
import type { Deployment } from "../gen/windlass/v1/deployment_pb.js";
import { WaveProgress_State, type ApprovalProgress, type RegionProgress, type Rollout, type VersionProgress } from "../gen/windlass/v1/rollout_pb.js";
import { isPooled, orderText, pairsText, roleCounts, rolesText, type RoleCount } from "../model/roles.js";
import { figures, running, steps, waits, waveName } from "../model/rollout.js";
import { ms } from "../model/time.js";
import { checkState, regionState, roleName, rolloutStatus, strategyName, waveState } from "../model/words.js";
import { Badge, Bar, Panel, Reason, Time, Urls, useNow, useTitle } from "../ui/pieces.js";
import { Ended, Head, History, NoApp, Outdated } from "./app.js";
import { Steer } from "./steer.js";

const route = getRouteApi("/apps/$project/$environment/$name/rollouts/$rollout");

/** `roles` are empty for a version with one role. */
function Version({ version, of, roles, label, fresh }: { version: VersionProgress; of: Deployment | undefined; roles: RoleCount[]; label: string; fresh: boolean }) {
  const pooled = isPooled(of);
  const sets = pairsText(of?.spec) ? "complete pairs" : "complete sets of roles";
  return (
    <>
      <span className="chip num">v{version.version}</span>
      <span className="cell">
        <span className="small row">
          <span>
            {label}: <span className="num">{pooled && roles.length > 0 ? rolesText(roles) : `${version.ready} of ${version.replicas} ${pooled ? "% of the pool " : roles.length > 0 ? "groups " : ""}ready`}</span>
            {version.outdated > 0 ? `, ${version.outdated}${pooled ? " %" : ""} to be replaced` : ""}
          </span>
        </span>
        {roles.length > 0 ? (
          <span className="dim small num">
            {pooled ? `${sets}: ${version.ready} % of the pool` : rolesText(roles)}
          </span>
        ) : null}
        <Bar
          parts={[
            { size: version.ready, tone: fresh ? "good" : "busy" },
            { size: Math.max(0, version.replicas - version.ready), tone: "idle" },
            { size: version.replicas === 0 && version.ready === 0 ? 1 : 0, tone: "idle" },
          ]}
        />
      </span>
      <span className="num small nowrap">{version.weight} % traffic</span>
    </>
  );
}

function Gate({ gate, of }: { gate: ApprovalProgress; of: string }) {
  // Nothing is missing at the gates of a rollout that is over, whether they opened or not.
  const open = gate.missing === "" && gate.given.length >= (gate.asked?.count || 1);
  return (
    <div className="check">
      <Badge word={open ? { text: "open", tone: "good" } : gate.missing ? { text: "waiting", tone: "warn" } : { text: "closed", tone: "idle" }} />
      <span>
        {of}: {open ? "has all its approvals" : gate.missing ? `waits for ${gate.missing}` : "did not open"}
        {gate.given.map((g) => (
          <span key={`${g.by}${g.at}`} className="dim">
            {" "}
            · {g.by} ({roleName(g.role)}) <Time at={ms(g.at)} />
            {g.comment ? ` “${g.comment}”` : ""}
          </span>
        ))}
      </span>
    </div>
  );
}

function RegionRow({ rollout, versions, region: p }: { rollout: Rollout; versions: Deployment[]; region: RegionProgress }) {
  const parts = (v: VersionProgress) => ({ version: v, of: versions.find((d) => d.version === v.version), roles: roleCounts(versions, v.version, p.region) });
  const now = useNow();
  const all = steps(rollout, p);
  return (
    <div className="region-row">
      <div>
        <h3>{p.region}</h3>
        <Badge word={regionState(p.state)} />
        {p.since > 0n ? (
          <div className="dim small">
            since <Time at={ms(p.since)} />
          </div>
        ) : null}
        {p.failedInstances > 0 ? (
          <div className="dim small num">
            {p.failedInstances} failed, limit {p.failedLimit}
          </div>
        ) : null}
        {p.relapses > 0 ? (
          <div className="dim small num">
            became unready {p.relapses} time{p.relapses === 1 ? "" : "s"}, limit {p.relapseLimit}
          </div>
        ) : null}
        {p.deadline > 0n ? (
          <div className="dim small">
            deadline <Time at={ms(p.deadline)} />
          </div>
        ) : null}
      </div>
      <div>
        <div className="move">
          {p.old && p.old.version > 0 ? <Version {...parts(p.old)} label="old" fresh={false} /> : null}
          {p.new ? <Version {...parts(p.new)} label="new" fresh /> : null}
          {p.others.map((v) => (
            <Version key={v.version} {...parts(v)} label="other" fresh={false} />
          ))}
        </div>
        {all.length > 0 ? (
          <ol className="steps" aria-label={`Steps in ${p.region}`}>
            {all.map((s, i) => (
              <li key={i} className={`step num ${s.state}`} aria-current={s.state === "now" ? "step" : undefined}>
                {s.label}
              </li>
            ))}
          </ol>
        ) : null}
        {p.approval ? <Gate gate={p.approval} of="Gate of this step" /> : null}
        {p.checks.map((c) => (
          <div key={c.name} className="check">
            <Badge word={checkState(c.state)} />
            <b>{c.name}</b>
            <span className="num">{figures(c)}</span>
            {c.failureLimit > 0 || c.failures > 0 ? (
              <span className="dim num">
                failed {c.failures}, limit {c.failureLimit}
              </span>
            ) : null}
            {ms(c.dueAt) > now ? (
              <span className="dim">
                next <Time at={ms(c.dueAt)} />
              </span>
            ) : null}
            {c.message ? <span className="dim">{c.message}</span> : null}
          </div>
        ))}
        {p.reason || p.message ? (
          <p className="small">
            {p.reason ? (
              <>
                <Reason reason={p.reason} of="instance" />:{" "}
              </>
            ) : null}
            {p.message}
          </p>
        ) : null}
      </div>
    </div>
  );
}

function Waves({ rollout, versions }: { rollout: Rollout; versions: Deployment[] }) {
  const waves = rollout.progress?.waves ?? [];
  if (waves.length === 0)
    return <p className="dim">{running(rollout) ? "It has no waves: it goes to all its regions at once, or it has yet to start." : "Where its regions were is kept of the newest rollout only."}</p>;
  return (
    <ol className="waves">
      {waves.map((w, i) => {
        const now = w.state === WaveProgress_State.ROLLING || w.state === WaveProgress_State.BAKING;
        const id = `wave-${i}`;
        return (
          <li key={i} className={`panel wave${now && running(rollout) ? " now" : ""}`} aria-labelledby={id}>
            <header>
              <h3 id={id}>{waveName(w, i)}</h3>
              <Badge word={waveState(w.state)} />
              {w.state === WaveProgress_State.BAKING && w.bakingUntil > 0n ? (
                <span className="dim small">
                  until <Time at={ms(w.bakingUntil)} />
                </span>
              ) : null}
            </header>
            <div className="body">
              {w.regions.map((p) => (
                <RegionRow key={p.region} rollout={rollout} versions={versions} region={p} />
              ))}
              {w.approval ? <Gate gate={w.approval} of="Gate at its end" /> : null}
            </div>
          </li>
        );
      })}
    </ol>
  );
}

export function RolloutPage() {
  const { project, environment, name, rollout: id } = route.useParams();
  const path = `${project}/${environment}/${name}`;
  const watched = useApp(path, id);
  const now = useNow();
  useTitle(`Rollout of ${name}`);
  const picture = watched.picture;
  const app = picture?.app;
  const r = picture?.askedRollout ?? picture?.rollout;
  if (!picture || !app || !r) return <NoApp watched={watched} path={path} />;
  const words = waits(r, app, now, watched.history);
  const policy = r.progress?.policy;
  const moving = picture.deployments.find((d) => d.version === r.version);
  const pairs = pairsText(moving?.spec);
  const isNewest = picture.rollout?.id === r.id;
  const paused = running(r) && r.progress?.paused;
  return (
    <>
      <Head app={app} sub={r.fromVersion > 0 ? `Rollout v${r.fromVersion} → v${r.version}` : `Rollout of v${r.version}`} />
      <div className="stack">
        {picture.deleted ? <p className="note idle">The app was deleted.</p> : <Outdated watched={watched} />}
        <Panel
          id="state"
          title="Where it is"
          end={<Badge word={paused ? { text: "paused", tone: "warn" } : r.progress?.goingBack && running(r) ? { text: "going back", tone: "warn" } : rolloutStatus(r.status)} />}
        >
          <div className="stack tight">
            <dl className="facts">
              <div>
                <dt>Begun</dt>
                <dd>
                  <Time at={ms(r.createdAt)} /> by {r.createdBy}
                </dd>
              </div>
              {r.finishedAt > 0n ? (
                <div>
                  <dt>Ended</dt>
                  <dd>
                    <Time at={ms(r.finishedAt)} />
                  </dd>
                </div>
              ) : null}
              {r.deadline > 0n && running(r) ? (
                <div>
                  <dt>Deadline for progress</dt>
                  <dd>
                    <Time at={ms(r.deadline)} />
                  </dd>
                </div>
              ) : null}
              {r.progress && ms(r.progress.retainedUntil) > now ? (
                <div>
                  <dt>v{r.fromVersion} is kept, for a way back</dt>
                  <dd>
                    until <Time at={ms(r.progress.retainedUntil)} />
                  </dd>
                </div>
              ) : null}
              {policy ? (
                <div>
                  <dt>Strategy</dt>
                  <dd>{strategyName(policy.strategy)}</dd>
                </div>
              ) : null}
              {isPooled(moving) ? (
                <div>
                  <dt>Order of the roles</dt>
                  <dd>{orderText(moving?.spec?.update)}</dd>
                </div>
              ) : null}
              {pairs ? (
                <div>
                  <dt>Pairs</dt>
                  <dd>{pairs}</dd>
                </div>
              ) : null}
            </dl>
            <Ended rollout={r} />
            {words.length > 0 ? (
              <div>
                <h3>Why it waits</h3>
                <ul className={`note${paused ? " warn" : ""}`}>
                  {words.map((w) => (
                    <li key={w}>{w}</li>
                  ))}
                </ul>
              </div>
            ) : null}
            {r.startApproval ? <Gate gate={r.startApproval} of="Gate before it starts" /> : null}
            {picture.deleted ? null : isNewest ? <Steer app={app} rollout={r} /> : <p className="dim small">Another rollout took its place.</p>}
          </div>
        </Panel>
        {r.previewUrls.length > 0 ? (
          <Panel id="preview" title="Look at it before it is live">
            <Urls urls={r.previewUrls} />
          </Panel>
        ) : null}
        <section aria-label="Waves">
          <Waves rollout={r} versions={picture.deployments} />
        </section>
        {r.progress && r.progress.behind.length > 0 ? (
          <Panel id="behind" title="Regions that catch up">
            {r.progress.behind.flatMap((w) => w.regions).map((p) => (
              <RegionRow key={p.region} rollout={r} versions={picture.deployments} region={p} />
            ))}
          </Panel>
        ) : null}
        <Panel id="history" title="History of this rollout">
          <History entries={watched.history.filter((h) => h.rolloutId === r.id)} />
        </Panel>
      </div>
    </>
  );
}
