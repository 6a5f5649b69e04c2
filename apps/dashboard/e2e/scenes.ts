import { AppStatus, DeploymentStatus, ErrorReason, InstanceStatus, RegionStatus, Role, RolloutStatus, TopologyStatus } from "../src/gen/windlass/v1/common_pb.js";
import { ScalingMetric_Type } from "../src/gen/windlass/v1/scaling_pb.js";
import { CheckProgress_State, RegionProgress_State, RolloutPolicy_Strategy, WaveProgress_State } from "../src/gen/windlass/v1/rollout_pb.js";
import { Freeze_OnStart } from "../src/gen/windlass/v1/freeze_pb.js";
import { FieldChange_Kind, PlanDeployResponse_Outcome, PlanStep_Kind } from "../src/gen/windlass/v1/plan_pb.js";
import { LogNote_Kind } from "../src/gen/windlass/v1/logs_pb.js";
import { PresetFinding_Severity } from "../src/gen/windlass/v1/preset_pb.js";
import { PinRegion_State } from "../src/gen/windlass/v1/pin_pb.js";
import { Isolation } from "../src/gen/windlass/v1/region_pb.js";
import { Gang_Of, Layout, Pairing_Engine, PoolUpdate_Order, RoleSpec_Slots } from "../src/gen/windlass/v1/spec_pb.js";
import { Feature } from "../src/gen/windlass/v1/workspace_pb.js";
import { Refusal, type Scene } from "./fake.js";

const ago = (seconds: number) => BigInt(Date.now() - seconds * 1000);

const region = (name: string, more: object = {}) => ({
  id: `reg_${name}`, name, workspaceId: "ws_1", status: RegionStatus.CONNECTED, agentVersion: "v1.2.3", runtime: "kubernetes", revision: 812n,
  receivedRevision: 812n, lastReportAt: ago(2), instances: 18, isolation: Isolation.WORKSPACE, labels: { cloud: "a", tier: "prod" },
  gpus: [
    { product: "H100-80GB", pool: "reserved", allocatable: 32, requested: 21, free: 8, largestFree: 4, hosts: 4, quota: 24, resourceName: "nvidia.com/gpu", memoryMib: 81_559n },
    { product: "L40S", pool: "", allocatable: 16, requested: 4, free: 12, largestFree: 8, hosts: 2, resourceName: "nvidia.com/gpu", memoryMib: 46_068n },
  ],
  cpuMillicores: 768_000n, memoryMib: 3_145_728n, topologyWords: ["host", "rack", "zone"], gatewayUrl: `https://gw.${name}.example:8443`, resourceVersion: 4n,
  ...more,
});

const app = (name: string, more: object = {}) => ({
  id: `app_${name}`, name, projectName: "default", environmentName: "production", status: AppStatus.READY, liveVersion: 4, latestVersion: 4, previousVersion: 3,
  replicas: 6, readyReplicas: 6, regions: ["us-east-1", "eu-west-1"], updatedAt: ago(3700), ...more,
});

export const chat = app("chat", {
  description: "The chat model that customers talk to", status: AppStatus.PROGRESSING, latestVersion: 5, rolloutId: "rol_1", readyReplicas: 6, updatedAt: ago(40),
  message: "v5 waits at step 2 of 3 in us-east-1", urls: ["http://chat.apps.example:8080", "https://chat.example.com"],
});

export const fleet = {
  regions: [
    region("us-east-1"),
    region("eu-west-1", { receivedRevision: 809n, gpus: [{ product: "H100-80GB", pool: "reserved", allocatable: 16, requested: 12, free: 2, largestFree: 1, hosts: 2 }] }),
    region("ap-south-1", { status: RegionStatus.UNREACHABLE, lastReportAt: ago(430), runtime: "process", isolation: Isolation.NONE }),
    region("us-west-2", { status: RegionStatus.PENDING, gpus: [], revision: 0n, receivedRevision: 0n, lastReportAt: 0n, instances: 0, agentVersion: "", runtime: "" }),
  ],
  apps: [
    chat,
    app("embeddings", { regions: ["us-east-1"] }),
    app("rerank", { status: AppStatus.DEGRADED, readyReplicas: 4, message: "ap-south-1 is out of reach since 7 min: 2 of 6 replicas are not known", updatedAt: ago(430) }),
    app("vision", { status: AppStatus.FAILED, liveVersion: 0, latestVersion: 1, readyReplicas: 0, replicas: 0, message: "v1 failed in eu-west-1: CrashLoop: exit code 1; last output: CUDA out of memory", updatedAt: ago(86000) }),
    app("draft", { status: AppStatus.IDLE, liveVersion: 0, latestVersion: 0, replicas: 0, readyReplicas: 0, regions: [] }),
  ],
};

const place = (name: string, replicas: number, ready: number, weight: number, more: object = {}) => ({
  region: name, status: TopologyStatus.STARTED, replicas, ready, weight, instances: replicas, ...more,
});

