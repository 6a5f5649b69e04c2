import { createClient } from "@connectrpc/connect";
import { useQuery } from "@tanstack/react-query";
import { getRouteApi } from "@tanstack/react-router";
import { useId, useState, type ReactNode } from "react";
import { apps, explain, mutation, transport } from "../api/clients.js";
import { useRefetchOnFleetNews } from "../api/news.js";
import { usePages } from "../api/pages.js";
import { useApp } from "../api/watch.js";
import type { App } from "../gen/windlass/v1/app_pb.js";
import { EnvironmentService, type Environment, type Secret } from "../gen/windlass/v1/environment_pb.js";
import { mustBeUnchanged } from "../model/changed.js";
import { windlass } from "../model/shell.js";
import { ms } from "../model/time.js";
import { basis, variablesOf, type Variable } from "../model/variables.js";
import { steers } from "../model/words.js";
import { Confirm, type Confirmation } from "../ui/confirm.js";
import { NameField } from "../ui/name-field.js";
import { Command, Loading, Panel, Time, useTitle } from "../ui/pieces.js";
import { Paged, Rows } from "../ui/rows.js";
import { useSession } from "../ui/session.js";
import { useToast } from "../ui/toast.js";
import { Head, NoApp, Outdated } from "./app.js";

const route = getRouteApi("/apps/$project/$environment/$name/variables");
const environments = createClient(EnvironmentService, transport);

type Asked =
  /** Without a variable: a new one. */
  | { what: "set" | "unset" | "share" | "unshare"; variable?: Variable }
  | { what: "secret"; secret?: Secret }
  | { what: "delete"; secret: Secret };

/** A value that is shown when a person asks for it, so that it is not on every screen and screenshot. */
function Hidden({ name, value }: { name: string; value: string }) {
  const [shown, setShown] = useState(false);
  return (
    <span className="hidden-value">
      {shown ? value === "" ? <span className="dim">empty</span> : <code>{value}</code> : <span className="dim">not shown</span>}{" "}
      <button type="button" className="button small" aria-pressed={shown} aria-label={`${shown ? "Hide" : "Show"} the value of ${name}`} onClick={() => setShown(!shown)}>
        {shown ? "Hide" : "Show"}
      </button>
    </span>
  );
}

function Table({ label, variables, from, buttons }: { label: string; variables: Variable[]; from: (v: Variable) => ReactNode; buttons: (v: Variable) => ReactNode }) {
  return (
    <Rows
      label={label}
      items={variables}
      keyOf={(v) => v.name}
      columns={[
        { name: "Variable", cell: (v) => <code>{v.name}</code> },
        { name: "Value", cell: (v) => <Hidden name={v.name} value={v.value} /> },
        { name: "From", cell: (v) => <span className="dim small">{from(v)}</span> },
        { name: "What can be done", quiet: true, cell: (v) => <div className="buttons end">{buttons(v)}</div> },
      ]}
    />
  );
}

type SetProps = { ask: Confirmation; variable: Variable | undefined; act: (name: string, value: string, why: string) => Promise<void>; close: () => void };

/** Asks for the name and the value of a variable; with a variable for its value alone. */
function AskVariable({ ask, variable, act, close }: SetProps) {
  const id = useId();
  const [name, setName] = useState(variable?.name ?? "");
  const [value, setValue] = useState(variable?.value ?? "");
  return (
    <Confirm ask={ask} act={(why) => act(name, value, why)} onClose={close} explain={explain}>
      <div className="field">
        <label htmlFor={`${id}n`}>Variable</label>
        <input
          id={`${id}n`}
          className="input mono"
          required
          maxLength={256}
          pattern="[A-Za-z_][A-Za-z0-9_]*"
          title="letters, digits and _, and no digit first"
          placeholder="LOG_LEVEL"
          autoComplete="off"
          spellCheck={false}
          readOnly={variable !== undefined}
          value={name}
          onChange={(e) => setName(e.target.value)}
        />
      </div>
      <div className="field">
        <label htmlFor={`${id}v`}>Value</label>
        <textarea id={`${id}v`} className="input mono file" rows={3} maxLength={131_072} autoComplete="off" spellCheck={false} autoCapitalize="off" value={value} onChange={(e) => setValue(e.target.value)} />
      </div>
    </Confirm>
  );
}

