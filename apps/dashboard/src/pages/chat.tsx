import { getRouteApi, Link } from "@tanstack/react-router";
import { useEffect, useId, useRef, useState } from "react";
import { useApp } from "../api/watch.js";
import type { App } from "../gen/windlass/v1/app_pb.js";
import { corsOf, deltaOf, eventsOf, modelsOf, paceOf, refusalOf, type Message, type Pace } from "../model/chat.js";
import { Command, Panel, useTitle } from "../ui/pieces.js";
import { Head, NoApp } from "./app.js";

const route = getRouteApi("/apps/$project/$environment/$name/chat");

/** An answer that takes longer is given up. */
const answerTimeout = 10 * 60_000;
const modelsTimeout = 10_000;

type Turn = Message & { pace?: Pace; error?: string; unreadable?: boolean };

/** A request that failed without an answer that the page may read. */
class Unreadable extends Error {}

/** Sends a request to the app. The dashboard's session is not sent. */
async function request(url: string, init: RequestInit, key: string): Promise<Response> {
  try {
    return await fetch(url, {
      ...init,
      headers: { ...(init.body ? { "Content-Type": "application/json" } : {}), ...(key ? { Authorization: `Bearer ${key}` } : {}) },
      credentials: "omit",
      referrerPolicy: "no-referrer",
      cache: "no-store",
    });
  } catch (e) {
    if (e instanceof TypeError) throw new Unreadable();
    throw e;
  }
}

/** Sends the conversation, and calls `add` with each part of the answer. */
async function converse(url: string, key: string, model: string, messages: Message[], signal: AbortSignal, add: (text: string) => void): Promise<void> {
  const body = JSON.stringify({ model, messages: messages.map(({ role, content }) => ({ role, content })), stream: true });
  const answer = await request(`${url}/v1/chat/completions`, { method: "POST", body, signal }, key);
  if (!answer.ok || !answer.body) throw new Error(refusalOf(answer.status, await answer.text()));
  if (!(answer.headers.get("Content-Type") ?? "").includes("event-stream")) return add(deltaOf(await answer.text()));
  const reader = answer.body.pipeThrough(new TextDecoderStream() as TransformStream<Uint8Array, string>).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const found = eventsOf(rest + (value ?? "") + (done ? "\n\n" : ""));
    rest = found.rest;
    for (const data of found.data) {
      if (data === "[DONE]") return void reader.cancel();
      const text = deltaOf(data);
      if (text) add(text);
    }
    if (done) return;
  }
}

/** Reads the names of the app's models. */
async function readModels(url: string, key: string, signal: AbortSignal): Promise<string[]> {
  const answer = await request(`${url}/v1/models`, { signal: AbortSignal.any([signal, AbortSignal.timeout(modelsTimeout)]) }, key);
  return answer.ok ? modelsOf(await answer.text()) : [];
}