export const canary = {
  id: "rol_1", appId: chat.id, version: 5, fromVersion: 4, status: RolloutStatus.RUNNING, createdBy: "ci", createdAt: ago(900), deadline: 0n,
  progress: {
    policy: {
      strategy: RolloutPolicy_Strategy.CANARY,
      steps: [{ weight: 5, pause: "5m" }, { weight: 25, pause: "manual" }, { weight: 50, pause: "10m" }],
    },
    waves: [
      {
        name: "first", state: WaveProgress_State.ROLLING,
        regions: [
          {
            region: "us-east-1", state: RegionProgress_State.ROLLING, since: ago(620), replicas: 4, step: 2, steps: 3, waitsForPromotion: true,
            approval: { missing: "approval by a key of role owner (not by ci, who deployed it)", asked: { role: Role.OWNER, count: 1, notDeployer: true } },
            old: { version: 4, replicas: 3, ready: 3, weight: 75 }, new: { version: 5, replicas: 1, ready: 1, weight: 25 },
            checks: [
              { name: "errors", state: CheckProgress_State.PASSED, figure: 0.0021, oldFigure: 0.0024, samples: 18_240, failureLimit: 1, dueAt: BigInt(Date.now() + 20_000) },
              { name: "first-token-p95", state: CheckProgress_State.HELD, figure: 0.412, oldFigure: 0.39, samples: 41, message: "41 of 50 samples", failureLimit: 1, heldSince: ago(60) },
            ],
          },
        ],
      },
      {
        state: WaveProgress_State.WAITING,
        regions: [{ region: "eu-west-1", state: RegionProgress_State.WAITING, replicas: 2, old: { version: 4, replicas: 2, ready: 2, weight: 100 } }],
      },
    ],
  },
};

const specOf = (env: Record<string, string>) => ({ env, inheritedEnv: ["REGISTRY"], secrets: [{ envName: "HF_TOKEN", secret: "hf-token", version: 4 }] });

export const appScene = {
  app: chat,
  deployments: [
    {
      id: "dep_4", version: 4, live: true, stable: true, status: DeploymentStatus.READY, spec: specOf({ OLD: "of the live version" }),
      regions: [place("us-east-1", 3, 3, 75), place("eu-west-1", 2, 2, 100), place("ap-south-1", 2, 2, 100, { regionUnreachable: true })],
    },
    {
      id: "dep_5", version: 5, status: DeploymentStatus.DEPLOYING,
      spec: specOf({ LOG_LEVEL: "debug", BATCH: "32", REGISTRY: "registry.example" }), regions: [place("us-east-1", 1, 1, 25), place("eu-west-1", 1, 0, 0, { failed: 1, reason: "CrashLoop", message: "exit code 1, 3 times in 2 min" })],
    },
  ],
  rollout: canary,
  history: [
    { id: "hst_3", at: ago(600), what: "StepReached", why: "us-east-1 serves with 25 % of the traffic", who: "windlass", version: 5, region: "us-east-1", rolloutId: "rol_1" },
    { id: "hst_2", at: ago(880), what: "RolloutStarted", why: "v4 is live; canary in 2 waves", who: "windlass", version: 5, rolloutId: "rol_1" },
    { id: "hst_1", at: ago(900), what: "DeploymentCreated", why: "deployed from app.yaml", who: "ci", version: 5, rolloutId: "rol_1" },
  ],
};

const instance = (n: number, more: object = {}) => ({
  id: `ins_${n}`, appName: "chat", version: 4, region: "us-east-1", role: "main", group: n, status: InstanceStatus.READY, readyAt: ago(4000 + n), runtimeName: `chat-v4-${n}-x7k2p`,
  restarts: 0, gpus: ["0", "1"], ...more,
});

export const instances = {
  instances: [
    instance(0), instance(1), instance(2, { restarts: 3 }),
    instance(3, { version: 5, region: "eu-west-1", status: InstanceStatus.FAILED, restarts: 7, reason: "CrashLoop", message: "exit code 1; last output: RuntimeError: CUDA out of memory", gpus: [] }),
    instance(4, { region: "eu-west-1", status: InstanceStatus.PENDING, reason: "Unschedulable", message: "0/4 nodes have 2 free nvidia.com/gpu" }),
  ],
};

const version = (n: number, more: object = {}, spec: object = {}) => ({
  id: `dep_${n}`, appName: "chat", version: n, status: DeploymentStatus.SUPERSEDED, source: "deploy", createdBy: "ci", createdAt: ago((6 - n) * 50_000), stable: true,
  resolvedImage: `registry.example/chat@sha256:${String(n).repeat(64)}`,
  spec: {
    image: "registry.example/chat:v1", args: ["--model", "chat-7b", "--max-len", String(4096 * n)], env: { LOG_LEVEL: n > 4 ? "debug" : "info" }, regions: n > 3 ? ["us-east-1", "eu-west-1"] : ["us-east-1"],
    resources: { cpuMillicores: 4000, memoryMib: 32_768, gpu: { count: n > 4 ? 2 : 1 } }, secrets: [{ envName: "HF_TOKEN", secret: "hf-token", version: n }], versionLabel: `v1.${n}.0`,
    message: n === 5 ? "longer context, two GPUs" : "weekly release", sourceCommit: `8c1d${n}0f`, ...spec,
  },
  ...more,
});

export const versions = [
  version(5, { status: DeploymentStatus.DEPLOYING, stable: false }),
  version(4, { status: DeploymentStatus.READY, live: true }),
  version(3, { pinnedWeight: 10 }),
  version(2, { status: DeploymentStatus.FAILED, stable: false, reason: "CrashLoop", message: "us-east-1: exit code 1; last output: CUDA out of memory" }),
  version(1, { source: "environment" }),
];

