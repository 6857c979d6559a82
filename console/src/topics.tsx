/** The list of topics: by filter, a page at a time. */

import { useEffect, useState } from "preact/hooks";
import type { ApiError, Topic } from "./api";
import { bytes, duration, exact } from "./format";
import { Table, Trouble } from "./parts";
import { to } from "./route";
import { Tail } from "./tail";
import { useApi } from "./store";

const PAGE = 50;
/** The server looks through a bounded part of its tables for each page, so that pages may come empty: that many are skipped at once. */
const EMPTY_PAGES = 50;

export function Topics({ filter }: { filter: string }) {
  const api = useApi();
  const [typed, type] = useState(filter);
  /** The cursor of each page until the one that is shown. */
  const [cursors, turn] = useState<(string | null)[]>([null]);
  const [page, show] = useState<{ topics: Topic[]; next: string | null } | null>(null);
  const [trouble, say] = useState("");
  const [tail, follow] = useState(false);
  const [again, reload] = useState(0);

  useEffect(() => {
    type(filter);
    turn([null]);
    follow(false);
  }, [filter]);

  useEffect(() => {
    let gone = false;
    const read = async () => {
      let cursor = cursors.at(-1) ?? null;
      let got = await api.topics(filter, cursor, PAGE);
      for (let i = 0; i < EMPTY_PAGES && got.topics.length === 0 && got.next !== null && !gone; i++) {
        cursor = got.next;
        got = await api.topics(filter, cursor, PAGE);
      }
      return got;
    };
    read().then(
      (got) => {
        if (gone) return;
        show(got);
        say("");
      },
      (error: ApiError) => {
        if (!gone) say(error.message);
      },
    );
    return () => {
      gone = true;
    };
  }, [api, filter, cursors, again]);

  const next = page?.next ?? null;
  return (
    <>
      <section class="panel" aria-labelledby="topics">
        <h2 id="topics">Topics</h2>
        <form
          class="row"
          onSubmit={(event) => {
            event.preventDefault();
            location.hash = to("topics", typed.trim() || "#");
          }}
        >
          <label class="grow">
            <span>Filter</span>
            <input
              name="filter"
              value={typed}
              onInput={(event) => type(event.currentTarget.value)}
              autocapitalize="off"
              autocomplete="off"
              spellcheck={false}
              aria-describedby="filter-hint"
            />
          </label>
          <button type="submit">Show</button>
          <button type="button" class="quiet" onClick={() => reload(again + 1)}>
            Reload
          </button>
          <button type="button" class="quiet" aria-pressed={tail} onClick={() => follow(!tail)}>
            Tail this filter
          </button>
        </form>
        <p class="hint" id="filter-hint">
          <code>+</code> is any one level, <code>#</code> at the end all that follow: <code>scores/+/live</code>, <code>news/#</code>
        </p>
        {trouble !== "" && <Trouble>{trouble}</Trouble>}
        <Table label="Topics" heads={["Topic", "#Subscribers", "#Messages", "#Bytes", "#Last asked", "Rule", "#Home"]}>
          {page?.topics.map((topic) => (
            <tr key={topic.name}>
              <th scope="row" class="name">
                <a href={to("topic", topic.name)}>{topic.name === "" ? "(empty name)" : topic.name}</a>
              </th>
              <td class="n">{exact(topic.subscribers)}</td>
              <td class="n">{exact(topic.messages)}</td>
              <td class="n">{bytes(topic.bytes)}</td>
              <td class="n">{topic.requested_s === null ? "never" : `${duration(topic.requested_s)} ago`}</td>
              <td>
                <code>{topic.rule}</code>
              </td>
              <td class="n">{topic.home}</td>
            </tr>
          ))}
        </Table>
        {page !== null && page.topics.length === 0 && <p class="hint">No topic here matches {filter}.</p>}
        <nav class="pages" aria-label="Pages of topics">
          <button type="button" class="quiet" disabled={cursors.length === 1} onClick={() => turn(cursors.slice(0, -1))}>
            Back
          </button>
          <span>Page {cursors.length}</span>
          <button type="button" class="quiet" disabled={next === null} onClick={() => turn([...cursors, next])}>
            Next
          </button>
        </nav>
      </section>
      {tail && <Tail of={{ filter }} />}
    </>
  );
}
