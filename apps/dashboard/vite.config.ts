import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

export default defineConfig({
  base: "/ui/",
  plugins: [react()],
  build: {
    target: "es2022",
    sourcemap: false,
    // Small files inlined as data: would need more of the Content-Security-Policy.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    // In kB before gzip: about the limit of the first view in apps/controlplane/internal/console/console_test.go.
    chunkSizeWarningLimit: 1000,
    // Assets have a hash of their content in their names, and are kept for ever.
    assetsDir: "assets",
  },
  server: {
    // Beside a control plane: `npm run dev`, then sign in with an API key.
    proxy: { "/windlass.v1.": "http://127.0.0.1:7700", "/ui/session": "http://127.0.0.1:7700" },
  },
  test: { environment: "happy-dom", include: ["src/**/*.test.{ts,tsx}"], testTimeout: 30_000 },
});
