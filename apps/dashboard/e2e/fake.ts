// A control plane that serves the build and answers with what a test gives it, for what a real one
// shows only after long, or should never show.
import { create, fromBinary, toBinary, type DescMessage, type DescMethod, type DescService, type Message, type MessageInitShape } from "@bufbuild/protobuf";
import { readFileSync } from "node:fs";
import http from "node:http";
import type { AddressInfo } from "node:net";
import path from "node:path";
import { AccessService, WhoAmIResponseSchema } from "../src/gen/windlass/v1/access_pb.js";
import { AppService, WatchAppResponseSchema } from "../src/gen/windlass/v1/app_pb.js";
import { Role } from "../src/gen/windlass/v1/common_pb.js";
import { DeploymentService, type ListInstancesResponseSchema } from "../src/gen/windlass/v1/deployment_pb.js";
import { WatchFleetResponseSchema } from "../src/gen/windlass/v1/fleet_pb.js";
import { EnvironmentService } from "../src/gen/windlass/v1/environment_pb.js";
import { FreezeService } from "../src/gen/windlass/v1/freeze_pb.js";
import { HistoryService } from "../src/gen/windlass/v1/history_pb.js";
import { FollowLogsResponseSchema, LogService } from "../src/gen/windlass/v1/logs_pb.js";
import { MemberService } from "../src/gen/windlass/v1/member_pb.js";
import { NotificationService } from "../src/gen/windlass/v1/notification_pb.js";
import { PresetService } from "../src/gen/windlass/v1/preset_pb.js";
import { RegionService } from "../src/gen/windlass/v1/region_pb.js";
import { RolloutService } from "../src/gen/windlass/v1/rollout_pb.js";
import { RouteService } from "../src/gen/windlass/v1/route_pb.js";
import { ScalingService } from "../src/gen/windlass/v1/scaling_pb.js";
import { WatchSeriesResponseSchema } from "../src/gen/windlass/v1/series_pb.js";
import { WorkspaceService } from "../src/gen/windlass/v1/workspace_pb.js";

const services: DescService[] = [AccessService, AppService, DeploymentService, EnvironmentService, FreezeService, HistoryService, LogService, MemberService, NotificationService, PresetService, RegionService, RolloutService, RouteService, ScalingService, WorkspaceService];
const methods = new Map<string, DescMethod>(services.flatMap((s) => s.methods.map((m) => [m.name, m] as const)));

