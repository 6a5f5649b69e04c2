// What a plan says, in the words of `windlass plan`.
import type { Duration } from "@bufbuild/protobuf/wkt";
import { PlanDeployResponse_Outcome as Outcome, PlanStep_Kind, FieldChange_Kind, type FieldChange, type PlanDeployResponse, type PlanStep } from "../gen/windlass/v1/plan_pb.js";
import type { Approval } from "../gen/windlass/v1/rollout_pb.js";
import type { Change } from "./diff.js";
import { roleName, type Word } from "./words.js";

/** 1h30m, 10m, 45s. */
export function short(d: Duration | undefined): string {
  const s = Math.round(Number(d?.seconds ?? 0n) + (d?.nanos ?? 0) / 1e9);
  const parts = [[Math.floor(s / 3600), "h"], [Math.floor((s % 3600) / 60), "m"], [s % 60, "s"]] as const;
  return parts.filter(([n]) => n > 0).map(([n, unit]) => `${n}${unit}`).join("") || "0s";
}

export function outcomeText(p: PlanDeployResponse): string {
  const v = `v${p.version}`;
  let text: string;
  switch (p.outcome) {
    case Outcome.ROLLOUT:
      text = `A rollout of ${v}${p.newApp ? ", the first version of a new app" : p.liveVersion > 0 ? ` in place of v${p.liveVersion}` : ""}`;
      break;
    case Outcome.SCALED:
      text = `${v} is scaled: no new version`;
      break;
    case Outcome.UNCHANGED:
      text = `Nothing: the file equals ${v}`;
      break;
    case Outcome.TAKEN_BACK:
      text = `${v} stays live, because the file equals it`;
      break;
    default:
      return "A deploy would be refused.";
  }
  return `${text}.${p.supersedesVersion > 0 ? ` The rollout of v${p.supersedesVersion}, which is in flight, ends.` : ""}`;
}

export function verdict(p: PlanDeployResponse): Word {
  if (!p.wouldRun) return { text: "it would not run", tone: "bad" };
  if (p.outcome === Outcome.UNCHANGED) return { text: "it would be accepted, and nothing moves", tone: "idle" };
  return { text: "it would run", tone: "good" };
}

/** How long the rollout takes, but for the time that replicas take to load. */
export function waitsText(p: PlanDeployResponse): string {
  if (p.steps.length === 0) return "";
  const gates = p.steps.filter((s) => s.kind === PlanStep_Kind.GATE);
  const approvals = gates.filter((s) => s.approval).length;
  const promotions = gates.length - approvals;
  const loads = p.loads === 0 ? "" : `, besides the time that replicas take to load${p.loads > 1 ? `, ${p.loads} times in a row` : ""}`;
  return (
    `It waits ${short(p.lasts)} in all${loads}` +
    (promotions > 0 ? `, and at ${promotions} step${promotions === 1 ? "" : "s"} until somebody promotes` : "") +
    (approvals > 0 ? `, and until people approve, ${approvals} time${approvals === 1 ? "" : "s"}` : "") +
    "."
  );
}

const approvalText = (a: Approval) => `approval by ${a.count > 1 ? `${a.count} of role ${roleName(a.role)}` : roleName(a.role)}${a.notDeployer ? ", not who deployed" : ""}`;

export const atText = (s: PlanStep) => `${short(s.at)}${s.loads === 0 ? "" : s.loads === 1 ? " + load" : ` + ${s.loads} loads`}`;

/** How much of a version there is: "3 of v2"; of a pool, whose replicas are percent: "25 % of the pool as v2". */
function sizeText(replicas: number, version: string, pooled: boolean): string {
  if (!pooled) return `${replicas} of ${version}`;
  return replicas === 100 ? `the pool of ${version}` : replicas === 0 ? `nothing of ${version}` : `${replicas} % of the pool as ${version}`;
}

export function stepText(s: PlanStep, pooled = false): string {
  const wait = `${short(s.wait)}${s.checks.length > 0 ? `, until ${s.checks.join(", ")} pass` : ""}`;
  const step = `step ${s.step} of ${s.steps}`;
  const v = `v${s.versions[0]?.version ?? 0}`;
  switch (s.kind) {
    case PlanStep_Kind.WAVE:
      return "the wave begins";
    case PlanStep_Kind.PAUSE:
      return `${step}: waits ${wait}`;
    case PlanStep_Kind.GATE:
      if (!s.approval) return `${step}: waits until somebody promotes`;
      if (!s.region) return `${s.wave ? "the end of the wave" : "the start"} waits for ${approvalText(s.approval)}`;
      return `${step}: waits ${s.wait && s.wait.seconds > 0n ? `${wait}, and ` : ""}for ${approvalText(s.approval)}`;
    case PlanStep_Kind.BAKE:
      return `the wave bakes ${wait}`;
    case PlanStep_Kind.LIVE:
      return `${v} is live`;
    case PlanStep_Kind.RETAIN:
      return `${v} is kept for ${wait}`;
    default: {
      const parts = s.versions.map((x) => `${sizeText(x.replicas, `v${x.version}`, pooled)} (${x.weight} %)`);
      return parts.length === 0 ? "nothing runs" : `${parts.join(", ")}${s.keepsInstances ? ", instances are kept" : s.inPlace ? ", in place" : ""}`;
    }
  }
}

/** Moves that follow each other are shown at either end alone: with many replicas they are hundreds, and all alike. */
const shownMoves = 8;

export type ShownStep = { key: string; step: PlanStep | null; text: string };

export function foldSteps(steps: PlanStep[], pooled = false): ShownStep[] {
  const out: ShownStep[] = [];
  const show = (from: number, to: number) => {
    for (let i = from; i < to; i++) out.push({ key: `${i}`, step: steps[i]!, text: stepText(steps[i]!, pooled) });
  };
  for (let i = 0; i < steps.length; ) {
    let n = i;
    while (n < steps.length && steps[n]!.kind === PlanStep_Kind.MOVE) n++;
    if (n - i > 2 * shownMoves + 1) {
      show(i, i + shownMoves);
      out.push({ key: `fold${i}`, step: null, text: `${n - i - 2 * shownMoves} moves more, one by one` });
      show(n - shownMoves, n);
      i = n;
    } else {
      n = Math.max(n, i + 1);
      show(i, n);
      i = n;
    }
  }
  return out;
}

const kinds: Record<number, Change["kind"]> = { [FieldChange_Kind.ADDED]: "added", [FieldChange_Kind.REMOVED]: "removed" };
export const changesOf = (all: FieldChange[]): Change[] => all.map((c) => ({ path: c.path, kind: kinds[c.kind] ?? "changed", old: c.old, new: c.new, hidden: c.hidden }));
