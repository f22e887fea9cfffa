//! `ringtune debug bundle`.

use std::{path::PathBuf, time::SystemTime};

use super::{plural, reach::begin, resolve};
use crate::{
    bundle::{BundleRequest, Coordinator, make},
    bundle_arguments::{BundleArguments, DebugCommand},
    error::Error,
    output::{remark, size_text},
};

/// Runs the subcommand.
pub(super) async fn debug(command: DebugCommand) -> Result<(), Error> {
    let DebugCommand::Bundle(arguments) = command;
    bundle(arguments).await
}

async fn bundle(arguments: BundleArguments) -> Result<(), Error> {
    let target = arguments.file.clone().unwrap_or_else(|| PathBuf::from(default_name(SystemTime::now())));
    // Without a login, or a coordinator, what is here is collected all the same.
    let coordinator = match Box::pin(begin(&arguments.coordinator)).await {
        Ok(reached) => {
            Ok(Coordinator { url: reached.url.uri().clone(), client: reached.client, found: reached.found })
        }
        Err(error) => Err(error.to_string()),
    };
    let jobs = match &coordinator {
        Ok(coordinator) => match resolve::jobs(&coordinator.client, &arguments.job).await {
            // What is here is collected all the same.
            Err(Error::Client(error)) if error.is_away() => Vec::new(),
            found => found?,
        },
        Err(_) => Vec::new(),
    };
    let wanted = BundleRequest {
        jobs,
        since: arguments.since.into(),
        logs: !arguments.no_logs,
        settings: arguments.settings_dir,
        configs: arguments.config,
        http: arguments.http,
        url: coordinator.as_ref().ok().map(|coordinator| coordinator.url.to_string()),
        target,
    };
    let made = Box::pin(make(&wanted, coordinator)).await?;
    for missing in &made.missing {
        remark(&format!("without {missing}"));
    }
    let count = u32::try_from(made.missing.len()).unwrap_or(u32::MAX);
    let size = size_text(i64::try_from(made.size).unwrap_or(i64::MAX));
    remark(&format!(
        "{size}, without {count} {}; secrets were removed, but names, paths and prompts are in it",
        plural(count, "part")
    ));
    use std::io::Write as _;
    Ok(writeln!(std::io::stdout(), "{}", wanted.target.display())?)
}

/// `ringtune-debug-20260102T030405Z.tar.gz`.
fn default_name(now: SystemTime) -> String {
    let time = humantime::format_rfc3339_seconds(now).to_string().replace(['-', ':'], "");
    format!("ringtune-debug-{time}.tar.gz")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_is_named_by_its_time() {
        assert_eq!(default_name(SystemTime::UNIX_EPOCH), "ringtune-debug-19700101T000000Z.tar.gz");
    }
}
