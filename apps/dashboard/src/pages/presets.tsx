import { createClient } from "@connectrpc/connect";
import { useQuery } from "@tanstack/react-query";
import { Link, getRouteApi } from "@tanstack/react-router";
import { useId, useMemo, useRef, useState, type FormEvent } from "react";
import { stringify } from "yaml";
import { explain, transport } from "../api/clients.js";
import { useFleet } from "../api/fleet.js";
import { useRefetchOnFleetNews } from "../api/news.js";
import { RegionStatus } from "../gen/windlass/v1/common_pb.js";
import { PresetService, type Preset, type PresetFinding, type RenderPresetResponse } from "../gen/windlass/v1/preset_pb.js";
import { appPath, byName } from "../model/fleet.js";
import { changesOf } from "../model/plan.js";
import { readOptions, renderedFile, severity, writtenFor } from "../model/presets.js";
import { windlass } from "../model/shell.js";
import { Differences } from "../ui/differences.js";
import { Badge, Command, Loading, Panel, useTitle } from "../ui/pieces.js";
import { Rows } from "../ui/rows.js";

const presets = createClient(PresetService, transport);
const route = getRouteApi("/presets/$preset");

export function PresetsPage() {
  useTitle("Presets");
  const read = useQuery({ queryKey: ["presets"], queryFn: async ({ signal }) => (await presets.listPresets({}, { signal })).presets });
  useRefetchOnFleetNews(() => void read.refetch({ cancelRefetch: false }));
  const all = read.data ?? [];
  return (
    <>
      <div className="page-head">
        <h1 className="grow">Presets</h1>
      </div>
      <p className="dim small lead">A preset knows an engine. It makes what an app&rsquo;s file leaves out from an engine, a model and GPUs.</p>
      <div className="stack">
        <section className="panel" aria-label="All presets">
          <div className="body">
            {read.isError && !read.data ? (
              <p className="note bad">{explain(read.error)}</p>
            ) : read.isPending ? (
              <Loading what="the presets" />
            ) : all.length === 0 ? (
              <p className="dim">This control plane has no preset.</p>
            ) : (
              <Rows<Preset>
                label="Presets"
                items={all}
                keyOf={(p) => p.id}
                columns={[
                  {
                    name: "Preset",
                    cell: (p) => (
                      <>
                        <Link to="/presets/$preset" params={{ preset: p.name }}>
                          <b>{p.name}</b>
                        </Link>{" "}
                        <span className="chip num">{p.id}</span>
                        <div className="dim small">{p.title}</div>
                      </>
                    ),
                  },
                  { name: "Engine", cell: (p) => <span className="small">{p.defaultEngineVersion ? `version ${p.defaultEngineVersion} by default` : "no default version"}</span> },
                  { name: "Written for", cell: (p) => <span className="small">{writtenFor(p)}</span> },
                  { name: "Models", cell: (p) => <span className="small">models from {p.modelSchemes.join(", ")}</span> },
                ]}
              />
            )}
          </div>
        </section>
        <Command text={"windlass preset list --remote\nwindlass preset show vllm --remote"} what="the commands" />
      </div>
    </>
  );
}

function Findings({ findings }: { findings: PresetFinding[] }) {
  if (findings.length === 0) return null;
  return (
    <ul className="stack tight" aria-label="Findings">
      {findings.map((f, i) => {
        const word = severity(f.severity);
        return (
          <li key={i} className={`note ${word.tone}`}>
            <Badge word={word} /> <b>{f.code}</b>
            {f.field ? (
              <>
                {" "}
                <code>{f.field}</code>
              </>
            ) : null}
            : {f.message}
            {f.fix ? <div className="small">{f.fix}</div> : null}
          </li>
        );
      })}
    </ul>
  );
}

type Fields = { model: string; version: string; name: string; context: string; gpus: string; product: string; memory: string; options: string };

const none: Fields = { model: "", version: "", name: "", context: "", gpus: "", product: "", memory: "", options: "" };

