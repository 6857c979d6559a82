/** The messages that a topic keeps, oldest first, a page at a time; and a button that removes all of them, which asks first. */

import { useEffect, useState } from "preact/hooks";
import type { ApiError, KeptPage, Topic } from "./api";
import { exact, many, moment } from "./format";
import { MessageText } from "./message";
import { Question, Trouble } from "./parts";
import { useApi } from "./store";

const PAGE = 50;

/** `info` is the topic's, as it was last asked for: the page is read again when that shows another log. */
export function Kept({ name, info }: { name: string; info: Topic | null }) {
  const api = useApi();
  /** Behind which offset each page begins, until the one that is shown. */
  const [pages, turn] = useState<(number | null)[]>([null]);
  const [page, show] = useState<KeptPage | null>(null);
  const [asking, ask] = useState(false);
  const [said, say] = useState("");
  const [trouble, complain] = useState("");
  const [again, reload] = useState(0);

  useEffect(() => {
    turn([null]);
    show(null);
    ask(false);
    say("");
  }, [name]);

  const there = info !== null;
  useEffect(() => {
    if (!there) {
      show(null);
      return;
    }
    let gone = false;
    api.messages(name, pages.at(-1) ?? null, PAGE).then(
      (got) => {
        if (gone) return;
        show(got);
        complain("");
      },
      (error: ApiError) => {
        if (!gone) complain(error.message);
      },
    );
    return () => {
      gone = true;
    };
  }, [api, name, pages, again, there, info?.offset, info?.messages, info?.epoch]);

  const purge = async () => {
    ask(false);
    try {
      const { purged } = await api.purge(name);
      say(`${many(purged, "message")} removed.`);
      complain("");
      turn([null]);
      reload(again + 1);
    } catch (error) {
      say("");
      complain((error as ApiError).message);
    }
  };

  const next = page?.next ?? null;
  const empty = page === null || page.messages.length === 0;
  return (
    <section class="panel kept" aria-labelledby="kept">
      <div class="row">
        <h2 id="kept" class="grow">
          Kept messages <small>oldest first</small>
        </h2>
        <button type="button" class="quiet" disabled={!there} onClick={() => ask(true)}>
          Purge
        </button>
      </div>
      {asking && (
        <Question label={`Purge ${name}?`} yes="Remove them" no="Keep them" answer={(sure) => (sure ? void purge() : ask(false))}>
          Remove {info === null ? "all kept messages" : many(info.messages, "kept message")} and the retained message? Subscriptions stay. Subscribers
          that have not received the messages get a gap.
        </Question>
      )}
      <p class="hint" role="status">
        {said}
      </p>
      {trouble !== "" && <Trouble>{trouble}</Trouble>}
      {page !== null && page.lost && <p class="hint">Messages before these are gone.</p>}
      <div class="messages" role="region" aria-label="Kept messages" tabIndex={0}>
        <ol>
          {page?.messages.map((message) => (
            <li key={message.offset}>
              <MessageText message={message}>
                <time>{moment(message.published_s * 1000)}</time>
                <span>offset {exact(message.offset)}</span>
              </MessageText>
            </li>
          ))}
        </ol>
      </div>
      {empty && trouble === "" && <p class="hint">No messages are kept.</p>}
      {(pages.length > 1 || next !== null) && (
        <nav class="pages" aria-label="Pages of kept messages">
          <button type="button" class="quiet" disabled={pages.length === 1} onClick={() => turn(pages.slice(0, -1))}>
            Back
          </button>
          <span>Page {pages.length}</span>
          <button type="button" class="quiet" disabled={next === null} onClick={() => turn([...pages, next])}>
            Next
          </button>
        </nav>
      )}
    </section>
  );
}
