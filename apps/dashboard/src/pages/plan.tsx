import { Code, ConnectError } from "@connectrpc/connect";
import { useNavigate } from "@tanstack/react-router";
import { useId, useRef, useState, type ReactNode } from "react";
import { apps, explain, mutation } from "../api/clients.js";
import { ErrorDetailSchema, ErrorReason } from "../gen/windlass/v1/common_pb.js";
import { PlanDeployResponse_Outcome as Outcome, type PlanDeployResponse, type PlanFinding } from "../gen/windlass/v1/plan_pb.js";
import { Layout } from "../gen/windlass/v1/spec_pb.js";
import { filePath, lineOf, maxFileBytes, readAppFile, type AppFile, type Fault } from "../model/appfile.js";
import { atText, changesOf, foldSteps, outcomeText, verdict, waitsText } from "../model/plan.js";
import { gangText, hasRoles, pairsText, replicaText } from "../model/roles.js";
import { regionStatus, steers } from "../model/words.js";
import { Confirm } from "../ui/confirm.js";
import { Differences } from "../ui/differences.js";
import { Badge, Command, Panel, useTitle } from "../ui/pieces.js";
import { Rows } from "../ui/rows.js";
import { useSession } from "../ui/session.js";
import { useToast } from "../ui/toast.js";

const example = `app: echo
regions: [us-east-1]
replicas: 2
command: [modelserver]
args: [--model, echo]
ports: [{name: http, port: 0}]
healthCheck: {path: /health}`;

/** Is about the text that it was made of: once that is another, it says so. */
type Planned = { text: string; file: AppFile; plan: PlanDeployResponse };
type Failed = { text: string; faults: Fault[] };

/** A refusal that names a field of the file. */
function faultOf(error: unknown, file: AppFile): Fault | null {
  const failed = ConnectError.from(error);
  const detail = failed.findDetails(ErrorDetailSchema)[0];
  if (failed.code !== Code.InvalidArgument || !detail) return null;
  const path = filePath(detail.field);
  const said = failed.rawMessage.startsWith(`${detail.field}: `) ? failed.rawMessage.slice(detail.field.length + 2) : failed.rawMessage;
  return { path, line: lineOf(file.lines, path), text: `${said}${detail.fix ? `. ${detail.fix}` : ""}` };
}

const Where = ({ path, line }: { path: string; line: number }) => (
  <>
    {line > 0 ? <span className="num">line {line}: </span> : null}
    {path ? (
      <>
        <code>{path}</code>:{" "}
      </>
    ) : null}
  </>
);

function Faults({ faults }: { faults: Fault[] }) {
  return (
    <div className="note bad" role="alert">
      <p>
        <b>The file is not an app&rsquo;s file yet:</b>
      </p>
      <ul>
        {faults.map((f, i) => (
          <li key={i}>
            <Where path={f.path} line={f.line} />
            {f.text}
          </li>
        ))}
      </ul>
    </div>
  );
}

function Findings({ findings, file }: { findings: PlanFinding[]; file: AppFile }) {
  return (
    <ul className="stack tight" aria-label="Findings">
      {findings.map((f, i) => {
        const path = filePath(f.field);
        return (
          <li key={i} className={`note ${f.blocks ? "bad" : "warn"}`}>
            <span className="chip">{f.blocks ? "against it" : "to be known"}</span> <b>{ErrorReason[f.reason]}</b>
            {f.region ? ` in ${f.region}` : ""}: <Where path={path} line={path ? lineOf(file.lines, path) : 0} />
            {f.field && f.message.startsWith(`${f.field}: `) ? f.message.slice(f.field.length + 2) : f.message}
            {f.fix ? <div className="small">{f.fix}</div> : null}
          </li>
        );
      })}
    </ul>
  );
}

