import { getRouteApi } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import { useSeries, type Series } from "../api/series.js";
import { useApp } from "../api/watch.js";
import type { WatchAppResponse } from "../gen/windlass/v1/app_pb.js";
import { appPath } from "../model/fleet.js";
import { chartOf, clock, newest, orUnknown, percent, plain, regionAt, seconds, unknown, type Chart, type Values } from "../model/series.js";
import { windlass } from "../model/shell.js";
import { Command, Loading, Panel, useTitle } from "../ui/pieces.js";
import { Plot, type Line } from "../ui/plot.js";
import { Rows } from "../ui/rows.js";
import { Head, NoApp } from "./app.js";

const route = getRouteApi("/apps/$project/$environment/$name/load");

type Part = { value: keyof Values; name: string; colour: string; dashed?: boolean };
type Kind = { title: string; parts: Part[]; format: (v: number) => string; most: number; none: string };

const one = (value: keyof Values, colour: string): Part[] => [{ value, name: "", colour }];

const kinds: Kind[] = [
  { title: "Requests a second", parts: one("requests", "--busy-bar"), format: plain, most: 1, none: "Requests are not known: no gateway is connected to the agents." },
  { title: "Failed requests", parts: one("failed", "--bad-bar"), format: percent, most: 1, none: "No request in the last hour." },
  { title: "Latency, 95th percentile", parts: one("latency", "--busy-bar"), format: seconds, most: 0.1, none: "No request in the last hour." },
  { title: "First token, 95th percentile", parts: one("firstToken", "--busy-bar"), format: seconds, most: 0.1, none: "No streamed answer in the last hour." },
  { title: "Queue at gateways", parts: one("queued", "--warn-bar"), format: plain, most: 1, none: "The queue is counted only for apps with scaling in their file." },
  {
    title: "Replicas",
    parts: [
      { value: "ready", name: "ready", colour: "--good-bar" },
      { value: "wanted", name: "wanted", colour: "--idle-bar", dashed: true },
    ],
    format: plain,
    most: 1,
    none: "The number of replicas is not known.",
  },
];

function Figure({ kind, chart, at, onAt }: { kind: Kind; chart: Chart; at: number; onAt: (index: number | undefined) => void }) {
  const lines: Line[] = kind.parts.map((p) => ({ name: p.name, colour: p.colour, dashed: p.dashed ?? false, values: chart.values.map((v) => v[p.value]) }));
  const known = lines.flatMap((l) => l.values.filter((v) => v !== null));
  const values = chart.values[at] ?? unknown;
  const now = kind.parts.map((p) => `${orUnknown(values[p.value], kind.format)}${p.name ? ` ${p.name}` : ""}`).join(" / ");
  return (
    <figure className="panel chart">
      <figcaption>
        <h2>{kind.title}</h2>
        <span className="num">{now}</span>
      </figcaption>
      {known.length > 0 ? (
        <Plot
          label={`${kind.title} in the last hour: lowest ${kind.format(Math.min(...known))}, highest ${kind.format(Math.max(...known))}`}
          times={chart.times}
          lines={lines}
          missing={chart.missing}
          format={kind.format}
          most={kind.most}
          at={at}
          onAt={onAt}
        />
      ) : (
        <p className="dim small plot-none">{kind.none}</p>
      )}
    </figure>
  );
}

/** What is not known of the last hour, and why. */
function Missing({ series: { state, link }, names, chart }: { series: Series; names: string[]; chart: Chart }) {
  const begin = chart.times[0] ?? 0;
  const words = names.flatMap((name) => {
    const r = state.regions.get(name);
    if (!r) return [];
    const out: string[] = [];
    if (r.problem) out.push(`${r.problem.charAt(0).toUpperCase()}${r.problem.slice(1)}.${r.last > 0 ? ` What is shown of it ends at ${clock(r.last)}.` : ""}`);
    if (r.keptSince > begin) out.push(`Of ${name}, nothing is known before ${clock(r.keptSince)}, when its agent started: samples are in the agent's memory.`);
    return out;
  });
  if (chart.missing.some((m) => m)) words.push(`In shaded times, samples${names.length > 1 ? " of a region are missing, so that sums are too low" : " are missing"}.`);
  return (
    <>
      {link.state === "stale" ? (
        <p className="note warn">No news of the load comes at the moment. {link.why || "The control plane does not answer."} What you see may be old. The page asks again by itself.</p>
      ) : null}
      {words.length > 0 ? (
        <ul className="note warn" aria-label="What is missing">
          {words.map((w) => (
            <li key={w}>{w}</li>
          ))}
        </ul>
      ) : null}
    </>
  );
}

