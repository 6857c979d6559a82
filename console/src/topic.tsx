/** One topic: its info, a live tail, a box to publish, and what is kept. */

import { useRef, useState } from "preact/hooks";
import type { ApiError, Message, Topic } from "./api";
import { bytes, duration, exact } from "./format";
import { Kept } from "./kept";
import { Breaking, Facts, Trouble } from "./parts";
import { EVERY_MS, usePolled } from "./poll";
import { to } from "./route";
import { useApi, useStore } from "./store";
import { Tail, type Begin } from "./tail";
import { ByFilter } from "./topics";

export function TopicView({ name }: { name: string }) {
  const api = useApi();
  const { got, error, now } = usePolled(() => api.topic(name), () => EVERY_MS, [api, name]);
  const absent = error?.status === 404;
  const [begin, listen] = useBegin(got !== null, absent);
  const wrong = error?.status === 400;
  return (
    <>
      <p class="crumbs">
        <a href={to("topics")}>Topics</a> /{" "}
        <strong>
          <Breaking>{name}</Breaking>
        </strong>
      </p>
      <Info name={name} info={got} absent={absent} trouble={absent ? "" : (error?.message ?? "")} />
      {!wrong && (
        <>
          <div class="columns">
            <Tail of={{ topic: name }} begin={begin} listen={listen} came={now} />
            <Publish topic={name} done={now} />
          </div>
          <Kept name={name} info={got} />
        </>
      )}
    </>
  );
}

/**
 * Where the tail begins. A subscription would create the topic, and a wrong name in the address would leave a topic behind: so
 * the tail of a topic that does not exist waits until it does, and then begins with its first message. Once it has begun it stays.
 */
function useBegin(there: boolean, absent: boolean): [Begin, () => void] {
  const begin = useRef<Begin>("unknown");
  const [, draw] = useState(0);
  if (begin.current === "unknown" && absent) begin.current = "absent";
  if (begin.current === "unknown" && there) begin.current = "live";
  if (begin.current === "absent" && there) begin.current = "oldest";
  const listen = () => {
    begin.current = "oldest";
    draw((n) => n + 1);
  };
  return [begin.current, listen];
}

interface InfoProps {
  name: string;
  info: Topic | null;
  absent: boolean;
  trouble: string;
}

function Info({ name, info, absent, trouble }: InfoProps) {
  const facts: [string, string][] = info === null ? [] : [
    ["Subscribers", subscribers(info)],
    ["Messages kept", exact(info.messages)],
    ["Bytes", bytes(info.bytes)],
    ["Newest offset", exact(info.offset)],
    ["Last request", info.requested_s === null ? "never" : `${duration(info.requested_s)} ago`],
    ["Rule", info.built_in_rule ? "built-in" : info.rule],
    ["Home shard", String(info.home)],
  ];
  return (
    <section class="panel" aria-label={`Info of ${name}`}>
      {trouble !== "" && <Trouble>{trouble}</Trouble>}
      {absent && <p class="hint">This topic does not exist yet. The first message or the first subscriber creates it.</p>}
      {info !== null && (
        <Facts of={facts} />
      )}
      <ByFilter />
    </section>
  );
}

/** Subscribers at this node, and in a cluster at all nodes. */
function subscribers({ subscribers, cluster }: Topic): string {
  if (cluster === null || cluster === undefined) return exact(subscribers);
  const silent = cluster.unanswered.length === 0 ? "" : `; no answer from ${cluster.unanswered.join(", ")}`;
  return `${exact(cluster.subscribers)} at all nodes, ${exact(subscribers)} here${silent}`;
}

const EMPTY = { data: "", content_type: "", event: "", key: "", ttl_s: "", retain: false };

function Publish({ topic, done }: { topic: string; done: () => void }) {
  const api = useApi();
  const { stats } = useStore();
  const [form, fill] = useState(EMPTY);
  const [said, say] = useState("");
  const [trouble, complain] = useState("");
  const [busy, wait] = useState(false);
  const set = (change: Partial<typeof EMPTY>) => fill({ ...form, ...change });

  const publish = async () => {
    const message: Message = { topic, data: form.data };
    if (form.content_type !== "") message.content_type = form.content_type;
    if (form.event !== "") message.event = form.event;
    if (form.key !== "") message.key = form.key;
    if (form.ttl_s !== "") message.ttl_s = Number(form.ttl_s);
    if (form.retain) message.retain = true;
    wait(true);
    try {
      const { offset, subscribers } = await api.publish(message);
      const many = subscribers === 1 ? "1 subscriber" : `${exact(subscribers)} subscribers`;
      const filters = stats !== null && stats.filters > 0 ? " A subscribed filter counts once for each shard." : "";
      say(`Published at offset ${exact(offset)}, to ${many}.${filters}`);
      done();
      complain("");
    } catch (error) {
      say("");
      complain((error as ApiError).message);
    }
    wait(false);
  };

  return (
    <section class="panel" aria-labelledby="publish">
      <h2 id="publish">Publish</h2>
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void publish();
        }}
      >
        <label>
          <span>Message</span>
          <textarea
            name="data"
            rows={5}
            value={form.data}
            onInput={(event) => set({ data: event.currentTarget.value })}
            onKeyDown={(event) => {
              if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.currentTarget.form?.requestSubmit();
            }}
          />
        </label>
        <div class="pair">
          <label>
            <span>Content type</span>
            <input
              name="content_type"
              placeholder="none"
              value={form.content_type}
              onInput={(event) => set({ content_type: event.currentTarget.value })}
            />
          </label>
          <label>
            <span>Event</span>
            <input name="event" placeholder="none" value={form.event} onInput={(event) => set({ event: event.currentTarget.value })} />
          </label>
          <label>
            <span>Key</span>
            <input name="key" placeholder="none" value={form.key} onInput={(event) => set({ key: event.currentTarget.value })} />
          </label>
          <label>
            <span>Time to live, seconds</span>
            <input
              name="ttl_s"
              type="number"
              min={0}
              placeholder="as the rule says"
              value={form.ttl_s}
              onInput={(event) => set({ ttl_s: event.currentTarget.value })}
            />
          </label>
        </div>
        <div class="row">
          <label class="check">
            <input type="checkbox" name="retain" checked={form.retain} onChange={(event) => set({ retain: event.currentTarget.checked })} />
            Retain for new subscribers
          </label>
          <button type="submit" disabled={busy}>
            Publish
          </button>
        </div>
        <p class="hint" role="status">
          {said}
        </p>
        {trouble !== "" && <Trouble>{trouble}</Trouble>}
      </form>
    </section>
  );
}
