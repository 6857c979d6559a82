/** Connections by topic, user, address and transport, a page at a time, with buttons that end them. */

import { Fragment } from "preact";
import { useState } from "preact/hooks";
import type { ApiError, Connection, Which } from "./api";
import { bytes, duration, exact, many } from "./format";
import { Breaking, ForeignWildcards, NONE, Question, Table, Trouble } from "./parts";
import { to } from "./route";
import { EVERY_MS, readRows, usePolled } from "./poll";
import { useApi } from "./store";
import { TRANSPORTS, protocol } from "./transports";

const PAGE = 50;
/** A row is a card there. */
const NARROW = "(max-width: 560px)";
const NARROW_PAGE = 20;
/** How many topics and how many filters of a connection are named. */
const SHOWN_TOPICS = 3;
const ANY: Which = { filter: "", user: "", address: "", transport: "" };

/** Without the fields that are empty. */
const given = (which: Which): Which => Object.fromEntries(Object.entries(which).filter(([, value]) => value.trim() !== ""));

export function Connections() {
  const api = useApi();
  const [typed, type] = useState(ANY);
  const [which, choose] = useState<Which>({});
  /** The cursor of each page until the one that is shown. */
  const [cursors, turn] = useState<(string | null)[]>([null]);
  const [asking, ask] = useState(false);
  const [said, say] = useState("");
  const [trouble, complain] = useState("");
  const page = matchMedia(NARROW).matches ? NARROW_PAGE : PAGE;
  const { got, error, now } = usePolled(
    (gone) => readRows((cursor, limit) => api.connections(which, cursor, limit), cursors.at(-1) ?? null, page, gone),
    // A search through the whole table is repeated only when it is asked for.
    ({ answers }) => (answers === 1 ? EVERY_MS : 0),
    [api, which, cursors],
  );

  const search = (next: Which) => {
    choose(given(next));
    turn([null]);
    ask(false);
    say("");
  };
  const set = (change: Which) => type({ ...typed, ...change });
  const endAll = async () => {
    ask(false);
    try {
      const { disconnected } = await api.disconnectAll(which);
      search(which);
      say(`${many(disconnected, "connection")} ended.`);
    } catch (error) {
      complain((error as ApiError).message);
    }
  };
  const some = Object.keys(which).length > 0;
  const next = got?.next ?? null;
  const none = got !== null && got.rows.length === 0;
  return (
    <section class="panel connections" aria-labelledby="connections">
      <h2 id="connections">Connections</h2>
      <form
        class="row"
        onSubmit={(event) => {
          event.preventDefault();
          search(typed);
        }}
      >
        <Field name="filter" label="Topic or filter" value={typed.filter ?? ""} set={set} />
        <Field name="user" label="User" value={typed.user ?? ""} set={set} />
        <Field name="address" label="Address" value={typed.address ?? ""} set={set} />
        <label>
          <span>Transport</span>
          <select name="transport" value={typed.transport} onChange={(event) => set({ transport: event.currentTarget.value })}>
            <option value="">any</option>
            {Object.entries(TRANSPORTS).map(([value, name]) => (
              <option key={value} value={value}>
                {name}
              </option>
            ))}
          </select>
        </label>
        <button type="submit">Show</button>
        <button type="button" class="quiet" onClick={now}>
          Reload
        </button>
        <button type="button" class="quiet" disabled={!some || none} onClick={() => ask(true)}>
          Disconnect these
        </button>
      </form>
      {asking && (
        <Question
          label="Disconnect these connections?"
          yes="Disconnect them"
          no="Leave them"
          answer={(sure) => (sure ? void endAll() : ask(false))}
        >
          End all connections with{" "}
          {Object.entries(which)
            .map(([name, value]) => `${name} ${value}`)
            .join(" and ")}
          ? Clients may connect again at once.
        </Question>
      )}
      <p class="hint" role="status">
        {said}
      </p>
      {trouble !== "" && <Trouble>{trouble}</Trouble>}
      {error !== null && <Trouble>{error.message}</Trouble>}
      {got !== null && !none && <ConnectionTable label="Connections" connections={got.rows} ended={now} complain={complain} />}
      {none && <p class="hint">{some ? "No connection matches." : "No client is connected."}</p>}
      <ForeignWildcards
        filter={which.filter ?? ""}
        show={(filter) => {
          set({ filter });
          search({ ...which, filter });
        }}
      />
      {(cursors.length > 1 || next !== null) && (
        <nav class="pages" aria-label="Pages of connections">
          <button type="button" class="quiet" disabled={cursors.length === 1} onClick={() => turn(cursors.slice(0, -1))}>
            Back
          </button>
          <span>Page {cursors.length}</span>
          <button type="button" class="quiet" disabled={next === null} onClick={() => turn([...cursors, next])}>
            Next
          </button>
        </nav>
      )}
    </section>
  );
}

