// Dialogs keep the values with which they were opened, so that they do not overwrite the change of somebody else.

/** The note of a dialog whose values were changed since it was opened. */
export const changedMeanwhile = "They were changed while this dialog was open, and it shows them as they were. Close it, and begin with what they are now.";

/** Throws if what a dialog is about is no longer as it was when the dialog was opened. undefined: it does not exist. */
export function mustBeUnchanged(what: string, opened: string | number | undefined, now: string | number | undefined): void {
  if (opened !== now) throw new Error(`${what} was ${now === undefined ? "removed" : opened === undefined ? "set" : "changed"} while this dialog was open: close it, and begin with what is there now`);
}
