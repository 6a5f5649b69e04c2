import { createClient } from "@connectrpc/connect";
import { useQuery } from "@tanstack/react-query";
import { useId, useState } from "react";
import { explain, mutation, transport } from "../api/clients.js";
import { useRefetchOnFleetNews } from "../api/news.js";
import { usePages } from "../api/pages.js";
import { Role } from "../gen/windlass/v1/common_pb.js";
import { NotificationDelivery_State, NotificationFormat, NotificationService, type NotificationEndpoint, type NotificationKind } from "../gen/windlass/v1/notification_pb.js";
import { scopeFields, scopeText, type Scope } from "../model/freezes.js";
import { deliveryState, formatName, kindName, kindNames, kindsText, removeEffect, subject } from "../model/notifications.js";
import { ms } from "../model/time.js";
import { Confirm } from "../ui/confirm.js";
import { NameField } from "../ui/name-field.js";
import { Once, type Made } from "../ui/once.js";
import { Badge, Command, Loading, Panel, Time, useTitle } from "../ui/pieces.js";
import { Paged, Rows } from "../ui/rows.js";
import { ScopeField } from "../ui/scope-field.js";
import { useSession } from "../ui/session.js";
import { useToast } from "../ui/toast.js";
import { WorkspaceHead } from "../ui/workspace-tabs.js";

const service = createClient(NotificationService, transport);

function AskNew({ done, close }: { done: (made: Made) => void; close: () => void }) {
  const id = useId();
  const [name, setName] = useState("");
  const [url, setUrl] = useState("");
  const [format, setFormat] = useState(NotificationFormat.CLOUDEVENTS);
  const [scope, setScope] = useState<Scope>({ kind: "workspace", name: "" });
  const [kinds, setKinds] = useState<NotificationKind[]>(kindNames.map(([k]) => k));
  const where = scope.kind === "workspace" ? "the workspace" : `${scope.kind} ${scope.name || "…"}`;
  return (
    <Confirm
      ask={{
        title: "Add an endpoint",
        effect: `The control plane will call the URL for events of ${where}: ${kindsText(kinds) || "none"}. Calls are signed with a secret that is shown once, here. A call without a 2xx answer is repeated for up to 24 hours.`,
        label: "Add the endpoint", grave: false, reason: "",
      }}
      act={async () => {
        if (kinds.length === 0) throw new Error("choose at least one kind of event");
        const { endpoints } = await service.listNotificationEndpoints({});
        if (endpoints.some((e) => e.name === name)) throw new Error(`an endpoint ${name} exists already, and this would change it: use another name, or remove that one first`);
        const res = await service.setNotificationEndpoint({ mutation: mutation(), name, url, format, kinds, ...scopeFields(scope) });
        done({ what: `Endpoint ${name}, with its signing secret,`, value: res.secret });
      }}
      onClose={close}
      explain={explain}
    >
      <NameField value={name} onChange={setName} />
      <div className="field">
        <label htmlFor={`${id}u`}>URL</label>
        <input id={`${id}u`} className="input" type="url" required maxLength={2048} autoComplete="off" spellCheck={false} placeholder="https://example.com/hooks/windlass" value={url} onChange={(e) => setUrl(e.target.value)} />
      </div>
      <div className="field">
        <label htmlFor={`${id}f`}>Body</label>
        <select id={`${id}f`} className="select" value={format} onChange={(e) => setFormat(Number(e.target.value))}>
          <option value={NotificationFormat.CLOUDEVENTS}>CloudEvents</option>
          <option value={NotificationFormat.SLACK}>Slack</option>
        </select>
      </div>
      <ScopeField value={scope} onChange={setScope} />
      <fieldset className="field">
        <legend className="label">Events</legend>
        {kindNames.map(([kind, text]) => (
          <label key={kind} className="check">
            <input type="checkbox" checked={kinds.includes(kind)} onChange={(e) => setKinds(e.target.checked ? [...kinds, kind] : kinds.filter((k) => k !== kind))} /> {text}
          </label>
        ))}
      </fieldset>
    </Confirm>
  );
}