const freezes = [
  { id: "frz_1", name: "launch-week", reason: "the launch is on Thursday", project: "default", inForce: true, inForceUntil: BigInt(Date.now() + 86_400_000), onStart: Freeze_OnStart.HOLD },
  { id: "frz_2", name: "nights", reason: "no one is on call", inForce: false, nextAt: BigInt(Date.now() + 7_200_000) },
  { id: "frz_3", name: "elsewhere", reason: "another project's", project: "other", inForce: true },
];

export const pinned = {
  ...chat,
  scaling: { max: 8, metrics: [{ type: ScalingMetric_Type.IN_FLIGHT, target: "32" }] },
  pins: [
    {
      deploymentId: "dep_3", version: 3, weight: 10, resourceVersion: 7n, by: "ann", why: "compare with v4",
      regions: [{ region: "us-east-1", state: PinRegion_State.SERVING, replicas: 1, ready: 1, weight: 10 }],
    },
  ],
};

const move = (at: number, loads: number, from: number, to: number) => ({
  kind: PlanStep_Kind.MOVE, at: { seconds: BigInt(at) }, loads, wave: "first", region: "us-east-1", versions: [{ version: 5, replicas: 4 - to, weight: 100 - from }, { version: 6, replicas: to, weight: from }],
});

const plan = {
  wouldRun: true, outcome: PlanDeployResponse_Outcome.ROLLOUT, version: 6, liveVersion: 4, supersedesVersion: 5, lasts: { seconds: 1500n }, loads: 2,
  findings: [{ reason: ErrorReason.REGION_UNREACHABLE, region: "ap-south-1", message: "its agent was last heard of 7 min ago: nothing starts there until it is back", fix: "Look at the region's agent, or leave the region out." }],
  changes: [
    { path: "args[1]", kind: FieldChange_Kind.CHANGED, old: "chat-7b", new: "chat-8b" }, { path: 'env["LOG_LEVEL"]', kind: FieldChange_Kind.ADDED, hidden: true },
    { path: 'regions["eu-west-1"].resources.gpu.pool', kind: FieldChange_Kind.REMOVED, old: "reserved" },
  ],
  steps: [
    { kind: PlanStep_Kind.WAVE, wave: "first" }, move(0, 1, 5, 1),
    { kind: PlanStep_Kind.PAUSE, at: { seconds: 0n }, loads: 1, wave: "first", region: "us-east-1", wait: { seconds: 300n }, step: 1, steps: 2, checks: ["errors", "latency"] },
    { kind: PlanStep_Kind.GATE, at: { seconds: 300n }, loads: 1, wave: "first", region: "us-east-1", step: 2, steps: 2, approval: { role: Role.OWNER, count: 1, notDeployer: true } },
    ...Array.from({ length: 20 }, (_, i) => move(300, 2, 5 * (i + 1), 1)),
    { kind: PlanStep_Kind.LIVE, at: { seconds: 1500n }, loads: 2, versions: [{ version: 6 }] },
  ],
  regions: [
    { region: "us-east-1", status: RegionStatus.CONNECTED, wave: "first", replicasNow: 4, replicasPeak: 5, replicasAfter: 4, gpu: { count: 2, product: "H100-80GB", pool: "reserved" }, gpusNow: 8, gpusPeak: 10, gpusAfter: 8, gpusNeeded: 2, gpusFree: 8 },
    { region: "ap-south-1", status: RegionStatus.UNREACHABLE, replicasNow: 2, replicasPeak: 2, replicasAfter: 2 },
  ],
  quota: { workspaceName: "acme", limits: { apps: 20n, instances: 100n }, usage: { apps: 5n, deployments: 4n, instances: 22n, gpus: 30n, rollouts: 1n } },
  usageAfter: { apps: 5n, deployments: 4n, instances: 24n, gpus: 34n, rollouts: 1n },
};

export const file = `app: chat
regions: [us-east-1, ap-south-1]
replicas: 4
image: registry.example/chat:v2
args: [--model, chat-8b]
env: {LOG_LEVEL: debug}
resources: {cpuMillicores: 4000, gpu: {count: 2, pool: reserved}}
rollout:
  strategy: canary
  steps: [{weight: 5, pause: 5m}, {weight: 50, pause: manual}]
`;

const audited = (n: number, more: object = {}) => ({
  id: `aud_${String(900 - n)}`, at: ago(60 * n * n), actor: n % 3 === 0 ? "ann" : "ci", actorId: n % 3 === 0 ? "key_ann" : "key_ci", source: "10.2.0.7 windlass/1.2.3", procedure: "/windlass.v1.AppService/Scale", resourceKind: "app", resourceId: "app_chat",
  before: '{"replicas":4}', after: `{"replicas":${n}}`, ...more,
});

/** 130 entries in pages of 100, as the API cuts them. */
const audit = ({ page }: { page?: { token?: string } }) => {
  const all = Array.from({ length: 130 }, (_, i) =>
    i === 1
      ? audited(1, { id: "aud_read", procedure: "/windlass.v1.DeploymentService/GetLogs", before: "", after: '{"outcome":"refused","count":12}' })
      : i === 125
        ? audited(i, { procedure: "/windlass.v1.AccessService/CreateApiKey", resourceKind: "api_key", resourceId: "key_old", before: "", after: '{"name":"old"}' })
        : audited(i),
  );
  return page?.token ? { entries: all.slice(100) } : { entries: all.slice(0, 100), page: { next: "more" } };
};

