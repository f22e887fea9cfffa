//! The dashboard: its shape, and what its panels ask.

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::places;
use serde_json::Value;

/// Grafana's units in use.
const UNITS: [&str; 7] = ["none", "short", "percentunit", "bytes", "Bps", "ops", "s"];
/// What is asked for each variable: as Grafana does for "All", and for a panel as wide as some seconds of a test.
const VARIABLES: [(&str, &str); 4] =
    [("$__rate_interval", "20s"), ("$coordinator", ".+"), ("$worker", ".+"), ("${datasource}", "prometheus")];

/// Something that a panel asks.
#[derive(Debug)]
pub(crate) struct Question {
    /// The panel's title.
    pub(crate) panel: String,
    /// The query with variables replaced.
    pub(crate) query: String,
}

fn read() -> Result<Value> {
    let text = fs::read_to_string(places::repository().join("deploy/grafana/ringtune.json"))?;
    Ok(serde_json::from_str(&text)?)
}

fn list<'a>(of: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    of[key].as_array().with_context(|| format!("{key} is no list in {of}"))
}

fn text<'a>(of: &'a Value, key: &str) -> Result<&'a str> {
    of[key].as_str().with_context(|| format!("{key} is no text in {of}"))
}

/// All queries of its panels.
pub(crate) fn questions() -> Result<Vec<Question>> {
    let mut questions = Vec::new();
    for panel in list(&read()?, "panels")?.iter().filter(|panel| panel["type"] != "row") {
        for target in list(panel, "targets")? {
            let query = text(target, "expr")?.to_owned();
            let query = VARIABLES.iter().fold(query, |query, (name, value)| query.replace(name, value));
            ensure!(!query.contains('$'), "an unknown variable: {query}");
            questions.push(Question { panel: text(panel, "title")?.to_owned(), query });
        }
    }
    Ok(questions)
}

#[test]
fn panels_have_their_own_places_units_and_questions() -> Result<()> {
    let dashboard = read()?;
    let variables = list(&dashboard["templating"], "list")?;
    let names: Vec<&str> = variables.iter().map(|one| text(one, "name")).collect::<Result<_>>()?;
    ensure!(names == ["datasource", "coordinator", "worker"] && variables[0]["type"] == "datasource");
    let (mut ids, mut titles, mut taken) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut rows = Vec::new();
    for panel in list(&dashboard, "panels")? {
        let title = text(panel, "title")?;
        ensure!(ids.insert(panel["id"].as_u64().context("an id")?), "{title}: its id is another one's");
        ensure!(titles.insert(title.to_owned()), "{title} is there twice");
        let place = |key: &str| panel["gridPos"][key].as_u64().context("a place");
        let (x, y, w, h) = (place("x")?, place("y")?, place("w")?, place("h")?);
        ensure!(w > 0 && h > 0 && x + w <= 24, "{title} is not within 24 columns");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            ensure!(taken.insert(cell), "{title} lies on another panel at {cell:?}");
        }
        if panel["type"] == "row" {
            rows.push(title);
            continue;
        }
        ensure!(
            !text(panel, "description")?.is_empty() && text(&panel["datasource"], "uid")? == "${datasource}"
        );
        let unit = text(&panel["fieldConfig"]["defaults"], "unit")?;
        ensure!(UNITS.contains(&unit), "{title}: {unit}");
        let targets = list(panel, "targets")?;
        let letters: BTreeSet<&str> = targets.iter().map(|one| text(one, "refId")).collect::<Result<_>>()?;
        ensure!(!targets.is_empty() && letters.len() == targets.len(), "{title}: {letters:?}");
    }
    ensure!(rows == ["Cluster", "Jobs", "Training", "Ring", "Daemons", "Security"], "{rows:?}");
    ensure!(questions()?.len() > 40);
    Ok(())
}
