/** Small pieces that several views are made of. */

import { Fragment, type ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

/** A bar with its share in words. From 80 % on it warns, from 95 % on it alarms; the colour is not the only sign. */
export function Meter({ share, label, text }: { share: number; label: string; text: string }) {
  const part = Math.min(1, Math.max(0, share));
  const level = part >= 0.95 ? "full" : part >= 0.8 ? "near" : "fine";
  return (
    <div
      class={`bar ${level}`}
      role="meter"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={Math.round(part * 100)}
      aria-valuetext={text}
    >
      <span class="track">
        <i style={{ width: `${part * 100}%` }} />
      </span>
      <span class="text">
        {level === "fine" ? "" : "\u26a0 "}
        {text}
      </span>
    </div>
  );
}

interface TableProps {
  label: string;
  /** A name that begins with `#` heads a column of numbers. */
  heads: string[];
  children: ComponentChildren;
}

/** A table that scrolls by itself where it is too wide for the screen. */
export function Table({ label, heads, children }: TableProps) {
  return (
    <div class="scroll" role="region" aria-label={label} tabIndex={0}>
      <table>
        <thead>
          <tr>
            {heads.map((head) => (
              <th key={head} scope="col" class={head.startsWith("#") ? "n" : ""}>
                {head.replace("#", "")}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}

/** A name that may go on in the next line behind its `/`, `.` and `_`, so that a narrow screen does not break it within a word. */
export function Breaking({ children }: { children: string }) {
  return (
    <>
      {children.split(/(?<=[/._])/).map((part, i) => (
        <Fragment key={i}>
          {i > 0 && <wbr />}
          {part}
        </Fragment>
      ))}
    </>
  );
}

interface QuestionProps {
  label: string;
  yes: string;
  no: string;
  answer: (sure: boolean) => void;
  children: ComponentChildren;
}

/** A question before something is done that cannot be taken back. Enter and Escape answer no; then the focus is where it was. */
export function Question({ label, yes, no, answer, children }: QuestionProps) {
  const refusal = useRef<HTMLButtonElement>(null);
  useLayoutEffect(() => {
    const before = document.activeElement;
    refusal.current?.focus();
    return () => before instanceof HTMLElement && before.focus();
  }, []);
  return (
    <div class="row ask" role="alertdialog" aria-label={label} onKeyDown={(event) => event.key === "Escape" && answer(false)}>
      <p class="grow">{children}</p>
      <button type="button" class="danger" onClick={() => answer(true)}>
        {yes}
      </button>
      <button type="button" class="quiet" ref={refusal} onClick={() => answer(false)}>
        {no}
      </button>
    </div>
  );
}

/** Words where something did not work. */
export function Trouble({ children }: { children: ComponentChildren }) {
  return (
    <p class="trouble" role="alert">
      {children}
    </p>
  );
}
