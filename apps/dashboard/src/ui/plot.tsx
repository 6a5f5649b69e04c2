import { useEffect, useRef } from "react";
import UPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { clock } from "../model/series.js";
import { useTheme } from "./theme.js";

export type Line = { name: string; colour: string; dashed?: boolean; values: (number | null)[] };

const height = 150;

/** uPlot counts time in seconds. */
const dataOf = (times: number[], lines: Line[]) => [times.map((t) => t / 1000), ...lines.map((l) => l.values)] as UPlot.AlignedData;
const styleOf = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/**
 * Draws lines over time. Steps that are marked as missing have a shaded ground. It is a picture alone: the page has the
 * values in its text, and `label` says what is seen.
 */
export function Plot({
  label,
  times,
  lines,
  missing,
  format,
  most,
  at,
  onAt,
}: {
  label: string;
  times: number[];
  lines: Line[];
  missing: boolean[];
  format: (v: number) => string;
  /** The axis of values reaches up to this at least. */
  most: number;
  /** Index of the step that is marked. */
  at: number;
  /** Called with the step below the pointer; undefined: there is none. */
  onAt: (index: number | undefined) => void;
}) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<UPlot | null>(null);
  const latest = useRef({ times, lines, missing, at, onAt, format });
  latest.current = { times, lines, missing, at, onAt, format };
  const theme = useTheme();
  const kinds = lines.map((l) => `${l.name} ${l.colour} ${l.dashed ?? false}`).join();

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const shade = (u: UPlot) => {
      const { ctx, bbox } = u;
      const [x] = u.data;
      ctx.save();
      ctx.fillStyle = styleOf("--warn-soft");
      const half = (u.valToPos(x[1] ?? 0, "x", true) - u.valToPos(x[0] ?? 0, "x", true)) / 2;
      const { missing } = latest.current;
      for (let i = 0; i < missing.length; i++) {
        if (!missing[i]) continue;
        const from = i;
        while (missing[i + 1]) i++;
        const left = Math.max(u.valToPos(x[from] ?? 0, "x", true) - half, bbox.left);
        ctx.fillRect(left, bbox.top, Math.min(u.valToPos(x[i] ?? 0, "x", true) + half, bbox.left + bbox.width) - left, bbox.height);
      }
      ctx.restore();
    };
    const mark = (u: UPlot) => {
      const { ctx, bbox } = u;
      const x = u.data[0][latest.current.at];
      if (x === undefined) return;
      ctx.save();
      ctx.fillStyle = styleOf("--line-strong");
      ctx.fillRect(Math.round(u.valToPos(x, "x", true)), bbox.top, 1, bbox.height);
      ctx.restore();
    };
    // New data moves the cursor, too: only what the pointer does counts.
    let inside = false;
    const point = (u: UPlot) => {
      const within = (u.cursor.left ?? -1) >= 0;
      if (within) latest.current.onAt(u.cursor.idx ?? undefined);
      else if (inside) latest.current.onAt(undefined);
      inside = within;
    };
    const axis = { stroke: () => styleOf("--dim"), grid: { stroke: () => styleOf("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const made = new UPlot(
      {
        width: element.clientWidth || 300,
        height,
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
        scales: { x: { time: true }, y: { range: (_, __, max) => [0, Math.max(max ?? 0, most) * 1.1] } },
        axes: [{ ...axis, size: 26, space: 64, values: (_, all) => all.map((v) => clock(v * 1000).slice(0, 5)) }, { ...axis, size: 54, space: 34, values: (_, all) => all.map((v) => latest.current.format(v)) }],
        series: [
          {},
          ...lines.map((l) => ({ label: l.name, stroke: () => styleOf(l.colour), width: 1.6, ...(l.dashed ? { dash: [5, 4] } : {}), spanGaps: false, points: { show: false } })),
        ],
        hooks: { drawClear: [shade], draw: [mark], setCursor: [point] },
      },
      dataOf(latest.current.times, latest.current.lines),
      element,
    );
    plot.current = made;
    const sized = new ResizeObserver(() => made.setSize({ width: element.clientWidth || 300, height }));
    sized.observe(element);
    return () => {
      sized.disconnect();
      made.destroy();
      plot.current = null;
    };
    // A change of the lines' names makes another plot; their values are set below.
  }, [kinds, most]);

  useEffect(() => {
    plot.current?.setData(dataOf(times, lines));
  });
  useEffect(() => {
    const redraw = () => plot.current?.redraw(false);
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", redraw);
    redraw();
    return () => dark.removeEventListener("change", redraw);
  }, [theme, at]);
  return <div ref={box} className="plot" role="img" aria-label={label} />;
}
