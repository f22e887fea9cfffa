//! Metrics of daemons.

use std::{net::Ipv4Addr, path::Path};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{Visitor, visitor::HTTP1};

use crate::tools;

/// The metrics of a daemon, over TLS, for whoever has these credentials.
pub(crate) async fn shown_by(http: &str, credentials: &Path) -> Result<String> {
    let visitor = Visitor::known(HTTP1, credentials)?;
    let answer = visitor.get(http.parse()?, Ipv4Addr::LOCALHOST, "/metrics").await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "{answer}");
    Ok(body.to_owned())
}

/// Names, types, units and helps are as Prometheus wants them.
pub(crate) async fn expect_conventions(text: &str) -> Result<()> {
    let said = tools::check_metrics(text).await?.expect_code(0)?;
    ensure!(said.stdout.is_empty() && said.stderr.is_empty(), "{said:?}");
    Ok(())
}

/// The value of a series.
pub(crate) fn value(text: &str, series: &str) -> Result<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    Ok(line.with_context(|| format!("no {series} in {text}"))?.parse()?)
}

#[tokio::test]
async fn what_breaks_the_conventions_is_found() -> Result<()> {
    if !tools::are_here()? {
        return Ok(());
    }
    expect_conventions(
        "# HELP ringtune_a_seconds A time\n# TYPE ringtune_a_seconds gauge\nringtune_a_seconds 1\n",
    )
    .await?;
    let wrong = "# HELP ringtune_a_ms A time\n# TYPE ringtune_a_ms counter\nringtune_a_ms 1\n";
    ensure!(expect_conventions(wrong).await.is_err());
    Ok(())
}
