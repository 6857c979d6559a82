/** A line chart over the last minutes: uPlot on a canvas, with a caption that has the same in words for screen readers. */

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

export interface Line {
  label: string;
  /** A CSS variable of the style sheet. */
  color: string;
  values: (number | null)[];
}

export interface ChartProps {
  title: string;
  /** What one step of the vertical axis means; shown beside the title. */
  unit: string;
  /** What the vertical axis reaches at least, so that nothing at all does not look like much. */
  least: number;
  /** Whether each step up is ten times as much. */
  log?: boolean;
  time: (number | null)[];
  lines: Line[];
  format: (value: number | null | undefined) => string;
  /** Changes with the colours. */
  theme: string;
}

/** How each line is drawn over the ones before it, so that lines of equal values are all seen: whole, long dashes, short dashes, dots. */
const STROKES: { width: number; dash: number[]; cap: "butt" | "round" }[] = [
  { width: 2.5, dash: [], cap: "butt" },
  { width: 2, dash: [9, 9], cap: "butt" },
  { width: 2, dash: [5, 7], cap: "butt" },
  { width: 4, dash: [0, 12], cap: "round" },
];
const HEIGHT_PX = 190;
/** The steps of an axis that counts: nothing is there in parts. */
const WHOLE_STEPS = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();
/** The least that the time axis spans: from then on the chart is filled, and says no more that it is collecting. */
const SPAN_S = 15;

export function Chart({ title, unit, least, log = false, time, lines, format, theme }: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [at, setAt] = useState<number | null>(null);
  const shape = useRef({ lines, format });
  shape.current = { lines, format };

  useLayoutEffect(() => {
    const parent = box.current;
    if (parent === null) return;
    const color = colors(parent);
    const options: uPlot.Options = {
      width: parent.clientWidth,
      height: HEIGHT_PX,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, sync: { key: "crore" }, points: { size: 7 } },
      scales: {
        x: { time: true, range: window_s },
        y: log ? { distr: 3, range: decades(least) } : { range: (_, _min, max) => [0, Math.max(max * 1.15, least)] },
      },
      axes: [axis(color, 0, false), axis(color, 1, log, (value) => shape.current.format(value))],
      series: [
        {},
        ...shape.current.lines.map((line, i) => ({
          label: line.label,
          stroke: color(line.color),
          ...STROKES[i],
          points: { show: false, filter: alone, size: 5, width: 0, fill: color(line.color) },
        })),
      ],
      hooks: { setCursor: [(u) => setAt(u.cursor.idx ?? null)] },
    };
    const made = new uPlot(options, data(time, lines), parent);
    plot.current = made;
    const resize = new ResizeObserver(() => made.setSize({ width: parent.clientWidth, height: HEIGHT_PX }));
    resize.observe(parent);
    return () => {
      resize.disconnect();
      made.destroy();
    };
  }, [theme, lines.length]);

  const newest = time.at(-1);
  useEffect(() => {
    if (!document.hidden) plot.current?.setData(data(time, lines));
  }, [newest, time]);

  const shown = at ?? time.length - 1;
  const collected_s = Math.round((newest ?? 0) - (time[0] ?? 0));
  const words = lines.map((line) => `${line.label} ${format(line.values.at(-1))}`).join(", ");
  return (
    <figure class="panel chart">
      <figcaption>
        <h2>
          {title} <small>{unit}{collected_s < SPAN_S && " · collecting\u2026"}</small>
        </h2>
        <ul class="legend" aria-hidden="true">
          {lines.map((line, i) => (
            <li key={line.label}>
              <i class={`stroke${i}`} style={{ color: `var(${line.color})` }} />
              {line.label} <b>{format(line.values[shown])}</b>
            </li>
          ))}
        </ul>
      </figcaption>
      <div ref={box} class="plot" role="img" aria-label={`${title}: now ${words}`} />
    </figure>
  );
}

/** uPlot draws columns; those of the history grow in place, so that it gets copies. */
function data(time: (number | null)[], lines: Line[]): uPlot.AlignedData {
  return [time.slice() as number[], ...lines.map((line) => line.values.slice())];
}

/** The values beside which there is none: no line would show them. At a low rate most seconds have no delivery, and so no latency. */
function alone(plot: uPlot, series: number): number[] {
  const values = plot.data[series] ?? [];
  const is = (at: number) => values[at] !== null && values[at] !== undefined;
  return Array.from(values.keys()).filter((at) => is(at) && !is(at - 1) && !is(at + 1));
}

/** Whole powers of ten around what there is; `least` is the highest end that is never gone below. */
function decades(least: number): uPlot.Scale.Range {
  return (_, min, max) => {
    const low = min > 0 ? 10 ** Math.floor(Math.log10(min)) : least / 100;
    return [Math.min(low, least / 100), 10 ** Math.ceil(Math.log10(Math.max(max, least)))];
  };
}

/** From the oldest sample to the newest, so that the lines fill the chart soon; uPlot's own idea of one point alone is a day. */
function window_s(plot: uPlot): [number, number] {
  const [oldest = 0, newest = oldest] = [plot.data[0][0], plot.data[0].at(-1)];
  return [oldest, Math.max(newest, oldest + SPAN_S)];
}

/** Of the steps of a logarithmic axis, those that are powers of ten. */
function powers(_: uPlot, steps: number[]): (number | null)[] {
  return steps.map((step) => (Math.abs(Math.log10(step) % 1) < 1e-9 ? step : null));
}

function axis(color: (name: string) => string, which: 0 | 1, log: boolean, format?: (value: number) => string): uPlot.Axis {
  return {
    stroke: color("--muted"),
    grid: { stroke: color("--line"), width: 1, show: which === 1, ...(log ? { filter: powers } : {}) },
    ticks: { show: false },
    font: "11px system-ui, sans-serif",
    ...(format === undefined
      ? { space: 80, size: 26, values: (_: uPlot, ticks: number[]) => ticks.map(clock) }
      : { size: 66, space: 36, ...(log ? {} : { incrs: WHOLE_STEPS }), values: (_: uPlot, ticks: (number | null)[]) => ticks.map((tick) => (tick === null ? "" : format(tick))) }),
  };
}

/** The time of day; seconds only where they are not zero. */
function clock(time_s: number): string {
  const [, minutes, seconds] = /(\d\d:\d\d):(\d\d)/.exec(new Date(time_s * 1000).toTimeString()) ?? [];
  return seconds === "00" ? `${minutes}` : `${minutes}:${seconds}`;
}

/** A canvas needs colours as they come out, not variables. */
function colors(parent: HTMLElement): (name: string) => string {
  return (name) => {
    const probe = document.createElement("i");
    probe.style.color = `var(${name})`;
    parent.append(probe);
    const value = getComputedStyle(probe).color;
    probe.remove();
    return value;
  };
}
