//! Draws SVG plots with `plotters`. Colours are CSS variables, so that a plot is readable in light and in dark mode.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// The size of a plot in pixels. It is small enough that the text is readable on a phone.
const WIDTH_PX: u32 = 480;
const HEIGHT_PX: u32 = 300;
/// Height of a row of bars, and of everything above and below the bars.
const ROW_HEIGHT: i32 = 42;
const BAR_HEIGHT: i32 = 14;
/// Text sizes. `plotters` draws text a quarter smaller.
const SMALL_TEXT: u32 = 15;
const LARGE_TEXT: u32 = 18;
/// Space around a plot, and the greatest width of a letter of small text.
const MARGIN_PX: i32 = 10;
const LETTER_WIDTH: i32 = 7;

/// Placeholder colours, which [`finish`] replaces by variables.
const INK_PLACEHOLDER: RGBColor = RGBColor(1, 1, 1);
const GRID_PLACEHOLDER: RGBColor = RGBColor(2, 2, 2);
/// The number of series colours.
pub const SERIES_COLOURS: usize = 5;

/// The CSS variables, for light and dark mode.
pub const COLOURS: &str = ":root{--ink:#1c1c22;--paper:#ffffff;--grid:#d4d4dc;--s0:#1d4ed8;--s1:#c2610c;--s2:#047857;--s3:#b91c1c;--s4:#6d28d9}\
@media(prefers-color-scheme:dark){:root{--ink:#e6e6ec;--paper:#15151a;--grid:#3c3c48;--s0:#7aa2ff;--s1:#fdba74;--s2:#5eead4;--s3:#fca5a5;--s4:#c4b5fd}}";

fn colour(series: usize) -> RGBColor {
    RGBColor(3, 3, (series % SERIES_COLOURS) as u8)
}

/// An axis.
#[derive(Clone, Copy)]
pub struct Axis {
    /// The quantity on the axis, with the unit.
    pub name: &'static str,
    /// Whether the scale is logarithmic.
    pub is_log: bool,
    /// Formats a value.
    pub text: fn(f64) -> String,
}

impl Axis {
    fn scale(&self, value: f64) -> f64 {
        if self.is_log {
            value.max(1e-4).log10()
        } else {
            value
        }
    }

    /// The range of the axis.
    fn range(&self, values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
        let positions = values.map(|value| self.scale(value));
        let (low, high) = positions.fold((f64::MAX, f64::MIN), |(low, high), position| {
            (low.min(position), high.max(position))
        });
        if self.is_log {
            return low.floor()..high.ceil().max(low.floor() + 1.0);
        }
        low.min(0.0)..(high * 1.05).max(low.min(0.0) + 1e-9)
    }

    fn label(&self, position: f64) -> String {
        (self.text)(if self.is_log {
            10f64.powf(position)
        } else {
            position
        })
    }

    /// How many labels fit on the axis.
    fn label_count(&self, range: &std::ops::Range<f64>) -> usize {
        if self.is_log {
            (range.end - range.start) as usize + 1
        } else {
            6
        }
    }
}

/// A line with its name.
pub type Line = (String, Vec<(f64, f64)>);

/// A line plot.
pub fn lines(title: &str, x: Axis, y: Axis, lines: &[Line]) -> Result<String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH_PX, HEIGHT_PX)).into_drawing_area();
        let points = || lines.iter().flat_map(|(_, points)| points);
        let (x_range, y_range) = (
            x.range(points().map(|point| point.0)),
            y.range(points().map(|point| point.1)),
        );
        let style = |size: u32| ("sans-serif", size).into_font().color(&INK_PLACEHOLDER);
        let (x_labels, y_labels) = (x.label_count(&x_range), y.label_count(&y_range));
        // The last label is centred below the end of the axis, so half of it needs room to the right.
        let last_label_width = LETTER_WIDTH * x.label(x_range.end).chars().count() as i32;
        let mut chart = ChartBuilder::on(&root)
            .margin(MARGIN_PX)
            .margin_right(MARGIN_PX.max(last_label_width / 2))
            .caption(title, style(LARGE_TEXT))
            .x_label_area_size(48)
            .y_label_area_size(64)
            .build_cartesian_2d(x_range, y_range)
            .map_err(drawing_error)?;
        chart
            .configure_mesh()
            .axis_style(GRID_PLACEHOLDER)
            .bold_line_style(GRID_PLACEHOLDER)
            .light_line_style(TRANSPARENT)
            .label_style(style(SMALL_TEXT))
            .axis_desc_style(style(SMALL_TEXT))
            .x_desc(x.name)
            .y_desc(y.name)
            .x_labels(x_labels)
            .y_labels(y_labels)
            .x_label_formatter(&|position| x.label(*position))
            .y_label_formatter(&|position| y.label(*position))
            .draw()
            .map_err(drawing_error)?;
        for (index, (name, points)) in lines.iter().enumerate() {
            let positions = points
                .iter()
                .map(|point| (x.scale(point.0), y.scale(point.1)));
            let series = LineSeries::new(positions, colour(index).stroke_width(2));
            chart
                .draw_series(series)
                .map_err(drawing_error)?
                .label(name)
                .legend(move |(x, y)| {
                    Rectangle::new([(x, y - 2), (x + 14, y + 2)], colour(index).filled())
                });
        }
        if lines.len() > 1 {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::LowerRight)
                .label_font(style(SMALL_TEXT))
                .draw()
                .map_err(drawing_error)?;
        }
        root.present().map_err(drawing_error)?;
    }
    Ok(finish(text, title))
}