function AskRemove({ endpoint: e, done, close }: { endpoint: NotificationEndpoint; done: () => void; close: () => void }) {
  const say = useToast();
  return (
    <Confirm
      ask={{ title: `Remove endpoint ${e.name}`, effect: removeEffect(e), label: "Remove the endpoint", grave: true, reason: "" }}
      act={async () => {
        await service.removeNotificationEndpoint({ mutation: mutation(), name: e.name });
        say(`Endpoint ${e.name} is removed.`);
        done();
      }}
      onClose={close}
      explain={explain}
    />
  );
}

function AskReplay({ endpoint: e, done, close }: { endpoint: NotificationEndpoint; done: () => void; close: () => void }) {
  const say = useToast();
  return (
    <Confirm
      ask={{
        title: `Send dead deliveries to ${e.name} again`,
        effect: `All dead deliveries, ${e.dead} at the moment, are sent to ${e.origin} again, with the ids that they had. A receiver that has seen an id can leave it out.`,
        label: "Send them again", grave: false, reason: "",
      }}
      act={async () => {
        const { replayed } = await service.replayNotifications({ mutation: mutation(), endpoint: e.name });
        say(`${replayed} deliver${replayed === 1 ? "y is" : "ies are"} sent again.`);
        done();
      }}
      onClose={close}
      explain={explain}
    />
  );
}

function Deliveries({ endpoint: e }: { endpoint: NotificationEndpoint }) {
  const [state, setState] = useState(NotificationDelivery_State.UNSPECIFIED);
  const pages = usePages(["deliveries", e.id, state], async (token, signal) => {
    const res = await service.listNotificationDeliveries({ endpoint: e.name, state, page: { size: 50, token } }, { signal });
    return { items: res.deliveries, next: res.page?.next ?? "" };
  });
  return (
    <Panel
      id="deliveries"
      title={`Deliveries to ${e.name}`}
      end={
        <>
          <select className="select" aria-label="State" value={state} onChange={(x) => setState(Number(x.target.value))}>
            <option value={NotificationDelivery_State.UNSPECIFIED}>all states</option>
            <option value={NotificationDelivery_State.PENDING}>pending</option>
            <option value={NotificationDelivery_State.DELIVERED}>delivered</option>
            <option value={NotificationDelivery_State.DEAD}>dead</option>
          </select>
          <button type="button" className="button small" onClick={pages.refetch}>
            Read again
          </button>
        </>
      }
    >
      <Paged pages={pages} what="the deliveries" empty={<p className="dim">No delivery. Those that were delivered are kept for 24 hours.</p>}>
        {(items) => (
          <Rows
            label={`Deliveries to ${e.name}`}
            items={items}
            keyOf={(d) => d.id}
            columns={[
              {
                name: "Event",
                cell: (d) => (
                  <>
                    <b>{kindName(d.kind)}</b> <span className="dim">{subject(d)}</span>
                    <div className="small">{d.why || d.what}</div>
                    <div className="mono dim small">{d.id}</div>
                  </>
                ),
              },
              {
                name: "State",
                cell: (d) => (
                  <>
                    <Badge word={deliveryState(d.state)} />
                    <div className="small dim num">
                      {d.attempts} tr{d.attempts === 1 ? "y" : "ies"}
                      {d.state === NotificationDelivery_State.PENDING && d.nextAt > 0n ? (
                        <>
                          , next <Time at={ms(d.nextAt)} />
                        </>
                      ) : null}
                    </div>
                  </>
                ),
              },
              { name: "When", cell: (d) => <Time at={ms(d.at)} /> },
              { name: "Last problem", cell: (d) => (d.problem ? <span className="small">{d.problem}</span> : null) },
            ]}
          />
        )}
      </Paged>
    </Panel>
  );
}

type Asked = { what: "new" } | { what: "remove" | "replay"; endpoint: NotificationEndpoint };

