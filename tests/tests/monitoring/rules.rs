//! Recording and alert rules.

use std::fs;

use anyhow::{Result, ensure};
use ringtune_tests::places;

use crate::tools;

const RULES: &str = "deploy/prometheus/ringtune.rules.yml";

fn read(path: &str) -> Result<String> {
    Ok(fs::read_to_string(places::repository().join(path))?)
}

fn alerts(rules: &str) -> Vec<&str> {
    rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect()
}

#[tokio::test]
async fn each_alert_fires_where_it_should_and_nowhere_else() -> Result<()> {
    if !tools::are_here()? {
        return Ok(());
    }
    let folder = places::repository().join("deploy/prometheus");
    for arguments in [
        ["check", "rules", "ringtune.rules.yml"],
        ["test", "rules", "ringtune.rules.test.yml"],
        // What it names on the disk is there on nobody's machine but the reader's.
        ["check", "config", "--syntax-only"],
    ] {
        let configuration = (arguments[1] == "config").then_some("prometheus.yml");
        let arguments: Vec<&str> = arguments.into_iter().chain(configuration).collect();
        tools::promtool(&folder, &arguments).await?.expect_code(0)?;
    }
    Ok(())
}

#[test]
fn each_alert_says_what_it_is_and_what_to_do_and_is_tried_both_ways() -> Result<()> {
    let (rules, tests) = (read(RULES)?, read("deploy/prometheus/ringtune.rules.test.yml")?);
    let guide = read("docs/operating.md")?;
    let alerts = alerts(&rules);
    ensure!(alerts.len() >= 15, "{alerts:?}");
    for alert in &alerts {
        let own = rules.split(&format!("- alert: {alert}\n")).nth(1).unwrap_or_default();
        let own = own.split("- alert: ").next().unwrap_or_default();
        let anchor = format!("runbook: docs/operating.md#{}\n", alert.to_lowercase());
        for part in ["severity: ", "summary: ", "description: ", &anchor] {
            ensure!(own.contains(part), "{alert} has no {part:?}");
        }
        ensure!(guide.contains(&format!("\n### {alert}\n")), "docs/operating.md has no section {alert}");
        for way in ["fires", "does not fire"] {
            ensure!(tests.contains(&format!("- name: {alert} {way}\n")), "no test in which {alert} {way}");
        }
    }
    let quiet = tests.matches("exp_alerts: []").count();
    ensure!(quiet == alerts.len(), "{quiet} tests in which nothing fires, for {} alerts", alerts.len());
    Ok(())
}

/// So that a metric that is called otherwise one day is not forgotten here: Prometheus takes any name.
#[test]
fn all_metrics_that_rules_and_dashboard_ask_for_are_there() -> Result<()> {
    let (reference, rules) = (read("docs/metrics.md")?, read(RULES)?);
    let asked = [rules.as_str(), &read("deploy/grafana/ringtune.json")?].concat();
    let mut names = 0;
    for word in asked.split(|c: char| !(c.is_ascii_alphanumeric() || "_:".contains(c))) {
        let recorded = word.contains(':') && rules.contains(&format!("record: {word}\n"));
        if !word.starts_with("ringtune_") || recorded || word.contains(':') && !word.ends_with(':') {
            ensure!(!word.starts_with("ringtune_") || recorded, "nothing records {word}");
            continue;
        }
        let known = ["", "_bucket", "_sum", "_count"]
            .iter()
            .filter_map(|ending| word.strip_suffix(ending))
            .any(|name| reference.contains(&format!("| `{name}` |")));
        ensure!(known, "docs/metrics.md has no {word}");
        names += 1;
    }
    ensure!(names > 60, "only {names} were found");
    Ok(())
}
