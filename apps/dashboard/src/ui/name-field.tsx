import { useId, type InputHTMLAttributes } from "react";

type Input = Omit<InputHTMLAttributes<HTMLInputElement>, "value" | "onChange">;

/** A field for a name as the API takes it: see ValidName in pkg/ident. */
export function NameField({ value, onChange, ...input }: Input & { value: string; onChange: (name: string) => void }) {
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>Name</label>
      <input
        id={id}
        className="input"
        required
        maxLength={63}
        pattern="[a-z]([\-a-z0-9]{0,61}[a-z0-9])?"
        title="small letters, digits and -, and a letter first"
        autoComplete="off"
        spellCheck={false}
        value={value}
        onChange={(e) => onChange(e.target.value)}
        {...input}
      />
    </div>
  );
}
