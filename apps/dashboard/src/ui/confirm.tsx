import { useEffect, useId, useRef, useState, type FormEvent, type ReactNode } from "react";

export type Confirmation = {
  title: string;
  effect: string;
  label: string;
  grave: boolean;
  /** Name of the field for a reason; empty: none is asked for. */
  reason: string;
};

/** Asks before something is done. `act` gets the reason; what it throws is shown, and the dialog stays. Children are shown below the effect. */
export function Confirm({
  ask,
  act,
  onClose,
  explain,
  children,
}: {
  ask: Confirmation;
  act: (reason: string) => Promise<void>;
  onClose: () => void;
  explain: (error: unknown) => string;
  children?: ReactNode;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  const [reason, setReason] = useState("");
  const [busy, setBusy] = useState(false);
  const [failed, setFailed] = useState("");
  useEffect(() => {
    const d = dialog.current;
    if (d && !d.open) d.showModal();
  }, []);
  async function submit(event: FormEvent) {
    event.preventDefault();
    setBusy(true);
    setFailed("");
    try {
      await act(reason);
      dialog.current?.close();
    } catch (error) {
      setFailed(explain(error));
      setBusy(false);
    }
  }
  return (
    <dialog ref={dialog} aria-labelledby={`${id}t`} aria-describedby={`${id}e`} onClose={onClose}>
      <form onSubmit={(e) => void submit(e)}>
        <h2 id={`${id}t`}>{ask.title}</h2>
        <p id={`${id}e`}>{ask.effect}</p>
        {children}
        {ask.reason ? (
          <div className="field">
            <label htmlFor={`${id}r`}>{ask.reason}</label>
            <input id={`${id}r`} className="input" value={reason} maxLength={1024} onChange={(e) => setReason(e.target.value)} autoComplete="off" />
          </div>
        ) : null}
        {failed ? (
          <p className="note bad" role="alert">
            {failed}
          </p>
        ) : null}
        <div className="buttons">
          <button type="submit" className={`button primary${ask.grave ? " grave" : ""}`} disabled={busy}>
            {busy ? "Asking …" : ask.label}
          </button>
          <button type="button" className="button" onClick={() => dialog.current?.close()}>
            Leave it as it is
          </button>
        </div>
      </form>
    </dialog>
  );
}