function AskSecret({ environment, secret, done, close }: { environment: string; secret: Secret | undefined; done: (text: string) => void; close: () => void }) {
  const id = useId();
  const [name, setName] = useState(secret?.name ?? "");
  const [value, setValue] = useState("");
  return (
    <Confirm
      ask={{
        title: secret ? `A new value of ${secret.name}` : "Store a secret",
        effect: "Each app that uses the secret gets a new version with the value, and a rollout by its policy: if that fails, the app goes back to the value before. The value is never shown again.",
        label: secret ? "Store the value" : "Store the secret",
        grave: false,
        reason: "",
      }}
      act={async () => {
        const res = await environments.setSecret({ mutation: mutation(), environment, name, value });
        const n = res.appIds.length;
        const held = res.rollouts.some((r) => r.hold) ? " A freeze holds some of them." : "";
        const what = res.unchanged ? `${name} has this value already.` : `Version ${res.secret?.version ?? 1} of ${name} is stored${n > 0 ? `, and ${n} app${n === 1 ? " takes" : "s take"} it` : ""}.`;
        done([`${what}${held}`, ...res.warnings].join(" "));
      }}
      onClose={close}
      explain={explain}
    >
      {secret ? null : <NameField value={name} onChange={setName} placeholder="hf-token" />}
      <div className="field">
        <label htmlFor={`${id}v`}>Value</label>
        <textarea id={`${id}v`} className="input mono file masked" rows={3} required maxLength={65_536} autoComplete="off" spellCheck={false} autoCapitalize="off" value={value} onChange={(e) => setValue(e.target.value)} />
      </div>
    </Confirm>
  );
}

const small = (label: string, name: string, onClick: () => void, grave = false) => (
  <button type="button" className={`button small${grave ? " grave" : ""}`} aria-label={name} onClick={onClick}>
    {label}
  </button>
);

function useEnvironment(path: string) {
  const read = useQuery({ queryKey: ["environment", path], queryFn: async ({ signal }) => (await environments.getEnvironment({ environment: path }, { signal })).environment ?? null });
  useRefetchOnFleetNews(() => void read.refetch({ cancelRefetch: false }));
  return read;
}

type DialogProps = { asked: Asked; app: App; own: Variable[]; of: Environment | null | undefined; path: string; done: (text: string) => void; close: () => void };

