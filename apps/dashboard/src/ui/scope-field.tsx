import { useId } from "react";
import { useFleet } from "../api/fleet.js";
import { appPath } from "../model/fleet.js";
import type { Scope } from "../model/freezes.js";

/** Fields for a scope: the workspace, a project or an app. */
export function ScopeField({ value, onChange }: { value: Scope; onChange: (scope: Scope) => void }) {
  const id = useId();
  const { apps } = useFleet();
  const all = [...apps.values()];
  const names = value.kind === "app" ? all.map(appPath) : all.map((a) => a.projectName);
  return (
    <div className="pair">
      <div className="field">
        <label htmlFor={`${id}k`}>Scope</label>
        <select id={`${id}k`} className="select" value={value.kind} onChange={(e) => onChange({ kind: e.target.value as Scope["kind"], name: "" })}>
          <option value="workspace">the whole workspace</option>
          <option value="project">a project</option>
          <option value="app">an app</option>
        </select>
      </div>
      {value.kind === "workspace" ? null : (
        <div className="field">
          <label htmlFor={`${id}n`}>{value.kind === "app" ? "App, as project/environment/name" : "Project"}</label>
          <input id={`${id}n`} className="input" required maxLength={256} list={`${id}l`} autoComplete="off" spellCheck={false} value={value.name} onChange={(e) => onChange({ ...value, name: e.target.value })} />
          <datalist id={`${id}l`}>
            {[...new Set(names)].sort().map((n) => (
              <option key={n} value={n} />
            ))}
          </datalist>
        </div>
      )}
    </div>
  );
}