const keys = [
  { id: "key_ann", name: "ann", role: Role.OWNER, prefix: "wl_3fa9", createdAt: ago(900_000), family: "key_ann" },
  { id: "key_ci", name: "ci", role: Role.DEPLOYER, prefix: "wl_77b2", createdAt: ago(800_000), expiresAt: BigInt(Date.now() + 86_400_000 * 3), madeBy: "key_ann", family: "key_ann" },
  { id: "key_old", name: "old", role: Role.VIEWER, prefix: "wl_0c1d", createdAt: ago(2_000_000), revokedAt: ago(500_000) },
];

const members = [
  { id: "mem_1", name: "ada@example.com", subject: "00u8ada", issuer: "https://id.example", email: "ada@example.com", role: Role.DEPLOYER, rules: ["ml-team"], createdAt: ago(900_000), signedInAt: ago(300) },
  { id: "mem_2", name: "bob@example.com", subject: "00u8bob", issuer: "https://id.example", email: "bob@example.com", createdAt: ago(900_000), signedInAt: ago(90_000) },
  { id: "mem_3", name: "eve@example.com", subject: "00u8eve", issuer: "https://id.example", removedAt: ago(4_000), removedBy: "ann", createdAt: ago(900_000), signedInAt: ago(190_000) },
  { id: "svc_1", name: "repo:acme/models:ref:refs/heads/main@token.actions.githubusercontent.com", subject: "repo:acme/models:ref:refs/heads/main", issuer: "https://token.actions.githubusercontent.com", service: true, role: Role.DEPLOYER, rules: ["github"], createdAt: ago(900_000), signedInAt: ago(9_000) },
];

const signInRules = {
  issuer: "https://id.example",
  federationIssuers: ["https://token.actions.githubusercontent.com", "https://gitlab.com"],
  rules: [
    { name: "github", role: Role.DEPLOYER, issuer: "https://token.actions.githubusercontent.com", conditions: [{ claim: "repository", value: "acme/models" }, { claim: "ref", value: "refs/heads/main" }], setBy: "ann", setAt: ago(800_000) },
    { name: "ml-team", role: Role.DEPLOYER, conditions: [{ claim: "groups", value: "ml-team" }], setBy: "ann", setAt: ago(900_000) },
  ],
};

const presets = [
  {
    name: "vllm", id: "vllm/3", title: "vLLM", defaultEngineVersion: "0.20.0", engineFrom: "0.9.0", engineBefore: "0.22.0", modelSchemes: ["hf", "file", "s3", "gs"],
    metrics: [{ signal: "queue", metric: "vllm:num_requests_waiting", port: "http", path: "/metrics" }, { signal: "cache", metric: "vllm:kv_cache_usage_perc", port: "http", path: "/metrics" }],
    aliases: { "-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size" }, sources: [{ about: "flags", page: "https://docs.vllm.example/serve", version: "0.20.0" }],
  },
  { name: "custom:ours", id: "custom:ours/1", title: "Our own engine", modelSchemes: ["file"] },
];

const features = {
  workspaceId: "ws_1", tier: "basic", resourceVersion: 3n, features: [Feature.AUTOSCALING, Feature.ANALYSIS, Feature.CANARY], tierFeatures: [Feature.AUTOSCALING, Feature.ANALYSIS, Feature.ROLES],
  allowed: [Feature.CANARY], denied: [Feature.ROLES],
};

