// Prints the skipped tests with their reasons, from the JSON of `go test` on standard input.
import { createInterface } from "node:readline";

const reasons = new Map();
for await (const line of createInterface({ input: process.stdin })) {
  if (!line.startsWith("{")) continue;
  const { Action, Package, Test, Output } = JSON.parse(line);
  if (!Test) continue;
  const test = `${Package.replace("github.com/windlass-run/windlass/", "")} ${Test}`;
  const said = Action === "output" && Output.match(/^ +\w+\.go:\d+: (.*)/);
  if (said) reasons.set(test, said[1]);
  if (Action === "skip") console.log(`  ${test}: ${reasons.get(test) ?? "it gives no reason"}`);
  if (["pass", "fail", "skip"].includes(Action)) reasons.delete(test);
}
