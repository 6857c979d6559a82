/** One message: what is said of it in a line, then its data. What publishers send is shown as text and never as anything else. */

import type { ComponentChildren } from "preact";
import { exact } from "./format";

/** How much of a long message is shown. */
const SHOWN_CHARS = 4_000;

interface Shown {
  content_type?: string;
  event?: string;
  key?: string;
  data?: string | null;
  data_base64?: string | null;
}

export function MessageText({ message, children }: { message: Shown; children: ComponentChildren }) {
  const binary = message.data_base64 ?? null;
  const text = message.data ?? binary ?? "";
  const has = (field: string | undefined): field is string => field !== undefined && field !== "";
  return (
    <>
      <p>
        {children}
        {has(message.event) && <span>event {message.event}</span>}
        {has(message.key) && <span>key {message.key}</span>}
        {has(message.content_type) && <span>{message.content_type}</span>}
        {binary !== null && <span>binary, in base64</span>}
      </p>
      <pre>{text.slice(0, SHOWN_CHARS)}</pre>
      {text.length > SHOWN_CHARS && <p>{exact(text.length - SHOWN_CHARS)} more characters</p>}
    </>
  );
}
