import { Link } from "@tanstack/react-router";
import { geoEqualEarth, geoPath } from "d3-geo";
import { useEffect, useId, useMemo, useRef, useState, type CSSProperties } from "react";
import { feature } from "topojson-client";
import type { GeometryCollection, Topology } from "topojson-specification";
import atlas from "world-atlas/land-110m.json";
import { RegionStatus } from "../gen/windlass/v1/common_pb.js";
import type { Region } from "../gen/windlass/v1/region_pb.js";
import { byName, gpusText, healthOf, lag, lagText, sumGpus, worstTone } from "../model/fleet.js";
import { frameOf, groupPoints, placeTexts, type Group, type Point } from "../model/map.js";
import { latitudeLabel, longitudeLabel, placeOf, type Place } from "../model/places.js";
import { windlass } from "../model/shell.js";
import { ms } from "../model/time.js";
import { regionStatus, type Tone } from "../model/words.js";
import { Badge, Command, Time } from "../ui/pieces.js";

const world = atlas as unknown as Topology<{ land: GeometryCollection }>;
const land = feature(world, world.objects.land);

/** Corners of what a map of the whole world shows: without Antarctica. */
const shown: GeoJSON.MultiPoint = {
  type: "MultiPoint",
  coordinates: [[-180, 0], [180, 0], [0, 78], [0, -56], [-130, 72], [170, 72], [-70, -56]],
};

/** Radius of a mark. */
const radius = 17;
/** Marks that are nearer to each other are one. */
const apart = 2 * radius + 4;

type Placed = Point & { region: Region };

const words: [Tone, string][] = [
  ["good", "connected"],
  ["warn", "feed behind"],
  ["bad", "unreachable"],
  ["idle", "no agent yet"],
];

/** What a mark says without its colour. */
const signs: Partial<Record<Tone, string>> = { bad: "!", warn: "…", idle: "–" };

function useWidth() {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const sized = new ResizeObserver(() => setWidth(element.clientWidth));
    sized.observe(element);
    setWidth(element.clientWidth);
    return () => sized.disconnect();
  }, []);
  return [box, width] as const;
}

/** The land and the points of the places, in a view of the size. It is computed again only if the size or a place changes. */
function useDrawn(places: Place[], width: number, height: number): { outline: string; points: Point[] } {
  const key = JSON.stringify([width, height, places.map((p) => [p.latitude, p.longitude])]);
  return useMemo(() => {
    if (width === 0) return { outline: "", points: [] };
    const projection = geoEqualEarth().fitExtent([[4, 4], [width - 4, height - 4]], shown);
    const project = (p: Place): Point => {
      const [x, y] = projection([p.longitude, p.latitude]) ?? [0, 0];
      return { x, y };
    };
    const frame = frameOf(places.map(project), width, height);
    const [x, y] = projection.translate();
    projection.scale(projection.scale() * frame.scale).translate([frame.x + frame.scale * x, frame.y + frame.scale * y]).clipExtent([[-8, -8], [width + 8, height + 8]]);
    const path = geoPath(projection).digits(1);
    return { outline: path(land) ?? "", points: places.map(project) };
  }, [key]);
}

function Summary({ region }: { region: Region }) {
  const gpus = sumGpus(region);
  return (
    <li>
      <Link to="/fleet/$region" params={{ region: region.name }}>
        {region.name}
      </Link>
      <Badge word={regionStatus(region.status)} />
      {region.status === RegionStatus.PENDING ? null : (
        <span className="small num">
          {lagText(lag(region))}, {gpusText(gpus)}
          {gpus.total > 0 && region.status === RegionStatus.CONNECTED ? `, ${gpus.free} free` : ""}, last report <Time at={ms(region.lastReportAt)} />
        </span>
      )}
    </li>
  );
}

const nameOf = (group: Group<Placed>) => group.members.map((m) => m.region.id).join();

