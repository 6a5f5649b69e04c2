// What states are called, and how they look. The words are those of the API and of the CLI.
import { AppStatus, DeploymentStatus, InstanceStatus, RegionStatus, Role, RolloutStatus } from "../gen/windlass/v1/common_pb.js";
import { PinRegion_State } from "../gen/windlass/v1/pin_pb.js";
import { Isolation } from "../gen/windlass/v1/region_pb.js";
import { CheckProgress_State, RegionProgress_State, RolloutPolicy_Strategy, WaveProgress_State } from "../gen/windlass/v1/rollout_pb.js";

export type Tone = "good" | "busy" | "warn" | "bad" | "idle";
/** `hint` says what the word means, where the word alone does not. */
export type Word = { text: string; tone: Tone; hint?: string };

const unknown: Word = { text: "unknown", tone: "idle" };
const from = (table: Record<number, Word>) => (value: number) => table[value] ?? unknown;

export const appStatus = from({
  [AppStatus.IDLE]: { text: "idle", tone: "idle" },
  [AppStatus.PROGRESSING]: { text: "progressing", tone: "busy" },
  [AppStatus.READY]: { text: "ready", tone: "good" },
  [AppStatus.DEGRADED]: { text: "degraded", tone: "warn" },
  [AppStatus.FAILED]: { text: "failed", tone: "bad" },
  [AppStatus.DELETING]: { text: "deleting", tone: "idle" },
});

export const deploymentStatus = from({
  [DeploymentStatus.PENDING]: { text: "pending", tone: "idle" },
  [DeploymentStatus.BUILDING]: { text: "building", tone: "busy", hint: "The tag of its image is being resolved to a digest" },
  [DeploymentStatus.DEPLOYING]: { text: "deploying", tone: "busy" },
  [DeploymentStatus.NETWORK]: { text: "network", tone: "busy", hint: "Its instances are ready, and regions publish its routes" },
  [DeploymentStatus.READY]: { text: "ready", tone: "good" },
  [DeploymentStatus.FAILED]: { text: "failed", tone: "bad" },
  [DeploymentStatus.SUPERSEDED]: { text: "superseded", tone: "idle" },
  [DeploymentStatus.STOPPED]: { text: "stopped", tone: "idle" },
});

export const instanceStatus = from({
  [InstanceStatus.PENDING]: { text: "pending", tone: "idle" },
  [InstanceStatus.CREATING]: { text: "creating", tone: "busy" },
  [InstanceStatus.RUNNING]: { text: "running", tone: "warn" },
  [InstanceStatus.READY]: { text: "ready", tone: "good" },
  [InstanceStatus.DRAINING]: { text: "draining", tone: "busy" },
  [InstanceStatus.FAILED]: { text: "failed", tone: "bad" },
  [InstanceStatus.TERMINATED]: { text: "terminated", tone: "idle" },
});

export const rolloutStatus = from({
  [RolloutStatus.RUNNING]: { text: "running", tone: "busy" },
  [RolloutStatus.SUCCEEDED]: { text: "succeeded", tone: "good" },
  [RolloutStatus.FAILED]: { text: "failed", tone: "bad" },
  [RolloutStatus.CANCELLED]: { text: "cancelled", tone: "warn" },
  [RolloutStatus.SUPERSEDED]: { text: "superseded", tone: "idle" },
});

export const regionStatus = from({
  [RegionStatus.PENDING]: { text: "pending", tone: "idle", hint: "No agent has joined yet" },
  [RegionStatus.CONNECTED]: { text: "connected", tone: "good" },
  [RegionStatus.UNREACHABLE]: { text: "unreachable", tone: "bad" },
});

const isolations: Record<number, string> = {
  [Isolation.UNSPECIFIED]: "not known yet",
  [Isolation.NONE]: "none",
  [Isolation.WORKSPACE]: "by workspace",
};
export const isolationText = (isolation: Isolation) => isolations[isolation] ?? "unknown";

export const waveState = from({
  [WaveProgress_State.WAITING]: { text: "waiting", tone: "idle" },
  [WaveProgress_State.ROLLING]: { text: "rolling", tone: "busy" },
  [WaveProgress_State.BAKING]: { text: "baking", tone: "busy" },
  [WaveProgress_State.DONE]: { text: "done", tone: "good" },
});

export const regionState = from({
  [RegionProgress_State.WAITING]: { text: "waiting", tone: "idle" },
  [RegionProgress_State.ROLLING]: { text: "rolling", tone: "busy" },
  [RegionProgress_State.MOVED]: { text: "moved", tone: "good" },
  [RegionProgress_State.GOING_BACK]: { text: "going back", tone: "warn" },
  [RegionProgress_State.BACK]: { text: "back", tone: "warn" },
  [RegionProgress_State.FAILED]: { text: "failed", tone: "bad" },
  [RegionProgress_State.SKIPPED]: { text: "skipped", tone: "warn", hint: "It is out of reach, and left out for now" },
});

export const pinState = from({
  [PinRegion_State.STARTING]: { text: "starting", tone: "busy" },
  [PinRegion_State.SERVING]: { text: "serving", tone: "good" },
  [PinRegion_State.FAILED]: { text: "failed", tone: "bad" },
  [PinRegion_State.LEAVING]: { text: "leaving", tone: "idle" },
});

export const checkState = from({
  [CheckProgress_State.WAITING]: { text: "waiting", tone: "idle", hint: "It is not measured yet" },
  [CheckProgress_State.PASSED]: { text: "passed", tone: "good" },
  [CheckProgress_State.FAILED]: { text: "failed", tone: "bad" },
  [CheckProgress_State.HELD]: { text: "held", tone: "warn", hint: "It is inconclusive" },
});

const strategies: Record<number, string> = {
  [RolloutPolicy_Strategy.UNSPECIFIED]: "rolling",
  [RolloutPolicy_Strategy.ROLLING]: "rolling",
  [RolloutPolicy_Strategy.RECREATE]: "recreate",
  [RolloutPolicy_Strategy.CANARY]: "canary",
  [RolloutPolicy_Strategy.BLUE_GREEN]: "blue-green",
  [RolloutPolicy_Strategy.IN_PLACE]: "in place",
} satisfies Record<RolloutPolicy_Strategy, string>;
export const strategyName = (s: RolloutPolicy_Strategy) => strategies[s] ?? "unknown";

const roles: Record<number, string> = {
  [Role.VIEWER]: "viewer",
  [Role.DEPLOYER]: "deployer",
  [Role.OWNER]: "owner",
  [Role.OPERATOR]: "operator",
};
export const roleName = (r: Role) => roles[r] ?? "unknown";

/** Whether keys of the role change what runs. */
export const steers = (r: Role | undefined) => r === Role.DEPLOYER || r === Role.OWNER;

/** Whether keys of the role manage keys and read the audit. */
export const administers = (r: Role | undefined) => r === Role.OWNER || r === Role.OPERATOR;
