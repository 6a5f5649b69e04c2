import { useEffect, useState, type FormEvent } from "react";
import { hasIssuer, issuerSignIn, SessionError, signInWithKey } from "../api/session.js";
import icon from "../icon.svg";
import { Command, useTitle } from "../ui/pieces.js";

export function SignIn({ entered, why }: { entered: () => void; why: string }) {
  useTitle("Sign in");
  const [busy, setBusy] = useState(false);
  const [failed, setFailed] = useState(why);
  const [issuer, setIssuer] = useState(false);
  useEffect(() => {
    const stop = new AbortController();
    void hasIssuer(stop.signal).then((has) => (stop.signal.aborted ? undefined : setIssuer(has)));
    return () => stop.abort();
  }, []);
  async function submit(event: FormEvent<HTMLFormElement>) {
    event.preventDefault();
    const form = event.currentTarget;
    const key = String(new FormData(form).get("key") ?? "").trim();
    setBusy(true);
    try {
      await signInWithKey(key);
      form.reset();
      entered();
    } catch (error) {
      setFailed(error instanceof SessionError ? error.message : "The control plane did not answer. Try again in a moment.");
      setBusy(false);
    }
  }
  return (
    <main className="sign-in">
      <div className="panel">
        <div className="brand">
          <img src={icon} alt="" />
          <span>Windlass</span>
        </div>
        <h1>Sign in</h1>
        {issuer ? (
          <div className="stack tight">
            <a className="button primary" href={issuerSignIn(window.location)}>
              Sign in with single sign-on
            </a>
            <p className="small dim">Or use an API key:</p>
          </div>
        ) : null}
        <form className="stack" onSubmit={(e) => void submit(e)}>
          <div className="field">
            <label htmlFor="key">API key</label>
            <input id="key" name="key" type="password" className="input mono" required autoComplete="off" spellCheck={false} placeholder="wl_…" aria-describedby="about-key" />
            <p id="about-key" className="dim small">
              The page does what this key may do. The key is not kept in the browser.
            </p>
          </div>
          {failed ? (
            <p className="note bad" role="alert">
              {failed}
            </p>
          ) : null}
          <button type="submit" className={issuer ? "button" : "button primary"} disabled={busy}>
            {busy ? "Signing in …" : "Sign in"}
          </button>
        </form>
        <div className="stack tight">
          <p className="small dim">Or let the command line sign you in. This prints a link that is good once:</p>
          <Command text="windlass dashboard" what="the command" />
        </div>
      </div>
    </main>
  );
}
