/**
 * Messages as they come, the newest last, over Crore's own event stream.
 *
 * What publishers send is shown as text and never as anything else. At most so many stay on the page, and they are drawn four times a
 * second at most, so that a busy topic does not stall the browser; what passes between is counted.
 */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { tailPath, type Envelope } from "./api";
import { MessageText } from "./message";
import { Breaking } from "./parts";
import { exact, moment } from "./format";
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

interface TailProps {
  of: { topic: string } | { filter: string };
  /** Messages came, and are drawn. */
  came?: () => void;
}

export function Tail({ of, came }: TailProps) {
  const { token } = useStore();
  const [rows, draw] = useState<Row[]>([]);
  const [link, say] = useState("connecting");
  const [paused, pause] = useState(false);
  const held = useRef({ fresh: [] as Row[], seen: 0, paused: false });
  held.current.paused = paused;
  const path = tailPath(of);
  const list = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);

  // The newest stays in sight, unless somebody has scrolled back to read.
  useLayoutEffect(() => {
    const box = list.current;
    if (box !== null && atEnd.current) box.scrollTop = box.scrollHeight;
  }, [rows]);

  useEffect(() => {
    const own = held.current;
    own.fresh = [];
    own.seen = 0;
    draw([]);
    say("connecting");
    const flush = window.setInterval(() => {
      if (own.paused || own.fresh.length === 0) return;
      const fresh = own.fresh;
      own.fresh = [];
      draw((before) => [...before, ...fresh].slice(-KEPT));
      came?.();
    }, DRAW_EVERY_MS);
    const stop = follow(path, token, 0, {
      open: () => say("live"),
      lost: (why) => say(`disconnected: ${why}; trying again`),
      refused: say,
      unauthorized: () => store.unauthorized(),
      event({ event, data }) {
        const gap = event === "crore.gap";
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
  }, [path, token]);

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
        <button type="button" class="quiet" aria-pressed={paused} onClick={() => pause(!paused)}>
          {paused ? "Go on" : "Pause"}
        </button>
        <button type="button" class="quiet" onClick={() => draw([])}>
          Clear
        </button>
      </div>
      <p class="hint" role="status">
        <span class={link === "live" ? "dot live" : "dot lost"} aria-hidden="true" /> {link}
        {held.current.seen > 0 && ` · ${exact(held.current.seen)} came, the newest ${KEPT} are kept`}
      </p>
      <div class="messages" role="log" aria-live="off" aria-label="Messages, the newest last" tabIndex={0} ref={list} onScroll={look}>
        <ol>
          {rows.map((row) => (
            <MessageRow key={row.number} row={row} named={"filter" in of} />
          ))}
        </ol>
      </div>
      {rows.length === 0 && link === "live" && <p class="hint">Nothing was published since this page listens.</p>}
    </section>
  );
}

function MessageRow({ row, named }: { row: Row; named: boolean }) {
  const { message, gap } = row;
  if (gap) {
    return (
      <li class="gap">
        <time>{row.time}</time> messages before this one are lost
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
