import { expect, it } from "vitest";
import { tryCommand } from "./try.js";

it("asks an app with what a shell takes as it is", () => {
  expect(tryCommand("chat", "http://chat.example:8080", "chat", "It's $HOME", true)).toBe(
    `curl -sN http://chat.example:8080/v1/chat/completions \\
  -H "Authorization: Bearer $APP_KEY" \\
  -H 'Content-Type: application/json' \\
  -d '{"model":"chat","messages":[{"role":"user","content":"It'\\''s $HOME"}],"stream":true}'`,
  );
  expect(tryCommand("get", "http://x", "m", "t", false)).toBe("curl -i http://x/");
  expect(tryCommand("embeddings", "http://x", "m", "t", false)).toContain(`-d '{"model":"m","input":"t"}'`);
});
