// What a rollout waits for, and what a person can do about it, in words.
import type { App } from "../gen/windlass/v1/app_pb.js";
import type { RegionTopology } from "../gen/windlass/v1/deployment_pb.js";
import type { HistoryEntry } from "../gen/windlass/v1/history_pb.js";
import { RolloutStatus } from "../gen/windlass/v1/common_pb.js";
import {
  CheckProgress_State,
  RegionProgress_State,
  type CheckProgress,
  type RegionProgress,
  type Rollout,
  type WaveProgress,
  WaveProgress_State,
} from "../gen/windlass/v1/rollout_pb.js";
import { ms, relative } from "./time.js";

export const running = (r: Rollout | undefined): boolean => r?.status === RolloutStatus.RUNNING;

const sentence = (text: string) => (text === "" || /[.!?]$/.test(text) ? text : `${text}.`);
const because = (reason: string, message: string) => [reason, message].filter(Boolean).join(": ");

export const waveName = (w: WaveProgress, index: number) => (w.name && w.name !== String(index + 1) ? `Wave ${index + 1}, ${w.name}` : `Wave ${index + 1}`);

const heldChecks = (p: RegionProgress) => p.checks.filter((c) => c.state === CheckProgress_State.HELD);

function waitsOfRegion(r: Rollout, p: RegionProgress, now: number, pooled: boolean): string[] {
  const out: string[] = [];
  const at = p.step > 0 && p.step <= p.steps ? ` at step ${p.step} of ${p.steps}` : "";
  if (p.state === RegionProgress_State.FAILED) out.push(`${p.region} failed: ${sentence(because(p.reason, p.message) || "no reason was given")}`);
  if (p.state === RegionProgress_State.SKIPPED) out.push(`${p.region} is out of reach and left out for now. It catches up when it returns.`);
  if (p.state === RegionProgress_State.GOING_BACK) out.push(`${p.region} goes back to v${r.fromVersion}.`);
  if (p.state !== RegionProgress_State.ROLLING) return out;
  if (p.waitsForCapacitySince > 0n) out.push(`${p.region} waits for room, since ${relative(ms(p.waitsForCapacitySince), now)}.`);
  if (p.waitsForPromotion) {
    const held = r.progress?.promotionHeld ? " An earlier rollout went back, and nothing is promoted by itself since." : "";
    out.push(`${p.region} waits${at} until v${r.version} is promoted.${held}`);
  }
  if (p.approval && p.approval.missing !== "") out.push(`${p.region} waits${at} for ${sentence(p.approval.missing)}`);
  if (ms(p.stepUntil) > now) out.push(`${p.region} serves${at} for the pause that the policy sets, which ends ${relative(ms(p.stepUntil), now)}.`);
  for (const c of heldChecks(p)) out.push(`${p.region}: check ${c.name} is inconclusive: ${sentence(c.message || "it has no figure yet")}`);
  for (const c of p.checks.filter((x) => x.state === CheckProgress_State.FAILED))
    out.push(`${p.region}: check ${c.name} failed ${c.failures} of at most ${c.failureLimit} times: ${sentence(c.message)}`);
  if (ms(p.unhealthySince) > 0) out.push(`${p.region}: too few of the ${p.wereReady} ${pooled ? "% of the pool" : "replicas"} that were ready still are. It fails ${relative(ms(p.unhealthyUntil), now)}.`);
  if (out.length === 0 && p.new) {
    const missing = p.replicas - p.new.ready;
    if (missing > 0) {
      const why = because(p.reason, p.message);
      out.push(`${p.region} waits for ${pooled ? "roles" : "replicas"} of v${r.version}: ${p.new.ready} of ${p.replicas} ${pooled ? "% of the pool " : ""}are ready.${why ? ` ${sentence(why)}` : ""}`);
    } else out.push(`${p.region} moves its traffic to v${r.version}.`);
  }
  return out;
}

const capital = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);

/** Why the rollout is where it is, one sentence for each cause; empty: it waits for nothing. */
export function waits(r: Rollout, app: App | undefined, now: number, history: HistoryEntry[] = []): string[] {
  if (!running(r)) return [];
  const out: string[] = [];
  if (r.hold) {
    const end = r.hold.until > 0n ? ` It is looked at again ${relative(ms(r.hold.until), now)}.` : " It starts when the freeze is lifted.";
    out.push(`Freeze ${r.hold.freeze} of the ${r.hold.scope} keeps it from starting: ${sentence(r.hold.reason)}${end}`);
  }
  if (r.startApproval && r.startApproval.missing !== "") out.push(`It waits for ${r.startApproval.missing} before it starts.`);
  const p = r.progress;
  if (p?.paused) out.push(`Paused by ${p.pausedBy || "the control plane"}${p.pausedWhy ? `: ${sentence(p.pausedWhy)}` : "."}`);
  if (p?.goingBack) out.push(`It goes back to v${r.fromVersion}: ${sentence(because(r.reason, r.message) || "it was aborted")}`);
  for (const [i, w] of (p?.waves ?? []).entries()) {
    for (const region of w.regions) out.push(...waitsOfRegion(r, region, now, app?.pooled ?? false));
    if (w.state === WaveProgress_State.BAKING && ms(w.bakingUntil) > now) {
      out.push(`${waveName(w, i)} bakes: v${r.version} has to serve there until the bake ends ${relative(ms(w.bakingUntil), now)}.`);
      for (const region of w.regions)
        for (const c of heldChecks(region)) out.push(`${region.region}: check ${c.name} is inconclusive: ${sentence(c.message || "it has no figure yet")}`);
    }
    if (w.approval && w.approval.missing !== "") out.push(`${waveName(w, i)} waits for ${sentence(w.approval.missing)}`);
  }
  // Whose protection asks for that, and for what reason.
  if (r.startApproval?.missing || p?.waves.some((w) => w.state === WaveProgress_State.BAKING))
    for (const h of history) if (h.what === "RolloutProtected" && h.rolloutId === r.id) out.push(sentence(capital(h.why)));
  if (out.length === 0 && app?.message) out.push(sentence(app.message));
  return [...new Set(out)];
}

