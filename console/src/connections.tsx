/** Connections: who is connected, a page at a time, by topic, user, address and transport; and their end. */

import { useEffect, useState } from "preact/hooks";
import type { ApiError, Connection, Which } from "./api";
import { bytes, duration, exact, many } from "./format";
import { Breaking, Question, Table, Trouble } from "./parts";
import { to } from "./route";
import { useApi } from "./store";
import { TRANSPORTS, transport } from "./transports";

const PAGE = 50;
/** The server looks through a bounded part of its tables for each answer, so that answers may come short or empty: that many are asked for. */
const ANSWERS_MAX = 100;
const NOBODY: Which = { filter: "", user: "", address: "", transport: "" };

interface Page {
  connections: Connection[];
  next: string | null;
}

/** Without the fields that are empty. */
const given = (which: Which): Which => Object.fromEntries(Object.entries(which).filter(([, value]) => value.trim() !== ""));

export function Connections() {
  const api = useApi();
  const [typed, type] = useState(NOBODY);
  const [which, choose] = useState<Which>({});
  /** The cursor of each page until the one that is shown. */
  const [cursors, turn] = useState<(string | null)[]>([null]);
  const [page, show] = useState<Page | null>(null);
  const [asking, ask] = useState(false);
  const [said, say] = useState("");
  const [trouble, complain] = useState("");
  const [again, reload] = useState(0);

  useEffect(() => {
    let gone = false;
    const read = async () => {
      const got: Page = { connections: [], next: cursors.at(-1) ?? null };
      for (let i = 0; i < ANSWERS_MAX && got.connections.length < PAGE && !gone; i++) {
        const more = await api.connections(which, got.next, PAGE - got.connections.length);
        got.connections.push(...more.connections);
        got.next = more.next;
        if (more.next === null) break;
      }
      return got;
    };
    read().then(
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
  }, [api, which, cursors, again]);

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
      say(`${many(disconnected, "connection")} ended.`);
      search(which);
    } catch (error) {
      complain((error as ApiError).message);
    }
  };
  const some = Object.keys(which).length > 0;
  const next = page?.next ?? null;
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
        <button type="button" class="quiet" disabled={!some || page?.connections.length === 0} onClick={() => ask(true)}>
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
          ? Clients may come back at once.
        </Question>
      )}
      <p class="hint" role="status">
        {said}
      </p>
      {trouble !== "" && <Trouble>{trouble}</Trouble>}
      <ConnectionTable label="Connections" connections={page?.connections ?? []} ended={() => reload(again + 1)} complain={complain} />
      {page?.connections.length === 0 && <p class="hint">{some ? "No connection is like this." : "Nobody is connected."}</p>}
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
  const disconnect = (id: string) =>
    api.disconnect(id).then(ended, (error: ApiError) => (error.status === 404 ? ended() : complain(error.message)));
  return (
    <Table label={label} heads={["Connection", "Transport", "Address", "User, client id", "Topics", "#Waiting", "State", "#Silent for", "Action"]}>
      {connections.map((one) => (
        <tr key={one.id}>
          <th scope="row">
            <code>{one.id}</code>
          </th>
          <td>{transport(one.transport)}</td>
          <td>{one.address ?? "\u2013"}</td>
          <td>
            {one.user ?? "\u2013"}
            {one.client_id && (
              <>
                {" "}
                <code>{one.client_id}</code>
              </>
            )}
          </td>
          <td class="name">
            {one.topics.slice(0, 3).map((name, i) => (
              <>
                {i > 0 && ", "}
                <a href={to("topic", name)}>
                  <Breaking>{name}</Breaking>
                </a>
              </>
            ))}
            {one.topic_count > 3 && ` and ${exact(one.topic_count - 3)} more`}
            {one.filters.slice(0, 3).map((filter) => (
              <code key={filter}> {filter}</code>
            ))}
          </td>
          <td class="n">{bytes(one.outbox_bytes)}</td>
          <td>{one.behind ? "reads from the log" : one.state}</td>
          <td class="n">{duration(one.silent_s)}</td>
          <td>
            <button type="button" class="quiet" aria-label={`Disconnect ${one.id}`} onClick={() => void disconnect(one.id)}>
              Disconnect
            </button>
          </td>
        </tr>
      ))}
    </Table>
  );
}
