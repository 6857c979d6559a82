/** One connection: its protocol and state, all that it subscribes to, and a button that ends it. */

import { useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import type { ApiError, Connection } from "./api";
import { bytes, duration, exact, moment } from "./format";
import { Breaking, Facts, NONE, Question, Table, Trouble } from "./parts";
import { EVERY_MS, usePolled } from "./poll";
import { to } from "./route";
import { useApi } from "./store";
import { subscriptionsOf, type Listed } from "./subscriptions";
import { protocol } from "./transports";

/** The session expiry of a client that asked for one without end. */
const FOREVER_S = 4294967295;

export function ConnectionView({ id }: { id: string }) {
  const api = useApi();
  const { got, error, now } = usePolled(() => api.connection(id), () => EVERY_MS, [api, id]);
  const [asking, ask] = useState(false);
  const [trouble, complain] = useState("");
  const gone = error?.status === 404;
  const end = () => api.disconnect(id).then(now, (error: ApiError) => (error.status === 404 ? now() : complain(error.message)));
  return (
    <>
      <p class="crumbs">
        <a href={to("connections")}>Connections</a> / <strong>{id}</strong>
      </p>
      <section class="panel connection" aria-label={`Connection ${id}`}>
        {gone && <p class="hint">There is no such connection: it has ended.</p>}
        {!gone && error !== null && <Trouble>{error.message}</Trouble>}
        {trouble !== "" && <Trouble>{trouble}</Trouble>}
        {got !== null && !gone && (
          <>
            <Facts of={facts(got)} />
            <Subscriptions of={got} />
            {asking && (
              <Question
                label="Disconnect this connection?"
                yes="Disconnect it"
                no="Leave it"
                answer={(sure) => {
                  ask(false);
                  if (sure) void end();
                }}
              >
                End the connection {id}? Its client may connect again at once.
              </Question>
            )}
            <p class="row">
              <button type="button" class="quiet" onClick={() => ask(true)}>
                Disconnect
              </button>
            </p>
          </>
        )}
      </section>
    </>
  );
}

function facts(of: Connection): [string, ComponentChildren][] {
  const all: [string, ComponentChildren][] = [
    ["Protocol", of.mqtt === null ? protocol(of) : `${protocol(of)} ${of.mqtt.version}`],
    ["TLS", of.tls ? "yes" : "not at this server"],
    ["Address", of.address ?? NONE],
    ["User", of.user ?? NONE],
    ["Connected since", moment(of.connected_unix_s * 1000)],
    ["State", of.behind ? "reads from the log" : of.state],
    ["Waiting for its socket", bytes(of.outbox_bytes)],
    ["Silent for", duration(of.silent_s)],
    ["Shard", String(of.shard)],
  ];
  const { mqtt } = of;
  if (mqtt !== null) {
    all.push(
      ["Client id", of.client_id === null ? NONE : <Breaking>{of.client_id}</Breaking>],
      ["Keep alive", mqtt.keep_alive_s === 0 ? "none" : duration(mqtt.keep_alive_s)],
      ["In flight", `${exact(mqtt.in_flight)} of ${exact(mqtt.in_flight_max)}`],
      ["Waiting behind them", exact(mqtt.waiting)],
      ["Session after its end", mqtt.session_expiry_s === FOREVER_S ? "without end" : mqtt.session_expiry_s === 0 ? "none" : duration(mqtt.session_expiry_s)],
    );
  }
  return all;
}

function Subscriptions({ of }: { of: Connection }) {
  const all = subscriptionsOf(of);
  if (all.length === 0) return <p class="hint">It subscribes to nothing.</p>;
  const name = ({ name, isTopic }: Listed) =>
    isTopic ? (
      <a href={to("topic", name)}>
        <Breaking>{name}</Breaking>
      </a>
    ) : (
      <code>
        <Breaking>{name}</Breaking>
      </code>
    );
  const heads = ["*Subscribes to", "Kind", ...(of.mqtt === null ? [] : ["#QoS"])];
  const rows = all.map((one) => ({
    key: `${one.kind} ${one.name}`,
    cells: [name(one), one.kind, ...(one.qos === null ? [] : [String(one.qos)])],
  }));
  return <Table label="Subscriptions" heads={heads} rows={rows} />;
}
