import { useId, useState } from "react";
import { explain, freezes, mutation } from "../api/clients.js";
import { usePages } from "../api/pages.js";
import { Role } from "../gen/windlass/v1/common_pb.js";
import { Freeze_OnStart, type Freeze } from "../gen/windlass/v1/freeze_pb.js";
import { fieldTime, freezeEffect, freezeState, liftEffect, parseWindows, scopeFields, scopeText, type Scope } from "../model/freezes.js";
import { ms } from "../model/time.js";
import { Confirm } from "../ui/confirm.js";
import { NameField } from "../ui/name-field.js";
import { Badge, Command, Time, useNow, useTitle } from "../ui/pieces.js";
import { Paged, Rows } from "../ui/rows.js";
import { ScopeField } from "../ui/scope-field.js";
import { useSession } from "../ui/session.js";
import { useToast } from "../ui/toast.js";
import { WorkspaceHead } from "../ui/workspace-tabs.js";

/** Whether a freeze has that name. SetFreeze would replace it. */
async function isTaken(name: string): Promise<boolean> {
  let token = "";
  do {
    const res = await freezes.listFreezes({ page: { size: 200, token } });
    if (res.freezes.some((f) => f.name === name)) return true;
    token = res.page?.next ?? "";
  } while (token);
  return false;
}

