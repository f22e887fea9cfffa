//! `ringtune slurm workers`: nodes of Slurm for a coordinator that is there already.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use ringtune_proto::v1::{self, create_token_request::Kind};
use ringtune_security::{JoinToken, Role};
use serde::Serialize;

use super::{
    scheduler::{check, submit},
    shared_folder, write_script,
};
use crate::{
    access_objects::wire_role,
    commands::{
        plural,
        reach::{Reached, reach},
        tokens::{address_for_others, host_name},
    },
    error::Error,
    output::{Output, remark},
    slurm_arguments::SlurmWorkersArguments,
};

const SCRIPT: &str = include_str!("../../../../../deploy/slurm/workers.sbatch");
const SCRIPT_NAME: &str = "workers.sbatch";
/// A new token, for its workers alone.
const TOKEN: &str = "join-token";
/// How long a new token is good: workers may wait for their nodes.
const TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// A job of Slurm as a line of JSON.
#[derive(Serialize)]
struct SlurmJobObject {
    r#type: &'static str,
    id: u64,
}

/// Submits the job array, and prints its id.
pub(crate) async fn workers(arguments: SlurmWorkersArguments) -> Result<(), Error> {
    // 1. A coordinator that lets them in.
    let reached = reach(&arguments.ask.coordinator).await?;
    let address = address_for_others(&reached.url, &host_name());
    if address.is_loopback() {
        return Err(Error::Usage(format!(
            "{address} is this machine alone: workers on other nodes need a coordinator that listens on the network (--listen)"
        )));
    }
    let folder = shared_folder(arguments.output_dir.as_deref().unwrap_or(Path::new("ringtune-workers")))?;
    let config = arguments.config.as_ref().map(|file| found(file)).transpose()?;
    let token = match &arguments.join_file {
        Some(file) => given_token(file, arguments.count, &reached).await?,
        None => folder.join(TOKEN),
    };
    // 2. Nodes.
    let script = write_script(&folder, SCRIPT_NAME, SCRIPT)?;
    let mut line: Vec<OsString> = vec![format!("--array=1-{}", arguments.count).into()];
    line.push(format!("--output={}/worker-%A_%a.log", folder.display()).into());
    line.extend(arguments.sbatch.iter().map(OsString::from));
    line.extend([script.into(), address.to_string().into(), token.into(), arguments.idle.to_string().into()]);
    line.extend(config.map(OsString::from));
    check(&line).await?;
    // 3. A new token only once Slurm takes them.
    if arguments.join_file.is_none() {
        write_new_token(&folder.join(TOKEN), arguments.count, &reached).await?;
    }
    let id = submit(&line).await?;
    Output::new(arguments.ask.output.output)
        .data(&id.to_string(), &SlurmJobObject { r#type: "slurm_job", id })?;
    remark(&format!(
        "{} {} asked for; each leaves after {} s without a rank: squeue -j {id}, scancel {id}; their logs are in {}",
        arguments.count,
        plural(arguments.count.into(), "worker"),
        arguments.idle,
        folder.display()
    ));
    Ok(())
}

/// Where a file is, for whoever works in another folder.
fn found(file: &Path) -> Result<PathBuf, Error> {
    fs::canonicalize(file).map_err(unreadable(file))
}

fn unreadable(file: &Path) -> impl Fn(io::Error) -> Error {
    move |source| Error::File { doing: "cannot read", path: file.to_owned(), source }
}

/// Looks at a token, as far as the caller may: it has to let so many workers in.
async fn given_token(file: &Path, count: u16, reached: &Reached) -> Result<PathBuf, Error> {
    let path = found(file)?;
    let wrong = |problem: String| Error::Usage(format!("--join-file: {} {problem}", file.display()));
    let text = fs::read_to_string(&path).map_err(unreadable(file))?;
    let token: JoinToken = text.trim().parse().map_err(|_| wrong("has no token".to_owned()))?;
    if token.role != Role::Worker {
        return Err(wrong(format!("has a token of {}, not of a worker", token.role)));
    }
    // Only an admin may look; others are told by the workers' logs.
    let Ok(tokens) = reached.client.list_tokens().await else { return Ok(path) };
    let id = token.id.to_string();
    match tokens.iter().find(|token| token.token_id == id) {
        None => Err(wrong("has a token that has expired, was revoked, or is of another cluster".to_owned())),
        Some(found) if found.uses_left < i32::from(count) => {
            Err(wrong(format!("has a token that lets {} in, and --count is {count}", found.uses_left)))
        }
        Some(_) => Ok(path),
    }
}

/// Has the coordinator make a token, and keeps it in a file for this user alone.
async fn write_new_token(path: &Path, count: u16, reached: &Reached) -> Result<(), Error> {
    let request = v1::CreateTokenRequest {
        kind: Kind::Join as i32,
        role: wire_role(Role::Worker) as i32,
        name: String::new(),
        ttl: prost_types::Duration::try_from(TTL).ok(),
        uses: count.into(),
    };
    let (_, secret) = reached.client.create_token(request).await?;
    // An earlier one may be there, with whatever rights.
    let _ = fs::remove_file(path);
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| std::io::Write::write_all(&mut file, secret.as_bytes()));
    written.map_err(|source| Error::File { doing: "cannot write", path: path.to_owned(), source })
}
