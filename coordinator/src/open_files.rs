//! How many files this process may have open: each connection is one.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{debug, warn};

use crate::network::listen::PAGES;
use crate::settings::LimitSettings;

/// Files of the database, of downloads, of logs and of the runtime, and connections of the HTTP port.
const OTHERS: u64 = 256 + PAGES as u64;

/// Raises the soft limit of open files to the hard one, and says so in the log where even that is too little for what the
/// settings allow.
pub(crate) fn raise(limits: &LimitSettings) {
    let allowed = match raise_to_hard() {
        Ok(allowed) => allowed,
        Err(error) => {
            warn!(%error, "cannot raise the limit of open files");
            getrlimit(Resource::Nofile).current
        }
    };
    match shortage(allowed, limits) {
        None => debug!(?allowed, "open files"),
        Some(needed) => warn!(
            ?allowed,
            needed,
            "fewer files may be open than the settings limits.connections, limits.workers and limits.uploads need: \
             raise the hard limit (LimitNOFILE of a systemd unit, ulimit -Hn), or lower the settings"
        ),
    }
}

/// The limit from now on; none: there is none.
fn raise_to_hard() -> io::Result<Option<u64>> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    }
    Ok(maximum)
}

/// How many are needed, where that is more than are allowed.
fn shortage(allowed: Option<u64>, limits: &LimitSettings) -> Option<u64> {
    // A worker has one connection for its session; what it uploads comes over another.
    let connections = limits.connections.max(limits.workers.saturating_mul(2));
    let needed = connections.saturating_add(limits.uploads) as u64 + OTHERS;
    (allowed? < needed).then_some(needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let maximum = getrlimit(Resource::Nofile).maximum;
        assert_eq!(raise_to_hard().unwrap(), maximum);
        assert_eq!(getrlimit(Resource::Nofile), Rlimit { current: maximum, maximum });
    }

    #[test]
    fn what_the_settings_allow_is_what_is_needed() {
        let limits =
            |connections, workers| LimitSettings { connections, workers, uploads: 64, ..Default::default() };
        let needed = |limits| shortage(Some(0), &limits);
        assert_eq!(needed(limits(8192, 2000)), Some(8192 + 64 + OTHERS));
        assert_eq!(needed(limits(100, 2000)), Some(4000 + 64 + OTHERS));
        assert_eq!(shortage(Some(8192 + 64 + OTHERS), &limits(8192, 2000)), None);
        assert_eq!(shortage(None, &limits(8192, 2000)), None);
    }
}