function AskNew({ done, close }: { done: () => void; close: () => void }) {
  const id = useId();
  const say = useToast();
  const [name, setName] = useState("");
  const [reason, setReason] = useState("");
  const [scope, setScope] = useState<Scope>({ kind: "workspace", name: "" });
  const [hold, setHold] = useState(false);
  const [from, setFrom] = useState("");
  const [until, setUntil] = useState("");
  const [weekly, setWeekly] = useState("");
  const [zone, setZone] = useState(Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC");
  const times = { from: fieldTime(from), until: fieldTime(until) };
  return (
    <Confirm
      ask={{ title: "Set a freeze", effect: freezeEffect({ scope, hold, ...times, weekly, zone }), label: "Set the freeze", grave: false, reason: "" }}
      act={async () => {
        const windows = parseWindows(weekly);
        if (await isTaken(name)) throw new Error(`a freeze ${name} exists already, and this would replace it: use another name, or lift that one first`);
        const res = await freezes.setFreeze({
          mutation: mutation(), name, reason, onStart: hold ? Freeze_OnStart.HOLD : Freeze_OnStart.REFUSE, ...scopeFields(scope),
          from: BigInt(times.from), until: BigInt(times.until), weekly: windows, timeZone: windows.length > 0 ? zone : "",
        });
        say(`Freeze ${name} is set${res.freeze?.inForce ? ", and in force" : ""}.`);
        done();
      }}
      onClose={close}
      explain={explain}
    >
      <NameField value={name} onChange={setName} />
      <div className="field">
        <label htmlFor={`${id}r`}>Reason, for people whose rollouts it stops</label>
        <input id={`${id}r`} className="input" required maxLength={1024} autoComplete="off" value={reason} onChange={(e) => setReason(e.target.value)} />
      </div>
      <ScopeField value={scope} onChange={setScope} />
      <div className="field">
        <label htmlFor={`${id}h`}>A deploy meanwhile</label>
        <select id={`${id}h`} className="select" value={hold ? "hold" : "refuse"} onChange={(e) => setHold(e.target.value === "hold")}>
          <option value="refuse">is refused</option>
          <option value="hold">waits for the end of the freeze</option>
        </select>
      </div>
      <div className="field">
        <label htmlFor={`${id}f`}>From (empty: now)</label>
        <input id={`${id}f`} className="input" type="datetime-local" value={from} onChange={(e) => setFrom(e.target.value)} />
      </div>
      <div className="field">
        <label htmlFor={`${id}u`}>Until (empty: until it is lifted)</label>
        <input id={`${id}u`} className="input" type="datetime-local" value={until} onChange={(e) => setUntil(e.target.value)} />
      </div>
      <div className="pair">
        <div className="field">
          <label htmlFor={`${id}w`}>Only in these windows (one on each line)</label>
          <textarea id={`${id}w`} className="input mono" rows={2} spellCheck={false} placeholder="Fri 16:00 - Mon 08:00" value={weekly} onChange={(e) => setWeekly(e.target.value)} />
        </div>
        <div className="field">
          <label htmlFor={`${id}z`}>Time zone of the windows</label>
          <input id={`${id}z`} className="input" maxLength={64} autoComplete="off" spellCheck={false} value={zone} onChange={(e) => setZone(e.target.value)} />
        </div>
      </div>
    </Confirm>
  );
}

function AskLift({ freeze: f, done, close }: { freeze: Freeze; done: () => void; close: () => void }) {
  const say = useToast();
  return (
    <Confirm
      ask={{ title: `Lift freeze ${f.name}`, effect: liftEffect(f), label: "Lift the freeze", grave: true, reason: "" }}
      act={async () => {
        const res = await freezes.liftFreeze({ mutation: mutation(), name: f.name });
        const n = res.appIds.length;
        say(`Freeze ${f.name} is lifted.${n > 0 ? ` It held the rollouts of ${n} app${n === 1 ? "" : "s"}.` : ""}`);
        done();
      }}
      onClose={close}
      explain={explain}
    />
  );
}

export function FreezesPage() {
  useTitle("Freezes");
  const now = useNow();
  const { me } = useSession();
  const [asked, setAsked] = useState<"new" | Freeze | null>(null);
  const pages = usePages(["freezes", "pages"], async (token, signal) => {
    const res = await freezes.listFreezes({ page: { size: 100, token } }, { signal });
    return { items: res.freezes, next: res.page?.next ?? "" };
  });
  const owns = me.key?.role === Role.OWNER;
  const close = () => setAsked(null);
  return (
    <>
      <WorkspaceHead
        title="Freezes"
        end={
          owns ? (
            <button type="button" className="button primary" onClick={() => setAsked("new")}>
              Set a freeze
            </button>
          ) : null
        }
      />
      <section className="panel" aria-label="Freezes">
        <div className="body">
          <Paged
            pages={pages}
            what="the freezes"
            empty={
              <div className="stack tight">
                <p className="dim">No freeze: rollouts may start at any time.</p>
                <Command text={`windlass freeze set weekends --reason "no on-call engineer" --weekly "Fri 16:00 - Mon 08:00"`} what="the command" />
              </div>
            }
          >
            {(items) => (
              <Rows
                label="Freezes"
                items={items}
                keyOf={(f) => f.id}
                columns={[
                  {
                    name: "Freeze",
                    cell: (f) => (
                      <>
                        <b>{f.name}</b>
                        <div>{f.reason}</div>
                      </>
                    ),
                  },
                  {
                    name: "State",
                    cell: (f) => {
                      const { word, text } = freezeState(f, now);
                      return (
                        <>
                          <Badge word={word} />
                          <div className="small dim">{text}</div>
                          {f.weekly.map((w) => (
                            <div key={`${w.start} ${w.end}`} className="small num">
                              {w.start} – {w.end}
                            </div>
                          ))}
                          {f.weekly.length > 0 ? <div className="small dim">{f.timeZone || "UTC"}</div> : null}
                        </>
                      );
                    },
                  },
                  { name: "Scope", cell: (f) => scopeText(f) },
                  { name: "Meanwhile", cell: (f) => (f.onStart === Freeze_OnStart.HOLD ? "a deploy waits for its end" : "a deploy is refused") },
                  {
                    name: "Set",
                    cell: (f) => (
                      <span className="small">
                        set <Time at={ms(f.setAt)} /> {f.setBy ? <span className="dim">by {f.setBy}</span> : null}
                        {f.fromFile ? <div className="dim">by the app's file: a deploy of the file changes or lifts it</div> : null}
                      </span>
                    ),
                  },
                  {
                    name: "What can be done",
                    quiet: true,
                    cell: (f) =>
                      owns && !f.fromFile ? (
                        <div className="buttons end">
                          <button type="button" className="button small grave" aria-label={`Lift ${f.name}`} onClick={() => setAsked(f)}>
                            Lift
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
      {asked === "new" ? <AskNew done={pages.refetch} close={close} /> : null}
      {asked && asked !== "new" ? <AskLift freeze={asked} done={pages.refetch} close={close} /> : null}
    </>
  );
}
