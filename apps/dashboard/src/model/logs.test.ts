import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { FollowLogsResponseSchema, LogNote_Kind } from "../gen/windlass/v1/logs_pb.js";
import { clockTime, LogBuffer, logsCommand } from "./logs.js";

type Init = Parameters<typeof create<typeof FollowLogsResponseSchema>>[1];
const res = (init: Init) => create(FollowLogsResponseSchema, init);
const began = (instance: string) => ({ kind: LogNote_Kind.BEGAN, instance, about: { version: 3, region: "us-east-1", role: "main", group: 1 } });
const line = (text: string, instance = "ins_a") => ({ at: 1n, text, instance });

it("keeps lines with their instances, and says what is followed, gone and missing", () => {
  const b = new LogBuffer();
  b.add(res({ notes: [began("ins_a"), began("ins_b")], lines: [line("one"), line("two", "ins_b")] }));
  b.add(res({ notes: [{ kind: LogNote_Kind.LOST, instance: "ins_b", message: "12 lines are missing" }, { kind: LogNote_Kind.ENDED, instance: "ins_a" }, { kind: LogNote_Kind.UNREACHABLE, region: "eu", message: "region eu does not answer" }] }));
  expect(b.rows.map((r) => r.text)).toEqual([
    "Follows v3 us-east-1 main/1.0, v3 us-east-1 main/1.0", "one", "two", "v3 us-east-1 main/1.0: 12 lines are missing", "v3 us-east-1 main/1.0 is gone", "region eu does not answer",
  ]);
  expect(b.ended).toEqual(new Set(["ins_a"]));
  expect([b.colour("ins_a"), b.colour("ins_b")]).toEqual([0, 1]);
});

it("goes on after the newest position of each instance", () => {
  const b = new LogBuffer();
  b.add(res({ positions: [{ instance: "ins_b", position: { offset: 7n } }, { instance: "ins_a", position: { offset: 1n } }] }));
  b.add(res({ positions: [{ instance: "ins_b", position: { offset: 9n } }] }));
  expect(b.positions().map((p) => [p.instance, p.position?.offset])).toEqual([["ins_a", 1n], ["ins_b", 9n]]);
});

it("keeps the newest 5,000 rows and 4 MiB, and counts what it does not keep", () => {
  const b = new LogBuffer();
  for (let i = 0; i < 60; i++) b.add(res({ lines: Array.from({ length: 100 }, (_, n) => line(`${i * 100 + n}`)) }));
  expect([b.rows.length, b.dropped, b.total, b.rows[0]?.text, b.rows[0]?.key]).toEqual([5000, 1000, 6000, "1000", 1000]);
  b.add(res({ lines: Array.from({ length: 2000 }, () => line("x".repeat(5000))) }));
  expect(b.rows.reduce((n, r) => n + r.text.length, 0)).toBeLessThanOrEqual(4 << 20);
  expect(b.rows.at(-1)?.text).toMatch(/x … \(1000 characters more\)$/);
});

it("shows lines without the colours of a terminal", () => {
  const b = new LogBuffer();
  b.add(res({ lines: [line("\u001b[1;31merror\u001b[0m: [0m stays")] }));
  expect(b.rows[0]?.text).toBe("error: [0m stays");
  expect(clockTime(new Date(2026, 0, 2, 3, 4, 5, 6).getTime())).toBe("03:04:05.006");
});

it("names the command that does the same", () => {
  const all = { instance: "", region: "", role: "", version: 0, minutes: 0, grep: "" };
  expect(logsCommand("default/production/chat", all)).toBe("windlass logs -f default/production/chat");
  expect(logsCommand("chat", { ...all, region: "eu", version: 3, role: "main", minutes: 10, grep: "it's|error" })).toBe("windlass logs -f chat --region eu --version v3 --role main --since 10m --grep 'it'\\''s|error'");
  expect(logsCommand("chat", { ...all, instance: "ins_1" })).toBe("windlass logs -f ins_1");
});
