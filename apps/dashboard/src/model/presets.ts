// What a preset makes of a model, as an app's file.
import { toJson, type JsonObject, type JsonValue } from "@bufbuild/protobuf";
import { PresetFinding_Severity as Severity, type Preset } from "../gen/windlass/v1/preset_pb.js";
import { DeploymentSpecSchema, type DeploymentSpec } from "../gen/windlass/v1/spec_pb.js";
import type { Word } from "./words.js";

/** Versions of the engine that the preset is written for. */
export function writtenFor(p: Preset): string {
  if (p.engineFrom === "" && p.engineBefore === "") return "any version";
  if (p.engineBefore === "") return `${p.engineFrom} and later`;
  return `${p.engineFrom === "" ? "versions" : p.engineFrom} to before ${p.engineBefore}`;
}

/** Flags of an engine, one a line, as `--option` of `windlass preset render` takes them: NAME=VALUE, or NAME alone. */
export function readOptions(text: string): JsonObject {
  const out: JsonObject = {};
  for (const line of text.split("\n")) {
    const [name = "", ...rest] = line.trim().replace(/^-+/, "").split("=");
    if (name === "") continue;
    const value = rest.join("=");
    const given: JsonValue = rest.length === 0 || value === "true" ? true : value === "false" ? false : value;
    const before = out[name];
    out[name] = before === undefined ? given : [...(Array.isArray(before) ? before : [before]), given];
  }
  return out;
}

/** Fields of an app's file that does without the preset. */
export function renderedFile(app: string, regions: string[], spec: DeploymentSpec): Record<string, JsonValue> {
  const { serve: _, generated: __, generatedBy: ___, ...fields } = toJson(DeploymentSpecSchema, spec) as JsonObject;
  return { app, ...fields, regions };
}

const severities: Partial<Record<Severity, Word>> = {
  [Severity.ERROR]: { text: "error", tone: "bad" },
  [Severity.WARNING]: { text: "warning", tone: "warn" },
  [Severity.NOTE]: { text: "note", tone: "idle" },
};
export const severity = (s: Severity): Word => severities[s] ?? { text: "finding", tone: "idle" };