export function Dialog({ asked, app, own, of, path, done, close }: DialogProps) {
  const [opened] = useState({ own, shared: of?.variables });
  const valueOf = (variables: Variable[], name: string) => variables.find((v) => v.name === name)?.value;
  const next = `Makes the app's next version with the change, and rolls it out by the app's policy.${app.rolloutId !== "" ? ` The rollout of v${app.latestVersion}, which is in flight, ends.` : ""}`;
  const later = "Apps of the environment take it with their next version. Nothing changes until then.";
  const why = "Why, for the history (optional)";
  const setApp = async (name: string, value: string | undefined, message: string) => {
    mustBeUnchanged(name, valueOf(opened.own, name), valueOf(own, name));
    const res = await apps.setEnvironment({ mutation: mutation(), app: app.id, message, ...(value === undefined ? { unset: [name] } : { set: { [name]: value } }) });
    done([res.unchanged ? `Nothing changed: v${res.version} has these values already.` : `v${res.version} is on its way.`, res.hold ? `Freeze ${res.hold.freeze} holds it.` : "", ...res.warnings].filter(Boolean).join(" "));
  };
  // The call has all variables: those of now, with the change of this one.
  const setShared = async (name: string, value: string | undefined) => {
    if (!of) return;
    mustBeUnchanged(name, opened.shared?.[name], of.variables[name]);
    const { [name]: _, ...rest } = of.variables;
    const variables = value === undefined ? rest : { ...rest, [name]: value };
    await environments.updateEnvironment({ mutation: mutation(), environment: of.id, name: of.name, variables, resourceVersion: of.resourceVersion });
    done(`${name} is ${value === undefined ? "removed" : "set"}, for the next version of each app.`);
  };
  switch (asked.what) {
    case "set":
      return (
        <AskVariable
          ask={{ title: asked.variable ? `Change ${asked.variable.name}` : "Set a variable", effect: next, label: "Set the variable", grave: false, reason: why }}
          variable={asked.variable}
          act={setApp}
          close={close}
        />
      );
    case "share":
      return (
        <AskVariable
          ask={{ title: asked.variable ? `Change ${asked.variable.name} of ${path}` : `Set a variable of ${path}`, effect: later, label: "Set the variable", grave: false, reason: "" }}
          variable={asked.variable}
          act={setShared}
          close={close}
        />
      );
    case "unset":
    case "unshare": {
      const name = asked.variable?.name ?? "";
      const ofApp = asked.what === "unset";
      return (
        <Confirm
          ask={{ title: `Remove ${name}${ofApp ? "" : ` from ${path}`}`, effect: ofApp ? next : later, label: "Remove the variable", grave: true, reason: ofApp ? why : "" }}
          act={(message) => (ofApp ? setApp(name, undefined, message) : setShared(name, undefined))}
          onClose={close}
          explain={explain}
        />
      );
    }
    case "secret":
      return <AskSecret environment={path} secret={asked.secret} done={done} close={close} />;
    case "delete":
      return (
        <Confirm
          ask={{ title: `Delete secret ${asked.secret.name}`, effect: "Deletes all its versions. It is refused while a version that runs refers to the secret. It cannot be undone.", label: "Delete the secret", grave: true, reason: "" }}
          act={async () => {
            await environments.deleteSecret({ mutation: mutation(), environment: path, name: asked.secret.name });
            done(`Secret ${asked.secret.name} is deleted.`);
          }}
          onClose={close}
          explain={explain}
        />
      );
  }
}

