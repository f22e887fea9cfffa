//! `ringtune cloud`: clusters on machines of a cloud. deploy/aws and deploy/azure have the templates; here is what comes before and
//! after: checks, progress, what a cluster costs, its jobs, and whether anything is left of it.

mod aws;
mod azure;
mod cluster;
mod deployment;
mod jobs;
mod prices;
mod stack;

use std::io::{BufRead as _, IsTerminal as _};

use clap::Args;

use crate::{
    cloud_arguments::{CloudCommand, ClusterCommand, DownArguments},
    error::Error,
    interrupt::Interrupts,
    output::remark,
};

/// Does it, until it is done or a signal comes.
pub(super) async fn cloud(command: CloudCommand, interrupts: &Interrupts) -> Result<(), Error> {
    let (cloud, changes) = match &command {
        CloudCommand::Aws(command) => ("aws", changes(command, |up| up.up.dry_run)),
        CloudCommand::Azure(command) => ("azure", changes(command, |up| up.up.dry_run)),
    };
    let work = async {
        match command {
            CloudCommand::Aws(ClusterCommand::Up(arguments)) => aws::up(*arguments).await,
            CloudCommand::Aws(ClusterCommand::Status(arguments)) => aws::status(&arguments).await,
            CloudCommand::Aws(ClusterCommand::Cost(arguments)) => aws::cost(&arguments).await,
            CloudCommand::Aws(ClusterCommand::Down(arguments)) => aws::down(&arguments).await,
            CloudCommand::Azure(ClusterCommand::Up(arguments)) => azure::up(*arguments).await,
            CloudCommand::Azure(ClusterCommand::Status(arguments)) => azure::status(&arguments).await,
            CloudCommand::Azure(ClusterCommand::Cost(arguments)) => azure::cost(&arguments).await,
            CloudCommand::Azure(ClusterCommand::Down(arguments)) => azure::down(&arguments).await,
        }
    };
    tokio::select! {
        done = work => done,
        () = interrupts.first() => Err(if changes {
            Error::Detached(format!(
                "stopped watching; what the cloud was asked for goes on: the same command takes it up again, \
                 `ringtune cloud {cloud} down` removes what is there"
            ))
        } else {
            Error::Interrupted(format!("stopped by {}", interrupts.cause()))
        }),
    }
}

/// Whether a command changes anything in the cloud.
fn changes<Up: Args>(command: &ClusterCommand<Up>, is_dry: impl Fn(&Up) -> bool) -> bool {
    match command {
        ClusterCommand::Up(arguments) => !is_dry(arguments),
        ClusterCommand::Down(_) => true,
        ClusterCommand::Status(_) | ClusterCommand::Cost(_) => false,
    }
}

/// What comes before a cluster is removed: no job of it is lost, and its owner means it. `url`: its coordinator's.
async fn give_up(arguments: &DownArguments, url: Option<String>) -> Result<(), Error> {
    let unfinished = jobs::find(arguments, url).await?;
    confirm(arguments).await?;
    match unfinished {
        Some(unfinished) => jobs::save(arguments, unfinished).await,
        None => Ok(()),
    }
}

/// Asks for the cluster's name, unless `--yes` is there.
async fn confirm(arguments: &DownArguments) -> Result<(), Error> {
    let name = &arguments.cluster.name;
    let what = format!(
        "this removes the cluster {name} with its coordinator's disk, and what nobody has fetched from it"
    );
    if arguments.yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Error::Usage(format!("{what}; --yes says that this is meant")));
    }
    remark(&format!("{what}. Its name, to go on:"));
    let read = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map(|_| line)
    });
    let line = read.await.unwrap_or_else(|error| Err(std::io::Error::other(error)))?;
    if line.trim() == name { Ok(()) } else { Err(Error::Usage("nothing was removed".to_owned())) }
}
