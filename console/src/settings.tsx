/** The settings that hold, each with where it was given, and the rules. Nothing is changed here: that is the file's. */

import { useState } from "preact/hooks";
import type { Config, Rules } from "./api";
import { bytes } from "./format";
import { Breaking, Table, Trouble } from "./parts";
import { usePolled } from "./poll";
import { useApi } from "./store";

/** The words for the sources that are no flags. */
const SOURCES: Record<string, string> = { default: "default", file: "file", host: "chosen by the server" };

export function Settings() {
  const api = useApi();
  const [wanted, want] = useState("");
  const [changed, limit] = useState(false);
  const { got, error, now } = usePolled(async () => ({ config: await api.config(), rules: await api.rules() }), () => 0, [api]);
  return (
    <>
      <section class="panel settings" aria-labelledby="settings">
        <h2 id="settings">Settings</h2>
        <form class="row" onSubmit={(event) => event.preventDefault()}>
          <label class="grow">
            <span>Part of a name or of its meaning</span>
            <input
              name="wanted"
              placeholder="any"
              value={wanted}
              onInput={(event) => want(event.currentTarget.value)}
              autocapitalize="off"
              autocomplete="off"
              spellcheck={false}
            />
          </label>
          <button type="button" class="quiet" aria-pressed={changed} onClick={() => limit(!changed)}>
            Only those that are set
          </button>
          <button type="button" class="quiet" onClick={now}>
            Refresh
          </button>
        </form>
        <p class="hint">
          {got === null ? "" : <From config={got.config} />} To change a setting, change the file and reload the server (the overview has a button), or restart
          it.
        </p>
        {error !== null && <Trouble>{error.message}</Trouble>}
        {got !== null && <Values config={got.config} wanted={wanted.trim().toLowerCase()} changed={changed} />}
      </section>
      {got !== null && <RuleList rules={got.rules} />}
    </>
  );
}

function From({ config }: { config: Config }) {
  if (config.source === null) return <>This server has no settings file: all is default or given by flags.</>;
  return (
    <>
      Read from{" "}
      <code>
        <Breaking>{config.source}</Breaking>
      </code>
      .
    </>
  );
}

function Values({ config, wanted, changed }: { config: Config; wanted: string; changed: boolean }) {
  const shown = config.settings.filter(
    ({ name, source, help }) =>
      (!changed || (source !== "default" && source !== "host")) && (wanted === "" || `${name} ${help}`.toLowerCase().includes(wanted)),
  );
  if (shown.length === 0) return <p class="hint">No setting matches.</p>;
  return (
    <Table
      label="Settings"
      heads={["*Setting", "*Value", "Source", "~Change needs", "*Meaning"]}
      rows={shown.map(({ name, value, source, restart, help }) => ({
        key: name,
        cells: [
          <code>
            <Breaking>{name}</Breaking>
          </code>,
          <code>{readable(name, value)}</code>,
          SOURCES[source] ?? <code>{source}</code>,
          restart ? "restart" : "reload",
          // A line does not end within a name such as X-Forwarded-For.
          help.replaceAll("-", "\u2011"),
        ],
      }))}
    />
  );
}

/** A value as the file has it; the server computes some sizes from the host, to the byte. */
function readable(name: string, value: string): string {
  const size = name.endsWith("_bytes") ? Number(value) : 0;
  return size >= 1024 ? bytes(size) : value;
}

function RuleList({ rules: { rules, default: standard } }: { rules: Rules }) {
  const differing = (rule: Record<string, unknown>) =>
    Object.entries(rule)
      .filter(([key, value]) => key !== "match" && JSON.stringify(value) !== JSON.stringify(standard[key]))
      .map(([key, value]) => `${key} = ${JSON.stringify(value)}`)
      .join(", ");
  const all = [
    ...rules.map((rule, at) => ({ key: at, filter: String(rule["match"]), text: differing(rule) || "as the built-in rule" })),
    { key: -1, filter: "all other topics", text: "the built-in rule" },
  ];
  return (
    <section class="panel rules" aria-labelledby="rules">
      <h2 id="rules">
        Rules <small>the first that matches a topic governs it</small>
      </h2>
      <Table
        label="Rules"
        heads={["*match", "*Differs from the built-in rule"]}
        rows={all.map(({ key, filter, text }) => ({ key, cells: [key < 0 ? filter : <code>{filter}</code>, key < 0 ? text : <code>{text}</code>] }))}
      />
    </section>
  );
}