const answers: Scene["answers"] = {
  GetScaling: {
    holds: [{ region: "eu-west-1", replicas: 6, until: ago(-3_600), who: "ann" }],
    regions: [
      { region: "us-east-1", at: ago(4), replicas: 4, wanted: 4, unlimited: 5, min: 1, max: 4, ready: 4, limit: "Quota", why: "the workspace's quota has room for no more", wants: [{ metric: { type: ScalingMetric_Type.IN_FLIGHT, target: "32" }, value: 140.25, replicas: 5 }] },
      { region: "eu-west-1", at: ago(9), replicas: 6, wanted: 6, unlimited: 2, min: 1, max: 8, ready: 6, limit: "Hold", why: "a person holds the number", wants: [{ metric: { type: ScalingMetric_Type.FIRST_TOKEN, target: "500ms" } }] },
    ],
  },
  ListHistory: {
    entries: [
      { id: "hst_09", at: ago(1200), what: "ScalingDecided", region: "us-east-1", who: "windlass", why: "3 to 4 replicas: 98.5 requests in flight are 3.1 times the target of 32" },
      { id: "hst_08", at: ago(4000), what: "ScalingHeld", region: "eu-west-1", who: "ann", why: "6 replicas for 2h" },
      { id: "hst_07", at: ago(5000), what: "StepReached", region: "eu-west-1", who: "windlass", why: "not about scaling" },
    ],
  },
  GetEnvironment: { environment: { id: "env_1", projectName: "default", name: "production", variables: { REGISTRY: "registry.example", TZ: "UTC" }, resourceVersion: 9n } },
  UpdateEnvironment: {},
  SetEnvironment: { version: 6, warnings: ["ap-south-1 is out of reach."] },
  ListSecrets: { secrets: [{ name: "hf-token", version: 4, createdAt: ago(900_000), updatedAt: ago(50_000) }, { name: "registry", version: 1, updatedAt: ago(900_000) }] },
  SetSecret: { secret: { name: "hf-token", version: 5 }, appIds: ["app_chat", "app_rerank"] },
  DeleteSecret: () => new Refusal("failed_precondition", "v4 of chat refers to the secret"),
  ListPresets: { presets },
  GetPreset: ({ engineVersion }) => ({ preset: { ...presets[0]!, metrics: engineVersion === "0.8.0" ? [] : presets[0]!.metrics } }),
  RenderPreset: ({ spec }) =>
    (spec as { serve: { model: string } }).serve.model.includes("broken")
      ? { findings: [{ severity: PresetFinding_Severity.ERROR, code: "ParallelMismatch", field: "serve.parallel.tensor", message: "8 GPUs are not 3 x 2", fix: "Leave tensor out: it is made of the GPUs." }] }
      : {
          spec: { generatedBy: "vllm/3", image: "vllm/vllm-openai:v0.20.0", args: ["--model", "meta-llama/Llama-3.1-8B", "--kv-cache-dtype", "fp8"], ports: [{ name: "http", port: 8000 }] },
          findings: [
            { severity: PresetFinding_Severity.WARNING, code: "ContextTooLarge", field: "serve.context", message: "an estimate: the KV cache of 131072 tokens does not fit beside the weights", fix: "Take 65536 or less." },
            { severity: PresetFinding_Severity.NOTE, code: "ModelNotPinned", field: "serve.model", message: "the model may change, because no commit is named" },
          ],
        },
  DiffPreset: {
    version: 4, generatedBy: "vllm/2", newest: "vllm/3",
    changes: [{ path: 'args["--enable-prefix-caching"]', kind: FieldChange_Kind.ADDED, new: "true" }, { path: "image", kind: FieldChange_Kind.CHANGED, old: "vllm/vllm-openai:v0.19.1", new: "vllm/vllm-openai:v0.20.0" }],
  },
  GetFeatures: ({ workspace }) => ({ features: { ...features, workspaceName: String(workspace || "acme") } }),
  GetQuota: ({ workspace }) => ({
    quota: {
      workspaceId: "ws_1", workspaceName: String(workspace || "acme"), resourceVersion: 2n, limits: { apps: 20n, deployments: 0n, instances: 24n, gpus: 30n, rollouts: 4n, startsPerMinute: 60n, startsBurst: 10n }, own: { gpus: 30n },
      usage: { apps: 5n, deployments: 4n, instances: 22n, gpus: 30n, rollouts: 1n, startsLeft: 7n },
    },
  }),
  SetQuota: {},
  ListDomains: {
    domains: [
      { name: "chat.example.com", verified: true, createdBy: "ann", createdAt: ago(90_000), txtName: "_windlass.chat.example.com", txtValue: "windlass-verify=8c1d50f0a7b3" },
      { name: "new.example.com", createdBy: "ci", createdAt: ago(60), txtName: "_windlass.new.example.com", txtValue: "windlass-verify=0f77aa21c9d4" },
    ],
  },
  AddDomain: {},
  VerifyDomain: () => new Refusal("failed_precondition", "the DNS has no TXT record _windlass.new.example.com"),
  RemoveDomain: {},
  ListAppKeys: { keys: [{ name: "mobile", prefix: "wak_91c", createdBy: "ann", createdAt: ago(50_000), expiresAt: BigInt(Date.now() + 86_400_000 * 30) }] },
  CreateAppKey: { value: "wak_v4lue-of-the-app-key" },
  RevokeAppKey: {},
  CreateRegion: {},
  CreateJoinToken: { token: "wlj_t0ken-of-the-region" },
  RevokeCredentials: { revoked: 1 },
  ListAudit: (r) => audit(r as { page?: { token?: string } }),
  ListApiKeys: { keys },
  ListMembers: { members },
  ListSignInRules: signInRules,
  SetSignInRule: {},
  RemoveSignInRule: {},
  RemoveMember: { keys: ["adas-laptop"] },
  RestoreMember: {},
  CreateApiKey: ({ name }) => ({ key: { id: "key_new", name: String(name) }, value: "wl_s3cr3t-value-of-the-key" }),
  RevokeApiKey: {},
  PlanDeploy: plan,
  Deploy: { version: 6, rolloutId: "rol_2", hold: { freeze: "launch-week" } },
  ListDeployments: { deployments: versions },
  GetDeployment: ({ version: n }) => ({ deployment: version(Number(n)) }),
  ListFreezes: { freezes },
  Rollback: { version: 6, fromVersion: 1, warnings: ["us-east-1 has no GPU free for it now."] },
  PinVersion: { pin: pinned.pins[0]! },
  UnpinVersion: { pin: pinned.pins[0]! },
};

const told = ["GET /v1/chat/completions 200 in 412 ms", "\u001b[33mWARNING\u001b[0m queue is 31 long", "INFO engine: 1843.2 tokens/s, KV cache 61 %", "ERROR request 8f1c ended: client went away, and what was generated so far is thrown away with it"];

/** What three instances write, and then what one of them writes after the stream broke. */
const logs: Scene["logs"] = [
  {
    notes: [0, 1, 3].map((n) => ({ kind: LogNote_Kind.BEGAN, instance: `ins_${n}`, about: { ...instances.instances[n]! } })),
    lines: Array.from({ length: 120 }, (_, i) => ({ at: ago(240 - 2 * i), instance: `ins_${[0, 1, 3][i % 3]}`, text: `${told[i % 4]} #${i}` })),
    positions: [{ instance: "ins_0", position: { offset: 900n, line: 40n } }],
  },
  { notes: [{ kind: LogNote_Kind.LOST, instance: "ins_1", lines: 12n, message: "12 lines are missing: it wrote faster than they are read" }], lines: [{ at: ago(-1), instance: "ins_0", text: "after the break" }] },
];

