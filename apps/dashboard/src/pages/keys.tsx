import { useId, useState } from "react";
import { access, explain, mutation } from "../api/clients.js";
import { usePages } from "../api/pages.js";
import type { ApiKey } from "../gen/windlass/v1/access_pb.js";
import type { Role } from "../gen/windlass/v1/common_pb.js";
import { keyState, roleMay, rolesToGive } from "../model/keys.js";
import { ms } from "../model/time.js";
import { roleName } from "../model/words.js";
import { Confirm } from "../ui/confirm.js";
import { Once, type Made } from "../ui/once.js";
import { NameField } from "../ui/name-field.js";
import { Badge, Command, Time, useNow, useTitle } from "../ui/pieces.js";
import { Paged, Rows } from "../ui/rows.js";
import { useSession } from "../ui/session.js";
import { useToast } from "../ui/toast.js";
import { WorkspaceHead } from "../ui/workspace-tabs.js";

const days: [number, string][] = [
  [30, "30 days"],
  [90, "90 days"],
  [365, "a year"],
  [0, "for ever"],
];

function AskNew({ roles, done, close }: { roles: Role[]; done: (made: Made) => void; close: () => void }) {
  const id = useId();
  const [name, setName] = useState("");
  const [role, setRole] = useState(roles[0]!);
  const [ttl, setTtl] = useState(90);
  return (
    <Confirm
      ask={{ title: "Create a key", effect: "Its value is shown once, here. Give each person and each program a key of its own: history and audit tell them apart by it.", label: "Create the key", grave: false, reason: "" }}
      act={async () => {
        const expiresAt = ttl > 0 ? BigInt(Date.now() + ttl * 86_400_000) : 0n;
        const res = await access.createApiKey({ mutation: mutation(), name, role, expiresAt });
        done({ what: `Key ${res.key?.name ?? name}`, value: res.value });
      }}
      onClose={close}
      explain={explain}
    >
      <NameField value={name} onChange={setName} />
      <div className="pair">
        <div className="field">
          <label htmlFor={`${id}r`}>Role</label>
          <select id={`${id}r`} className="select" value={role} onChange={(e) => setRole(Number(e.target.value))} aria-describedby={`${id}m`}>
            {roles.map((r) => (
              <option key={r} value={r}>
                {roleName(r)}
              </option>
            ))}
          </select>
        </div>
        <div className="field">
          <label htmlFor={`${id}t`}>Good for</label>
          <select id={`${id}t`} className="select" value={ttl} onChange={(e) => setTtl(Number(e.target.value))}>
            {days.map(([n, text]) => (
              <option key={n} value={n}>
                {text}
              </option>
            ))}
          </select>
        </div>
      </div>
      <p id={`${id}m`} className="dim small">
        A key of role {roleName(role)} {roleMay[role]}.
      </p>
    </Confirm>
  );
}

function AskRevoke({ apiKey: k, mine, done, close }: { apiKey: ApiKey; mine: boolean; done: () => void; close: () => void }) {
  const say = useToast();
  return (
    <Confirm
      ask={{
        title: `Revoke key ${k.name}`,
        effect: `Calls with it are refused at once, and the sessions of browsers that it signed in end${mine ? ", this one too" : ""}. It cannot be undone.`,
        label: "Revoke the key",
        grave: true,
        reason: "",
      }}
      act={async () => {
        await access.revokeApiKey({ mutation: mutation(), key: k.id });
        say(`Key ${k.name} is revoked.`);
        done();
      }}
      onClose={close}
      explain={explain}
    />
  );
}

export function KeysPage() {
  useTitle("Keys");
  const now = useNow();
  const { me } = useSession();
  const [asked, setAsked] = useState<{ what: "new" } | { what: "revoke"; key: ApiKey } | null>(null);
  const [made, setMade] = useState<Made | null>(null);
  const pages = usePages(
    ["keys"],
    async (token, signal) => {
      const res = await access.listApiKeys({ page: { size: 100, token } }, { signal });
      return { items: res.keys, next: res.page?.next ?? "" };
    },
  );
  const roles = rolesToGive(me.key?.role);
  const names = new Map(pages.items.map((k) => [k.id, k.name]));
  const close = () => setAsked(null);
  return (
    <>
      <WorkspaceHead
        title="Keys"
        end={
          roles.length > 0 ? (
            <button type="button" className="button primary" onClick={() => setAsked({ what: "new" })}>
              Create a key
            </button>
          ) : null
        }
      />
      <div className="stack">
        {made ? <Once made={made} close={() => setMade(null)} /> : null}
        <section className="panel" aria-label="API keys">
          <div className="body">
            <Paged
              pages={pages}
              what="the keys"
              empty={
                <div className="stack tight">
                  <p className="dim">No key yet.</p>
                  <Command text="windlass key create ci --role deployer --ttl 2160h" what="the command" />
                </div>
              }
            >
              {(items) => (
                <Rows
                  label="API keys"
                  items={items}
                  keyOf={(k) => k.id}
                  columns={[
                    {
                      name: "Key",
                      cell: (k) => (
                        <>
                          <div className="title">
                            <b>{k.name}</b>
                            {k.id === me.key?.id ? <span className="chip live">yours</span> : null}
                          </div>
                          <div className="mono dim">{k.prefix}…</div>
                        </>
                      ),
                    },
                    { name: "Role", cell: (k) => <span title={roleMay[k.role]}>{roleName(k.role)}</span> },
                    { name: "State", cell: (k) => <Badge word={keyState(k, now)} /> },
                    {
                      name: "Made",
                      cell: (k) => (
                        <>
                          made <Time at={ms(k.createdAt)} /> {k.madeBy ? <span className="dim">by {names.get(k.madeBy) ?? k.madeBy}</span> : null}
                          {k.family && k.family !== k.id ? <div className="dim small">counts at gates as one with {names.get(k.family) ?? k.family}</div> : null}
                        </>
                      ),
                    },
                    {
                      name: "Ends",
                      cell: (k) =>
                        k.revokedAt > 0n ? (
                          <>
                            revoked <Time at={ms(k.revokedAt)} />
                          </>
                        ) : k.expiresAt > 0n ? (
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
                        roles.length > 0 && k.revokedAt === 0n ? (
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
          </div>
        </section>
      </div>
      {asked?.what === "new" ? (
        <AskNew
          roles={roles}
          done={(m) => {
            setMade(m);
            pages.refetch();
          }}
          close={close}
        />
      ) : null}
      {asked?.what === "revoke" ? <AskRevoke apiKey={asked.key} mine={asked.key.id === me.key?.id} done={pages.refetch} close={close} /> : null}
    </>
  );
}