/** The models of the app, read anew for another address or key. */
function useModels(url: string, key: string): string[] {
  const [models, setModels] = useState<string[]>([]);
  useEffect(() => {
    const stop = new AbortController();
    setModels([]);
    // A key is typed letter by letter.
    const timer = setTimeout(() => {
      readModels(url, key, stop.signal)
        .then(setModels)
        .catch(() => undefined); // a question says why it fails
    }, 400);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [url, key]);
  return models;
}

const paceText = ({ firstMs, perSecond }: Pace) => `first token after ${firstMs} ms${perSecond > 0 ? `, then ${perSecond.toFixed(perSecond < 10 ? 1 : 0)} a second` : ""}`;

function TurnRow({ turn, writing }: { turn: Turn; writing: boolean }) {
  return (
    <li className={`turn ${turn.role}`} aria-busy={writing}>
      <h3 className="small dim">{turn.role === "user" ? "You" : "App"}</h3>
      {turn.content ? <p className="turn-text">{turn.content}</p> : null}
      {writing && !turn.content ? <p className="dim">Waiting for the first token …</p> : null}
      {turn.error ? (
        <p className="note bad" role="alert">
          {turn.error}
        </p>
      ) : null}
      {turn.unreadable ? (
        <div className="note bad" role="alert">
          <p>
            The browser got no answer that it may read. The dashboard may call hosts below the platform&rsquo;s domain, but neither the app&rsquo;s own domains nor addresses of
            instances. If the address is such a host, either the browser cannot reach it, or the app does not allow pages of {window.location.origin}. An app with keys must allow
            them by its file:
          </p>
          <Command text={corsOf(window.location.origin)} what="the lines" />
        </div>
      ) : null}
      {turn.pace ? <p className="small dim num">{paceText(turn.pace)}</p> : null}
    </li>
  );
}

const isWeb = (url: string) => /^https?:\/\//.test(url);

function Chat({ app }: { app: App }) {
  const id = useId();
  const urls = app.urls.filter(isWeb);
  const [url, setUrl] = useState(urls[0] ?? "");
  const [key, setKey] = useState("");
  const [picked, setPicked] = useState("");
  const [question, setQuestion] = useState("");
  const [turns, setTurns] = useState<Turn[]>([]);
  const [running, setRunning] = useState<AbortController>();
  const box = useRef<HTMLTextAreaElement>(null);
  const end = useRef<HTMLDivElement>(null);
  const models = useModels(url, key);
  const model = picked || models[0] || "";
  useEffect(() => () => running?.abort(), [running]);
  useEffect(() => {
    void end.current?.scrollIntoView({ block: "nearest" }); // newer browsers return a promise
  }, [turns]);

  const change = (edit: (last: Turn) => Turn) => setTurns((all) => [...all.slice(0, -1), edit(all.at(-1)!)]);
  const send = async () => {
    const content = question.trim();
    if (!content || running) return;
    const stop = new AbortController();
    // Turns without an answer are left out, because engines expect questions and answers by turns.
    const asked = turns.filter((t, i) => (t.role === "user" ? turns[i + 1]?.content : t.content));
    setTurns((all) => [...all, { role: "user", content }, { role: "assistant", content: "" }]);
    setQuestion("");
    setRunning(stop);
    const begun = performance.now();
    let first = 0;
    let parts = 0;
    const timeout = AbortSignal.timeout(answerTimeout);
    try {
      // A question may be faster than the list of models.
      const named = model || ((await readModels(url, key, AbortSignal.any([stop.signal, timeout])))[0] ?? "");
      await converse(url, key, named, [...asked, { role: "user", content }], AbortSignal.any([stop.signal, timeout]), (text) => {
        first ||= performance.now();
        parts++;
        change((t) => ({ ...t, content: t.content + text }));
      });
      if (parts === 0) change((t) => ({ ...t, error: "The answer has no text." }));
    } catch (e) {
      if (timeout.aborted) change((t) => ({ ...t, error: "The answer took longer than 10 minutes." }));
      else if (stop.signal.aborted) change((t) => ({ ...t, error: t.content ? "" : "Stopped." }));
      else if (e instanceof Unreadable) change((t) => ({ ...t, unreadable: true }));
      else change((t) => ({ ...t, error: e instanceof Error && !(e instanceof TypeError) ? e.message : "The connection broke before the answer was complete." }));
    }
    if (first > 0) change((t) => ({ ...t, pace: paceOf(begun, first, performance.now(), parts) }));
    setRunning(undefined);
    box.current?.focus();
  };

  return (
    <div className="stack">
      <Panel
        id="conversation"
        title="Conversation"
        end={
          turns.length > 0 && !running ? (
            <button type="button" className="button small" onClick={() => setTurns([])}>
              Begin anew
            </button>
          ) : null
        }
      >
        {turns.length === 0 ? (
          <p className="dim">
            Your browser sends the conversation to the app through its gateway. The control plane does not see it, and it is gone when you leave the page.
          </p>
        ) : (
          <div className="turns-box" role="log" aria-label="Conversation" tabIndex={0}>
            <ol className="turns">
              {turns.map((turn, i) => (
                <TurnRow key={i} turn={turn} writing={running !== undefined && i === turns.length - 1} />
              ))}
            </ol>
            <div ref={end} />
          </div>
        )}
        <form
          className="ask"
          onSubmit={(e) => {
            e.preventDefault();
            void send();
          }}
        >
          <div className="field">
            <label htmlFor={`${id}q`}>Question</label>
            <textarea
              id={`${id}q`}
              ref={box}
              className="input"
              rows={3}
              maxLength={100_000}
              value={question}
              onChange={(e) => setQuestion(e.target.value)}
              onKeyDown={(e) => {
                if (e.key !== "Enter" || e.shiftKey || e.nativeEvent.isComposing) return;
                e.preventDefault();
                void send();
              }}
            />
          </div>
          <div className="buttons">
            {running ? (
              <button type="button" className="button" onClick={() => running.abort()}>
                Stop
              </button>
            ) : (
              <button type="submit" className="button primary" disabled={!question.trim()}>
                Send
              </button>
            )}
            <span className="small dim">Enter sends, Shift and Enter begin a new line.</span>
          </div>
        </form>
      </Panel>
      <Panel id="where" title="Where it goes">
        <div className="chat-where">
          <div className="field">
            <label htmlFor={`${id}u`}>Address</label>
            <select id={`${id}u`} className="select" value={url} disabled={running !== undefined} onChange={(e) => setUrl(e.target.value)}>
              {[...new Set([url, ...urls])].map((u) => (
                <option key={u}>{u}</option>
              ))}
            </select>
          </div>
          <div className="field">
            <label htmlFor={`${id}m`}>Model</label>
            <input
              id={`${id}m`}
              className="input"
              list={`${id}l`}
              maxLength={256}
              spellCheck={false}
              autoComplete="off"
              placeholder={models[0] ?? ""}
              value={picked}
              onChange={(e) => setPicked(e.target.value)}
            />
            <datalist id={`${id}l`}>
              {models.map((m) => (
                <option key={m} value={m} />
              ))}
            </datalist>
          </div>
          <div className="field">
            <label htmlFor={`${id}k`}>Key of the app, if it has keys</label>
            <input id={`${id}k`} className="input" type="password" autoComplete="off" spellCheck={false} maxLength={1024} value={key} onChange={(e) => setKey(e.target.value.trim())} />
          </div>
        </div>
      </Panel>
    </div>
  );
}

export function ChatPage() {
  const { project, environment, name } = route.useParams();
  const watched = useApp(`${project}/${environment}/${name}`);
  useTitle(`Chat with ${name}`);
  const { picture } = watched;
  if (!picture?.app) return <NoApp watched={watched} path={`${project}/${environment}/${name}`} />;
  const { app } = picture;
  return (
    <>
      <Head app={app} sub="Chat" />
      {picture.deleted ? (
        <p className="note idle">The app was deleted.</p>
      ) : !app.urls.some(isWeb) ? (
        <section className="panel">
          <div className="empty">
            <p>The app has no host yet: no instance is ready.</p>
            <Link to="/apps/$project/$environment/$name" params={{ project, environment, name }}>
              Show the app
            </Link>
          </div>
        </section>
      ) : (
        <Chat key={app.id} app={app} />
      )}
    </>
  );
}