export function NotificationsPage() {
  useTitle("Notifications");
  const { me } = useSession();
  const say = useToast();
  const [asked, setAsked] = useState<Asked | null>(null);
  const [made, setMade] = useState<Made | null>(null);
  const [shown, setShown] = useState("");
  const [failed, setFailed] = useState("");
  const read = useQuery({ queryKey: ["notification-endpoints"], queryFn: async ({ signal }) => (await service.listNotificationEndpoints({}, { signal })).endpoints });
  const refetch = () => void read.refetch({ cancelRefetch: false });
  useRefetchOnFleetNews(refetch);
  const owns = me.key?.role === Role.OWNER;
  const close = () => setAsked(null);
  const endpoints = read.data ?? [];
  const open = endpoints.find((e) => e.id === shown);
  async function test(e: NotificationEndpoint) {
    setFailed("");
    try {
      await service.testNotificationEndpoint({ mutation: mutation(), name: e.name });
      say(`A test is on its way to ${e.origin}: its delivery shows the result.`);
      setShown(e.id);
      refetch();
    } catch (error) {
      setFailed(explain(error));
    }
  }
  return (
    <>
      <WorkspaceHead
        title="Notifications"
        end={
          owns ? (
            <button type="button" className="button primary" onClick={() => setAsked({ what: "new" })}>
              Add an endpoint
            </button>
          ) : null
        }
      />
      <div className="stack">
        {made ? <Once made={made} close={() => setMade(null)} /> : null}
        {failed ? (
          <p className="note bad" role="alert">
            {failed}
          </p>
        ) : null}
        <section className="panel" aria-label="Endpoints">
          <div className="body">
            {read.isPending ? (
              <Loading what="the endpoints" />
            ) : read.isError && !read.data ? (
              <div className="note bad" role="alert">
                <p>{explain(read.error)}</p>
                <button type="button" className="button small" onClick={refetch}>
                  Try again
                </button>
              </div>
            ) : endpoints.length === 0 ? (
              <div className="stack tight">
                <p className="dim">No endpoint: no message is sent when a rollout fails, goes back or waits, or when a region is out of reach.</p>
                <Command text="windlass notify set pager --url https://example.com/hooks/windlass" what="the command" />
              </div>
            ) : (
              <Rows
                label="Endpoints"
                items={endpoints}
                keyOf={(e) => e.id}
                columns={[
                  {
                    name: "Endpoint",
                    cell: (e) => (
                      <>
                        <div className="title">
                          <b>{e.name}</b>
                          {e.disabled ? <Badge word={{ text: "disabled", tone: "idle" }} /> : null}
                        </div>
                        <div className="mono small dim">{e.origin}</div>
                      </>
                    ),
                  },
                  { name: "Scope", cell: (e) => scopeText(e) },
                  {
                    name: "Events",
                    cell: (e) => (
                      <>
                        {kindsText(e.kinds)} <div className="dim small">as {formatName(e.format)}</div>
                      </>
                    ),
                  },
                  {
                    name: "Deliveries",
                    cell: (e) => (
                      <span className="num">
                        {String(e.pending)} pending, {e.dead > 0n ? <b>{String(e.dead)} dead</b> : "0 dead"}
                      </span>
                    ),
                  },
                  {
                    name: "What can be done",
                    quiet: true,
                    cell: (e) => (
                      <div className="buttons end">
                        <button type="button" className="button small" aria-expanded={shown === e.id} aria-label={`Deliveries to ${e.name}`} onClick={() => setShown(shown === e.id ? "" : e.id)}>
                          Deliveries
                        </button>
                        {owns ? (
                          <>
                            <button type="button" className="button small" disabled={e.disabled} aria-label={`Send a test to ${e.name}`} onClick={() => void test(e)}>
                              Test
                            </button>
                            {e.dead > 0n ? (
                              <button type="button" className="button small" aria-label={`Send dead deliveries to ${e.name} again`} onClick={() => setAsked({ what: "replay", endpoint: e })}>
                                Replay
                              </button>
                            ) : null}
                            <button type="button" className="button small grave" aria-label={`Remove ${e.name}`} onClick={() => setAsked({ what: "remove", endpoint: e })}>
                              Remove
                            </button>
                          </>
                        ) : null}
                      </div>
                    ),
                  },
                ]}
              />
            )}
          </div>
        </section>
        {open ? <Deliveries key={open.id} endpoint={open} /> : null}
      </div>
      {asked?.what === "new" ? (
        <AskNew
          done={(m) => {
            setMade(m);
            refetch();
          }}
          close={close}
        />
      ) : null}
      {asked?.what === "remove" ? <AskRemove endpoint={asked.endpoint} done={refetch} close={close} /> : null}
      {asked?.what === "replay" ? <AskReplay endpoint={asked.endpoint} done={refetch} close={close} /> : null}
    </>
  );
}