/** What the preset makes of a model: a file, and findings. It calls no hub and changes nothing. */
function Render({ preset: p }: { preset: Preset }) {
  const id = useId();
  const fleet = useFleet();
  const [f, setFields] = useState(none);
  const [made, setMade] = useState<{ of: Fields; res: RenderPresetResponse } | null>(null);
  const [wrong, setWrong] = useState("");
  const [busy, setBusy] = useState(false);
  const latest = useRef(0);
  const regions = [...fleet.regions.values()];
  const region = (regions.filter((r) => r.status === RegionStatus.CONNECTED).sort(byName)[0] ?? regions[0])?.name ?? "us-east-1";
  async function show(event: FormEvent) {
    event.preventDefault();
    const turn = ++latest.current;
    setBusy(true);
    setWrong("");
    try {
      const options = readOptions(f.options);
      const res = await presets.renderPreset({
        spec: {
          serve: { engine: p.id, engineVersion: f.version, model: f.model, name: f.name, context: Number(f.context), ...(Object.keys(options).length > 0 ? { options } : {}) },
          resources: { memoryMib: Number(f.memory), ...(Number(f.gpus) > 0 ? { gpu: { count: Number(f.gpus), product: f.product } } : {}) },
        },
      });
      if (turn === latest.current) setMade({ of: f, res });
    } catch (error) {
      if (turn !== latest.current) return;
      setMade(null);
      setWrong(explain(error));
    } finally {
      if (turn === latest.current) setBusy(false);
    }
  }
  const field = (name: keyof Fields, label: string, more: object = {}) => (
    <div className="field">
      <label htmlFor={`${id}${name}`}>{label}</label>
      <input id={`${id}${name}`} className="input" autoComplete="off" spellCheck={false} value={f[name]} onChange={(e) => setFields({ ...f, [name]: e.target.value })} {...more} />
    </div>
  );
  const count = { type: "number", min: 0, step: 1 };
  const example = p.modelSchemes.includes("hf") ? "hf://ORG/NAME@COMMIT" : `${p.modelSchemes[0] ?? "file"}://…`;
  const spec = made?.res.spec;
  return (
    <div className="stack tight">
      <form className="stack tight" onSubmit={(e) => void show(e)}>
        {field("model", "Model", { required: true, maxLength: 1024, placeholder: example })}
        <div className="pair">
          {field("gpus", "GPUs of an instance", { ...count, max: 64 })}
          {field("product", "Product of the GPUs", { maxLength: 128, placeholder: "NVIDIA-H100-80GB-HBM3" })}
          {field("memory", "Memory of an instance, MiB", { ...count, max: 100_000_000 })}
        </div>
        <div className="pair">
          {field("context", "Context, tokens", { ...count, max: 1_073_741_824 })}
          {field("name", "Name of the model in requests", { maxLength: 256 })}
          {field("version", "Version of the engine", { maxLength: 64, placeholder: p.defaultEngineVersion })}
        </div>
        <div className="field">
          <label htmlFor={`${id}o`}>Flags of the engine, one a line</label>
          <textarea id={`${id}o`} className="input mono file" rows={2} spellCheck={false} autoCapitalize="off" placeholder="kv-cache-dtype=fp8" value={f.options} onChange={(e) => setFields({ ...f, options: e.target.value })} />
        </div>
        <div className="buttons">
          <button type="submit" className="button primary" disabled={busy}>
            {busy ? "Rendering …" : "Show what it makes"}
          </button>
        </div>
      </form>
      {wrong ? (
        <p className="note bad" role="alert">
          {wrong}
        </p>
      ) : null}
      {made ? (
        <div className="stack tight" role="status">
          {made.of === f ? null : <p className="note warn">The fields are others now. Show it anew.</p>}
          <Findings findings={made.res.findings} />
          {spec ? (
            <>
              <p className="dim small">An app&rsquo;s file that does without the preset, by {spec.generatedBy || p.id}. It is yours to change:</p>
              <Command text={stringify(renderedFile(p.name.replace(/^.*:/, ""), [region], spec)).trimEnd()} what="the file" />
              <Link to="/plan">Plan a file</Link>
            </>
          ) : null}
        </div>
      ) : null}
    </div>
  );
}

/** What the newest version of its preset would change in an app. */
function Newest({ app, choose }: { app: string; choose: (app: string) => void }) {
  const id = useId();
  const fleet = useFleet();
  const paths = useMemo(() => [...fleet.apps.values()].filter((a) => a.liveVersion > 0).map(appPath).sort(), [fleet.apps]);
  const read = useQuery({ queryKey: ["presetDiff", app], queryFn: ({ signal }) => presets.diffPreset({ app }, { signal }), enabled: app !== "" });
  const diff = read.data;
  return (
    <div className="stack tight">
      <div className="inline-field">
        <label htmlFor={`${id}a`}>App</label>
        <select id={`${id}a`} className="select" value={app} onChange={(e) => choose(e.target.value)}>
          <option value="">choose one</option>
          {[...new Set([...paths, ...(app ? [app] : [])])].map((a) => (
            <option key={a}>{a}</option>
          ))}
        </select>
      </div>
      {app === "" ? (
        <p className="dim">Nothing changes until the app&rsquo;s file is deployed.</p>
      ) : read.isPending ? (
        <Loading what="the differences" />
      ) : read.isError ? (
        <p className="note warn">{explain(read.error)}</p>
      ) : diff ? (
        <>
          <p>
            v{diff.version} was made by <span className="chip num">{diff.generatedBy}</span>
            {diff.newest ? (
              <>
                {" "}
                and the newest is <span className="chip num">{diff.newest}</span>
              </>
            ) : null}
          </p>
          <Findings findings={diff.findings} />
          <Differences changes={changesOf(diff.changes)} before={`v${diff.version}`} after={diff.newest || "the newest"} none="The newest version of the preset would change nothing." />
        </>
      ) : null}
      <Command text={windlass("preset diff", [app || "APP"])} what="the command" />
    </div>
  );
}

