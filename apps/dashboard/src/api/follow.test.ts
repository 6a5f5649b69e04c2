import { Code, ConnectError } from "@connectrpc/connect";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { backoff, follow, type Link } from "./follow.js";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

type Script = (number | Error | "silence")[][];

/** Plays one script for each time that the stream is opened. */
function play(scripts: Script, heard = 0) {
  const links: Link["state"][] = [];
  const since: number[] = [];
  const got: number[] = [];
  let opened = 0;
  const stop = follow<number>({
    open: async function* (signal) {
      const script = scripts[opened++] ?? ["silence" as const];
      for (const item of script) {
        if (item === "silence") {
          await new Promise((_, reject) => signal.addEventListener("abort", () => reject(new ConnectError("aborted", Code.Canceled))));
        } else if (item instanceof Error) throw item;
        else yield item;
      }
    },
    onMessage: (n) => got.push(n),
    onLink: (l) => {
      links.push(l.state);
      if (l.state === "stale") since.push(l.since);
    },
    silenceMs: 40_000,
    heard,
    explain: String,
  });
  return { links, since, got, stop, opened: () => opened };
}

it("is opened again when it breaks, says that it is stale, and then that it is live", async () => {
  const p = play([[1, new ConnectError("gone", Code.Unavailable)], [new ConnectError("gone", Code.Unavailable)], [2, "silence"]]);
  await vi.advanceTimersByTimeAsync(5000);
  expect(p.got).toEqual([1, 2]);
  expect(p.links).toEqual(["live", "stale", "stale", "live"]);
  p.stop();
});

it("counts as broken when the server is silent for too long", async () => {
  const p = play([[1, "silence"], [2, "silence"]]);
  await vi.advanceTimersByTimeAsync(39_000);
  expect(p.links).toEqual(["live"]);
  await vi.advanceTimersByTimeAsync(3000);
  expect(p.got).toEqual([1, 2]);
  expect(p.links).toEqual(["live", "stale", "live"]);
  p.stop();
});

it("is not opened again when it is refused, or after its end", async () => {
  const refused = play([[new ConnectError("the session is over", Code.Unauthenticated)]]);
  await vi.advanceTimersByTimeAsync(60_000);
  expect(refused.links).toEqual(["refused"]);
  expect(refused.opened()).toBe(1);
  const stopped = play([[1, "silence"]]);
  await vi.advanceTimersByTimeAsync(10);
  stopped.stop();
  await vi.advanceTimersByTimeAsync(120_000);
  expect(stopped.links).toEqual(["live"]);
  expect(stopped.opened()).toBe(1);
});

it("is stale since the last message, also of the stream before it, or else since the first failure", async () => {
  const gone = new ConnectError("gone", Code.Unavailable);
  const before = Date.now();
  const again = play([[gone], [gone], ["silence"]], before - 60_000);
  const first = play([[gone], [gone], ["silence"]]);
  await vi.advanceTimersByTimeAsync(5000);
  expect(again.since).toEqual([before - 60_000, before - 60_000]);
  expect(first.since).toEqual([before, before]);
  again.stop();
  first.stop();
});

it("waits for a time out of the whole range, which doubles up to 10 s", () => {
  const random = vi.spyOn(Math, "random");
  const range = (failures: number) => [0, 1].map((r) => (random.mockReturnValueOnce(r), backoff(failures)));
  expect([range(1), range(2), range(50)]).toEqual([[250, 500], [250, 1000], [250, 10_000]]);
  random.mockRestore();
});