/** Regions where they are. Each mark is a button that shows its regions below the map. */
export function FleetMap({ regions }: { regions: Region[] }) {
  const [box, width] = useWidth();
  const id = useId();
  const [open, setOpen] = useState("");
  const placed: { region: Region; place: Place }[] = [];
  const missing: Region[] = [];
  for (const region of [...regions].sort(byName)) {
    const place = placeOf(region);
    if (place) placed.push({ region, place });
    else missing.push(region);
  }
  const height = Math.round(Math.min(width * (width < 600 ? 0.56 : 0.46), 480));
  const { outline, points } = useDrawn(placed.map((p) => p.place), width, height);
  const groups = groupPoints<Placed>(points.map((p, i) => ({ ...p, region: placed[i]!.region })), apart).sort((a, b) => byName(a.members[0]!.region, b.members[0]!.region));
  const marks = groups.map((g) => {
    const gpus = g.members.map((m) => sumGpus(m.region)).reduce((a, b) => ({ used: a.used + b.used, free: a.free + b.free, total: a.total + b.total }));
    const title = g.members.length === 1 ? g.members[0]!.region.name : `${g.members.length} regions`;
    const about = gpus.total > 0 ? `${gpus.used}/${gpus.total} GPUs` : "";
    // About as wide as the text: what does not fit is left out, and is said below the map all the same.
    return { ...g, gpus, title, about, tone: worstTone(g.members.map((m) => healthOf(m.region).tone)), width: 8 + 7.4 * Math.max(title.length, about.length), height: about ? 36 : 20 };
  });
  const texts = placeTexts(marks, radius, { width, height });
  const chosen = groups.find((g) => nameOf(g) === open);
  return (
    <div ref={box} className="stack tight">
      {placed.length > 0 ? (
        <>
          <div className="map" style={{ height }}>
            <svg width={width} height={height} viewBox={`0 0 ${width} ${height}`} aria-hidden="true">
              <path d={outline} />
            </svg>
            <ul aria-label="Regions on the map">
              {marks.map((m, i) => {
                const key = nameOf(m);
                const text = texts[i];
                const style = { left: m.x, top: m.y, "--used": `${m.gpus.total > 0 ? (100 * m.gpus.used) / m.gpus.total : 0}%` } as CSSProperties;
                return (
                  <li key={key}>
                    <button
                      type="button"
                      className={`mark ${m.tone}${m.gpus.total > 0 ? " gpus" : ""}`}
                      style={style}
                      aria-expanded={key === open}
                      aria-controls={`${id}c`}
                      aria-label={m.members.map((p) => `${p.region.name}: ${regionStatus(p.region.status).text}, ${lagText(lag(p.region))}, ${gpusText(sumGpus(p.region))}`).join("; ")}
                      title={m.members.map((p) => p.region.name).join(", ")}
                      onClick={() => setOpen(key === open ? "" : key)}
                    >
                      <span aria-hidden="true">{m.members.length > 1 ? m.members.length : (signs[m.tone] ?? "")}</span>
                    </button>
                    {text ? (
                      <span className="mark-text" style={{ left: text.left, top: text.top }} aria-hidden="true">
                        <b>{m.title}</b>
                        {m.about ? <span>{m.about}</span> : null}
                      </span>
                    ) : null}
                  </li>
                );
              })}
            </ul>
          </div>
          <ul id={`${id}c`} className="map-chosen" aria-label="Regions of the chosen mark">
            {chosen ? chosen.members.map((m) => <Summary key={m.region.id} region={m.region} />) : <li className="dim small">Choose a mark to see its regions.</li>}
          </ul>
          <ul className="map-legend small dim" aria-label="What the marks mean">
            {words.map(([tone, text]) => (
              <li key={tone}>
                <i className={`dot ${tone}`} aria-hidden="true" /> {signs[tone] ? `${signs[tone]} ` : ""}
                {text}
              </li>
            ))}
            <li>ring: share of GPUs in use</li>
            <li>number: regions that are close together</li>
          </ul>
        </>
      ) : null}
      {missing.length > 0 ? (
        <details>
          <summary>
            {missing.length} region{missing.length === 1 ? " is" : "s are"} not on the map
          </summary>
          <div className="stack tight">
            <p className="small">
              A region is where its labels <code>{latitudeLabel}</code> and <code>{longitudeLabel}</code> say, in degrees, or where the region of a cloud is whose name it has, such as us-east-1. Not known:{" "}
              {missing.map((r) => r.name).join(", ")}.
            </p>
            <Command text={windlass("region label", [missing[0]!.name, `${latitudeLabel}=52.4`, `${longitudeLabel}=4.9`])} what="the command" />
          </div>
        </details>
      ) : null}
    </div>
  );
}
