import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { PresetSchema } from "../gen/windlass/v1/preset_pb.js";
import { DeploymentSpecSchema } from "../gen/windlass/v1/spec_pb.js";
import { readOptions, renderedFile, writtenFor } from "./presets.js";

it("reads flags as the command does", () => {
  expect(readOptions("kv-cache-dtype=fp8\n--enable-x\n\nno-y=false\nz=true\nlora=a=1\nlora=b\n")).toEqual({ "kv-cache-dtype": "fp8", "enable-x": true, "no-y": false, z: true, lora: ["a=1", "b"] });
  expect(readOptions("")).toEqual({});
});

it("says which versions a preset is written for", () => {
  const of = (engineFrom: string, engineBefore: string) => writtenFor(create(PresetSchema, { engineFrom, engineBefore }));
  expect([of("", ""), of("0.10", ""), of("0.10", "0.21"), of("", "2")]).toEqual(["any version", "0.10 and later", "0.10 to before 0.21", "versions to before 2"]);
});

it("makes a file that does without the preset", () => {
  const spec = create(DeploymentSpecSchema, { image: "vllm:v1", args: ["--x"], generatedBy: "vllm/1", serve: { engine: "vllm", model: "hf://a/b" }, generated: { env: { A: "1" } }, replicas: 2 });
  expect(renderedFile("llama", ["eu"], spec)).toEqual({ app: "llama", image: "vllm:v1", args: ["--x"], replicas: 2, regions: ["eu"] });
});
