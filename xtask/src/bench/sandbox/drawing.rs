//! Draws rows of low, middle and high on one axis, as SVG that is read on a light and on a dark page alike: it brings its own ground.
//! What the rows are is the caller's.

use std::fmt::Write as _;

/// One line of a drawing.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) label: String,
    pub(crate) low: f64,
    pub(crate) middle: f64,
    pub(crate) high: f64,
    /// Drawn so that it stands out.
    pub(crate) ours: bool,
}

/// How values lie along the width, with their unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Axis {
    /// From nothing on.
    Linear(&'static str),
    /// By powers of ten.
    Log(&'static str),
}

const WIDTH: f64 = 760.0;
/// Of the labels.
const LEFT: f64 = 290.0;
/// Of the values that are written at the right.
const RIGHT: f64 = 90.0;
const TOP: f64 = 46.0;
const LINE: f64 = 24.0;
const BOTTOM: f64 = 34.0;

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1c1b18}.title{font-weight:600;font-size:14px}.quiet{fill:#5d5b54}\
     .ground{fill:#faf9f6}.grid{stroke:#e4e2da}.span{stroke:#8a877d;stroke-width:3}.dot{fill:#5d5b54}.ours .span{stroke:#0b8f6f}.ours .dot{fill:#0b8f6f}\
     .ours text{font-weight:600}@media (prefers-color-scheme:dark){text{fill:#ecebe6}.quiet{fill:#a5a299}.ground{fill:#1b1b19}.grid{stroke:#3a3a36}\
     .span{stroke:#8a877d}.dot{fill:#c9c6bc}.ours .span{stroke:#35d0a5}.ours .dot{fill:#35d0a5}}";

/// Draws them, the first on top.
pub(crate) fn draw(title: &str, axis: Axis, rows: &[Row]) -> String {
    let scale = Scale::of(axis, rows);
    let height = TOP + LINE * rows.len() as f64 + BOTTOM;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" aria-label=\"{title}\">\n\
         <style>{STYLE}</style>\n<rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\" rx=\"8\"/>\n\
         <text class=\"title\" x=\"16\" y=\"26\">{title}</text>\n"
    );
    let base = TOP + LINE * rows.len() as f64;
    for tick in &scale.ticks {
        let x = scale.x(*tick);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{base:.1}\"/>\
             <text class=\"quiet\" text-anchor=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
            base + 18.0,
            shown(*tick)
        );
    }
    let unit = match axis {
        Axis::Linear(unit) | Axis::Log(unit) => unit,
    };
    let _ = writeln!(
        svg,
        "<text class=\"quiet\" text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{unit}</text>",
        WIDTH - 16.0,
        base + 18.0
    );
    for (number, row) in rows.iter().enumerate() {
        let y = TOP + LINE * (number as f64 + 0.5);
        let class = if row.ours { " class=\"ours\"" } else { "" };
        let _ = writeln!(
            svg,
            "<g{class}><text text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text><line class=\"span\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" \
             stroke-linecap=\"round\"/><circle class=\"dot\" cx=\"{:.1}\" cy=\"{y:.1}\" r=\"5\"/><text text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text></g>",
            LEFT - 14.0,
            y + 4.5,
            row.label,
            scale.x(row.low),
            scale.x(row.high),
            scale.x(row.middle),
            WIDTH - 16.0,
            y + 4.5,
            shown(row.middle)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// Three digits at most, as people write them.
fn shown(value: f64) -> String {
    let digits = match value.abs() {
        value if value >= 100.0 || value.fract() == 0.0 => 0,
        value if value >= 10.0 => 1,
        value if value >= 0.1 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// From values to places.
struct Scale {
    from: f64,
    to: f64,
    log: bool,
    ticks: Vec<f64>,
}

impl Scale {
    fn of(axis: Axis, rows: &[Row]) -> Self {
        let least = rows.iter().map(|row| row.low).fold(f64::INFINITY, f64::min);
        let most = rows.iter().map(|row| row.high).fold(0.0, f64::max);
        match axis {
            Axis::Log(_) => {
                // A measured time of nothing has no place on such an axis.
                let from = least.max(1e-3).log10().floor();
                let to = most.max(1e-2).log10().ceil().max(from + 1.0);
                let ticks = (from as i32..=to as i32).map(|power| 10_f64.powi(power)).collect();
                let log = true;
                Self { from, to, log, ticks }
            }
            Axis::Linear(_) => {
                let step = [1.0, 2.0, 5.0, 10.0]
                    .map(|step| step * 10_f64.powf((most.max(1e-3) / 5.0).log10().floor()))
                    .into_iter()
                    .find(|step| step * 5.0 >= most)
                    .unwrap_or(most);
                let count = (most / step).ceil().max(1.0) as u32;
                Self {
                    from: 0.0,
                    to: step * f64::from(count),
                    log: false,
                    ticks: (0..=count).map(|number| step * f64::from(number)).collect(),
                }
            }
        }
    }

    fn x(&self, value: f64) -> f64 {
        let value = if self.log { value.max(1e-3).log10() } else { value };
        let share = ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0);
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let row = |label: &str, low, middle, high, ours| Row {
            label: label.to_owned(),
            low,
            middle,
            high,
            ours,
        };
        vec![
            row("native", 9.0, 10.0, 14.0, true),
            row("docker", 400.0, 500.0, 900.0, false),
        ]
    }

    #[test]
    fn values_lie_in_their_order_on_both_axes() {
        for axis in [Axis::Linear("ms"), Axis::Log("ms")] {
            let scale = Scale::of(axis, &rows());
            let places = [9.0, 10.0, 14.0, 400.0, 900.0].map(|value| scale.x(value));
            assert!(
                places.is_sorted() && places[0] >= LEFT && places[4] <= WIDTH - RIGHT,
                "{places:?}"
            );
            assert!(scale.ticks.len() >= 2, "{:?}", scale.ticks);
        }
    }

    #[test]
    fn every_row_is_drawn_and_ours_stands_out() {
        let svg = draw("Starts", Axis::Log("ms"), &rows());
        assert_eq!(svg.matches("<circle").count(), 2);
        assert_eq!(svg.matches("class=\"ours\"").count(), 1);
        assert!(svg.contains("prefers-color-scheme:dark"));
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (1234.4, "1234"),
            (12.34, "12.3"),
            (1.239, "1.24"),
            (0.01, "0.01"),
            (20.0, "20"),
            (0.5, "0.5"),
        ] {
            assert_eq!(shown(value), text);
        }
    }
}