function Charts({ series, region, setRegion, path }: { series: Series; region: string; setRegion: (region: string) => void; path: string }) {
  const { state } = series;
  const all = useMemo(() => [...state.regions.keys()].sort(), [state]);
  const names = useMemo(() => (region ? [region] : all), [region, all]);
  const chart = useMemo(() => chartOf(state, names), [state, names]);
  const [picked, setPicked] = useState<number>();
  const at = Math.min(picked ?? newest(chart), chart.times.length - 1);
  const time = chart.times[at] ?? 0;
  const several = names.length > 1;
  return (
    <>
      <div className="filters">
        <select className="select" aria-label="Region" value={region} onChange={(e) => setRegion(e.target.value)}>
          <option value="">all regions together</option>
          {[...new Set([...all, ...(region ? [region] : [])])].map((name) => (
            <option key={name} value={name}>
              {name}
            </option>
          ))}
        </select>
        <label className="range">
          <span className="small dim">Time</span>
          <input
            type="range"
            min={0}
            max={Math.max(0, chart.times.length - 1)}
            value={at}
            aria-valuetext={`${clock(time)}: ${orUnknown((chart.values[at] ?? unknown).requests, plain)} requests a second`}
            onChange={(e) => setPicked(Number(e.target.value))}
          />
          <span className="num nowrap">{clock(time)}</span>
        </label>
        {picked === undefined ? null : (
          <button type="button" className="button small" onClick={() => setPicked(undefined)}>
            Follow the newest
          </button>
        )}
      </div>
      <Missing series={series} names={names} chart={chart} />
      <div className="charts">
        {kinds.map((kind) => (
          <Figure key={kind.title} kind={kind} chart={chart} at={at} onAt={setPicked} />
        ))}
      </div>
      {several ? <p className="dim small">Requests, queues and replicas are sums over the regions. Times are those of the region with the highest.</p> : null}
      <Panel id="by-region" title={`By region at ${clock(time)}`}>
        <Rows<string>
          label="Load by region"
          items={names}
          keyOf={(name) => name}
          columns={[
            { name: "Region", cell: (name) => <b>{name}</b> },
            ...columns.map(({ name: column, text }) => ({
              name: column,
              cell: (name: string) => {
                const { values, missing } = regionAt(state, name, time);
                return (
                  <span className="num">
                    {missing ? "missing" : text(values)} <span className="dim small only-narrow">{column.toLowerCase()}</span>
                  </span>
                );
              },
            })),
          ]}
        />
      </Panel>
      <Command text={windlass("top", [path], ["--watch"])} what="the command" />
    </>
  );
}

const columns: { name: string; text: (v: Values) => string }[] = [
  { name: "Requests a second", text: (v) => orUnknown(v.requests, plain) },
  { name: "Failed", text: (v) => orUnknown(v.failed, percent) },
  { name: "Latency p95", text: (v) => orUnknown(v.latency, seconds) },
  { name: "First token p95", text: (v) => orUnknown(v.firstToken, seconds) },
  { name: "Queue", text: (v) => orUnknown(v.queued, plain) },
  { name: "Ready of wanted", text: (v) => (v.ready === null ? "–" : `${v.ready} of ${v.wanted ?? "–"}`) },
];

function Load({ picture, region, setRegion }: { picture: WatchAppResponse; region: string; setRegion: (region: string) => void }) {
  const path = picture.app ? appPath(picture.app) : "";
  const series = useSeries(path);
  const { link, state } = series;
  if (link.state === "refused")
    return (
      <p className="note bad" role="alert">
        {link.why}
      </p>
    );
  if (state.sentAt === 0) return link.state === "stale" ? <p className="note warn">{link.why || "The control plane does not answer."} The page asks again by itself.</p> : <Loading what="the load" />;
  if (state.regions.size === 0)
    return (
      <section className="panel">
        <div className="empty">
          <p>The app runs in no region, so there is no load to show.</p>
          <Command text="windlass deploy -f app.yaml" what="the command" />
        </div>
      </section>
    );
  return <Charts series={series} region={region} setRegion={setRegion} path={path} />;
}

export function LoadPage() {
  const { project, environment, name } = route.useParams();
  const watched = useApp(`${project}/${environment}/${name}`);
  const search = route.useSearch();
  const navigate = route.useNavigate();
  useTitle(`Load of ${name}`);
  const { picture } = watched;
  if (!picture?.app) return <NoApp watched={watched} path={`${project}/${environment}/${name}`} />;
  return (
    <>
      <Head app={picture.app} sub="Load" />
      <div className="stack tight">
        {picture.deleted ? (
          <p className="note idle">The app was deleted.</p>
        ) : (
          <Load picture={picture} region={search.region ?? ""} setRegion={(region) => void navigate({ search: region ? { region } : {}, replace: true })} />
        )}
      </div>
    </>
  );
}
