/** The list of topics: by filter, by name, a page at a time. */

import { useEffect, useState } from "preact/hooks";
import type { ApiError, Topic } from "./api";
import { bytes, duration, exact } from "./format";
import { Breaking, Table, Trouble } from "./parts";
import { to } from "./route";
import { Tail } from "./tail";
import { useApi, useStore } from "./store";

const PAGE = 50;
/** The server knows no order of names: so many are read at once and sorted here. */
const SORTED_MAX = 1_000;
/** It looks through a bounded part of its tables for each answer, so that answers may come short or empty: that many are asked for. */
const ANSWERS_MAX = 100;

const byName = new Intl.Collator("en", { numeric: true });

interface Sorted {
  topics: Topic[];
  /** Where the server goes on. */
  next: string | null;
}

export function Topics({ filter }: { filter: string }) {
  const api = useApi();
  const [typed, type] = useState(filter);
  /** The cursor of each thousand until the one that is shown. */
  const [cursors, turn] = useState<(string | null)[]>([null]);
  /** The page within it. */
  const [at, leaf] = useState(0);
  const [sorted, show] = useState<Sorted | null>(null);
  const [trouble, say] = useState("");
  /** The filter is none. */
  const [wrong, judge] = useState(false);
  const [tail, follow] = useState(false);
  const [again, reload] = useState(0);

  useEffect(() => {
    type(filter);
    turn([null]);
    leaf(0);
    follow(false);
  }, [filter]);

  useEffect(() => {
    let gone = false;
    const read = async () => {
      const got: Sorted = { topics: [], next: cursors.at(-1) ?? null };
      for (let i = 0; i < ANSWERS_MAX && got.topics.length < SORTED_MAX && !gone; i++) {
        const more = await api.topics(filter, got.next, SORTED_MAX - got.topics.length);
        got.topics.push(...more.topics);
        got.next = more.next;
        if (more.next === null) break;
      }
      got.topics.sort((a, b) => byName.compare(a.name, b.name));
      return got;
    };
    read().then(
      (got) => {
        if (gone) return;
        show(got);
        say("");
        judge(false);
      },
      (error: ApiError) => {
        if (gone) return;
        say(error.message);
        judge(error.status === 400);
        if (error.status === 400) show(null);
      },
    );
    return () => {
      gone = true;
    };
  }, [api, filter, cursors, again]);

  const next = sorted?.next ?? null;
  const leaves = Math.max(1, Math.ceil((sorted?.topics.length ?? 0) / PAGE));
  const shown = sorted?.topics.slice(at * PAGE, (at + 1) * PAGE);
  const forth = () => {
    if (at + 1 < leaves) return leaf(at + 1);
    turn([...cursors, next]);
    leaf(0);
  };
  const back = () => {
    if (at > 0) return leaf(at - 1);
    turn(cursors.slice(0, -1));
    leaf(0);
  };
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
          <code>+</code> is any one level, <code>#</code> at the end all that follow: <code>scores/+/live</code>, <code>news/#</code>; the server's own
          topics: <code>$SYS/#</code>
        </p>
        {trouble !== "" && <Trouble>{trouble}</Trouble>}
        <Table label="Topics" heads={["Topic", "#Subscribers by name", "#Messages", "#Bytes", "#Last asked", "Rule", "#Home"]}>
          {shown?.map((topic) => (
            <tr key={topic.name}>
              <th scope="row" class="name">
                <a href={to("topic", topic.name)}>
                  <Breaking>{topic.name === "" ? "(empty name)" : topic.name}</Breaking>
                </a>
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
        {sorted !== null && sorted.topics.length === 0 && <Nothing filter={filter} />}
        <ByFilter />
        {(next !== null || cursors.length > 1) && (
          <p class="hint">There are many: they come by the thousand, as the server finds them, and each thousand is sorted. A narrower filter finds one sooner.</p>
        )}
        <nav class="pages" aria-label="Pages of topics">
          <button type="button" class="quiet" disabled={cursors.length === 1 && at === 0} onClick={back}>
            Back
          </button>
          <span>
            Page {at + 1} of {leaves}
            {cursors.length > 1 && `, thousand ${cursors.length}`}
          </span>
          <button type="button" class="quiet" disabled={next === null && at + 1 >= leaves} onClick={forth}>
            Next
          </button>
        </nav>
      </section>
      {tail && !wrong && <Tail of={{ filter }} />}
    </>
  );
}

/** A topic is made by its first message: from here, where the filter is a name. */
function Nothing({ filter }: { filter: string }) {
  const name = !/[+#]/.test(filter);
  return (
    <p class="hint">
      No topic matches <code>{filter}</code>.{" "}
      {name ? <a href={to("topic", filter)}>Publish to {filter}</a> : "The first message makes a topic: type its name as the filter to publish to it."}
    </p>
  );
}

/** What the column of subscribers leaves out, where there is something. */
export function ByFilter() {
  const { stats } = useStore();
  if (stats === null || stats.filters === 0) return null;
  return (
    <p class="hint">
      Some clients subscribe by filter, such as <code>news/#</code>. They are not counted by name; <a href={to("connections")}>Connections</a> shows them.
    </p>
  );
}
