import { getRouteApi } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useLayoutEffect, useRef, useState } from "react";
import { useLogs, type Logs } from "../api/logs.js";
import { useApp } from "../api/watch.js";
import type { WatchAppResponse } from "../gen/windlass/v1/app_pb.js";
import { clockTime, instanceLabel, logsCommand, type LogFilter, type LogRow } from "../model/logs.js";
import { absolute } from "../model/time.js";
import { Command, Copy, useTitle } from "../ui/pieces.js";
import { Head, NoApp } from "./app.js";

const route = getRouteApi("/apps/$project/$environment/$name/logs");

const spans: [number, string][] = [
  [0, "the last 200 lines"],
  [10, "the last 10 minutes"],
  [60, "the last hour"],
  [1440, "the last day"],
];

const colours = 8;

/** A filter that is set stays among its choices, also when what it names is gone. */
const choices = <T,>(all: Iterable<T>, set: T | undefined): T[] => [...new Set(set === undefined ? all : [...all, set])];

type ChoiceProps = { label: string; value: string; all: string[]; none: string; name?: (value: string) => string; onChange: (value: string) => void };

function Choice({ label, value, all, none, name, onChange }: ChoiceProps) {
  return (
    <select className="select" aria-label={label} value={value} onChange={(e) => onChange(e.target.value)}>
      <option value="">{none}</option>
      {all.map((v) => (
        <option key={v} value={v}>
          {name?.(v) ?? v}
        </option>
      ))}
    </select>
  );
}

function Grep({ value, onChange }: { value: string; onChange: (grep: string) => void }) {
  const [typed, setTyped] = useState(value);
  const latest = useRef(onChange);
  latest.current = onChange;
  useEffect(() => setTyped(value), [value]);
  // Each change of the filter opens the stream anew, so it waits for a pause in the typing.
  useEffect(() => {
    if (typed === value) return;
    const timer = setTimeout(() => latest.current(typed), 500);
    return () => clearTimeout(timer);
  }, [typed, value]);
  return (
    <input
      className="input search mono"
      type="search"
      aria-label="Lines that match"
      placeholder="Lines that match, such as error|timeout"
      maxLength={256}
      spellCheck={false}
      autoCapitalize="off"
      value={typed}
      onChange={(e) => setTyped(e.target.value)}
      onKeyDown={(e) => {
        if (e.key === "Enter") onChange(typed);
      }}
    />
  );
}

function Row({ row, logs, one, pick }: { row: LogRow; logs: Logs; one: boolean; pick: (instance: string) => void }) {
  if (row.kind === "note") return <div className={`log-note ${row.tone}`}>{row.text}</div>;
  const label = instanceLabel(logs.about.get(row.instance), row.instance);
  return (
    <div className="log-line">
      <time dateTime={new Date(row.at).toISOString()} title={absolute(row.at)}>
        {clockTime(row.at)}
      </time>
      {one ? null : (
        <button type="button" tabIndex={-1} className={`log-from c${logs.colour(row.instance) % colours}`} title={`${row.instance}: follow it alone`} onClick={() => pick(row.instance)}>
          {label}
        </button>
      )}
      <span className="log-text">{row.text}</span>
    </div>
  );
}