export function VariablesPage() {
  const { project, environment, name } = route.useParams();
  const path = `${project}/${environment}/${name}`;
  const place = `${project}/${environment}`;
  const watched = useApp(path);
  const { me } = useSession();
  const say = useToast();
  useTitle(`Variables of ${name}`);
  const [asked, setAsked] = useState<Asked | null>(null);
  const shared = useEnvironment(place);
  const secrets = usePages(["secrets", place], async (token, signal) => {
    const res = await environments.listSecrets({ environment: place, page: { size: 100, token } }, { signal });
    return { items: res.secrets, next: res.page?.next ?? "" };
  });
  const { picture } = watched;
  const app = picture?.app;
  if (!picture || !app) return <NoApp watched={watched} path={path} />;
  const may = steers(me.key?.role) && !picture.deleted;
  const base = basis(app, picture.deployments);
  const own = variablesOf(base);
  const used = base?.spec?.secrets ?? [];
  const common: Variable[] = Object.entries(shared.data?.variables ?? {})
    .map(([n, value]) => ({ name: n, value, shared: true }))
    .sort((a, b) => a.name.localeCompare(b.name));
  return (
    <>
      <Head app={app} sub="Variables" />
      <div className="stack">
        {picture.deleted ? <p className="note idle">The app was deleted.</p> : <Outdated watched={watched} />}
        <Panel
          id="own"
          title={base ? `Variables of v${base.version}` : "Variables"}
          end={
            may && base ? (
              <button type="button" className="button small" onClick={() => setAsked({ what: "set" })}>
                Set a variable
              </button>
            ) : null
          }
        >
          <div className="stack tight">
            {own.length > 0 ? (
              <Table
                label="Variables of the app"
                variables={own}
                from={(v) => (v.shared ? "from the environment" : "of the app")}
                buttons={(v) =>
                  may ? (
                    <>
                      {small("Change", `Change ${v.name}`, () => setAsked({ what: "set", variable: v }))}
                      {v.shared ? null : small("Remove", `Remove ${v.name}`, () => setAsked({ what: "unset", variable: v }), true)}
                    </>
                  ) : null
                }
              />
            ) : (
              <p className="dim">{base ? "The app has no variable." : "No version was made yet."}</p>
            )}
            {used.length > 0 ? (
              <ul className="small" aria-label="Secrets of the app">
                {used.map((s) => (
                  <li key={`${s.envName}${s.secret}`}>
                    {s.imagePull ? "The image is pulled with" : <code>{s.envName}</code>} {s.imagePull ? "" : "is"} secret <code>{s.secret}</code>
                    {s.version > 0 ? <span className="dim num">, version {s.version}</span> : null}
                  </li>
                ))}
              </ul>
            ) : null}
            <Command text={windlass("env set", [path, "LOG_LEVEL=debug"])} what="the command" />
          </div>
        </Panel>
        <Panel
          id="secrets"
          title={`Secrets of ${place}`}
          end={
            may ? (
              <button type="button" className="button small" onClick={() => setAsked({ what: "secret" })}>
                Store a secret
              </button>
            ) : null
          }
        >
          <Paged
            pages={secrets}
            what="the secrets"
            empty={
              <div className="stack tight">
                <p className="dim">The environment has no secret yet. The app&rsquo;s file names those that it uses.</p>
                <Command text={'printf %s "$TOKEN" | windlass secret set hf-token'} what="the command" />
              </div>
            }
          >
            {(items) => (
              <Rows<Secret>
                label="Secrets"
                items={items}
                keyOf={(s) => s.name}
                columns={[
                  { name: "Secret", cell: (s) => <b>{s.name}</b> },
                  { name: "Version", cell: (s) => <span className="num">version {s.version}</span> },
                  {
                    name: "Stored",
                    cell: (s) => (
                      <span className="dim">
                        stored <Time at={ms(s.updatedAt)} />
                      </span>
                    ),
                  },
                  {
                    name: "What can be done",
                    quiet: true,
                    cell: (s) =>
                      may ? (
                        <div className="buttons end">
                          {small("New value", `Store a new value of ${s.name}`, () => setAsked({ what: "secret", secret: s }))}
                          {small("Delete", `Delete secret ${s.name}`, () => setAsked({ what: "delete", secret: s }), true)}
                        </div>
                      ) : null,
                  },
                ]}
              />
            )}
          </Paged>
        </Panel>
        <Panel
          id="shared"
          title={`Variables of ${place}, for each app`}
          end={
            may && shared.data ? (
              <button type="button" className="button small" onClick={() => setAsked({ what: "share" })}>
                Set a variable of the environment
              </button>
            ) : null
          }
        >
          {shared.isError && !shared.data ? (
            <p className="note warn">{explain(shared.error)}</p>
          ) : shared.isPending ? (
            <Loading what="the environment" />
          ) : common.length > 0 ? (
            <Table
              label="Variables of the environment"
              variables={common}
              from={() => `of ${place}`}
              buttons={(v) =>
                may ? (
                  <>
                    {small("Change", `Change ${v.name} of the environment`, () => setAsked({ what: "share", variable: v }))}
                    {small("Remove", `Remove ${v.name} from the environment`, () => setAsked({ what: "unshare", variable: v }), true)}
                  </>
                ) : null
              }
            />
          ) : (
            <div className="stack tight">
              <p className="dim">The environment has no variable yet.</p>
              <Command text="windlass env shared LOG_LEVEL=info" what="the command" />
            </div>
          )}
        </Panel>
      </div>
      {asked ? (
        <Dialog
          asked={asked}
          app={app}
          own={own}
          of={shared.data}
          path={place}
          done={(text) => {
            say(text);
            secrets.refetch();
            void shared.refetch();
          }}
          close={() => setAsked(null)}
        />
      ) : null}
    </>
  );
}
