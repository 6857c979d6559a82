/**
 * Messages as they come, the newest last, over Crore's own event stream.
 *
 * Published data are shown as text and never as anything else. The page keeps the newest messages only and draws them four times a
 * second at most, so that a busy topic does not stall the browser. Messages that are not drawn are counted.
 */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { tailPath, type Envelope } from "./api";
import { MessageText } from "./message";
import { Breaking, Retry } from "./parts";
import { many, moment } from "./format";
import { store, useStore } from "./store";
import { follow } from "./stream";

const KEPT = 200;
const DRAW_EVERY_MS = 250;
/** So near the end a list counts as read to its end. */
const END_PX = 40;

interface Row {
  number: number;
  time: string;
  gap: boolean;
  message: Envelope;
}

/** Where a tail begins: with the next message, or with the oldest that is kept; or whether its topic does not exist, or is not known yet. */
export type Begin = "unknown" | "absent" | "live" | "oldest";

/** Why it is disconnected, and when it is opened again. */
interface Lost {
  why: string;
  retry_ms: number;
}

interface TailProps {
  of: { topic: string } | { filter: string };
  begin?: Begin;
  /** Begins, though the topic does not exist. */
  listen?: () => void;
  /** Messages came, and are drawn. */
  came?: () => void;
}

export function Tail({ of, begin = "live", listen, came }: TailProps) {
  const { token } = useStore();
  const [rows, draw] = useState<Row[]>([]);
  const [link, say] = useState("connecting");
  const [lost, lose] = useState<Lost | null>(null);
  const [paused, pause] = useState(false);
  const held = useRef({ fresh: [] as Row[], seen: 0, paused: false });
  held.current.paused = paused;
  const path = begin === "unknown" || begin === "absent" ? null : tailPath(begin === "oldest" ? { ...of, since: "oldest" } : of);
  const list = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);

  // The newest stays in sight, unless the reader has scrolled back.
  useLayoutEffect(() => {
    const box = list.current;
    if (box !== null && atEnd.current) box.scrollTop = box.scrollHeight;
  }, [rows]);

  useEffect(() => {
    const own = held.current;
    own.fresh = [];
    own.seen = 0;
    draw([]);
    lose(null);
    say(begin === "absent" ? "waiting" : "connecting");
    if (path === null) return;
    const flush = window.setInterval(() => {
      if (own.paused || own.fresh.length === 0) return;
      const fresh = own.fresh;
      own.fresh = [];
      draw((before) => [...before, ...fresh].slice(-KEPT));
      came?.();
    }, DRAW_EVERY_MS);
    const stop = follow(path, token, 0, {
      open() {
        lose(null);
        say("live");
      },
      lost(why, wait_ms) {
        lose({ why, retry_ms: Date.now() + wait_ms });
        say("disconnected");
      },
      refused: say,
      unauthorized: () => store.unauthorized(),
      event({ event, data }) {
        // The server's own event on a stream of messages.
        const gap = event.startsWith("crore.");
        own.seen += 1;
        own.fresh.push({
          number: own.seen,
          time: moment(Date.now()),
          gap,
          message: gap ? { topic: data, id: "" } : envelope(data),
        });
        if (own.fresh.length > KEPT) own.fresh.shift();
      },
    });
    return () => {
      clearInterval(flush);
      stop();
    };
  }, [path, begin === "absent", token]);

  const look = () => {
    const box = list.current;
    atEnd.current = box === null || box.scrollHeight - box.scrollTop - box.clientHeight < END_PX;
  };

  return (
    <section class="panel tail" aria-labelledby="tail">
      <div class="row">
        <h2 id="tail" class="grow">
          Live tail <small>{"filter" in of ? of.filter : of.topic}</small>
        </h2>
        {begin !== "absent" && (
          <>
            <button type="button" class="quiet" aria-pressed={paused} onClick={() => pause(!paused)}>
              {paused ? "Resume" : "Pause"}
            </button>
            <button type="button" class="quiet" onClick={() => draw([])}>
              Clear
            </button>
          </>
        )}
      </div>
      <p class="hint" role="status">
        <span class={`dot ${DOTS[link] ?? "lost"}`} aria-hidden="true" /> {link}
        {lost !== null && (
          <>
            : {lost.why}. <Retry at_ms={lost.retry_ms} />
          </>
        )}
        {held.current.seen > 0 && ` · ${received(held.current.seen)}`}
      </p>
      <div class="messages" role="log" aria-live="off" aria-label="Messages, the newest last" tabIndex={0} ref={list} onScroll={look}>
        <ol>
          {rows.map((row) => (
            <MessageRow key={row.number} row={row} named={"filter" in of} />
          ))}
        </ol>
      </div>
      {rows.length === 0 && link === "live" && <p class="hint">New messages appear here.</p>}
      {link === "waiting" && (
        <div class="row">
          <p class="hint grow">No such topic yet. Publish to it, here or elsewhere, and its messages appear here.</p>
          <button type="button" class="quiet" onClick={listen}>
            Create it and listen
          </button>
        </div>
      )}
    </section>
  );
}

const DOTS: Record<string, string> = { live: "live", waiting: "", connecting: "" };

function received(seen: number): string {
  return seen <= KEPT ? many(seen, "message") : `${many(seen, "message")}; the newest ${KEPT} are shown`;
}

function MessageRow({ row, named }: { row: Row; named: boolean }) {
  const { message, gap } = row;
  if (gap) {
    return (
      <li class="gap">
        <time>{row.time}</time> messages before the next one are lost
      </li>
    );
  }
  return (
    <li>
      <MessageText message={message}>
        <time>{row.time}</time>
        {named && (
          <b>
            <Breaking>{message.topic}</Breaking>
          </b>
        )}
      </MessageText>
    </li>
  );
}

function envelope(data: string): Envelope {
  try {
    return JSON.parse(data) as Envelope;
  } catch {
    return { topic: "", id: "", data };
  }
}
