/** One topic: its info, a live tail, a box to publish, and what is kept. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, type Message, type Topic } from "./api";
import { bytes, duration, exact } from "./format";
import { Kept } from "./kept";
import { Breaking, Trouble } from "./parts";
import { to } from "./route";
import { useApi } from "./store";
import { Tail } from "./tail";
import { ByFilter } from "./topics";

/** How often the info is asked for. */
const EVERY_MS = 2_000;

export function TopicView({ name }: { name: string }) {
  const { info, trouble, wrong, ask } = useInfo(name);
  return (
    <>
      <p class="crumbs">
        <a href={to("topics")}>Topics</a> /{" "}
        <strong>
          <Breaking>{name}</Breaking>
        </strong>
      </p>
      <Info name={name} info={info} trouble={trouble} />
      {!wrong && (
        <>
          <div class="columns">
            <Tail of={{ topic: name }} came={ask} />
            <Publish key={name} topic={name} />
          </div>
          <Kept name={name} info={info} />
        </>
      )}
    </>
  );
}

/** How the topic stands, asked for again and again; none while it does not exist. `wrong`: the name is none, and asking again would not help. */
function useInfo(name: string): { info: Topic | null; trouble: string; wrong: boolean; ask: () => void } {
  const api = useApi();
  const [info, show] = useState<Topic | null>(null);
  const [trouble, say] = useState("");
  const [wrong, judge] = useState(false);
  const now = useRef(() => {});

  useEffect(() => {
    let timer = 0;
    let gone = false;
    const ask = async () => {
      try {
        const got = document.hidden ? null : await api.topic(name);
        if (got !== null && !gone) {
          show(got);
          say("");
        }
      } catch (error) {
        if (gone) return;
        const { status, message } = error as ApiError;
        show(null);
        say(status === 404 ? "" : message);
        judge(status === 400);
        if (status === 400) return;
      }
      if (!gone) timer = window.setTimeout(() => void ask(), EVERY_MS);
    };
    now.current = () => {
      clearTimeout(timer);
      void ask();
    };
    show(null);
    judge(false);
    void ask();
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [api, name]);
  return { info, trouble, wrong, ask: () => now.current() };
}

function Info({ name, info, trouble }: { name: string; info: Topic | null; trouble: string }) {
  const facts: [string, string][] = info === null ? [] : [
    ["Subscribers by name", subscribers(info)],
    ["Messages kept", exact(info.messages)],
    ["Bytes", bytes(info.bytes)],
    ["Newest offset", exact(info.offset)],
    ["Last asked", info.requested_s === null ? "never" : `${duration(info.requested_s)} ago`],
    ["Rule", info.rule],
    ["Home shard", String(info.home)],
  ];
  return (
    <section class="panel" aria-label={`Info of ${name}`}>
      {trouble !== "" && <Trouble>{trouble}</Trouble>}
      {info === null && trouble === "" && <p class="hint">This topic does not exist yet: the first message or subscriber makes it.</p>}
      {info !== null && (
        <dl class="facts">
          {facts.map(([what, value]) => (
            <div key={what}>
              <dt>{what}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
      )}
      <ByFilter />
    </section>
  );
}

/** Here, and in a cluster at all nodes. */
function subscribers({ subscribers, cluster }: Topic): string {
  if (cluster === null || cluster === undefined) return exact(subscribers);
  const silent = cluster.unanswered.length === 0 ? "" : `, without ${cluster.unanswered.join(", ")}, which did not answer`;
  return `${exact(cluster.subscribers)} at all nodes, ${exact(subscribers)} here${silent}`;
}

const EMPTY = { data: "", content_type: "", event: "", key: "", ttl_s: "", retain: false };

function Publish({ topic }: { topic: string }) {
  const api = useApi();
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
      const done = await api.publish(message);
      const there = done.subscribers === 1 ? "1 subscriber is" : `${exact(done.subscribers)} subscribers are`;
      say(`Published at offset ${exact(done.offset)}; ${there} there (those by filter count one for each shard).`);
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
