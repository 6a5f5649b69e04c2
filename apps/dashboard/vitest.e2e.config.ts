import { defineConfig } from "vitest/config";

// Tests in a real browser. e2e/fake.e2e.ts needs a build in dist (or WINDLASS_DASHBOARD_DIST) and
// Chromium; e2e/real.e2e.ts needs WINDLASS_DASHBOARD_LINK, of a `windlass dev`, besides.
export default defineConfig({
  test: { environment: "node", include: ["e2e/**/*.e2e.ts"], testTimeout: 120_000, hookTimeout: 120_000, fileParallelism: false, maxWorkers: 1 },
});
