//! `ringtune slurm run`: a job in an allocation of its own, from its file to its artifacts.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use ringtune_shared::job::Setting;

use super::{
    scheduler::{Seen, check, look, submit},
    shared_folder, write_script,
};
use crate::{
    checkpoints::Start,
    commands::{checked_job::CheckedJob, destination::output_folder, pipeline, plural},
    error::Error,
    interrupt::Interrupts,
    job_file::JobFile,
    output::remark,
    slurm_arguments::SlurmRunArguments,
};

/// What runs in the allocation.
const SCRIPT: &str = include_str!("../../../../../deploy/slurm/ringtune.sbatch");
const SCRIPT_NAME: &str = "ringtune.sbatch";
/// What the script says, in the output folder.
const LOG: &str = "slurm.log";
/// The key that says how few workers a job takes.
const LEAST_WORKERS: &str = "min_world_size";
/// Options of sbatch with which a node has more than one worker.
const SEVERAL_TASKS: [&str; 2] = ["--ntasks", "-n"];
/// Between two looks at the job.
const PAUSE: Duration = Duration::from_secs(2);
/// Looks in a row at which the controller may know nothing of the job: it may be started again meanwhile.
const MOST_UNSEEN: u32 = 30;

/// Submits the job and follows it; the result is its outcome.
pub(crate) async fn run(arguments: SlurmRunArguments, interrupts: &Interrupts) -> Result<(), Error> {
    // 1. What can be wrong with the job.
    let mut file = JobFile::read(&arguments.job, &arguments.set)?;
    file.add_labels(&arguments.label)?;
    let nodes = nodes(&file, &arguments)?;
    let folder = output_folder(arguments.output_dir.clone(), &file.spec.common.name);
    pipeline::check(&file.spec, &folder)?;
    let checked = tokio::select! {
        checked = CheckedJob::check(file, Some(folder.clone())) => checked?,
        () = interrupts.first() => return Err(Error::Interrupted("stopped before anything was submitted".to_owned())),
    };
    if let Err(missing) = checked.file.check_places() {
        remark(&format!("warning: not on this machine, where the nodes may have it: {missing}"));
    }
    let folder = shared_folder(&folder)?;
    // 2. What Slurm thinks of it.
    let script = write_script(&folder, SCRIPT_NAME, SCRIPT)?;
    let log = folder.join(LOG);
    let begin = fs::metadata(&log).map_or(0, |about| about.len());
    let line = line(&arguments, nodes, &checked, &script, &folder)?;
    check(&line).await?;
    let id = submit(&line).await?;
    remark(&format!("job {id} of Slurm, {nodes} {}; its log is {}", plural(nodes, "node"), log.display()));
    // 3. Until its end.
    let ended = tokio::select! {
        ended = follow(id, &log, begin) => ended?,
        () = interrupts.first() => {
            return Err(Error::Detached(format!(
                "stopped watching; the job goes on: squeue -j {id}, tail -f {}, scancel {id}",
                log.display()
            )));
        }
    };
    match (ended.state.as_str(), ended.code) {
        ("COMPLETED", 0) => {}
        // As the script says it: wrong usage of what it was given.
        ("FAILED", 2) => {
            return Err(Error::Usage(format!("job {id} of Slurm has failed: {} says why", log.display())));
        }
        _ => return Err(Error::JobEnded(format!("job {id} of Slurm: {}", ended.text()))),
    }
    if let Some(line) = pipeline::try_it(&checked.file.spec, &folder) {
        remark(&format!("try it:\n  {line}"));
    }
    Ok(())
}

