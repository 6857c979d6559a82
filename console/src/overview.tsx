/** The first view: connections, rates, latency, memory, and the load of each shard. */

import type { Disk, Shard, Stats } from "./api";
import { Chart } from "./chart";
import { Nodes } from "./cluster";
import { bytes, count, duration, exact, many, micros, percent, rate } from "./format";
import { LimitRows, nearest } from "./limits";
import { Meter, Table } from "./parts";
import { FirstSteps, Refusals, Server } from "./server";
import type { State } from "./store";
import { transport } from "./transports";

export function Overview({ state, stats }: { state: State; stats: Stats }) {
  const { history: h } = state;
  const theme = `${state.theme} ${matchMedia("(prefers-color-scheme: dark)").matches}`;
  const common = { time: h.time, theme };
  return (
    <>
      {stats.messages.in_total === 0 && stats.topics === 0 && <FirstSteps stats={stats} />}
      <Tiles stats={stats} />
      <div class="charts">
        <Chart
          {...common}
          title="Connections"
          unit="by transport"
          least={10}
          format={count}
          lines={[
            { label: "WebSocket", color: "--c1", values: h.websocket },
            { label: "SSE", color: "--c2", values: h.sse },
            { label: "long-poll", color: "--c3", values: h.longpoll },
            { label: "MQTT", color: "--c4", values: h.mqtt },
            { label: "Centrifugo", color: "--c5", values: h.centrifugo },
          ]}
        />
        <Chart
          {...common}
          title="Latency"
          unit="from publish to write"
          least={10_000}
          log
          format={micros}
          lines={[
            { label: "p50", color: "--c1", values: h.p50 },
            { label: "p99", color: "--c2", values: h.p99 },
            { label: "p99.9", color: "--c4", values: h.p999 },
          ]}
        />
        <Chart
          {...common}
          title="Messages in"
          unit="published a second"
          least={10}
          format={rate}
          lines={[{ label: "in", color: "--c1", values: h.in }]}
        />
        <Chart
          {...common}
          title="Messages out"
          unit="delivered a second"
          least={10}
          format={rate}
          lines={[{ label: "out", color: "--c2", values: h.out }]}
        />
      </div>
      {stats.cluster !== null && <Nodes />}
      <Shards shards={stats.shards} />
      <Refusals stats={stats} />
      <section class="panel" aria-labelledby="near">
        <h2 id="near">Nearest limits</h2>
        <LimitRows limits={nearest(stats.limits).slice(0, 3)} />
        <p class="more">
          <a href="#/limits">All limits</a>
        </p>
      </section>
      <Server stats={stats} />
    </>
  );
}

function Tiles({ stats }: { stats: Stats }) {
  const by = Object.entries(stats.connections.by_transport).filter(([, n]) => n > 0);
  const memory = stats.memory;
  return (
    <dl class="tiles">
      <Tile name="Connections" value={count(stats.connections.total)} id="connections">
        {by.length === 0 ? "no client is connected" : by.map(([name, n]) => `${count(n)} ${transport(name)}`).join(" · ")}
      </Tile>
      <Tile name="Messages in" value={`${rate(stats.messages.in_per_s)}/s`} id="in">
        {bytes(stats.messages.in_bytes_per_s)}/s · {count(stats.messages.in_total)} since start
      </Tile>
      <Tile name="Messages out" value={`${rate(stats.messages.out_per_s)}/s`} id="out">
        {bytes(stats.messages.out_bytes_per_s)}/s · {count(stats.messages.out_total)} since start
      </Tile>
      <Tile name="Latency p99" value={micros(stats.latency_us.p99)} id="p99">
        {stats.latency_us.count === 0 ? (stats.messages.out_total === 0 ? "no delivery yet" : "no delivery in the last second") : `p50 ${micros(stats.latency_us.p50)} · max ${micros(stats.latency_us.max)}`}
      </Tile>
      <Tile name="Memory a connection" value={bytes(memory.per_connection_bytes)} id="memory">
        {memory.per_connection_bytes === null ? "shown from 1,000 connections on" : "with logs and topics, without the kernel"}
      </Tile>
      <Tile name="Memory" value={bytes(memory.pss_bytes)} id="pss">
        {bytes(stats.log.bytes)} in logs · {many(stats.topics, "topic")}
      </Tile>
      <Tile name="Slow consumers" value={count(stats.slow.consumers)} id="slow" alarm={stats.slow.consumers > 0}>
        {bytes(stats.slow.outbox_bytes)} waiting · {many(stats.slow.gaps_total, "gap")} since start
      </Tile>
      {stats.disk !== null && <DiskTiles disk={stats.disk} live={stats.log.bytes} />}
      <Tile name="Up for" value={duration(stats.uptime_s)} id="uptime">
        {rate(stats.accepts_per_s)} opened/s · {rate(stats.closes_per_s)} closed/s
      </Tile>
    </dl>
  );
}

function DiskTiles({ disk, live }: { disk: Disk; live: number }) {
  const sync = disk.sync_us_p99 === null ? null : disk.sync_us_mean;
  return (
    <>
      <Tile name="Sync to disk" value={micros(sync)} id="sync">
        {sync === null
          ? "nothing written yet"
          : `p99 below ${micros(disk.sync_us_p99)} · ${rate(disk.syncs_per_s)}/s · ${rate(disk.batches_per_sync)} batches each`}
      </Tile>
      <Tile name="On disk" value={bytes(disk.log_bytes + disk.base_bytes)} id="disk" alarm={disk.full}>
        {disk.full ? "full: publishes are refused" : `${bytes(live)} live · read in ${micros(disk.recovery_s * 1e6)} at the start`}
      </Tile>
    </>
  );
}

interface TileProps {
  name: string;
  value: string;
  id: string;
  alarm?: boolean;
  children: preact.ComponentChildren;
}

function Tile({ name, value, id, alarm, children }: TileProps) {
  return (
    <div class={alarm === true ? "tile alarm" : "tile"} data-tile={id}>
      <dt>{name}</dt>
      <dd class="value">{value}</dd>
      <dd class="note">{children}</dd>
    </div>
  );
}

function Shards({ shards }: { shards: Shard[] }) {
  return (
    <section class="panel" aria-labelledby="shards">
      <h2 id="shards">Shards</h2>
      <Table
        label="Shards"
        heads={["Shard", "Load", "#Connections", "#Topics", "#In/s", "#Out/s", "#Turn mean", "#Turn max", "#Logs", "#Waiting"]}
        rows={shards.map((shard) => ({
          key: shard.id,
          cells: [
            `Shard ${shard.id}`,
            <Meter share={shard.load} label={`Load of shard ${shard.id}`} text={percent(shard.load)} />,
            exact(shard.connections),
            exact(shard.topics),
            rate(shard.in_per_s),
            rate(shard.out_per_s),
            micros(shard.turn_us_mean),
            micros(shard.turn_us_max),
            bytes(shard.log_bytes),
            bytes(shard.outbox_bytes),
          ],
        }))}
      />
    </section>
  );
}