const step = 30_000;
const nowStep = () => Math.floor(Date.now() / step) * step;
/** Samples of the last hour, from `from` to `to` steps ago. */
const samples = (from: number, to: number, level: number) =>
  Array.from({ length: from - to + 1 }, (_, i) => {
    const ago = from - i;
    const wave = 1 + 0.6 * Math.sin((120 - ago) / 11) + 0.15 * Math.sin(ago * 1.7);
    const requests = Math.round(30 * level * wave);
    return {
      at: BigInt(nowStep() - ago * step), spanMs: ago === 0 ? 15_000n : BigInt(step), requests: BigInt(ago === 0 ? Math.round(requests / 2) : requests), errors: BigInt(ago > 40 && ago < 50 ? Math.round(requests / 12) : 0),
      latencyP95: 0.8 + 0.5 * wave, firstTokenP95: 0.12 + 0.1 * wave, queued: Math.max(0, Math.round(6 * (wave - 1.1))), wanted: ago < 60 ? 4 : 3, ready: ago < 55 ? 4 : 3,
    };
  });

const series = () => ({
  regions: [
    { region: "us-east-1", keptSince: 1n, samples: samples(120, 0, 24) },
    { region: "eu-west-1", keptSince: BigInt(nowStep() - 70 * step), samples: samples(70, 0, 9) },
    { region: "ap-south-1", keptSince: 1n, samples: samples(120, 20, 5), problem: "region ap-south-1 does not answer: it is asked again and again" },
  ],
});

/** Regions all over the world, some of them close together, with labels that say where, or nowhere. */
export const worldwide: Scene = {
  role: Role.OWNER,
  fleet: {
    regions: [
      region("us-east-1"), region("us-east-2", { gpus: [] }), region("us-west-2", { receivedRevision: 800n }), region("eu-west-1"), region("eu-central-1"),
      region("europe-west4", { status: RegionStatus.UNREACHABLE, lastReportAt: ago(430) }), region("ap-northeast-1"), region("ap-southeast-2", { gpus: [] }), region("sa-east-1"),
      region("basement", { labels: { latitude: "52.52", longitude: "13.4" }, status: RegionStatus.PENDING, gpus: [], lastReportAt: 0n }), region("cape-town", { labels: { latitude: "-33.9", longitude: "18.4" } }), region("nowhere", { labels: {} }),
    ],
    apps: fleet.apps,
  },
  answers: { UpdateRegion: (r) => ((r as { resourceVersion?: bigint }).resourceVersion === 4n ? {} : new Refusal("aborted", "region has changed since")) },
};

export const full: Scene = { role: Role.DEPLOYER, fleet, app: { ...appScene, app: pinned, askedRollout: canary }, instances, answers, logs, series };

const endpoints = [
  { id: "nep_1", name: "pager", origin: "https://hooks.example.com", format: 1, kinds: [1, 2, 3, 4, 5, 6], createdBy: "ann", createdAt: ago(90_000), pending: 1n, dead: 3n },
  { id: "nep_2", name: "team", origin: "https://hooks.slack.com", format: 2, kinds: [1, 2], project: "default", createdBy: "ann", createdAt: ago(90_000) },
];
const deliveries = [
  { id: "msg_1", kind: 1, state: 1, at: ago(60), why: "v5 failed in eu-west-1: CrashLoop", app: "default/production/chat", version: 5, events: 1, attempts: 2, nextAt: BigInt(Date.now() + 60_000), problem: "answered 503" },
  { id: "msg_2", kind: 5, state: 3, at: ago(90_000), what: "RegionUnreachable", region: "ap-south-1", apps: 4, events: 1, attempts: 31, doneAt: ago(3600), problem: "no route to host" },
  { id: "msg_3", kind: 7, state: 2, at: ago(600), what: "Test", attempts: 1, doneAt: ago(599) },
];
const notifying = {
  ListNotificationEndpoints: { endpoints }, ListNotificationDeliveries: { deliveries }, TestNotificationEndpoint: { delivery: deliveries[2] }, ReplayNotifications: { replayed: 3 }, RemoveNotificationEndpoint: {},
  SetNotificationEndpoint: { endpoint: endpoints[0], secret: "whsec_s3cr3t-of-the-endpoint" }, SetFreeze: { freeze: freezes[0] }, LiftFreeze: { appIds: ["app_chat"] },
};

export const owned: Scene = { ...full, role: Role.OWNER, answers: { ...answers, ...notifying } };

let evictions = 0;

export const platform: Scene = {
  role: Role.OPERATOR,
  fleet: { regions: [region("shared-1", { workspaceId: "" }), region("theirs-1")] },
  // In two steps, as a real one does of many apps.
  answers: {
    EvictWorkspace: () => ({ apps: 2, replicas: 5, more: evictions++ % 2 === 0 }),
    ListWorkspaces: { workspaces: [{ id: "ws_1", name: "acme", createdAt: ago(9_000_000) }, { id: "ws_2", name: "search", createdAt: ago(500_000) }] },
    ListTiers: { tiers: [{ name: "basic", features: features.tierFeatures }, { name: "default", features: Object.values(Feature).filter((f) => typeof f === "number" && f > 0) }, { name: "none" }] },
    GetQuota: (r) => (answers.GetQuota as (r: object) => object)(r),
    GetFeatures: (r) => (answers.GetFeatures as (r: object) => object)(r),
    SetQuota: {},
    SetFeatures: {},
    CreateWorkspace: { apiKey: "wl_0wner-key-of-the-workspace" },
  },
};

