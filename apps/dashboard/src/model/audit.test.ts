import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { AuditEntrySchema } from "../gen/windlass/v1/history_pb.js";
import { auditChanges, auditOutcome, callName, filterAudit } from "./audit.js";

const entry = (more: object) => create(AuditEntrySchema, { procedure: "/windlass.v1.AppService/Deploy", actor: "ci", actorId: "key_1", source: "10.0.0.7 windlass/1", ...more });

it("entries are found by who called, by call or resource, and by time", () => {
  const all = [entry({ at: 100n }), entry({ at: 50n, actor: "ann", procedure: "/windlass.v1.AccessService/CreateApiKey", resourceKind: "api_key", resourceId: "key_9" })];
  const found = (who: string, call: string, since = 0) => filterAudit(all, { who, call, since }).map((e) => Number(e.at));
  expect(found("", "")).toEqual([100, 50]);
  expect(found("ANN", "")).toEqual([50]);
  expect(found("10.0.0.7", "deploy")).toEqual([100]);
  expect(found("", "key_9")).toEqual([50]);
  expect(found("", "", 60)).toEqual([100]);
  expect(callName("/windlass.v1.AppService/Deploy")).toBe("AppService/Deploy");
});

it("an entry says how its calls ended, and what they changed", () => {
  expect(auditOutcome(entry({ after: '{"outcome":"refused","count":3}' })).text).toBe("refused (3 times)");
  expect(auditOutcome(entry({ after: '{"outcome":"refused","count":1}' })).text).toBe("refused");
  expect(auditOutcome(entry({ before: "{}", after: '{"outcome":"x"}' })).text).toBe("changed");
  expect(auditOutcome(entry({ after: "not json" })).text).toBe("changed");
  expect(auditChanges(entry({ before: '{"a":{"b":1},"c":[1,2],"same":true}', after: '{"a":{"b":2},"c":[1],"d":"x","same":true}' })).map((c) => [c.path, c.kind, c.old, c.new])).toEqual([
    ["a.b", "changed", "1", "2"],
    ["c[1]", "removed", "2", ""],
    ["d", "added", "", "x"],
  ]);
  expect(auditChanges(entry({ after: "not json" })).map((c) => c.new)).toEqual(["not json"]);
});