/** Percent of a region's traffic that the version has there: pins have their weight, and the others a part of what pins leave. */
export function trafficShare(app: App, deploymentId: string, place: RegionTopology): number {
  let rest = 100;
  for (const pin of app.pins)
    for (const p of pin.regions) {
      if (p.region !== place.region) continue;
      if (pin.deploymentId === deploymentId) return place.weight;
      rest -= p.weight;
    }
  return Math.round(place.weight * rest) / 100;
}

export type ActionName = "pause" | "resume" | "promote" | "promote-full" | "approve" | "skip-bake" | "retry" | "abort" | "rollback";

export type Action = {
  name: ActionName;
  label: string;
  /** What it does, shown before it is done. */
  effect: string;
  /** Whether it takes something away from those who use the app or the version. */
  grave: boolean;
};

const regionsOf = (r: Rollout) => r.progress?.waves.flatMap((w) => w.regions) ?? [];
const list = (names: string[]) => (names.length > 3 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(", "));

/** Gates that are open for approval now. */
export function gates(r: Rollout): string[] {
  const out: string[] = [];
  if (r.startApproval && r.startApproval.missing !== "") out.push("its start");
  for (const [i, w] of (r.progress?.waves ?? []).entries()) {
    if (w.approval && w.approval.missing !== "") out.push(`the end of ${waveName(w, i).toLowerCase()}`);
    for (const p of w.regions) if (p.approval && p.approval.missing !== "") out.push(p.step > 0 ? `step ${p.step} in ${p.region}` : p.region);
  }
  return out;
}

/** What can be done now, the likeliest first. */
export function actions(r: Rollout | undefined, app: App): Action[] {
  const out: Action[] = [];
  const add = (name: ActionName, label: string, effect: string, grave = false) => out.push({ name, label, effect, grave });
  if (r && running(r)) {
    const p = r.progress;
    const regions = regionsOf(r);
    const waiting = regions.filter((x) => x.waitsForPromotion || x.stepUntil > 0n).map((x) => x.region);
    const open = gates(r);
    const failed = regions.filter((x) => x.state === RegionProgress_State.FAILED).map((x) => x.region);
    if (open.length > 0)
      add("approve", "Approve", `Gives the approval of your key for ${list(open)}. A gate opens when it has all its approvals; other waits stay.`);
    if (p?.paused) add("resume", "Resume", `v${r.version} goes on from where it was held. Deadlines run again.`);
    if (p && !p.goingBack && (waiting.length > 0 || p.promotionHeld)) {
      const where = waiting.length > 0 ? `in ${list(waiting)}, which go on to their next step` : "where it waits";
      add("promote", "Promote", `Accepts v${r.version} ${where}. No approval is passed over.`);
      add("promote-full", "Promote in full", `Accepts v${r.version} everywhere: all steps, pauses, analysis and bake times that are left are passed over. Approvals are still waited for.`, true);
    }
    if (p?.waves.some((w) => w.state === WaveProgress_State.BAKING))
      add("skip-bake", "Skip bake", `Ends the bake time of the wave that bakes now. v${r.version} is not watched there any longer before the next wave begins.`, true);
    if (failed.length > 0) add("retry", "Retry", `Tries v${r.version} again in ${list(failed)}.`);
    if (p && !p.paused && !p.goingBack)
      add("pause", "Pause", `Holds the rollout where it is: no replica starts or stops, and no deadline runs. The live version keeps its traffic.`);
    if (!p?.goingBack) {
      const to = r.fromVersion > 0 ? `Every region goes back to v${r.fromVersion}, which keeps serving.` : "There is no version to go back to: its replicas are stopped.";
      add("abort", "Abort", `Stops the rollout of v${r.version} and undoes it. ${to}`, true);
    }
    return out;
  }
  if (app.previousVersion > 0 && app.liveVersion > 0)
    add(
      "rollback",
      `Roll back to v${app.previousVersion}`,
      `Moves the app from v${app.liveVersion} back to v${app.previousVersion}, the stable version before it. A version that was stable goes straight back, without pauses and analysis.`,
      true,
    );
  return out;
}

export type Step = { label: string; state: "done" | "now" | "later" };

/** The steps of a region, of which the one that it takes or waits at is now. */
export function steps(r: Rollout, p: RegionProgress): Step[] {
  const policy = r.progress?.policy;
  const moved = p.state === RegionProgress_State.MOVED;
  return Array.from({ length: p.steps }, (_, i) => {
    const s = policy?.steps[i];
    const label = s ? (s.weight > 0 ? `${s.weight} %` : `${s.replicas} replica${s.replicas === 1 ? "" : "s"}`) : `${i + 1}`;
    const n = i + 1;
    return { label, state: moved || n < p.step ? "done" : n === p.step ? "now" : "later" } as const;
  });
}

/** A check's figure beside the old version's. */
export function figures(c: CheckProgress): string {
  const number = (n: number) => (Math.abs(n) >= 100 ? n.toFixed(0) : Number(n.toPrecision(3)).toString());
  if (c.figure === undefined) return "no figure yet";
  const samples = c.samples !== undefined ? ` of ${number(c.samples)} samples` : "";
  const old = c.oldFigure !== undefined ? `, old version ${number(c.oldFigure)}` : "";
  return `${number(c.figure)}${samples}${old}`;
}