const nasty = `<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>`;

/** Texts that a tenant, a program or an agent chooses. */
export const hostile: Scene = {
  role: Role.DEPLOYER,
  series: () => ({ regions: [{ region: nasty, problem: nasty, keptSince: BigInt(nowStep()), samples: samples(0, 0, 1) }] }),
  fleet: {
    regions: [region("us-east-1", { message: nasty, notes: [nasty], labels: { [nasty]: nasty }, topologyWords: [nasty], gatewayUrl: nasty, agentVersion: nasty, runtime: nasty, gpus: [{ product: nasty, pool: nasty, allocatable: 1 }] })],
    apps: [app("chat", { message: nasty, description: nasty, regions: [nasty] })],
  },
  app: {
    app: { ...chat, scaling: {}, message: nasty, description: nasty, urls: ["javascript:window.hacked=1", nasty] },
    deployments: [{ id: "dep_4", version: 4, live: true, spec: { env: { [nasty]: nasty }, secrets: [{ envName: nasty, secret: nasty }] }, regions: [place(nasty, 1, 0, 100, { reason: nasty, message: nasty })] }],
    rollout: { ...canary, createdBy: nasty, reason: nasty, message: nasty, previewUrls: ["javascript:window.hacked=1"] },
    askedRollout: {
      ...canary, createdBy: nasty, previewUrls: ["javascript:window.hacked=1"],
      progress: { ...canary.progress, paused: true, pausedBy: nasty, pausedWhy: nasty, waves: [{ name: nasty, regions: [{ region: nasty, reason: nasty, message: nasty, state: RegionProgress_State.FAILED }] }] },
    },
    history: [{ id: "hst_1", at: 1n, what: nasty, why: nasty, who: nasty, region: nasty, rolloutId: "rol_1" }],
  },
  logs: [{ notes: [{ kind: LogNote_Kind.LOST, message: nasty, instance: nasty }], lines: [{ at: 1n, instance: nasty, text: nasty }] }],
  instances: { instances: [instance(0, { reason: nasty, message: nasty, runtimeName: nasty, gpus: [nasty] })] },
  answers: {
    ListDeployments: {
      deployments: [
        version(5, { createdBy: nasty, source: nasty, reason: nasty, message: nasty, resolvedImage: nasty }, { versionLabel: nasty, message: nasty, sourceCommit: nasty, args: [nasty], env: { [nasty]: nasty } }),
        version(4, { live: true }, { regions: [nasty] }),
      ],
    },
    GetQuota: { quota: { workspaceName: nasty } },
    GetEnvironment: { environment: { name: nasty, variables: { [nasty]: nasty } } },
    ListSecrets: { secrets: [{ name: nasty }] },
    ListPresets: { presets: [{ name: nasty, id: nasty, title: nasty, modelSchemes: [nasty], defaultEngineVersion: nasty }] },
    GetPreset: { preset: { name: nasty, id: nasty, title: nasty, modelSchemes: [nasty], aliases: { [nasty]: nasty }, metrics: [{ signal: nasty, metric: nasty }], sources: [{ about: nasty, page: "javascript:window.hacked=1" }] } },
    DiffPreset: { generatedBy: nasty, newest: nasty, changes: [{ path: nasty, old: nasty, new: nasty }], findings: [{ code: nasty, message: nasty, fix: nasty, field: nasty }] },
    GetFeatures: { features: { workspaceName: nasty, tier: nasty } },
    ListHistory: { entries: [{ id: "hst_1", at: 1n, what: "ScalingDecided", why: nasty, who: nasty, region: nasty }] },
    GetScaling: { holds: [{ region: nasty, who: nasty }], regions: [{ region: nasty, limit: nasty, why: nasty, wants: [{ metric: { target: nasty }, value: 1 }] }] },
    ListDomains: { domains: [{ name: nasty, createdBy: nasty, txtName: nasty, txtValue: nasty }] },
    ListAppKeys: { keys: [{ name: nasty, prefix: nasty, createdBy: nasty }] },
    ListAudit: { entries: [{ id: "aud_1", at: 1n, actor: nasty, source: nasty, procedure: nasty, resourceKind: nasty, resourceId: nasty, before: "", after: JSON.stringify({ outcome: nasty }) }] },
    ListMembers: { members: [{ id: nasty, name: nasty, subject: nasty, issuer: nasty, rules: [nasty], removedAt: 1n, removedBy: nasty }] },
    ListSignInRules: { issuer: nasty, federationIssuers: [nasty], rules: [{ name: nasty, issuer: nasty, setBy: nasty, conditions: [{ claim: nasty, value: nasty }] }] },
    ListApiKeys: { keys: [{ id: nasty, name: nasty, prefix: nasty, madeBy: nasty, family: nasty }] },
    PlanDeploy: {
      outcome: PlanDeployResponse_Outcome.ROLLOUT, findings: [{ message: nasty, fix: nasty, field: nasty, region: nasty, blocks: true }], changes: [{ path: nasty, old: nasty, new: nasty }],
      steps: [{ wave: nasty, region: nasty, checks: [nasty], kind: PlanStep_Kind.PAUSE }], regions: [{ region: nasty, gpu: { product: nasty, pool: nasty } }], quota: { workspaceName: nasty },
    },
    ListFreezes: { freezes: [{ id: "frz_1", name: nasty, reason: nasty, inForce: true, project: nasty, setBy: nasty, timeZone: nasty, weekly: [{ start: nasty, end: nasty }] }] },
    ListNotificationEndpoints: { endpoints: [{ id: "nep_1", name: nasty, origin: nasty, app: nasty, kinds: [1] }] },
  },
};