export function PresetPage() {
  const { preset: name } = route.useParams();
  const { app = "", engine = "" } = route.useSearch();
  const navigate = route.useNavigate();
  const id = useId();
  useTitle(`Preset ${name}`);
  const [version, setVersion] = useState(engine);
  const read = useQuery({
    queryKey: ["preset", name, engine],
    queryFn: async ({ signal }) => (await presets.getPreset({ name, engineVersion: engine }, { signal })).preset ?? null,
    placeholderData: (before, query) => (query?.queryKey[1] === name ? before : undefined),
  });
  const p = read.data;
  const set = (change: { app?: string | undefined; engine?: string | undefined }) => void navigate({ search: (old) => ({ ...old, ...change }), replace: true });
  return (
    <>
      <nav className="crumbs" aria-label="Where this is">
        <Link to="/presets">Presets</Link>
      </nav>
      <div className="page-head">
        <div className="title">
          <h1>{name}</h1>
          {p ? <span className="chip num">{p.id}</span> : null}
        </div>
      </div>
      <div className="stack">
        {read.isError ? <p className="note bad">{explain(read.error)}</p> : null}
        {read.isPending ? <Loading what="the preset" /> : null}
        {p ? (
          <>
            <Panel id="facts" title={p.title || p.name}>
              <dl className="facts">
                <div>
                  <dt>Default version</dt>
                  <dd>{p.defaultEngineVersion || "none"}</dd>
                </div>
                <div>
                  <dt>Written for</dt>
                  <dd>{writtenFor(p)}</dd>
                </div>
                <div>
                  <dt>Models from</dt>
                  <dd>{p.modelSchemes.join(", ")}</dd>
                </div>
              </dl>
            </Panel>
            <Panel id="renders" title="What it makes of a model">
              <Render key={p.id} preset={p} />
            </Panel>
            <Panel id="newest" title="What its newest version would change in an app">
              <Newest app={app} choose={(a) => set({ app: a || undefined })} />
            </Panel>
            <Panel
              id="metrics"
              title="Metrics"
              end={
                <form
                  className="inline-field"
                  onSubmit={(e) => {
                    e.preventDefault();
                    set({ engine: version || undefined });
                  }}
                >
                  <label htmlFor={`${id}v`}>Engine version</label>
                  <input id={`${id}v`} className="input short" maxLength={64} placeholder={p.defaultEngineVersion} spellCheck={false} autoComplete="off" value={version} onChange={(e) => setVersion(e.target.value.trim())} />
                </form>
              }
            >
              {p.metrics.length === 0 ? (
                <p className="dim">It knows no metric of that version.</p>
              ) : (
                <Rows
                  label="Metrics"
                  items={p.metrics}
                  keyOf={(m) => m.signal}
                  columns={[
                    { name: "Signal", cell: (m) => <b>{m.signal}</b> },
                    { name: "Metric", cell: (m) => <code>{m.metric}</code> },
                    { name: "Where", cell: (m) => <span className="small dim">{`${m.path} of port ${m.port}`}</span> },
                  ]}
                />
              )}
            </Panel>
            <Panel id="sources" title="Sources">
              <Rows
                label="Sources"
                items={p.sources}
                keyOf={(s) => `${s.about}${s.page}`}
                columns={[
                  { name: "About", cell: (s) => s.about },
                  {
                    name: "Page",
                    cell: (s) =>
                      s.page.startsWith("https://") ? (
                        <a href={s.page} target="_blank" rel="noreferrer noopener">
                          {s.page}
                        </a>
                      ) : (
                        <code>{s.page}</code>
                      ),
                  },
                  { name: "Version", cell: (s) => <span className="dim num">{s.version}</span> },
                ]}
              />
            </Panel>
            {Object.keys(p.aliases).length > 0 ? (
              <Panel id="aliases" title="Other names of flags">
                <ul className="toggles">
                  {Object.entries(p.aliases)
                    .sort(([a], [b]) => a.localeCompare(b))
                    .map(([other, flag]) => (
                      <li key={other} className="chip wrap">
                        <code>{other}</code> is <code>{flag}</code>
                      </li>
                    ))}
                </ul>
              </Panel>
            ) : null}
          </>
        ) : null}
      </div>
    </>
  );
}
