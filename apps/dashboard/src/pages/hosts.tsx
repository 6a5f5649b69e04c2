import { createClient } from "@connectrpc/connect";
import { getRouteApi } from "@tanstack/react-router";
import { useId, useState } from "react";
import { explain, mutation, transport } from "../api/clients.js";
import { usePages } from "../api/pages.js";
import { useApp } from "../api/watch.js";
import type { App } from "../gen/windlass/v1/app_pb.js";
import type { Deployment } from "../gen/windlass/v1/deployment_pb.js";
import { RouteService, type AppKey, type Domain } from "../gen/windlass/v1/route_pb.js";
import { windlass } from "../model/shell.js";
import { ms } from "../model/time.js";
import { tryCommand, type Ask } from "../model/try.js";
import { steers, type Word } from "../model/words.js";
import { Confirm } from "../ui/confirm.js";
import { Once, type Made } from "../ui/once.js";
import { NameField } from "../ui/name-field.js";
import { Badge, Command, Copy, Panel, Time, Urls, useTitle } from "../ui/pieces.js";
import { Paged, Rows } from "../ui/rows.js";
import { useSession } from "../ui/session.js";
import { useToast } from "../ui/toast.js";
import { Head, NoApp, Outdated } from "./app.js";

const route = getRouteApi("/apps/$project/$environment/$name/hosts");
const routes = createClient(RouteService, transport);

type Asked = { what: "add" | "key" } | { what: "remove"; domain: Domain } | { what: "revoke"; key: AppKey };

function domainState(d: Domain): Word {
  if (!d.verified) return { text: d.lapsedAt > 0n ? "lapsed" : "waits for its record", tone: "warn" };
  if (d.lapsedAt > 0n) return { text: "record is gone", tone: "bad", hint: "Another app that is verified for the domain takes it" };
  if (d.missingSince > 0n) return { text: "record is missing", tone: "warn", hint: "After 7 days another app may take the domain" };
  return { text: "serves", tone: "good" };
}

function Record({ domain: d }: { domain: Domain }) {
  return (
    <dl className="record">
      <div>
        <dt>TXT record</dt>
        <dd>
          <code>{d.txtName}</code> <Copy text={d.txtName} what={`the record's name of ${d.name}`} />
        </dd>
      </div>
      <div>
        <dt>Value</dt>
        <dd>
          <code>{d.txtValue}</code> <Copy text={d.txtValue} what={`the record's value of ${d.name}`} />
        </dd>
      </div>
    </dl>
  );
}

function AskAdd({ app, done, close }: { app: string; done: () => void; close: () => void }) {
  const id = useId();
  const [name, setName] = useState("");
  return (
    <Confirm
      ask={{ title: "Add a domain", effect: "It serves nothing until a TXT record in the DNS shows that its owner wants that. The record is shown next.", label: "Add the domain", grave: false, reason: "" }}
      act={async () => {
        await routes.addDomain({ mutation: mutation(), app, domain: name });
        done();
      }}
      onClose={close}
      explain={explain}
    >
      <div className="field">
        <label htmlFor={`${id}n`}>Domain</label>
        <input id={`${id}n`} className="input" required maxLength={253} placeholder="chat.example.com" autoComplete="off" spellCheck={false} value={name} onChange={(e) => setName(e.target.value.trim())} />
      </div>
    </Confirm>
  );
}

function AskKey({ app, done, close }: { app: string; done: (made: Made) => void; close: () => void }) {
  const id = useId();
  const [name, setName] = useState("");
  const [days, setDays] = useState(90);
  return (
    <Confirm
      ask={{ title: "Create an app key", effect: "Requests for the app may come with it. It is good in each region as soon as that serves the app's routes with it. Its value is shown once, here.", label: "Create the key", grave: false, reason: "" }}
      act={async () => {
        const expiresAt = days > 0 ? BigInt(Date.now() + days * 86_400_000) : 0n;
        done({ what: `App key ${name}`, value: (await routes.createAppKey({ mutation: mutation(), app, name, expiresAt })).value });
      }}
      onClose={close}
      explain={explain}
    >
      <div className="pair">
        <NameField value={name} onChange={setName} />
        <div className="field">
          <label htmlFor={`${id}t`}>Good for</label>
          <select id={`${id}t`} className="select" value={days} onChange={(e) => setDays(Number(e.target.value))}>
            <option value={30}>30 days</option>
            <option value={90}>90 days</option>
            <option value={365}>a year</option>
            <option value={0}>for ever</option>
          </select>
        </div>
      </div>
    </Confirm>
  );
}