function Steps({ plan, pooled }: { plan: PlanDeployResponse; pooled: boolean }) {
  return (
    <>
      <p className="dim small">When all goes well. A move tells {pooled ? "versions" : "replicas"} and the share of the traffic; how long replicas load is not known.</p>
      <Rows
        label="Steps"
        items={foldSteps(plan.steps, pooled)}
        keyOf={(s) => s.key}
        columns={[
          { name: "At", cell: (s) => <span className="num">{s.step ? atText(s.step) : ""}</span> },
          { name: "Wave and region", cell: (s) => [s.step?.wave, s.step?.region].filter(Boolean).join(", ") },
          { name: "What", cell: (s) => (s.step ? s.text : <span className="dim">{s.text}</span>) },
        ]}
      />
      {plan.stepsLeftOut > 0 ? <p className="dim small">And {plan.stepsLeftOut} steps more.</p> : null}
    </>
  );
}

const threeOf = (now: number, peak: number, after: number) => (
  <span className="num nowrap">
    {now} → {peak} → {after}
  </span>
);

/** What the file says of roles, pairs and gangs. Nothing for one role of one host. */
function Roles({ file }: { file: AppFile }) {
  if (!hasRoles(file.spec)) return null;
  const pairs = pairsText(file.spec);
  const gangs = gangText(file.spec);
  return (
    <dl className="facts">
      <div>
        <dt>Replica</dt>
        <dd>{replicaText(file.spec)}</dd>
      </div>
      {pairs ? (
        <div>
          <dt>Pairs</dt>
          <dd>{pairs}</dd>
        </div>
      ) : null}
      {gangs ? (
        <div>
          <dt>Gangs</dt>
          <dd>{gangs}</dd>
        </div>
      ) : null}
    </dl>
  );
}

function Regions({ plan, pooled }: { plan: PlanDeployResponse; pooled: boolean }) {
  return (
    <Rows
      label="Regions"
      items={plan.regions}
      keyOf={(r) => r.region}
      columns={[
        { name: "Region", cell: (r) => <b>{r.region}</b> },
        { name: "Status", cell: (r) => <Badge word={regionStatus(r.status)} /> },
        {
          name: pooled ? "Pool now, at the peak, after" : "Replicas now, at the peak, after",
          cell: (r) => (
            <>
              {threeOf(r.replicasNow, r.replicasPeak, r.replicasAfter)} {pooled ? "% of the pool" : "replicas"}
              {r.setCapacity ? <div className="small">Set capacity: {r.setCapacity}</div> : null}
            </>
          ),
        },
        {
          name: "GPUs now, at the peak, after",
          cell: (r) =>
            r.gpu ? (
              <>
                {threeOf(r.gpusNow, r.gpusPeak, r.gpusAfter)} GPUs
                <div className={`small ${r.gpusNeeded > r.gpusFree ? "" : "dim"}`}>
                  needs {r.gpusNeeded} of {r.gpusFree} free {[r.gpu.product, r.gpu.pool].filter(Boolean).join(" ")}
                </div>
              </>
            ) : (
              <span className="dim">no GPUs</span>
            ),
        },
      ]}
    />
  );
}

function Quota({ plan }: { plan: PlanDeployResponse }) {
  const limits = plan.quota?.limits;
  const now = plan.quota?.usage;
  const after = plan.usageAfter;
  if (!now || !after) return null;
  const rows = (["apps", "deployments", "instances", "gpus", "rollouts"] as const).map((name) => ({ name, now: now[name], after: after[name], of: limits?.[name] ?? 0n }));
  return (
    <Rows
      label="Quota"
      items={rows}
      keyOf={(r) => r.name}
      columns={[
        { name: "Limit", cell: (r) => <b>{r.name}</b> },
        {
          name: "Now and after",
          cell: (r) => (
            <span className="num">
              {String(r.now)} → {String(r.after)}
            </span>
          ),
        },
        { name: "Of", cell: (r) => <span className="num dim">{r.of > 0n ? `of ${r.of}` : "no limit"}</span> },
      ]}
    />
  );
}

