//! `doctor --ring`: the ways to other workers, as their rings would have them.

mod judge;
mod measure;

use std::{fmt, io::Write as _};

use ringtune_security::{Connector, Server, Trust};
use ringtune_shared::daemon::settings::Protection;

use super::checks::Check;
use crate::{coordinator::authority, settings::Settings};

/// A worker's gRPC port where none is given.
const PORT: u16 = 7080;
/// The most that are measured: some seconds each.
const MOST: usize = 64;

/// A worker that is to be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    host: String,
    port: u16,
}

impl fmt::Display for Neighbour {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.host, self.port)
    }
}

/// Reads `HOST` or `HOST:PORT`.
///
/// # Errors
/// It is neither.
pub(super) fn parse(text: &str) -> Result<Neighbour, String> {
    let (host, port) = authority(text.trim(), PORT).ok_or_else(|| {
        "allowed: HOST or HOST:PORT of a worker's gRPC port, with commas between them".to_owned()
    })?;
    Ok(Neighbour { host, port })
}

/// Why these are not measured.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Wrong {
    /// It would take too long.
    #[error("--ring: got {0} workers; allowed: 1 to {MOST}")]
    TooMany(usize),
    /// It would be measured beside itself.
    #[error("--ring: {0} is named twice")]
    Twice(String),
}

/// That each is there once.
///
/// # Errors
/// What is wrong.
pub(super) fn check(neighbours: &[Neighbour]) -> Result<(), Wrong> {
    if neighbours.len() > MOST {
        return Err(Wrong::TooMany(neighbours.len()));
    }
    let twice = neighbours.iter().enumerate().find(|(index, it)| neighbours[..*index].contains(it));
    twice.map_or(Ok(()), |(_, it)| Err(Wrong::Twice(it.to_string())))
}

/// This side of the way.
#[derive(Clone, Debug)]
pub(super) struct Here<'a> {
    pub(super) settings: &'a Settings,
    pub(super) trust: Option<&'a Trust>,
    /// None: libtorch does not start here.
    pub(super) class: Option<String>,
    /// Where a cloud has this machine; empty: no cloud says.
    pub(super) zone: String,
}

impl Here<'_> {
    /// As a ring would dial it; which worker is there, nobody says beforehand.
    fn way(&self, neighbour: &Neighbour) -> (String, Connector) {
        let secure = self.trust.is_some() || self.settings.protection() == Ok(Protection::Tls);
        let scheme = if secure { "https" } else { "http" };
        let connector =
            self.trust.map_or_else(Connector::plain, |trust| Connector::to(trust.clone(), Server::AnyWorker));
        (format!("{scheme}://{neighbour}"), connector)
    }
}

/// Measures one after the other: beside each other they would share this machine's link.
pub(super) async fn of_ring(neighbours: &[Neighbour], here: Here<'_>) -> Vec<Check> {
    let (mut checks, mut links) = (Vec::new(), Vec::new());
    for (index, neighbour) in neighbours.iter().enumerate() {
        // A closed stderr is nobody's loss.
        let (number, all) = (index + 1, neighbours.len());
        let _ = writeln!(std::io::stderr(), "measures the way to {neighbour} ({number} of {all}) ...");
        let name = neighbour.to_string();
        match measure::measure(neighbour, &here).await {
            Ok(measured) => {
                links.push(measured.link());
                checks.extend(judge::of_neighbour(&here, &measured).into_iter().map(|check| check.at(&name)));
            }
            Err(silent) => checks.push(judge::of_silence(&silent).at(&name)),
        }
    }
    checks.extend(judge::of_all(&links, neighbours.len() - links.len()));
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_hosts_with_a_port_or_without() {
        for (given, shown) in [
            ("node-b", "node-b:7080"),
            (" 10.0.0.2:9", "10.0.0.2:9"),
            ("[fd00::1]", "[fd00::1]:7080"),
            ("[fd00::1]:70", "[fd00::1]:70"),
        ] {
            assert_eq!(parse(given).unwrap().to_string(), shown);
        }
        for given in
            ["", " ", "https://node-b", "node-b:", "node-b:0", "node-b:99999", "a b", "::1", "a/b", "u@b"]
        {
            assert!(parse(given).unwrap_err().contains("HOST:PORT"), "{given:?}");
        }
        let many = |count: usize| (0..count).map(|n| parse(&format!("n{n}")).unwrap()).collect::<Vec<_>>();
        assert_eq!((check(&many(64)), check(&many(65))), (Ok(()), Err(Wrong::TooMany(65))));
        let twice = ["a", "b", "a:7080"].map(|name| parse(name).unwrap());
        assert_eq!(check(&twice).unwrap_err().to_string(), "--ring: a:7080 is named twice");
    }
}
