import { expect, it } from "vitest";
import { corsOf, deltaOf, eventsOf, modelsOf, paceOf, refusalOf } from "./chat.js";

it("splits events at any place of the stream", () => {
  const whole = 'data: {"a":1}\n\n: a comment\n\ndata:x\r\n\r\nevent: y\ndata: one\ndata: two\n\ndata: [DONE]\n\n';
  const all = ['{"a":1}', "x", "one\ntwo", "[DONE]"];
  expect(eventsOf(whole)).toEqual({ data: all, rest: "" });
  for (let cut = 0; cut <= whole.length; cut++) {
    const first = eventsOf(whole.slice(0, cut));
    const second = eventsOf(first.rest + whole.slice(cut));
    expect([...first.data, ...second.data], `cut at ${cut}`).toEqual(all);
  }
});

it("reads what an event adds", () => {
  expect(deltaOf('{"choices":[{"delta":{"content":"hi"}}]}')).toBe("hi");
  expect(deltaOf('{"choices":[{"delta":{"role":"assistant"}}]}')).toBe("");
  expect(deltaOf('{"choices":[{"delta":{"reasoning_content":"hm"}}]}')).toBe("hm");
  expect(deltaOf('{"choices":[{"message":{"content":"all at once"}}]}')).toBe("all at once");
  for (const odd of ["", "[DONE]", "null", "[]", '{"choices":{}}', '{"choices":[null]}', '{"choices":[{"delta":{"content":7}}]}', '{"usage":{}}']) expect(deltaOf(odd), odd).toBe("");
  expect(() => deltaOf('{"error":{"message":"out of memory"}}')).toThrow("out of memory");
});

it("says what to do about a refusal", () => {
  expect(refusalOf(401, '{"error":"Unauthorized"}')).toBe("The app answered 401: Unauthorized. Enter one of the app's keys, or the key that its engine asks for.");
  expect(refusalOf(404, "<html>")).toContain("POST /v1/chat/completions");
  expect(refusalOf(503, '{"error":{"message":"no instance is ready."}}')).toBe("The app answered 503: no instance is ready.");
  expect(refusalOf(500, "")).toBe("The app answered 500.");
});

it("reads models and paces", () => {
  expect(modelsOf('{"data":[{"id":"a"},{"id":7},{"id":"b"}]}')).toEqual(["a", "b"]);
  expect(modelsOf("<html>")).toEqual([]);
  expect(paceOf(0, 250, 1250, 11)).toEqual({ firstMs: 250, perSecond: 10 });
  expect(paceOf(0, 250, 250, 1)).toEqual({ firstMs: 250, perSecond: 0 });
  expect(corsOf("https://dash.example")).toContain("origins: [https://dash.example]");
});
