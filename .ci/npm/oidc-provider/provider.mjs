// An OpenID Connect issuer for tests: node provider.mjs PORT REDIRECT_URL. It accepts every login, and each person is in group ml-team.
import { Provider } from "oidc-provider";

const port = Number(process.argv[2]);
const issuer = `http://127.0.0.1:${port}`;
const provider = new Provider(issuer, {
  clients: [
    {
      client_id: "windlass", client_secret: "s3cret-of-the-client", redirect_uris: [process.argv[3]],
      grant_types: ["authorization_code", "urn:ietf:params:oauth:grant-type:device_code"], response_types: ["code"],
      token_endpoint_auth_method: "client_secret_basic", application_type: "web",
    },
  ],
  features: { deviceFlow: { enabled: true }, devInteractions: { enabled: true } },
  pkce: { required: () => true },
  conformIdTokenClaims: false,
  claims: { openid: ["sub"], email: ["email", "email_verified"], profile: ["name", "groups"] },
  findAccount: (_ctx, id) => ({ accountId: id, claims: async () => ({ sub: id, email: `${id}@example.com`, email_verified: true, name: id, groups: ["ml-team"] }) }),
  cookies: { keys: ["a key of the test"] },
});
provider.listen(port, "127.0.0.1", () => console.log("ready"));
