import { useEffect, useState, useSyncExternalStore, type ReactNode } from "react";
import { windlass } from "../model/shell.js";
import { absolute, relative } from "../model/time.js";
import type { Tone, Word } from "../model/words.js";

// One clock for all times on the page.
const listeners = new Set<() => void>();
let clock = Date.now();
let timer: ReturnType<typeof setInterval> | undefined;
function subscribe(listener: () => void) {
  listeners.add(listener);
  timer ??= setInterval(() => {
    clock = Date.now();
    for (const l of listeners) l();
  }, 1000);
  return () => {
    listeners.delete(listener);
    if (listeners.size > 0) return;
    clearInterval(timer);
    timer = undefined;
  };
}
export const useNow = () => useSyncExternalStore(subscribe, () => clock);

export function Time({ at, never = "never" }: { at: number; never?: string }) {
  const now = useNow();
  if (at <= 0) return <>{never}</>;
  return (
    <time dateTime={new Date(at).toISOString()} title={absolute(at)} className="nowrap">
      {relative(at, Math.max(now, at <= Date.now() ? at : 0))}
    </time>
  );
}

export const Badge = ({ word }: { word: Word }) => (
  <span className={`badge ${word.tone}`} title={word.hint}>
    {word.text}
  </span>
);

const reasons = "https://github.com/windlass-run/windlass/blob/main/docs/guides/troubleshooting.md";

/** A reason, which leads to its cause and what to do. */
export function Reason({ reason, of }: { reason: string; of: "instance" | "rollout" }) {
  const section = of === "instance" ? "instance-reasons" : "reasons-of-deployments-rollouts-and-regions";
  return (
    <a className="reason" href={`${reasons}#${section}`} target="_blank" rel="noreferrer noopener" title={windlass("explain", [reason])}>
      {reason}
    </a>
  );
}

export type Part = { size: number; tone: Tone };

/** A bar whose parts say how a whole is shared. The text beside it says the same. */
export function Bar({ parts }: { parts: Part[] }) {
  return (
    <span className="bar" aria-hidden="true">
      {parts.map((p, i) => (p.size > 0 ? <i key={i} className={p.tone} style={{ flexGrow: p.size }} /> : null))}
    </span>
  );
}

/** Ready of wanted. */
export function Ready({ ready, wanted }: { ready: number; wanted: number }) {
  const tone: Tone = ready >= wanted ? "good" : ready === 0 ? "bad" : "warn";
  return (
    <>
      <span className="num nowrap">
        {ready} of {wanted} ready
      </span>
      <Bar parts={[{ size: Math.min(ready, wanted), tone }, { size: Math.max(0, wanted - ready), tone: "idle" }]} />
    </>
  );
}

export function Panel({ title, end, children, id }: { title: string; end?: ReactNode; children: ReactNode; id: string }) {
  return (
    <section className="panel" aria-labelledby={id}>
      <header>
        <h2 id={id}>{title}</h2>
        {end ? <div className="end">{end}</div> : null}
      </header>
      <div className="body">{children}</div>
    </section>
  );
}

export function Copy({ text, what }: { text: string | (() => string); what: string }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return;
    const t = setTimeout(() => setCopied(false), 2000);
    return () => clearTimeout(t);
  }, [copied]);
  const copy = () => {
    // Without TLS, but for loopback, a browser has no clipboard.
    void navigator.clipboard?.writeText(typeof text === "string" ? text : text()).then(() => setCopied(true));
  };
  if (!("clipboard" in navigator)) return null;
  return (
    <button type="button" className="button small" onClick={copy} aria-label={`Copy ${what}`}>
      <span aria-live="polite">{copied ? "Copied" : "Copy"}</span>
    </button>
  );
}

const isWeb = (url: string) => /^https?:\/\//.test(url);

export const Urls = ({ urls }: { urls: string[] }) => (
  <div>
    {urls.map((u) => (
      <div className="url" key={u}>
        {isWeb(u) ? (
          <a href={u} className="mono" target="_blank" rel="noreferrer noopener">
            {u}
          </a>
        ) : (
          <code>{u}</code>
        )}
        <Copy text={u} what={u} />
      </div>
    ))}
  </div>
);

export function Command({ text, what }: { text: string; what: string }) {
  return (
    <div className="command">
      <pre>{text}</pre>
      <Copy text={text} what={what} />
    </div>
  );
}

export const Loading = ({ what }: { what: string }) => (
  <p className="dim" role="status">
    Reading {what} …
  </p>
);

export function useTitle(title: string) {
  useEffect(() => {
    document.title = title ? `${title} · Windlass` : "Windlass";
  }, [title]);
}
