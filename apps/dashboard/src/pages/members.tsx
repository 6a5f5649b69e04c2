import { createClient } from "@connectrpc/connect";
import { useQuery } from "@tanstack/react-query";
import { useId, useState } from "react";
import { explain, mutation, transport } from "../api/clients.js";
import { usePages } from "../api/pages.js";
import type { Role } from "../gen/windlass/v1/common_pb.js";
import { MemberService, type Member, type SignInRule } from "../gen/windlass/v1/member_pb.js";
import { roleMay } from "../model/keys.js";
import { conditionText, memberState, parseConditions, ruleFor, rolesOfRules } from "../model/members.js";
import { ms } from "../model/time.js";
import { roleName } from "../model/words.js";
import { Confirm } from "../ui/confirm.js";
import { NameField } from "../ui/name-field.js";
import { Badge, Command, Loading, Panel, Time, useTitle } from "../ui/pieces.js";
import { Paged, Rows } from "../ui/rows.js";
import { useSession } from "../ui/session.js";
import { useToast } from "../ui/toast.js";
import { WorkspaceHead } from "../ui/workspace-tabs.js";

const members = createClient(MemberService, transport);

function AskRule({ roles, issuers, taken, done, close }: { roles: Role[]; issuers: string[]; taken: string[]; done: () => void; close: () => void }) {
  const id = useId();
  const say = useToast();
  const [name, setName] = useState("");
  const [role, setRole] = useState(roles[0]!);
  const [issuer, setIssuer] = useState("");
  const [conditions, setConditions] = useState("");
  return (
    <Confirm
      ask={{
        title: "Add a sign-in rule",
        effect: `${issuer ? "A service whose token" : "A person whose token"} has all these claims gets role ${roleName(role)}, which ${roleMay[role]}.`,
        label: "Add the rule",
        grave: false,
        reason: "",
      }}
      act={async () => {
        const parsed = parseConditions(conditions);
        if (taken.includes(name)) throw new Error(`a rule ${name} exists already, and this would replace it: use another name, or remove that one first`);
        const res = await members.setSignInRule({ mutation: mutation(), rule: { name, role, issuer, conditions: parsed } });
        say(`Rule ${name} is set.${res.warnings.map((w) => ` Note: ${w}.`).join("")}`);
        done();
      }}
      onClose={close}
      explain={explain}
    >
      <NameField value={name} onChange={setName} />
      <div className="pair">
        <div className="field">
          <label htmlFor={`${id}r`}>Role</label>
          <select id={`${id}r`} className="select" value={role} onChange={(e) => setRole(Number(e.target.value))}>
            {roles.map((r) => (
              <option key={r} value={r}>
                {roleName(r)}
              </option>
            ))}
          </select>
        </div>
        <div className="field">
          <label htmlFor={`${id}i`}>For</label>
          <select id={`${id}i`} className="select" value={issuer} onChange={(e) => setIssuer(e.target.value)}>
            <option value="">people</option>
            {issuers.map((i) => (
              <option key={i} value={i}>
                {ruleFor({ issuer: i })}
              </option>
            ))}
          </select>
        </div>
      </div>
      <div className="field">
        <label htmlFor={`${id}c`}>Conditions, one on each line (all must be met)</label>
        <textarea
          id={`${id}c`}
          className="input mono"
          rows={3}
          required
          spellCheck={false}
          placeholder={issuer ? "repository=acme/models" : "groups=ml-team"}
          value={conditions}
          onChange={(e) => setConditions(e.target.value)}
        />
      </div>
    </Confirm>
  );
}

type Asked = { what: "rule" } | { what: "remove-rule"; rule: SignInRule } | { what: "remove" | "restore"; member: Member };

function Ask({ asked, done, close }: { asked: Exclude<Asked, { what: "rule" }>; done: () => void; close: () => void }) {
  const say = useToast();
  if (asked.what === "remove-rule")
    return (
      <Confirm
        ask={{ title: `Remove rule ${asked.rule.name}`, effect: "Members who have a role only by this rule cannot call from now on.", label: "Remove the rule", grave: true, reason: "" }}
        act={async () => {
          await members.removeSignInRule({ mutation: mutation(), name: asked.rule.name });
          say(`Rule ${asked.rule.name} is removed.`);
          done();
        }}
        onClose={close}
        explain={explain}
      />
    );
  const { member } = asked;
  const removes = asked.what === "remove";
  return (
    <Confirm
      ask={{
        title: `${removes ? "Remove" : "Restore"} ${member.name}`,
        effect: removes
          ? "All sessions of this member end at once, and later sign-ins are refused until the member is restored. API keys that the member created stay."
          : "The member can sign in again, with the roles that rules give.",
        label: removes ? "Remove the member" : "Restore the member",
        grave: removes,
        reason: "",
      }}
      act={async () => {
        if (removes) {
          const res = await members.removeMember({ mutation: mutation(), member: member.id });
          say(`${member.name} is removed.${res.keys.length > 0 ? ` Keys that still work: ${res.keys.join(", ")}.` : ""}`);
        } else {
          await members.restoreMember({ mutation: mutation(), member: member.id });
          say(`${member.name} is restored.`);
        }
        done();
      }}
      onClose={close}
      explain={explain}
    />
  );
}

