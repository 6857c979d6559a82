/** Numbers as people read them. Units are part of the text. A value that is not known is a dash. */

const DASH = "\u2013";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

type Known = number | null | undefined;

const known = (value: Known): value is number => typeof value === "number" && Number.isFinite(value);

const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** 12,345; from a million on 1.23 M, from a billion on 1.23 bn. Never a part of one. */
export function count(value: Known): string {
  if (!known(value)) return DASH;
  if (Math.abs(value) >= 1e9) return `${three(value / 1e9)} bn`;
  if (Math.abs(value) >= 1e6) return `${three(value / 1e6)} M`;
  return whole.format(value);
}

/** So many a second, without the unit: a count, and below ten with a tenth where there is one. */
export function rate(value: Known): string {
  return known(value) && Math.abs(value) < 10 ? tenths.format(value) : count(value);
}

/** 1 topic, 2 topics. */
export function many(value: number, what: string): string {
  return `${count(value)} ${what}${value === 1 ? "" : "s"}`;
}

/** Every digit, for tables. */
export function exact(value: Known): string {
  return known(value) ? whole.format(value) : DASH;
}

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(value: Known): string {
  if (!known(value)) return DASH;
  let unit = 0;
  let scaled = value;
  while (Math.abs(scaled) >= 1024 && unit + 1 < BYTES.length) {
    scaled /= 1024;
    unit += 1;
  }
  return `${three(scaled)} ${BYTES[unit]}`;
}

export function micros(value: Known): string {
  if (!known(value)) return DASH;
  if (value < 1_000) return `${three(value)} \u00b5s`;
  if (value < 1_000_000) return `${three(value / 1_000)} ms`;
  return `${three(value / 1_000_000)} s`;
}

export function percent(share: Known): string {
  if (!known(share)) return DASH;
  const value = share * 100;
  if (value > 0 && value < 0.1) return "< 0.1 %";
  return `${value > 0 && value < 10 ? value.toFixed(1) : whole.format(value)} %`;
}

/** A moment in the browser's time zone, as ISO 8601 writes it, with a space: 2026-11-25 23:41:31. */
export function moment(unix_ms: number): string {
  const at = new Date(unix_ms);
  const two = (value: number) => String(value).padStart(2, "0");
  const day = [at.getFullYear(), two(at.getMonth() + 1), two(at.getDate())].join("-");
  return `${day} ${[at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":")}`;
}

/** 3 d 4 h, 4 h 12 min, 12 min 5 s, 5 s. */
export function duration(seconds: Known): string {
  if (!known(seconds)) return DASH;
  const s = Math.max(0, Math.floor(seconds));
  const parts: [number, string][] = [
    [Math.floor(s / 86_400), "d"],
    [Math.floor(s / 3_600) % 24, "h"],
    [Math.floor(s / 60) % 60, "min"],
    [s % 60, "s"],
  ];
  const first = parts.findIndex(([amount]) => amount > 0);
  if (first < 0) return "0 s";
  return parts
    .slice(first, first + 2)
    .filter(([amount]) => amount > 0)
    .map(([amount, unit]) => `${amount} ${unit}`)
    .join(" ");
}

/** Three significant digits. */
function three(value: number): string {
  const size = Math.abs(value);
  if (size >= 100 || Number.isInteger(value)) return whole.format(value);
  return value.toFixed(size >= 10 ? 1 : 2);
}