function Verify({ app, domain, done }: { app: string; domain: Domain; done: () => void }) {
  const say = useToast();
  const [busy, setBusy] = useState(false);
  const [wrong, setWrong] = useState("");
  async function verify() {
    setBusy(true);
    setWrong("");
    try {
      await routes.verifyDomain({ mutation: mutation(), app, domain: domain.name });
      say(`${domain.name} is verified.`);
      done();
    } catch (error) {
      setWrong(explain(error));
    } finally {
      setBusy(false);
    }
  }
  return (
    <>
      <button type="button" className="button small" aria-label={`Verify ${domain.name}`} disabled={busy} onClick={() => void verify()}>
        {busy ? "Looking …" : "Verify"}
      </button>
      {wrong ? (
        <p className="note bad small" role="alert">
          {wrong}
        </p>
      ) : null}
    </>
  );
}

/** A command that asks the app something at one of its hosts. The page itself calls no other host. */
function Try({ app, live }: { app: App; live: Deployment | undefined }) {
  const id = useId();
  const [ask, setAsk] = useState<Ask>("chat");
  const [url, setUrl] = useState("");
  const [text, setText] = useState("Say hello.");
  const web = app.urls.filter((u) => /^https?:\/\//.test(u));
  const at = web.includes(url) ? url : web[0];
  if (!at) return null;
  const model = live?.spec?.serve?.name || live?.spec?.serve?.model.replace(/^hf:\/\//, "").replace(/@[^@]*$/, "") || app.name;
  const withKey = live?.spec?.routing?.requireApiKey ?? false;
  return (
    <Panel id="try" title="Try it">
      <div className="stack tight">
        <div className="pair">
          <div className="field">
            <label htmlFor={`${id}a`}>Ask for</label>
            <select id={`${id}a`} className="select" value={ask} onChange={(e) => setAsk(e.target.value as Ask)}>
              <option value="chat">an answer of a chat, as it comes</option>
              <option value="completions">a completion, as it comes</option>
              <option value="embeddings">embeddings</option>
              <option value="get">the path /</option>
            </select>
          </div>
          {web.length > 1 ? (
            <div className="field">
              <label htmlFor={`${id}u`}>At</label>
              <select id={`${id}u`} className="select" value={at} onChange={(e) => setUrl(e.target.value)}>
                {web.map((u) => (
                  <option key={u}>{u}</option>
                ))}
              </select>
            </div>
          ) : null}
        </div>
        {ask === "get" ? null : (
          <div className="field">
            <label htmlFor={`${id}t`}>Text</label>
            <input id={`${id}t`} className="input" maxLength={2000} autoComplete="off" value={text} onChange={(e) => setText(e.target.value)} />
          </div>
        )}
        <Command text={tryCommand(ask, at, model, text, withKey)} what="the command" />
        {withKey ? <p className="dim small">Requests need an app key: the command reads its value from APP_KEY.</p> : null}
      </div>
    </Panel>
  );
}

export function HostsPage() {
  const { project, environment, name } = route.useParams();
  const path = `${project}/${environment}/${name}`;
  const watched = useApp(path);
  const { me } = useSession();
  const say = useToast();
  const [asked, setAsked] = useState<Asked | null>(null);
  const [made, setMade] = useState<Made | null>(null);
  useTitle(`Hosts of ${name}`);
  const domains = usePages(
    ["domains", path],
    async (token, signal) => {
      const res = await routes.listDomains({ app: path, page: { size: 100, token } }, { signal });
      return { items: res.domains, next: res.page?.next ?? "" };
    },
  );
  const keys = usePages(
    ["appKeys", path],
    async (token, signal) => {
      const res = await routes.listAppKeys({ app: path, page: { size: 100, token } }, { signal });
      return { items: res.keys, next: res.page?.next ?? "" };
    },
  );
  const app = watched.picture?.app;
  if (!watched.picture || !app) return <NoApp watched={watched} path={path} />;
  const may = steers(me.key?.role) && !watched.picture.deleted;
  const close = () => setAsked(null);
  return (
    <>
      <Head app={app} sub="Hosts" />
      <div className="stack">
        {watched.picture.deleted ? <p className="note idle">The app was deleted.</p> : <Outdated watched={watched} />}
        {made ? <Once made={made} close={() => setMade(null)} /> : null}
        <Panel id="hosts" title="Hosts">
          {app.urls.length > 0 ? <Urls urls={app.urls} /> : <p className="dim">No host yet: no instance is ready.</p>}
        </Panel>
        <Try app={app} live={watched.picture.deployments.find((d) => d.live)} />
        <Panel
          id="domains"
          title="Domains"
          end={
            may ? (
              <button type="button" className="button small" onClick={() => setAsked({ what: "add" })}>
                Add a domain
              </button>
            ) : null
          }
        >
          <Paged
            pages={domains}
            what="the domains"
            empty={
              <div className="stack tight">
                <p className="dim">The app has no domain of yours yet.</p>
                <Command text={windlass("domain add", ["chat.example.com"], ["--app", path])} what="the command" />
              </div>
            }
          >
            {(items) => (
              <Rows
                label="Domains"
                items={items}
                keyOf={(d) => d.name}
                columns={[
                  {
                    name: "Domain",
                    cell: (d) => (
                      <div className="who">
                        <b>{d.name}</b>
                        <div className="dim small">
                          added <Time at={ms(d.createdAt)} /> by {d.createdBy}
                        </div>
                      </div>
                    ),
                  },
                  {
                    name: "State",
                    cell: (d) => (
                      <>
                        <Badge word={domainState(d)} />
                        {d.missingSince > 0n ? (
                          <div className="dim small">
                            missing since <Time at={ms(d.missingSince)} />
                          </div>
                        ) : null}
                      </>
                    ),
                  },
                  { name: "Record in the DNS, which has to stay", cell: (d) => <Record domain={d} /> },
                  {
                    name: "What can be done",
                    quiet: true,
                    cell: (d) =>
                      may ? (
                        <div className="buttons end">
                          {!d.verified || d.missingSince > 0n ? <Verify app={path} domain={d} done={domains.refetch} /> : null}
                          <button type="button" className="button small grave" aria-label={`Remove ${d.name}`} onClick={() => setAsked({ what: "remove", domain: d })}>
                            Remove
                          </button>
                        </div>
                      ) : null,
                  },
                ]}
              />
            )}
          </Paged>
        </Panel>
        <Panel
          id="keys"
          title="App keys"
          end={
            may ? (
              <button type="button" className="button small" onClick={() => setAsked({ what: "key" })}>
                Create an app key
              </button>
            ) : null
          }
        >
          <Paged
            pages={keys}
            what="the app's keys"
            empty={
              <div className="stack tight">
                <p className="dim">No key yet. Requests need one if the app&rsquo;s file says so.</p>
                <Command text={windlass("app-key create", ["mobile"], ["--app", path, "--ttl", "2160h"])} what="the command" />
              </div>
            }
          >
            {(items) => (
              <Rows
                label="App keys"
                items={items}
                keyOf={(k) => k.name}
                columns={[
                  {
                    name: "Key",
                    cell: (k) => (
                      <>
                        <b>{k.name}</b>
                        <div className="mono dim">{k.prefix}…</div>
                      </>
                    ),
                  },
                  {
                    name: "Made",
                    cell: (k) => (
                      <>
                        made <Time at={ms(k.createdAt)} /> <span className="dim">by {k.createdBy}</span>
                      </>
                    ),
                  },
                  {
                    name: "Ends",
                    cell: (k) =>
                      k.expiresAt > 0n ? (
                        <>
                          expires <Time at={ms(k.expiresAt)} />
                        </>
                      ) : (
                        <span className="dim">does not expire</span>
                      ),
                  },
                  {
                    name: "What can be done",
                    quiet: true,
                    cell: (k) =>
                      may ? (
                        <div className="buttons end">
                          <button type="button" className="button small grave" aria-label={`Revoke ${k.name}`} onClick={() => setAsked({ what: "revoke", key: k })}>
                            Revoke
                          </button>
                        </div>
                      ) : null,
                  },
                ]}
              />
            )}
          </Paged>
        </Panel>
      </div>
      {asked?.what === "add" ? <AskAdd app={path} done={domains.refetch} close={close} /> : null}
      {asked?.what === "key" ? (
        <AskKey
          app={path}
          done={(m) => {
            setMade(m);
            keys.refetch();
          }}
          close={close}
        />
      ) : null}
      {asked?.what === "remove" ? (
        <Confirm
          ask={{ title: `Remove ${asked.domain.name}`, effect: "Takes the domain out of every region: requests for it are no longer served.", label: "Remove the domain", grave: true, reason: "" }}
          act={async () => {
            await routes.removeDomain({ mutation: mutation(), app: path, domain: asked.domain.name });
            say(`${asked.domain.name} is removed.`);
            domains.refetch();
          }}
          onClose={close}
          explain={explain}
        />
      ) : null}
      {asked?.what === "revoke" ? (
        <Confirm
          ask={{
            title: `Revoke app key ${asked.key.name}`,
            effect: "Requests with it are refused in each region as soon as that serves the app's routes without it. It cannot be undone.",
            label: "Revoke the key",
            grave: true,
            reason: "",
          }}
          act={async () => {
            await routes.revokeAppKey({ mutation: mutation(), app: path, name: asked.key.name });
            say(`App key ${asked.key.name} is revoked.`);
            keys.refetch();
          }}
          onClose={close}
          explain={explain}
        />
      ) : null}
    </>
  );
}
