//! The summary as people read it.

use comfy_table::{CellAlignment, Table, presets::NOTHING};

use super::summary::{Figures, Step, Summary};

/// Shapes that take less of a step are left out of the table; the JSON has them.
const SMALLEST_SHARE: f64 = 0.005;

/// A line for one step, as it ends.
pub(super) fn step_line(step: &Step) -> String {
    let Step { step, warm_up, concepts, forward_seconds, backward_seconds, step_seconds, .. } = step;
    let concepts = if *concepts > 1 { format!(", {concepts} concepts") } else { String::new() };
    let warm_up = if *warm_up { " (warm-up)" } else { "" };
    format!(
        "step {step}{concepts}{warm_up}: {step_seconds:.3} s, forward {forward_seconds:.3}, backward {backward_seconds:.3}"
    )
}

/// Everything, for a terminal.
pub(super) fn text(summary: &Summary) -> String {
    let mut text = String::new();
    if !summary.classes.is_empty() {
        text += &format!("{}\n\n", classes(summary));
    }
    text += &facts(summary).to_string();
    text
}

fn facts(summary: &Summary) -> Table {
    let mut table = plain();
    let mut line = |label: &str, value: String| {
        table.add_row([label.to_owned(), value]);
    };
    let Summary { steps, median_seconds, min_seconds, .. } = summary;
    line("step", format!("{median_seconds:.3} s (median of {steps}), {min_seconds:.3} s at best"));
    line("work of a step", format!("{:.3} TFLOP", tera(summary.flop)));
    line(
        "this machine's best",
        format!(
            "{:.3} TFLOP/s convolution, {:.3} TFLOP/s product, {:.1} GB/s copy",
            tera(summary.convolution_flops_per_second),
            tera(summary.product_flops_per_second),
            summary.copy_bytes_per_second / 1e9
        ),
    );
    let (median, best) = (summary.of_roofline, summary.of_roofline_by_minimum);
    line("of the roofline", format!("{:.1}% (at best {:.1}%)", 100.0 * median, 100.0 * best));
    line("page faults a step", format!("{:.0}", summary.page_faults));
    line("put aside a step", format!("{:.0} times", summary.involuntary_switches));
    line("peak private memory", format!("{:.2} GB", summary.peak_private_bytes as f64 / 1e9));
    if let Some(ratio) = summary.several_concepts_over_one {
        line("several concepts", format!("{ratio:.3} times a step of one"));
    }
    table
}

fn classes(summary: &Summary) -> Table {
    let mut table = plain();
    table.set_header(["CLASS", "CALLS", "MS A STEP", "SHARE", "TFLOP/S", "GB/S"]);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for class in &summary.classes {
        table.add_row(row(class.class.to_owned(), class.figures));
        for shape in class.shapes.iter().filter(|shape| shape.figures.share >= SMALLEST_SHARE) {
            table.add_row(row(format!("  {}", shape.shape), shape.figures));
        }
    }
    table
}

fn row(label: String, figures: Figures) -> [String; 6] {
    let Figures { calls, seconds, share, flop, bytes } = figures;
    // No rate without known work or bytes.
    let rate = |amount: f64, unit: f64, digits: usize| {
        if amount > 0.0 && seconds > 0.0 {
            format!("{:.digits$}", amount / seconds / unit)
        } else {
            String::new()
        }
    };
    [
        label,
        format!("{calls:.0}"),
        format!("{:.2}", 1e3 * seconds),
        format!("{:.1}%", 100.0 * share),
        rate(flop, 1e12, 3),
        rate(bytes, 1e9, 1),
    ]
}

fn plain() -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table
}

fn tera(value: f64) -> f64 {
    value / 1e12
}