const role = (name: string, wanted: number, ready: number, more: object = {}) => ({ role: name, wanted, ready, instances: wanted, ...more });

/** An app whose replicas are groups of two roles. */
export const grouped: Scene = {
  ...full,
  app: {
    ...appScene,
    app: { ...chat, rolloutId: "", latestVersion: 4, status: AppStatus.DEGRADED, message: "us-east-1 has 1 of 2 replicas" },
    rollout: { ...canary, status: RolloutStatus.SUCCEEDED },
    askedRollout: canary,
    deployments: [
      {
        id: "dep_4", version: 4, live: true, stable: true, status: DeploymentStatus.READY,
        spec: {
          roles: [{ name: "prefill", entry: true, together: true }, { name: "decode", instances: 2, hosts: 2, slots: RoleSpec_Slots.STABLE, startsAfter: ["prefill"], together: true }],
          gang: { of: Gang_Of.GROUP, timeout: { seconds: 300n } },
        },
        regions: [
          place("us-east-1", 2, 1, 100, { roles: [role("prefill", 2, 2, { entry: true }), role("decode", 4, 3, { reason: "OutOfMemory", message: "killed at 64 GiB" })] }),
          place("eu-west-1", 1, 1, 100, { roles: [role("prefill", 1, 1, { entry: true }), role("decode", 2, 2)] }),
        ],
      },
    ],
  },
  instances: {
    instances: [
      instance(0, { role: "prefill", runtimeName: "chat-v4-0-prefill-0" }), instance(0, { id: "ins_d0", role: "decode", hosts: 2, runtimeName: "chat-v4-0-decode-0" }),
      instance(0, { id: "ins_d1", role: "decode", slot: 1, hosts: 2, runtimeName: "chat-v4-0-decode-1", status: InstanceStatus.FAILED, reason: "OutOfMemory", message: "killed at 64 GiB" }),
    ],
  },
};

/** An app with layout pooled: its roles are counted separately. */
export const pooled: Scene = {
  ...full,
  app: {
    ...appScene,
    app: { ...chat, replicas: 200, readyReplicas: 150, rolloutId: "", latestVersion: 4, pooled: true },
    rollout: { ...canary, status: RolloutStatus.SUCCEEDED },
    askedRollout: canary,
    deployments: [
      {
        id: "dep_4", version: 4, live: true, stable: true, status: DeploymentStatus.READY, 
        spec: {
          layout: Layout.POOLED, update: { order: PoolUpdate_Order.SEQUENTIAL, sequence: ["decode"] }, roles: [{ name: "prefill" }, { name: "decode", entry: true }],
          pairing: { engine: Pairing_Engine.NIXL, minPromptBytes: 2000n },
        },
        regions: [
          place("us-east-1", 100, 50, 100, { roles: [role("prefill", 8, 4), role("decode", 2, 2, { entry: true })] }),
          place("eu-west-1", 100, 100, 100, { roles: [role("prefill", 8, 8), role("decode", 2, 2, { entry: true })] }),
        ],
      },
    ],
  },
};

/** The plan of a pool whose gateways pair its roles. */
export const pooledPlan: Scene = {
  ...pooled,
  answers: {
    ...full.answers,
    PlanDeploy: {
      ...plan,
      findings: [{
        reason: ErrorReason.NO_CAPACITY, region: "us-east-1", field: "spec.pairing", message: "region us-east-1 has no pair of a prefill and a decode instance of one version for a part of the rollout",
        fix: "Update.order coherent keeps 100 % and takes 5 GPUs more meanwhile.",
      }],
      steps: [{ kind: PlanStep_Kind.MOVE, region: "us-east-1", inPlace: true, versions: [{ version: 4, replicas: 0, weight: 0 }, { version: 6, replicas: 100, weight: 100 }] }],
      regions: [{ region: "us-east-1", status: RegionStatus.CONNECTED, replicasNow: 100, replicasPeak: 100, replicasAfter: 100, setCapacity: "0 % at worst of instances of one version, in 10 steps of order sequential" }],
    },
  },
};

export const pooledFile = `app: chat
regions: [us-east-1]
layout: pooled
command: [serve]
update: {order: sequential}
pairing: {engine: nixl}
roles:
- {name: prefill, instances: 8}
- {name: decode, instances: 2, entry: true}
`;

export const many: Scene = {
  role: Role.VIEWER,
  fleet: { regions: fleet.regions, apps: Array.from({ length: 1000 }, (_, i) => app(`model-${String(i).padStart(4, "0")}`)) },
};

export const empty: Scene = {
  role: Role.DEPLOYER,
  fleet: { regions: [region("us-east-1", { gpus: [] })], apps: [] },
  app: { app: app("draft", { status: AppStatus.IDLE, liveVersion: 0, latestVersion: 0, previousVersion: 0 }) },
  answers: { GetScaling: {}, ListDeployments: {}, ListFreezes: {}, ListAudit: {}, ListApiKeys: {}, ListMembers: {}, ListSignInRules: {}, ListDomains: {}, ListAppKeys: {}, ListPresets: {}, ListSecrets: {}, GetEnvironment: { environment: {} } },
};
