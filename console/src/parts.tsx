/** Small pieces that several views are made of. */

import { Fragment, type ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { meantFilter } from "./filters";

/** Of a filter with the wildcards of other servers, which matches nothing here, the one that was probably meant; `show` is called with it. */
export function ForeignWildcards({ filter, show }: { filter: string; show: (meant: string) => void }) {
  const meant = meantFilter(filter);
  if (meant === null) return null;
  const offered = meant.endsWith("+") ? [meant, meant.slice(0, -1) + "#"] : [meant];
  return (
    <p class="hint foreign">
      <code>*</code> and <code>&gt;</code> are no wildcards in <code>{filter}</code>. Show{" "}
      {offered.map((filter, at) => (
        <Fragment key={filter}>
          {at > 0 && " or "}
          <button type="button" class="quiet" onClick={() => show(filter)}>
            {filter}
          </button>
        </Fragment>
      ))}
      : <code>+</code> matches one level, <code>#</code> all levels that follow.
    </p>
  );
}

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
  /**
   * A name that begins with `#` heads a column of numbers; one that begins with `*`, of names, which may wrap; one that begins with `~`,
   * of what a narrow screen does without.
   */
  heads: string[];
  rows: Row[];
}

interface Row {
  key: string | number;
  /** One for each head. The first names the row. */
  cells: ComponentChildren[];
}

/** A cell that says nothing; a card does without it. */
export const NONE = "\u2013";
const KINDS: Record<string, string> = { "#": "n", "*": "name", "~": "wide-only" };
/** A table of more columns than this is shown as cards on a narrow screen. */
const NARROW_COLUMNS_MAX = 3;

/** A table that scrolls by itself where it is too wide for the screen. On a phone, a row of many columns becomes a card. */
export function Table({ label, heads, rows }: TableProps) {
  const columns = heads.map((head) => ({ name: head.replace(/^[#*~]/, ""), kind: KINDS[head[0] ?? ""] ?? "" }));
  return (
    <div class="scroll" role="region" aria-label={label} tabIndex={0}>
      <table class={heads.length > NARROW_COLUMNS_MAX ? "cards" : ""}>
        <thead>
          <tr>
            {columns.map(({ name, kind }) => (
              <th key={name} scope="col" class={kind}>
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map(({ key, cells: [first, ...others] }) => (
            <tr key={key}>
              <th scope="row" class={columns[0]?.kind ?? ""}>
                {first}
              </th>
              {others.map((cell, i) => (
                <td key={i} class={cell === NONE ? `${columns[i + 1]?.kind ?? ""} wide-only` : (columns[i + 1]?.kind ?? "")} data-name={columns[i + 1]?.name}>
                  {cell}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
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

/** What is known of one thing, in words and figures. */
export function Facts({ of }: { of: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {of.map(([what, value]) => (
        <div key={what}>
          <dt>{what}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
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

/** Seconds until a moment, counted down; then that the moment has come. Nothing that a screen reader repeats each second. */
export function Retry({ at_ms }: { at_ms: number }) {
  const [now, tick] = useState(Date.now());
  useEffect(() => {
    const timer = window.setInterval(() => tick(Date.now()), 250);
    return () => clearInterval(timer);
  }, []);
  const left_s = Math.ceil((at_ms - now) / 1_000);
  return <span aria-hidden="true">{left_s > 0 ? `Trying again in ${left_s} s.` : "Trying again\u2026"}</span>;
}
