/**
 * Server-sent events over `fetch`.
 *
 * The browser's own `EventSource` cannot send a token in a header, and a token in a URL would stand in logs. What is read
 * here is the event stream format of the HTML standard: fields `data`, `event`, `id`, comments, three kinds of line ends.
 * A stream that breaks is opened again, with the last id, after a wait that doubles from one to ten seconds. One that is refused is not.
 *
 * A hidden page has no stream: a browser opens six connections to a host over HTTP/1.1, for all its tabs together. Once it is seen
 * again it goes on behind the last id.
 */

import { NO_ANSWER, reason } from "./api";

export interface StreamEvent {
  event: string;
  data: string;
  id: string;
}

/** Takes text in pieces torn anywhere and gives the events that are whole. */
export class EventParser {
  #rest = "";
  #data: string[] = [];
  #event = "";
  #id = "";
  /** Where a stream that is opened again goes on. An id counts without data, too. */
  lastId = "";

  take(text: string): StreamEvent[] {
    const events: StreamEvent[] = [];
    this.#rest += text;
    for (;;) {
      const end = this.#rest.search(/[\r\n]/);
      // A CR at the end of the piece may be half of a CR LF.
      if (end < 0 || (this.#rest[end] === "\r" && end + 1 === this.#rest.length)) return events;
      const line = this.#rest.slice(0, end);
      this.#rest = this.#rest.slice(this.#rest.startsWith("\r\n", end) ? end + 2 : end + 1);
      if (line === "") this.#dispatch(events);
      else this.#field(line);
    }
  }

  #dispatch(events: StreamEvent[]): void {
    this.lastId = this.#id;
    if (this.#data.length > 0) {
      events.push({ event: this.#event || "message", data: this.#data.join("\n"), id: this.#id });
    }
    this.#data = [];
    this.#event = "";
  }

  #field(line: string): void {
    const colon = line.indexOf(":");
    if (colon === 0) return; // a comment: the heartbeat
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") this.#data.push(value);
    else if (name === "event") this.#event = value;
    else if (name === "id" && !value.includes("\0")) this.#id = value;
  }
}

export interface Follower {
  /** The stream is open. */
  open?(): void;
  event(event: StreamEvent): void;
  /** The stream broke or could not be opened; it is opened again after `wait_ms`. */
  lost?(reason: string, wait_ms: number): void;
  /** The server refuses what is asked for, and would again. Nothing is tried again. */
  refused?(reason: string): void;
  /** The server wants a (or another) token. Nothing is tried again. */
  unauthorized?(): void;
}

const RETRY_FIRST_MS = 1_000;
const RETRY_MAX_MS = 10_000;
/** Of the statuses that blame the request, those that pass: too slow, too many. */
const PASSING = [408, 429];
/** Why a stream is aborted that says nothing. */
const SILENT = "silent";

/**
 * Follows the stream at `path` until the returned function is called.
 *
 * `silent_ms`: a stream that says nothing for that long counts as broken; 0 for streams that may be silent.
 */
export function follow(path: string, token: string, silent_ms: number, follower: Follower): () => void {
  let stopped = false;
  let wait_ms = RETRY_FIRST_MS;
  let id = "";
  let abort = new AbortController();
  let timer = 0;

  const stop = () => {
    stopped = true;
    clearTimeout(timer);
    abort.abort();
    document.removeEventListener("visibilitychange", turn);
  };
  const run = async (): Promise<void> => {
    const own = (abort = new AbortController());
    let why = NO_ANSWER;
    let silence = 0;
    const heard = () => {
      clearTimeout(silence);
      if (silent_ms > 0) silence = window.setTimeout(() => own.abort(SILENT), silent_ms);
    };
    try {
      heard();
      const headers: Record<string, string> = { Accept: "text/event-stream" };
      if (token !== "") headers["Authorization"] = `Bearer ${token}`;
      if (id !== "") headers["Last-Event-ID"] = id;
      const response = await fetch(path, { headers, signal: own.signal, cache: "no-store" });
      if (response.status === 401) {
        stop();
        follower.unauthorized?.();
        return;
      }
      if (!response.ok || response.body === null) {
        why = reason(await response.text()) ?? `status ${response.status}`;
        if (response.status >= 400 && response.status < 500 && !PASSING.includes(response.status)) {
          stop();
          follower.refused?.(why);
        }
        throw new Error(why);
      }
      follower.open?.();
      why = "the connection to the server ended";
      const parser = new EventParser();
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done || own !== abort) break;
        heard();
        wait_ms = RETRY_FIRST_MS;
        const events = parser.take(value);
        id = parser.lastId || id;
        for (const event of events) follower.event(event);
      }
    } catch {
      // A browser's own words ("Failed to fetch") say less than what was under way.
      if (own.signal.reason === SILENT) why = "the server sends nothing any more";
    } finally {
      clearTimeout(silence);
    }
    if (stopped || own !== abort || document.hidden) return;
    follower.lost?.(why, wait_ms);
    timer = window.setTimeout(() => void run(), wait_ms);
    wait_ms = Math.min(wait_ms * 2, RETRY_MAX_MS);
  };
  const turn = () => {
    clearTimeout(timer);
    if (document.hidden) abort.abort();
    else void run();
  };

  document.addEventListener("visibilitychange", turn);
  if (!document.hidden) void run();
  return stop;
}