function Result({ planned, stale, deploy }: { planned: Planned; stale: boolean; deploy: ReactNode }) {
  const { plan, file } = planned;
  const waits = waitsText(plan);
  const pooled = file.spec.layout === Layout.POOLED;
  return (
    <div className={`stack${stale ? " faded" : ""}`}>
      {stale ? (
        <p className="note warn" role="status">
          The file is another one now. Show the plan anew.
        </p>
      ) : null}
      <Panel id="verdict" title={file.app} end={<Badge word={verdict(plan)} />}>
        <div className="stack tight">
          <p>{outcomeText(plan)}</p>
          {waits ? <p className="dim">{waits}</p> : null}
          <Roles file={file} />
          {plan.findings.length > 0 ? <Findings findings={plan.findings} file={file} /> : null}
          {deploy}
        </div>
      </Panel>
      {plan.outcome !== Outcome.UNSPECIFIED || plan.changes.length > 0 ? (
        <Panel id="changes" title={plan.liveVersion > 0 ? `Changes against v${plan.liveVersion}` : "Changes, as nothing is live yet"}>
          <Differences changes={changesOf(plan.changes)} before={plan.liveVersion > 0 ? `v${plan.liveVersion}` : "now"} after="the file" none="Nothing differs from what is live." />
        </Panel>
      ) : null}
      {plan.steps.length > 0 ? (
        <Panel id="steps" title="Steps">
          <Steps plan={plan} pooled={pooled} />
        </Panel>
      ) : null}
      {plan.regions.length > 0 ? (
        <Panel id="regions" title="Regions">
          <Regions plan={plan} pooled={pooled} />
        </Panel>
      ) : null}
      {plan.quota ? (
        <Panel id="quota" title={`Quota of workspace ${plan.quota.workspaceName}`}>
          <Quota plan={plan} />
        </Panel>
      ) : null}
    </div>
  );
}

