//! Data as people read it: tables, and facts one a line.

use comfy_table::{Table, presets};

use crate::{error::Error, output::Output};

pub(super) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    table
}

pub(super) fn print_table(output: Output, table: &Table) -> Result<(), Error> {
    Ok(output.data(&table.to_string(), &())?)
}

/// Labels and values, one a line.
pub(super) fn facts(lines: &[(&str, String)]) -> String {
    lines.iter().map(|(label, value)| format!("{label:<10} {value}")).collect::<Vec<_>>().join("\n")
}