const dist = process.env.WINDLASS_DASHBOARD_DIST ?? path.resolve("../controlplane/internal/console/assets/dist");
const policy = /const policy = "([^"]*)" \+\s*"([^"]*)"/.exec(readFileSync("../controlplane/internal/console/console.go", "utf8"));

const kinds: Record<string, string> = { ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml" };

export type Scene = {
  role: Role;
  fleet: MessageInitShape<typeof WatchFleetResponseSchema>;
  app?: MessageInitShape<typeof WatchAppResponseSchema>;
  instances?: MessageInitShape<typeof ListInstancesResponseSchema>;
  /** What each stream of series sends. */
  series?: () => MessageInitShape<typeof WatchSeriesResponseSchema>;
  /** What each stream of logs sends, one after the other; the last of them for all that come later. */
  logs?: MessageInitShape<typeof FollowLogsResponseSchema>[];
  /** What other procedures answer, by their names. */
  answers?: Record<string, object | ((request: Message & Record<string, unknown>) => object)>;
};

/** An error that a procedure answers. */
export class Refusal {
  constructor(
    readonly code: string,
    readonly message: string,
  ) {}
}

/** An app that answers as engines do, one word at a time. */
export class FakeApp {
  /** Bodies and keys of the questions. */
  asked: { body: { model: string; messages: { role: string; content: string }[] }; key: string }[] = [];
  /** Whether pages of other origins may use it. */
  open = true;
  /** The key that it asks for. */
  key = "";
  /** What it answers. */
  words = ["Good ", "<img src=x onerror=window.hacked=1> ", "morning."];
  /** Whether it stops in the middle of the answer until the client goes. */
  hangs = false;
  url = "";
  private server = http.createServer((req, res) => this.answer(req, res));

  async start(): Promise<this> {
    await new Promise<void>((resolve) => this.server.listen(0, "127.0.0.1", resolve));
    this.url = `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
    return this;
  }

  async stop(): Promise<void> {
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }

  private answer(req: http.IncomingMessage, res: http.ServerResponse): void {
    if (this.open) res.setHeader("Access-Control-Allow-Origin", "*").setHeader("Access-Control-Allow-Headers", "Authorization, Content-Type");
    if (req.method === "OPTIONS") return void res.writeHead(204).end();
    const key = req.headers.authorization ?? "";
    if (this.key && key !== `Bearer ${this.key}`) return void res.writeHead(401, { "Content-Type": "application/json" }).end('{"error":"Unauthorized"}');
    if (req.url === "/v1/models") return void res.writeHead(200, { "Content-Type": "application/json" }).end('{"data":[{"id":"llama"}]}');
    const body: Buffer[] = [];
    req.on("data", (part: Buffer) => body.push(part));
    req.on("end", () => {
      this.asked.push({ body: JSON.parse(Buffer.concat(body).toString()) as FakeApp["asked"][number]["body"], key });
      res.writeHead(200, { "Content-Type": "text/event-stream" });
      for (const word of this.words) res.write(`data: ${JSON.stringify({ choices: [{ delta: { content: word } }] })}\n\n`);
      if (!this.hangs) res.end("data: [DONE]\n\n");
    });
  }
}

export class Fake {
  /** Procedures that were called. */
  calls: string[] = [];
  /** Requests of procedures that scenes answer. */
  requests: { procedure: string; request: Message & Record<string, unknown> }[] = [];
  signedIn = true;
  /** Whether people can sign in at an issuer. */
  issuer = false;
  url = "";
  /** Where apps are, as the page's policy has it. */
  apps = "";
  private server = http.createServer((req, res) => this.answer(req, res));

  constructor(public scene: Scene) {}

  async start(port = 0): Promise<this> {
    await new Promise<void>((resolve) => this.server.listen(port, "127.0.0.1", resolve));
    this.url = `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
    return this;
  }

  async stop(): Promise<void> {
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }

  /** Ends all connections, as a control plane that dies. */
  async restart(downMs: number): Promise<void> {
    const { port } = this.server.address() as AddressInfo;
    await this.stop();
    this.server = http.createServer((req, res) => this.answer(req, res));
    await new Promise((resolve) => setTimeout(resolve, downMs));
    await this.start(port);
  }

  private answer(req: http.IncomingMessage, res: http.ServerResponse): void {
    const url = new URL(req.url ?? "/", "http://x");
    if (url.pathname.startsWith("/ui/session/")) {
      if (req.headers["windlass-dashboard"] !== "1") return void res.writeHead(403).end("{}");
      this.calls.push(url.pathname);
      this.signedIn = !url.pathname.includes("sign-out");
      return void res.writeHead(200, { "Content-Type": "application/json" }).end(JSON.stringify({ expiresInMs: 1e7, renewAfterMs: 1e6 }));
    }
    if (url.pathname === "/ui/sso/provider") return void res.writeHead(200, { "Content-Type": "application/json" }).end(JSON.stringify({ enabled: this.issuer }));
    if (url.pathname === "/ui/sso/login") {
      // As if the issuer had sent the browser back at once.
      this.calls.push(url.pathname);
      this.signedIn = true;
      return void res.writeHead(303, { Location: url.searchParams.get("return") ?? "/ui/" }).end();
    }
    if (url.pathname.startsWith("/ui/")) return this.page(url.pathname, res);
    const procedure = url.pathname.split("/").pop() ?? "";
    this.calls.push(procedure);
    if (!this.signedIn) return void res.writeHead(401, { "Content-Type": "application/json" }).end(JSON.stringify({ code: "unauthenticated", message: "sign in" }));
    if (procedure.startsWith("Watch")) {
      req.resume();
      res.writeHead(200, { "Content-Type": "application/connect+proto" });
      return this.send(res, procedure);
    }
    const body: Buffer[] = [];
    req.on("data", (part: Buffer) => body.push(part));
    req.on("end", () => (procedure === "FollowLogs" ? this.follow(Buffer.concat(body), res) : this.reply(procedure, Buffer.concat(body), res)));
  }

  private reply(procedure: string, body: Uint8Array, res: http.ServerResponse): void {
    const send = <D extends DescMessage>(schema: D, init: MessageInitShape<D>) =>
      void res.writeHead(200, { "Content-Type": "application/proto" }).end(toBinary(schema, create(schema, init)));
    if (procedure === "WhoAmI")
      return send(WhoAmIResponseSchema, { key: { id: "key_ann", name: "ann", role: this.scene.role }, workspaceName: this.scene.role === Role.OPERATOR ? "" : "acme", serverVersion: "v1.2.3" });
    const answers: NonNullable<Scene["answers"]> = {
      ListInstances: this.scene.instances ?? {},
      PauseRollout: { effect: "The rollout is paused: us-east-1 stays at step 1." },
      ...this.scene.answers,
    };
    const method = methods.get(procedure);
    const answer = answers[procedure];
    if (!method || !answer) return void res.writeHead(404).end();
    const request = fromBinary(method.input, body) as Message & Record<string, unknown>;
    this.requests.push({ procedure, request });
    const given = typeof answer === "function" ? (answer as (r: Message & Record<string, unknown>) => object)(request) : answer;
    if (given instanceof Refusal)
      return void res.writeHead(400, { "Content-Type": "application/json" }).end(JSON.stringify({ code: given.code, message: given.message }));
    send(method.output, given as MessageInitShape<DescMessage>);
  }

  private follow(body: Buffer, res: http.ServerResponse): void {
    const request = fromBinary(LogService.method.followLogs.input, body.subarray(5)) as Message & Record<string, unknown>;
    const streams = this.scene.logs ?? [{}];
    const nth = this.requests.filter((r) => r.procedure === "FollowLogs").length;
    this.requests.push({ procedure: "FollowLogs", request });
    res.writeHead(200, { "Content-Type": "application/connect+proto" });
    this.frame(res, toBinary(FollowLogsResponseSchema, create(FollowLogsResponseSchema, streams[Math.min(nth, streams.length - 1)])));
  }

  private send(res: http.ServerResponse, procedure: string): void {
    this.frame(
      res,
      procedure === "WatchFleet"
        ? toBinary(WatchFleetResponseSchema, create(WatchFleetResponseSchema, { reset: true, ...this.scene.fleet }))
        : procedure === "WatchSeries"
          ? toBinary(WatchSeriesResponseSchema, create(WatchSeriesResponseSchema, { reset: true, stepMs: 30_000n, sentAt: BigInt(Date.now()), ...this.scene.series?.() }))
          : toBinary(WatchAppResponseSchema, create(WatchAppResponseSchema, this.scene.app ?? {})),
    );
  }

  /** One message of a stream, which stays open. */
  private frame(res: http.ServerResponse, body: Uint8Array): void {
    const head = Buffer.alloc(5);
    head.writeUInt32BE(body.length, 1);
    res.write(Buffer.concat([head, body]));
  }

  private page(name: string, res: http.ServerResponse): void {
    const whole = `${policy?.[1] ?? ""}${policy?.[2] ?? ""}`;
    res.setHeader("Content-Security-Policy", this.apps ? whole.replace("connect-src 'self'", `connect-src 'self' ${this.apps}`) : whole);
    const file = name.startsWith("/ui/assets/") ? name.slice(4) : "index.html";
    try {
      const data = readFileSync(path.join(dist, file));
      res.writeHead(200, { "Content-Type": kinds[path.extname(file)] ?? "text/html; charset=utf-8" }).end(data);
    } catch {
      res.writeHead(404).end();
    }
  }
}
