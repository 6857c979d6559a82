/** Requests that are repeated while the page is seen: every view that shows the present state reads it this way. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { ApiError } from "./api";

/** How often a small answer is asked for. */
export const EVERY_MS = 2_000;
/** After this time a request that failed is repeated. */
const RETRY_MS = 2_000;

export interface Polled<T> {
  /** The newest answer; null before the first, and after an error. */
  got: T | null;
  /** Why there is none. That the server is away is not told here: the head of the page says it. */
  error: ApiError | null;
  /** Asks at once. */
  now: () => void;
}

interface Answer<T> {
  got: T | null;
  error: ApiError | null;
}

/**
 * Numbers requests of which several may be under way, and says whether an answer is newer than all before it: the network may turn their
 * order round.
 */
export function inOrder(): () => () => boolean {
  let asked = 0;
  let shown = 0;
  return () => {
    const own = (asked += 1);
    return () => {
      if (own < shown) return false;
      shown = own;
      return true;
    };
  };
}

/**
 * Asks at once, when one of `of` changes, and again after the milliseconds that `every_ms` says for an answer; 0: not again.
 *
 * The last answer stays until there is another one, also while the server is away. A request that is wrong (400) is not repeated.
 */
export function usePolled<T>(ask: (gone: () => boolean) => Promise<T>, every_ms: (got: T) => number, of: unknown[]): Polled<T> {
  const [answer, show] = useState<Answer<T>>({ got: null, error: null });
  const now = useRef(() => {});
  useEffect(() => {
    let timer = 0;
    let gone = false;
    const number = inOrder();
    const later = (wait_ms: number) => {
      clearTimeout(timer);
      if (wait_ms > 0) timer = window.setTimeout(() => void read(), wait_ms);
    };
    const read = async () => {
      if (document.hidden) return later(RETRY_MS);
      const isNewest = number();
      try {
        const got = await ask(() => gone);
        if (gone || !isNewest()) return;
        show({ got, error: null });
        later(every_ms(got));
      } catch (failure) {
        if (gone || !isNewest()) return;
        const error = failure as ApiError;
        if (error.status !== 0) show({ got: null, error });
        later(error.status === 400 ? 0 : RETRY_MS);
      }
    };
    now.current = () => {
      clearTimeout(timer);
      void read();
    };
    void read();
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, of);
  return { ...answer, now: () => now.current() };
}

/** The server looks through a bounded part of its tables for each answer, so that answers may be short or empty: so many are asked for. */
const ANSWERS_MAX = 100;

export interface Rows<T> {
  rows: T[];
  /** Where the server goes on; null at the end. */
  next: string | null;
  /** How many answers it took. */
  answers: number;
}

/** Up to `wanted` rows of a list, from a cursor on. */
export async function readRows<T>(
  ask: (cursor: string | null, limit: number) => Promise<{ rows: T[]; next: string | null }>,
  cursor: string | null,
  wanted: number,
  gone: () => boolean,
): Promise<Rows<T>> {
  const all: Rows<T> = { rows: [], next: cursor, answers: 0 };
  do {
    const more = await ask(all.next, wanted - all.rows.length);
    all.rows.push(...more.rows);
    all.next = more.next;
    all.answers += 1;
  } while (all.next !== null && all.rows.length < wanted && all.answers < ANSWERS_MAX && !gone());
  return all;
}