/// Nodes to ask for: enough for the workers that the job takes at least.
fn nodes(file: &JobFile, arguments: &SlurmRunArguments) -> Result<u32, Error> {
    let cluster = &file.spec.common.cluster;
    let nodes = arguments.nodes.unwrap_or(cluster.world_size);
    let several = |option: &String| SEVERAL_TASKS.iter().any(|name| option.starts_with(name));
    if arguments.sbatch.iter().any(several) {
        return Ok(nodes);
    }
    // As the script looks for it: of a job that says nothing, one worker is enough.
    let text = fs::read_to_string(&arguments.job).unwrap_or_default();
    let given = text.lines().any(|line| line.trim_start().starts_with(LEAST_WORKERS))
        || arguments.set.iter().any(|setting| setting.to_string().contains(LEAST_WORKERS));
    if given && nodes < cluster.min_world_size {
        return Err(Error::Usage(format!(
            "--nodes {nodes} gives {nodes} {}, fewer than the job's cluster.min_world_size = {}; ask for more nodes, or \
             for several workers a node with -- --ntasks-per-node N",
            plural(nodes, "worker"),
            cluster.min_world_size
        )));
    }
    if nodes > cluster.world_size {
        remark(&format!(
            "warning: --nodes {nodes} is more than the job's world_size = {}; the others stay idle",
            cluster.world_size
        ));
    }
    Ok(nodes)
}

/// The command line of sbatch behind its name.
fn line(
    arguments: &SlurmRunArguments,
    nodes: u32,
    checked: &CheckedJob,
    script: &Path,
    folder: &Path,
) -> Result<Vec<OsString>, Error> {
    let job = absolute(&arguments.job)?;
    let mut line: Vec<OsString> = vec![
        format!("--nodes={nodes}").into(),
        format!("--job-name={}", checked.file.spec.common.name).into(),
        prefixed("--output=", &folder.join(LOG)),
    ];
    line.extend(arguments.sbatch.iter().map(OsString::from));
    line.extend([script.into(), job.into(), folder.into()]);
    // "latest" is the newest one that is in the output folder now.
    if let (Start::From(checkpoint), Some(option)) = (&checked.start, checked.file.spec.resume_option()) {
        line.extend(["--set".into(), prefixed(&format!("{option}="), &absolute(&checkpoint.path)?)]);
    }
    for setting in arguments.set.iter().filter(|setting| !is_resume(setting, checked)) {
        line.extend(["--set".into(), setting.to_string().into()]);
    }
    for label in &arguments.label {
        line.extend(["--label".into(), format!("{}={}", label.key, label.value).into()]);
    }
    Ok(line)
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    let failed = |source| Error::File { doing: "cannot find", path: path.to_owned(), source };
    std::path::absolute(path).map_err(failed)
}

/// Whether a setting says from which checkpoint the job goes on.
fn is_resume(setting: &Setting, checked: &CheckedJob) -> bool {
    let option = checked.file.spec.resume_option();
    option.is_some_and(|option| setting.to_string().trim_start().starts_with(option))
}

fn prefixed(prefix: &str, path: &Path) -> OsString {
    let mut text = OsString::from(prefix);
    text.push(path);
    text
}

/// Shows what the script says, from byte `begin` of its log on, and how the job stands, until it ends.
async fn follow(id: u64, log: &Path, begin: u64) -> Result<Seen, Error> {
    let (mut at, mut shown, mut unseen) = (begin, String::new(), 0);
    loop {
        let seen = look(id).await?;
        at = show_rest(log, at).await;
        match seen {
            Some(seen) if seen.has_ended() => return Ok(seen),
            Some(seen) => {
                unseen = 0;
                let text = seen.text();
                if text != shown {
                    remark(&format!("job {id}: {text}"));
                    shown = text;
                }
            }
            None => unseen += 1,
        }
        if unseen > MOST_UNSEEN {
            return Err(Error::JobEnded(format!(
                "Slurm says nothing of job {id} any more (scontrol show job {id}); its log is {}",
                log.display()
            )));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Passes on what a file has from there on; where it ends now. A log that cannot be read yet has nothing.
async fn show_rest(log: &Path, from: u64) -> u64 {
    let path = log.to_owned();
    let copying = tokio::task::spawn_blocking(move || {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(from))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        // A closed stderr is nobody's loss.
        let _ = std::io::stderr().write_all(&text);
        std::io::Result::Ok(from + text.len() as u64)
    });
    copying.await.ok().and_then(Result::ok).unwrap_or(from)
}
