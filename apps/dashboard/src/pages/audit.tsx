import { createClient } from "@connectrpc/connect";
import { getRouteApi } from "@tanstack/react-router";
import { useEffect, useId, useMemo, useState } from "react";
import { transport } from "../api/clients.js";
import { usePages } from "../api/pages.js";
import { HistoryService, type AuditEntry } from "../gen/windlass/v1/history_pb.js";
import { auditChanges, auditOutcome, callName, filterAudit } from "../model/audit.js";
import { ms } from "../model/time.js";
import { Differences } from "../ui/differences.js";
import { Badge, Command, Time, useTitle } from "../ui/pieces.js";
import { Paged, Rows } from "../ui/rows.js";
import { WorkspaceHead } from "../ui/workspace-tabs.js";

const route = getRouteApi("/audit");
const history = createClient(HistoryService, transport);

const pageSize = 100;
/** With a filter, further pages are read by themselves, until wanted entries are found or readAtMost were read. */
const wanted = 20;
const readAtMost = 2000;

const spans: [number, string][] = [
  [0, "any time"],
  [1, "the last hour"],
  [24, "the last day"],
  [168, "the last 7 days"],
  [720, "the last 30 days"],
];

function Details({ entry }: { entry: AuditEntry }) {
  const [open, setOpen] = useState(false);
  if (entry.before === "" && entry.after === "") return null;
  return (
    <details onToggle={(e) => setOpen(e.currentTarget.open)}>
      <summary>What changed</summary>
      {open ? <Differences changes={auditChanges(entry)} before="before" after="after" none="Nothing that the audit keeps." /> : null}
    </details>
  );
}

export function AuditPage() {
  useTitle("Audit");
  const id = useId();
  const search = route.useSearch();
  const navigate = route.useNavigate();
  const [who, setWho] = useState(search.who ?? "");
  const [call, setCall] = useState(search.call ?? "");
  const hours = search.hours ?? 0;
  const set = (change: Partial<typeof search>) => void navigate({ search: (old) => ({ ...old, ...change }), replace: true });
  const pages = usePages(
    ["audit"],
    async (token, signal) => {
      const res = await history.listAudit({ page: { size: pageSize, token } }, { signal });
      return { items: res.entries, next: res.page?.next ?? "" };
    },
  );
  const since = useMemo(() => (hours > 0 ? Date.now() - hours * 3_600_000 : 0), [hours]);
  const shown = filterAudit(pages.items, { who, call, since });
  const filtered = who !== "" || call !== "" || hours > 0;
  const oldest = pages.items.at(-1);
  // Entries come newest first: nothing older is asked for.
  const past = oldest !== undefined && Number(oldest.at) < since;
  const more = pages.more && !past;
  const { loadMore, loadingMore, error } = pages;
  const searching = filtered && more && !error && shown.length < wanted && pages.items.length < readAtMost;
  useEffect(() => {
    if (searching && !loadingMore) loadMore();
  }, [searching, loadingMore, loadMore]);
  return (
    <>
      <WorkspaceHead
        title="Audit"
        end={
          <span className="dim num" role="status">
            {pages.pending ? "" : filtered ? `${shown.length} of the newest ${pages.items.length}${searching ? ", reading on …" : ""}` : ""}
          </span>
        }
      />
      <p className="dim small lead">Calls that changed something have an entry each. Refused calls, and reads of logs, secrets and credentials, are counted by caller, call and minute.</p>
      <div className="filters" role="search">
        <input
          className="input search"
          type="search"
          aria-label="Who"
          placeholder="Who: key, id or address"
          maxLength={200}
          value={who}
          onChange={(e) => {
            setWho(e.target.value);
            set({ who: e.target.value || undefined });
          }}
        />
        <input
          className="input search"
          type="search"
          aria-label="Call or resource"
          placeholder="Call or resource, such as Deploy"
          maxLength={200}
          value={call}
          onChange={(e) => {
            setCall(e.target.value);
            set({ call: e.target.value || undefined });
          }}
        />
        <select id={id} className="select" aria-label="Time" value={hours} onChange={(e) => set({ hours: Number(e.target.value) || undefined })}>
          {spans.map(([h, name]) => (
            <option key={h} value={h}>
              {name}
            </option>
          ))}
        </select>
      </div>
      <section className="panel" aria-label="Entries">
        <div className="body">
          <Paged
            pages={{ ...pages, items: shown, more }}
            what="the audit"
            empty={
              filtered ? (
                <p className="dim">{searching ? "Reading on …" : `No entry of the newest ${pages.items.length} is like that.`}</p>
              ) : (
                <div className="stack tight">
                  <p className="dim">Nothing was changed yet. Entries come with the first deploy:</p>
                  <Command text="windlass deploy -f app.yaml" what="the command" />
                </div>
              )
            }
          >
            {(items) => (
              <Rows
                label="Audit"
                items={items}
                keyOf={(e) => e.id}
                columns={[
                  { name: "When", cell: (e) => <Time at={ms(e.at)} /> },
                  {
                    name: "Who",
                    cell: (e) => (
                      <div className="who">
                        <b>{e.actor || "–"}</b>
                        <div className="dim small">{e.source}</div>
                      </div>
                    ),
                  },
                  {
                    name: "Call",
                    cell: (e) => (
                      <>
                        <div>{callName(e.procedure)}</div>
                        {e.resourceId ? (
                          <div className="mono dim">
                            {e.resourceKind} {e.resourceId}
                          </div>
                        ) : null}
                        <Details entry={e} />
                      </>
                    ),
                  },
                  { name: "Outcome", cell: (e) => <Badge word={auditOutcome(e)} /> },
                ]}
              />
            )}
          </Paged>
        </div>
      </section>
    </>
  );
}