interface FieldProps {
  name: keyof Which;
  label: string;
  value: string;
  set: (change: Which) => void;
}

function Field({ name, label, value, set }: FieldProps) {
  return (
    <label class="grow">
      <span>{label}</span>
      <input
        name={name}
        placeholder="any"
        value={value}
        onInput={(event) => set({ [name]: event.currentTarget.value })}
        autocapitalize="off"
        autocomplete="off"
        spellcheck={false}
      />
    </label>
  );
}

interface TableProps {
  label: string;
  connections: Connection[];
  /** One was ended, or was gone already. */
  ended: () => void;
  complain: (why: string) => void;
}

/** Connections, each with a button that ends it. */
export function ConnectionTable({ label, connections, ended, complain }: TableProps) {
  const api = useApi();
  const [asked, ask] = useState<Connection | null>(null);
  const disconnect = (id: string) =>
    api.disconnect(id).then(ended, (error: ApiError) => (error.status === 404 ? ended() : complain(error.message)));
  const answer = (sure: boolean) => {
    ask(null);
    if (sure && asked !== null) void disconnect(asked.id);
  };
  return (
    <>
      {asked !== null && (
        <Question label="Disconnect this connection?" yes="Disconnect it" no="Leave it" answer={answer}>
          End the connection {asked.id} ({[protocol(asked), asked.address].filter(Boolean).join(", ")})? Its client may connect again at once.
        </Question>
      )}
      <Table
        label={label}
        heads={["Connection", "Transport", "Address", "User, client id", "*Topics", "#Waiting", "~State", "~Silent for", "Action"]}
        rows={connections.map((one) => ({
          key: one.id,
          cells: [
            <a href={to("connection", one.id)}>
              <code>{one.id}</code>
            </a>,
            protocol(one),
            one.address ?? NONE,
            one.user === null && !one.client_id ? NONE : <Client of={one} />,
            one.topic_count === 0 && one.filters.length === 0 ? NONE : <Subscribed by={one} />,
            one.outbox_bytes === 0 ? NONE : bytes(one.outbox_bytes),
            one.behind ? "reads from the log" : one.state,
            duration(one.silent_s),
            <button type="button" class="quiet" aria-label={`Disconnect ${one.id}`} onClick={() => ask(one)}>
              Disconnect
            </button>,
          ],
        }))}
      />
    </>
  );
}

function Client({ of }: { of: Connection }) {
  return (
    <>
      {of.user} {of.client_id && <code>{of.client_id}</code>}
    </>
  );
}

/** The first of its topics and filters. */
function Subscribed({ by }: { by: Connection }) {
  return (
    <>
      {by.topics.slice(0, SHOWN_TOPICS).map((name, i) => (
        <Fragment key={name}>
          {i > 0 && ", "}
          <a href={to("topic", name)}>
            <Breaking>{name}</Breaking>
          </a>
        </Fragment>
      ))}
      {by.topic_count > SHOWN_TOPICS && ` and ${exact(by.topic_count - SHOWN_TOPICS)} more`}
      {by.filters.slice(0, SHOWN_TOPICS).map((filter) => (
        <code key={filter}> {filter}</code>
      ))}
    </>
  );
}