export function MembersPage() {
  useTitle("Members");
  const { me } = useSession();
  const [asked, setAsked] = useState<Asked | null>(null);
  const rules = useQuery({ queryKey: ["members", "rules"], queryFn: ({ signal }) => members.listSignInRules({}, { signal }) });
  const pages = usePages(["members"], async (token, signal) => {
    const res = await members.listMembers({ page: { size: 100, token } }, { signal });
    return { items: res.members, next: res.page?.next ?? "" };
  });
  const roles = rolesOfRules(me.key?.role);
  const may = roles.length > 0;
  const close = () => setAsked(null);
  const done = () => {
    pages.refetch();
    void rules.refetch();
  };
  const all = rules.data?.rules ?? [];
  return (
    <>
      <WorkspaceHead
        title="Members"
        end={
          may && rules.data ? (
            <button type="button" className="button primary" onClick={() => setAsked({ what: "rule" })}>
              Add a rule
            </button>
          ) : null
        }
      />
      <div className="stack">
        <section className="panel" aria-label="Members">
          <div className="body">
            <Paged
              pages={pages}
              what="the members"
              empty={<p className="dim">No member yet. People and services become members when they first sign in by a rule.</p>}
            >
              {(items) => (
                <Rows
                  label="Members"
                  items={items}
                  keyOf={(m) => m.id}
                  columns={[
                    {
                      name: "Member",
                      cell: (m) => (
                        <>
                          <div className="title">
                            <b>{m.name}</b>
                            {m.id === me.key?.id ? <span className="chip live">you</span> : null}
                            {m.service ? <span className="chip">service</span> : null}
                          </div>
                          <div className="mono dim small">{m.subject}</div>
                          <div className="dim small">{m.issuer}</div>
                        </>
                      ),
                    },
                    {
                      name: "Role",
                      cell: (m) => (
                        <>
                          <Badge word={memberState(m)} />
                          {m.rules.length > 0 ? <div className="dim small">by {m.rules.join(", ")}</div> : null}
                        </>
                      ),
                    },
                    {
                      name: "Signed in",
                      cell: (m) => (
                        <span className="small">
                          signed in <Time at={ms(m.signedInAt)} />
                          {m.removedAt > 0n ? (
                            <div className="dim">
                              removed <Time at={ms(m.removedAt)} /> by {m.removedBy}
                            </div>
                          ) : null}
                        </span>
                      ),
                    },
                    {
                      name: "What can be done",
                      quiet: true,
                      cell: (m) =>
                        !may ? null : (
                          <div className="buttons end">
                            {m.removedAt > 0n ? (
                              <button type="button" className="button small" aria-label={`Restore ${m.name}`} onClick={() => setAsked({ what: "restore", member: m })}>
                                Restore
                              </button>
                            ) : (
                              <button type="button" className="button small grave" aria-label={`Remove ${m.name}`} onClick={() => setAsked({ what: "remove", member: m })}>
                                Remove
                              </button>
                            )}
                          </div>
                        ),
                    },
                  ]}
                />
              )}
            </Paged>
          </div>
        </section>
        <Panel id="rules" title="Sign-in rules">
          {rules.data ? (
            <div className="stack tight">
              <p className="dim small">
                {rules.data.issuer ? (
                  <>
                    People sign in at <span className="mono">{rules.data.issuer}</span>.
                  </>
                ) : (
                  "The control plane has no issuer for people: an operator sets --oidc-issuer. Until then, people use API keys."
                )}
              </p>
              {all.length > 0 ? (
                <Rows
                  label="Sign-in rules"
                  items={all}
                  keyOf={(r) => r.name}
                  columns={[
                    { name: "Rule", cell: (r) => <b>{r.name}</b> },
                    { name: "Role", cell: (r) => <span title={roleMay[r.role]}>{roleName(r.role)}</span> },
                    { name: "For", cell: (r) => ruleFor(r) },
                    {
                      name: "Conditions",
                      cell: (r) => r.conditions.map((c) => (
                        <div key={conditionText(c)} className="mono small">
                          {conditionText(c)}
                        </div>
                      )),
                    },
                    {
                      name: "Set",
                      cell: (r) => (
                        <span className="small">
                          set <Time at={ms(r.setAt)} /> <span className="dim">by {r.setBy}</span>
                        </span>
                      ),
                    },
                    {
                      name: "What can be done",
                      quiet: true,
                      cell: (r) =>
                        may ? (
                          <div className="buttons end">
                            <button type="button" className="button small grave" aria-label={`Remove rule ${r.name}`} onClick={() => setAsked({ what: "remove-rule", rule: r })}>
                              Remove
                            </button>
                          </div>
                        ) : null,
                    },
                  ]}
                />
              ) : (
                <>
                  <p className="dim">No rule: people need an API key to sign in.</p>
                  <Command text="windlass members rule set ml-team --claim groups=ml-team --role deployer" what="the command" />
                </>
              )}
            </div>
          ) : rules.error ? (
            <p className="note bad" role="alert">
              {explain(rules.error)}
            </p>
          ) : (
            <Loading what="the rules" />
          )}
        </Panel>
      </div>
      {asked?.what === "rule" && rules.data ? (
        <AskRule roles={roles} issuers={me.workspaceName ? rules.data.federationIssuers : []} taken={all.map((r) => r.name)} done={done} close={close} />
      ) : null}
      {asked && asked.what !== "rule" ? <Ask asked={asked} done={done} close={close} /> : null}
    </>
  );
}