/** Rows, of which the newest stay in view until a person scrolls up. What comes then waits, so that what is read stays where it is. */
function Output({ logs, one, pick }: { logs: Logs; one: boolean; pick: (instance: string) => void }) {
  const box = useRef<HTMLDivElement>(null);
  const [held, setHeld] = useState<Logs | null>(null);
  const { rows } = held ?? logs;
  const list = useVirtualizer({ count: rows.length, getScrollElement: () => box.current, estimateSize: () => 20, overscan: 24, getItemKey: (i) => rows[i]?.key ?? i });
  // Else rows that are measured on the way up end the browser's scrolling.
  list.shouldAdjustScrollPositionOnItemSizeChange = (item, _, { scrollOffset, scrollDirection }) => scrollDirection !== "backward" && item.start < (scrollOffset ?? 0);
  const size = list.getTotalSize();
  const top = useRef(0);
  useLayoutEffect(() => {
    if (!held && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [held, rows, size]);
  const hold = () => {
    if (!held && box.current && box.current.scrollHeight > box.current.clientHeight) setHeld(logs);
  };
  const onScroll = () => {
    const b = box.current;
    if (!b) return;
    const below = b.scrollHeight - b.clientHeight - b.scrollTop;
    // Dragging the scroll bar is no other event. Rows that are measured move it a little.
    if (b.scrollTop < top.current && below > 40) hold();
    if (held && b.scrollTop > top.current && below < 2) setHeld(null);
    top.current = b.scrollTop;
  };
  const waiting = held ? logs.total - held.total : 0;
  return (
    <div className="log">
      {/* oxlint-disable-next-line jsx-a11y/no-noninteractive-tabindex -- it scrolls */}
      <div
        className="log-box"
        ref={box}
        tabIndex={0}
        role="log"
        aria-live="off"
        aria-label="Output"
        onScroll={onScroll}
        onWheel={(e) => e.deltaY < 0 && hold()}
        onTouchMove={hold}
        onKeyDown={(e) => ["ArrowUp", "PageUp", "Home"].includes(e.key) && hold()}
      >
        <div className="log-rows" style={{ height: size }}>
          {list.getVirtualItems().map((item) => {
            const row = rows[item.index];
            return row ? (
              <div key={item.key} data-index={item.index} ref={list.measureElement} className="log-row" style={{ transform: `translateY(${item.start}px)` }}>
                <Row row={row} logs={logs} one={one} pick={pick} />
              </div>
            ) : null;
          })}
        </div>
      </div>
      <div className="log-foot">
        <button type="button" className={`button small${held ? " primary" : ""}`} onClick={() => setHeld(held ? null : logs)}>
          {held ? "Go on with the newest" : "Hold"}
        </button>
        <span className="dim small num">
          {held ? `held, ${waiting} line${waiting === 1 ? "" : "s"} wait` : `${rows.length} lines`}
          {logs.dropped > 0 ? `, ${logs.dropped} older ones are not kept here` : ""}
        </span>
        <Copy
          what="the lines"
          text={() => rows.map((r) => (r.kind === "note" ? `# ${r.text}` : `${new Date(r.at).toISOString()} ${instanceLabel(logs.about.get(r.instance), r.instance)} | ${r.text}`)).join("\n")}
        />
      </div>
    </div>
  );
}

function State({ logs }: { logs: Logs }) {
  const { link } = logs;
  if (logs.over) return <span className="dim small">The instance is gone.</span>;
  if (link.state === "live") return <span className="dim small num">{logs.about.size === 1 ? "1 instance" : `${logs.about.size} instances`}</span>;
  return <span className="dim small">{link.state === "connecting" ? "Connecting …" : ""}</span>;
}

function Follow({ path, picture, filter, set }: { path: string; picture: WatchAppResponse; filter: LogFilter; set: (change: Partial<LogFilter>) => void }) {
  const logs = useLogs(path, filter);
  const places = picture.deployments.flatMap((d) => d.regions);
  const regions = choices([...new Set([...(picture.app?.regions ?? []), ...places.map((r) => r.region)])].sort(), filter.region || undefined);
  const roles = choices(new Set(places.flatMap((r) => r.roles.map((x) => x.role))), filter.role || undefined);
  const versions = choices(picture.deployments.map((d) => d.version).sort((a, b) => b - a), filter.version || undefined);
  const { link } = logs;
  const narrowed = Boolean(filter.instance || filter.region || filter.role || filter.version || filter.minutes || filter.grep);
  const command = logsCommand(path, filter);
  return (
    <>
      <div className="filters" role="search">
        <Grep value={filter.grep} onChange={(grep) => set({ grep })} />
        {filter.instance ? null : (
          <>
            <Choice label="Region" none="all regions" all={regions} value={filter.region} onChange={(region) => set({ region })} />
            <Choice
              label="Version"
              none="all versions"
              all={versions.map((v) => `v${v}`)}
              value={filter.version ? `v${filter.version}` : ""}
              onChange={(v) => set({ version: Number(v.slice(1)) })}
            />
            {roles.length > 0 ? <Choice label="Role" none="all roles" all={roles} value={filter.role} onChange={(role) => set({ role })} /> : null}
          </>
        )}
        <Choice
          label="Instance"
          none="all instances"
          all={choices(logs.about.keys(), filter.instance || undefined)}
          value={filter.instance}
          name={(id) => instanceLabel(logs.about.get(id), id)}
          onChange={(instance) => set({ instance })}
        />
        <select className="select" aria-label="Since" value={filter.minutes} onChange={(e) => set({ minutes: Number(e.target.value) })}>
          {spans.map(([m, name]) => (
            <option key={m} value={m}>
              {name}
            </option>
          ))}
        </select>
        <State logs={logs} />
      </div>
      {link.state === "refused" ? (
        <p className="note bad" role="alert">
          {link.why}
        </p>
      ) : null}
      {link.state === "stale" ? (
        <p className="note warn">No line comes at the moment. {link.why || "The control plane does not answer."} The page goes on where it was, by itself.</p>
      ) : null}
      <section className="panel" aria-label="Logs">
        {logs.rows.length > 0 ? (
          <Output key={JSON.stringify(filter)} logs={logs} one={filter.instance !== ""} pick={(instance) => set({ instance })} />
        ) : (
          <div className="log-none">
            <p className="dim">
              {link.state === "live"
                ? narrowed
                  ? "No line is like that yet. New ones appear here as they are written."
                  : "Nothing was written yet. Lines appear here as instances write them."
                : link.state === "refused"
                  ? "Nothing is shown."
                  : "Reading the logs …"}
            </p>
          </div>
        )}
      </section>
      <Command text={command} what="the command" />
    </>
  );
}

export function LogsPage() {
  const { project, environment, name } = route.useParams();
  const path = `${project}/${environment}/${name}`;
  const watched = useApp(path);
  const search = route.useSearch();
  const navigate = route.useNavigate();
  useTitle(`Logs of ${name}`);
  const { picture } = watched;
  if (!picture?.app) return <NoApp watched={watched} path={path} />;
  const filter: LogFilter = {
    instance: search.instance ?? "", region: search.region ?? "", role: search.role ?? "", version: search.version ?? 0, minutes: search.minutes ?? 0, grep: search.grep ?? "",
  };
  const set = (change: Partial<LogFilter>) => {
    const next = { ...filter, ...change };
    void navigate({ search: Object.fromEntries(Object.entries(next).filter(([, v]) => v)), replace: true });
  };
  return (
    <>
      <Head app={picture.app} sub="Logs" />
      <div className="stack tight">
        {picture.deleted ? <p className="note idle">The app was deleted.</p> : null}
        <Follow path={path} picture={picture} filter={filter} set={set} />
      </div>
    </>
  );
}
