/** The list of topics: by filter, by name, a page at a time. */

import { useEffect, useState } from "preact/hooks";
import { bytes, duration, exact } from "./format";
import { Breaking, ForeignWildcards, Table, Trouble } from "./parts";
import { EVERY_MS, readRows, usePolled } from "./poll";
import { to } from "./route";
import { Tail } from "./tail";
import { useApi, useStore } from "./store";

const PAGE = 50;
/** The server knows no order of names: so many are read at once and sorted here. */
const SORTED_MAX = 1_000;
const byName = new Intl.Collator("en", { numeric: true });

export function Topics({ filter }: { filter: string }) {
  const api = useApi();
  const [typed, type] = useState(filter);
  /** The cursor of each thousand until the one that is shown. */
  const [cursors, turn] = useState<(string | null)[]>([null]);
  /** The page within it. */
  const [at, leaf] = useState(0);
  const [tail, follow] = useState(false);

  useEffect(() => {
    type(filter);
    turn([null]);
    leaf(0);
    follow(false);
  }, [filter]);

  const { got, error, now } = usePolled(
    (gone) => readRows((cursor, limit) => api.topics(filter, cursor, limit), cursors.at(-1) ?? null, SORTED_MAX, gone),
    // A list of one page is small enough to be read again and again.
    ({ rows, answers }) => (rows.length <= PAGE && answers === 1 ? EVERY_MS : 0),
    [api, filter, cursors],
  );
  const wrong = error?.status === 400;
  const sorted = got && { ...got, rows: [...got.rows].sort((a, b) => byName.compare(a.name, b.name)) };
  const next = sorted?.next ?? null;
  const leaves = Math.max(1, Math.ceil((sorted?.rows.length ?? 0) / PAGE));
  const shown = sorted?.rows.slice(at * PAGE, (at + 1) * PAGE);
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
          <button type="button" class="quiet" onClick={now}>
            Reload
          </button>
          <button type="button" class="quiet" aria-pressed={tail} onClick={() => follow(!tail)}>
            Live tail
          </button>
        </form>
        <p class="hint" id="filter-hint">
          A name, or a filter: <code>+</code> matches one level, <code>#</code> at the end all levels that follow. <code>scores/+/live</code>,{" "}
          <code>news/#</code>. The server's own topics: <code>$SYS/#</code>.
        </p>
        {error !== null && <Trouble>{error.message}</Trouble>}
        {shown !== undefined && shown.length > 0 && (
          <Table
            label="Topics"
            heads={["*Topic", "#Subscribers", "#Messages kept", "#Bytes", "~Last request", "Rule", "~Home shard"]}
            rows={shown.map((topic) => ({
              key: topic.name,
              cells: [
                <a href={to("topic", topic.name)}>
                  <Breaking>{topic.name === "" ? "(empty name)" : topic.name}</Breaking>
                </a>,
                exact(topic.subscribers),
                exact(topic.messages),
                bytes(topic.bytes),
                topic.requested_s === null ? "never" : `${duration(topic.requested_s)} ago`,
                topic.built_in_rule ? "built-in" : <code>{topic.rule}</code>,
                exact(topic.home),
              ],
            }))}
          />
        )}
        {sorted !== null && sorted.rows.length === 0 && <Nothing filter={filter} />}
        <ForeignWildcards filter={filter} show={(meant) => (location.hash = to("topics", meant))} />
        <ByFilter />
        {(next !== null || cursors.length > 1) && (
          <p class="hint">There are many topics. The list shows them in parts of a thousand, each sorted by name. Use a narrower filter to find one.</p>
        )}
        <nav class="pages" aria-label="Pages of topics">
          <button type="button" class="quiet" disabled={cursors.length === 1 && at === 0} onClick={back}>
            Back
          </button>
          <span>
            Page {at + 1} of {leaves}
            {cursors.length > 1 && `, part ${cursors.length}`}
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

/** How to make a first topic; where the filter is a name, that one. */
function Nothing({ filter }: { filter: string }) {
  const name = !/[+#]/.test(filter);
  return (
    <p class="hint">
      {filter === "#" ? "There are no topics yet. " : <>No topic matches <code>{filter}</code>. </>}
      {name ? <a href={to("topic", filter)}>Publish to {filter}</a> : "The first message to a topic creates it. To publish here, enter the topic's name above."}
    </p>
  );
}

/** That subscribers by filter are not in the column of subscribers, where there are some. */
export function ByFilter() {
  const { stats } = useStore();
  if (stats === null || stats.filters === 0) return null;
  return (
    <p class="hint">
      Some clients subscribe by filter, such as <code>news/#</code>. The subscribers of a topic are counted without them;{" "}
      <a href={to("connections")}>Connections</a> shows them.
    </p>
  );
}