export function PlanPage() {
  useTitle("Plan");
  const id = useId();
  const { me } = useSession();
  const say = useToast();
  const navigate = useNavigate();
  const [text, setText] = useState("");
  const [planned, setPlanned] = useState<Planned | null>(null);
  const [failed, setFailed] = useState<Failed | null>(null);
  const [wrong, setWrong] = useState("");
  const [busy, setBusy] = useState(false);
  const [asking, setAsking] = useState(false);
  const latest = useRef(0);
  const result = useRef<HTMLDivElement>(null);

  async function show(of: string) {
    const turn = ++latest.current;
    setWrong("");
    setFailed(null);
    const { file, faults } = readAppFile(of);
    if (!file) {
      setPlanned(null);
      setFailed({ text: of, faults });
      return;
    }
    setBusy(true);
    try {
      const plan = await apps.planDeploy({ app: file.app, spec: file.spec, rollout: file.rollout, freeze: file.freeze, scaling: file.scaling });
      if (turn !== latest.current) return;
      setPlanned({ text: of, file, plan });
      requestAnimationFrame(() => result.current?.focus({ preventScroll: true }));
    } catch (error) {
      if (turn !== latest.current) return;
      setPlanned(null);
      const fault = faultOf(error, file);
      if (fault) setFailed({ text: of, faults: [fault] });
      else setWrong(explain(error));
    } finally {
      if (turn === latest.current) setBusy(false);
    }
  }

  async function open(file: File | undefined) {
    if (!file) return;
    if (file.size > maxFileBytes) return setWrong(`${file.name} is larger than ${maxFileBytes >> 20} MiB.`);
    const content = await file.text();
    setText(content);
    await show(content);
  }

  const stale = planned !== null && planned.text !== text;
  const may = steers(me.key?.role);
  const deployable = planned && planned.plan.outcome !== Outcome.UNSPECIFIED;
  const blocked = planned?.plan.wouldRun === false;
  return (
    <>
      <div className="page-head">
        <h1 className="grow">Plan</h1>
      </div>
      <div className="stack">
        <Panel id="file" title="App file">
          <form
            className="stack tight"
            onSubmit={(e) => {
              e.preventDefault();
              void show(text);
            }}
          >
            <div className="field">
              <label htmlFor={`${id}t`}>YAML or JSON, as <code>windlass deploy -f</code> takes it</label>
              <textarea
                id={`${id}t`}
                className="input mono file"
                rows={Math.min(24, Math.max(9, text.split("\n").length + 1))}
                spellCheck={false}
                autoComplete="off"
                autoCapitalize="off"
                placeholder={example}
                value={text}
                aria-describedby={`${id}d`}
                onChange={(e) => setText(e.target.value)}
                onKeyDown={(e) => {
                  if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) {
                    e.preventDefault();
                    void show(text);
                  }
                }}
              />
              <p id={`${id}d`} className="dim small">
                A plan changes nothing. The file stays in this page, and is forgotten when you leave it.
              </p>
            </div>
            <div className="buttons">
              <button type="submit" className="button primary" disabled={busy || text.trim() === ""}>
                {busy ? "Planning …" : "Show the plan"}
              </button>
              <label className="button upload">
                Open a file
                <input
                  type="file"
                  accept=".yaml,.yml,.json"
                  className="visually-hidden"
                  onChange={(e) => {
                    void open(e.target.files?.[0]);
                    e.target.value = "";
                  }}
                />
              </label>
              {text === "" ? (
                <button type="button" className="button" onClick={() => setText(`${example}\n`)}>
                  Start from an example
                </button>
              ) : null}
            </div>
          </form>
        </Panel>
        {failed ? <Faults faults={failed.faults} /> : null}
        {wrong ? (
          <p className="note bad" role="alert">
            {wrong}
          </p>
        ) : null}
        {planned ? (
          <div ref={result} tabIndex={-1} role="group" aria-labelledby="verdict">
            <Result
              planned={planned}
              stale={stale}
              deploy={
                !may ? (
                  <p className="dim small">Your key reads only: a deploy needs a deployer&rsquo;s key.</p>
                ) : deployable ? (
                  <div className="buttons">
                    <button type="button" className={`button ${blocked ? "grave" : "primary"}`} disabled={stale} onClick={() => setAsking(true)}>
                      {blocked ? "Deploy all the same" : "Deploy"}
                    </button>
                  </div>
                ) : null
              }
            />
          </div>
        ) : !failed && !wrong ? (
          <section className="panel">
            <div className="empty">
              <h2>No plan yet</h2>
              <p>Paste an app&rsquo;s file above, or open one. The same in a terminal:</p>
              <Command text={"windlass plan -f app.yaml\nwindlass deploy -f app.yaml"} what="the commands" />
            </div>
          </section>
        ) : null}
      </div>
      {asking && planned ? (
        <Confirm
          ask={{
            title: `Deploy ${planned.file.app}`,
            effect: `${outcomeText(planned.plan)}${blocked ? " As things are now it would not come to its end: see what stands against it." : ""}`,
            label: "Deploy",
            grave: blocked,
            reason: "",
          }}
          act={async () => {
            const { file } = planned;
            const res = await apps.deploy({ mutation: mutation(), app: file.app, spec: file.spec, rollout: file.rollout, freeze: file.freeze, scaling: file.scaling });
            const what = res.unchanged ? `Nothing changed: the file equals v${res.version}.` : res.scaled ? `v${res.version} is being scaled.` : `v${res.version} is on its way.`;
            say([what, res.hold ? `Freeze ${res.hold.freeze} holds it.` : "", ...res.warnings].filter(Boolean).join(" "));
            const [project = "", environment = "", name = ""] = file.app.split("/");
            void navigate({ to: "/apps/$project/$environment/$name", params: { project, environment, name } });
          }}
          onClose={() => setAsking(false)}
          explain={explain}
        />
      ) : null}
    </>
  );
}