/// A stacked bar: its name and the lengths of its parts.
pub type Bar = (String, Vec<f64>);

/// A plot of stacked horizontal bars. `parts` are the names of their parts.
pub fn bars(title: &str, parts: &[&str], rows: &[Bar], unit: fn(f64) -> String) -> Result<String> {
    let (top, left) = (if parts.len() > 1 { 52 } else { 34 }, 10);
    let height = top + ROW_HEIGHT * rows.len() as i32 + 6;
    let mut text = String::new();
    {
        let root =
            SVGBackend::with_string(&mut text, (WIDTH_PX, height as u32)).into_drawing_area();
        let style = |size: u32| ("sans-serif", size).into_font().color(&INK_PLACEHOLDER);
        let draw_text = |text: &str, x: i32, y: i32, size: u32| {
            root.draw(&Text::new(text.to_string(), (x, y), style(size)))
                .map_err(drawing_error)
        };
        draw_text(title, left, 8, LARGE_TEXT)?;
        let mut x = left;
        for (index, name) in parts.iter().enumerate().filter(|_| parts.len() > 1) {
            let swatch = Rectangle::new([(x, 32), (x + 10, 42)], colour(index).filled());
            root.draw(&swatch).map_err(drawing_error)?;
            draw_text(name, x + 14, 31, SMALL_TEXT)?;
            x += 34 + LETTER_WIDTH * name.len() as i32;
        }
        let sum = |row: &Bar| row.1.iter().sum::<f64>();
        let longest = rows.iter().map(sum).fold(1e-9, f64::max);
        // Leaves room for the figure after the longest bar.
        let scale = f64::from(WIDTH_PX as i32 - left - 90) / longest;
        for (index, row) in rows.iter().enumerate() {
            let y = top + ROW_HEIGHT * index as i32;
            draw_text(&row.0, left, y, SMALL_TEXT)?;
            let mut offset = 0.0;
            let parts = row.1.iter().enumerate().filter(|(_, value)| **value > 0.0);
            for (part, value) in parts {
                let (start, end) = ((offset * scale) as i32, ((offset + value) * scale) as i32);
                let corners = [
                    (left + start, y + 17),
                    (left + end.max(start + 1), y + 17 + BAR_HEIGHT),
                ];
                root.draw(&Rectangle::new(corners, colour(part).filled()))
                    .map_err(drawing_error)?;
                offset += value;
            }
            draw_text(
                &unit(offset),
                left + (offset * scale) as i32 + 6,
                y + 18,
                SMALL_TEXT,
            )?;
        }
        root.present().map_err(drawing_error)?;
    }
    Ok(finish(text, title))
}

fn drawing_error(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("a plot could not be drawn: {error}")
}

/// Replaces the placeholder colours by variables, and adds a title for screen readers.
fn finish(mut text: String, title: &str) -> String {
    let hex = |colour: RGBColor| format!("\"#{:02X}{:02X}{:02X}\"", colour.0, colour.1, colour.2);
    text = text
        .replace(&hex(INK_PLACEHOLDER), "\"var(--ink)\"")
        .replace(&hex(GRID_PLACEHOLDER), "\"var(--grid)\"");
    for series in 0..SERIES_COLOURS {
        text = text.replace(&hex(colour(series)), &format!("\"var(--s{series})\""));
    }
    let title = super::html::escape(title);
    text.replacen(
        "<svg ",
        &format!("<svg role=\"img\" aria-label=\"{title}\" "),
        1,
    )
}

/// A plot as a standalone file.
pub fn alone(svg: &str) -> String {
    let style = format!("<style>{COLOURS} svg{{background:var(--paper)}}</style>");
    match svg.split_once('>') {
        Some((head, rest)) => format!("{head}>{style}{rest}"),
        None => svg.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of a picture, each with its x coordinate and anchor.
    fn texts(svg: &str) -> Vec<(i32, &str, &str)> {
        let elements = svg.split("<text ").skip(1);
        elements
            .filter(|text| !text.contains("rotate"))
            .map(|text| {
                let of = |name: &str| {
                    let (_, rest) = text.split_once(name).expect(name);
                    rest.split('"').next().expect("a value")
                };
                let (_, shown) = text.split_once('>').expect("its end");
                let shown = shown.split('<').next().expect("its text").trim();
                (
                    of("x=\"").parse().expect("a number"),
                    of("text-anchor=\""),
                    shown,
                )
            })
            .collect()
    }

    #[test]
    fn labels_stay_within_the_picture() {
        let x = Axis {
            name: "share",
            is_log: true,
            text: |value| format!("label {value}"),
        };
        let points = (0..=6).map(|power| (10f64.powi(power), 1.0 + f64::from(power)));
        let svg = lines("Title", x, x, &[("line".to_string(), points.collect())]).unwrap();
        let found = texts(&svg);
        assert!(
            found.iter().any(|text| text.2 == "label 1000000"),
            "{found:?}"
        );
        for (at, anchor, text) in found {
            let width = LETTER_WIDTH * text.chars().count() as i32;
            let end = match anchor {
                "middle" => at + width / 2,
                "end" => at,
                _ => at + width,
            };
            assert!(end <= WIDTH_PX as i32, "{text} ends at {end}");
        }
    }
}
