//! The fault matrix.

mod coordinator;
mod kills;
mod links;
mod nodes;
mod stops;
pub mod torch;

use anyhow::{Context as _, Result};

use super::row::Row;

/// All rows of fake engines, in the order in which they are played.
pub fn all() -> Vec<Row> {
    [kills::rows(), stops::rows(), links::rows(), coordinator::rows(), nodes::rows()].concat()
}

/// Rows that take many minutes: they are played when they are named.
pub fn long() -> Vec<Row> {
    [coordinator::long(), links::long(), nodes::long()].concat()
}

/// A row by its name.
pub fn named(name: &str) -> Result<Row> {
    [all(), long()]
        .concat()
        .into_iter()
        .find(|row| row.name == name)
        .with_context(|| format!("there is no row {name}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::places;

    #[test]
    fn the_page_about_failures_names_every_row_and_nothing_else() {
        let page = std::fs::read_to_string(places::repository().join("docs/failures.md")).unwrap();
        // The last column of each table: names in backquotes.
        let cells =
            page.lines().filter(|line| line.starts_with("| ")).filter_map(|line| line.split('|').nth(3));
        let named: BTreeSet<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        let rows = [all(), long(), torch::small(), torch::full_size("")].concat();
        let names: BTreeSet<&str> = rows.iter().map(|row| row.name).collect();
        assert_eq!(named.difference(&names).collect::<Vec<_>>(), Vec::<&&str>::new(), "no such row");
        assert_eq!(names.difference(&named).collect::<Vec<_>>(), Vec::<&&str>::new(), "not in the page");
    }

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let rows = [all(), long(), torch::small(), torch::full_size("")].concat();
        let names: BTreeSet<&str> = rows.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), rows.len());
    }
}
