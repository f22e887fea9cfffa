//! The bundle's parts of this machine: programs, system, settings, logs, doctor's report.

use std::{
    fs, io,
    io::Read as _,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::task::spawn_blocking;

use super::{
    BundleRequest,
    gather::{Gather, LONGEST, LONGEST_LOG, output_of},
};
use crate::cluster::{COORDINATOR, WORKER, find_program, state_home};

/// Time limit of a program that looks something up.
const QUICK: Duration = Duration::from_secs(15);
/// Time limit of journalctl, and of doctor, which starts libtorch.
const SLOW: Duration = Duration::from_secs(90);
/// Files of the system that say what this machine is, and in which state.
const SYSTEM: [&str; 11] = [
    "/etc/os-release",
    "/proc/version",
    "/proc/cmdline",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/loadavg",
    "/proc/mounts",
    "/proc/net/dev",
    "/proc/pressure/cpu",
    "/proc/pressure/memory",
    "/sys/kernel/mm/transparent_hugepage/enabled",
];
/// Programs that do, if they are there.
const TOOLS: [(&str, &[&str]); 4] = [
    ("df", &["-h"]),
    ("lscpu", &[]),
    ("ip", &["-details", "address"]),
    ("systemctl", &["status", "ringtune-*", "--no-pager"]),
];
/// Our units, as journalctl matches them.
const UNITS: [(&str, &str); 2] = [
    ("ringtune-coordinator", "ringtune-coordinator.service"),
    ("ringtune-worker", "ringtune-worker*.service"),
];

/// All of it.
pub(super) async fn gather(to: &mut Gather, wanted: &BundleRequest) {
    versions(to).await;
    for file in SYSTEM {
        let name = format!("system/{}", file.trim_start_matches('/').replace('/', "-"));
        // The system's files begin with what matters.
        if let Ok(text) = read(Path::new(file)).await {
            to.add(name, text, LONGEST).await;
        }
    }
    for (tool, arguments) in TOOLS {
        if let Ok(text) = output_of(Path::new(tool), arguments, LONGEST, QUICK).await {
            to.add(format!("system/{tool}.txt"), text, LONGEST).await;
        }
    }
    let mut names: Vec<String> = std::env::vars_os()
        .map(|(name, _)| name.to_string_lossy().into_owned())
        .filter(|name| name.starts_with("RINGTUNE"))
        .collect();
    names.sort();
    to.add("environment.txt", format!("names only, never values:\n{}\n", names.join("\n")), LONGEST).await;
    settings(to, wanted).await;
    if wanted.logs {
        to.stage("logs");
        logs(to, wanted).await;
    }
    to.stage("doctor");
    let mut arguments = vec!["doctor"];
    if let Some(url) = &wanted.url {
        arguments.extend(["--coordinator", url]);
    }
    let config = wanted.settings.join("worker.toml");
    if let Some(config) = config.to_str().filter(|_| config.is_file()) {
        arguments.extend(["--config", config]);
    }
    let found = match find_program(WORKER) {
        Ok(program) => output_of(&program, &arguments, LONGEST, SLOW).await,
        Err(_) => Err("no ringtune-worker here".to_owned()),
    };
    to.add_or_miss("doctor.txt", found, LONGEST).await;
}

async fn versions(to: &mut Gather) {
    let mut lines = format!("ringtune {}\n", ringtune_shared::version::VERSION);
    for name in [COORDINATOR, WORKER] {
        let said = match find_program(name) {
            Ok(program) => output_of(&program, &["--version"], LONGEST, QUICK).await,
            Err(_) => Err("not here".to_owned()),
        };
        lines.push_str(&said.unwrap_or_else(|reason| format!("{name}: {reason}\n")));
    }
    to.add("versions.txt", lines, LONGEST).await;
}

/// A file of at most that size. Blocks elsewhere.
async fn read(path: &Path) -> io::Result<String> {
    let path = path.to_owned();
    let read = spawn_blocking(move || {
        // A pipe would wait for somebody to write.
        if !fs::metadata(&path)?.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        let mut bytes = Vec::new();
        fs::File::open(&path)?.take(LONGEST as u64).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    });
    read.await.map_err(io::Error::other)?
}

/// Settings files: those of the folder by how they end, so that no key is ever opened, and those that were named.
async fn settings(to: &mut Gather, wanted: &BundleRequest) {
    let folder = wanted.settings.clone();
    let listed = spawn_blocking(move || {
        let mut files: Vec<PathBuf> = fs::read_dir(&folder)?.flatten().map(|entry| entry.path()).collect();
        files.retain(|file| is_settings(file));
        files.sort();
        Ok::<_, io::Error>(files)
    });
    let files = match listed.await.map_err(io::Error::other).and_then(|files| files) {
        Ok(files) => files,
        Err(error) => {
            to.miss(&wanted.settings.display().to_string(), error.to_string()).await;
            Vec::new()
        }
    };
    for file in files.iter().chain(&wanted.configs) {
        let shown = file.display().to_string();
        if !is_settings(file) {
            to.miss(&shown, "only files that end in .toml or .env are read, because others may hold keys")
                .await;
            continue;
        }
        match read(file).await {
            Ok(text) => {
                to.add(format!("settings/{}", shown.trim_start_matches('/').replace('/', "-")), text, LONGEST)
                    .await
            }
            Err(error) => to.miss(&shown, error.to_string()).await,
        }
    }
}

fn is_settings(file: &Path) -> bool {
    file.extension().is_some_and(|end| end == "toml" || end == "env")
}

async fn logs(to: &mut Gather, wanted: &BundleRequest) {
    let since = format!("--since=-{}s", wanted.since.as_secs());
    for (name, unit) in UNITS {
        let arguments = ["--unit", unit, &since, "--no-pager", "--output", "short-iso-precise"];
        let text = output_of(Path::new("journalctl"), &arguments, LONGEST_LOG, SLOW).await;
        to.add_or_miss(&format!("logs/{name}.log"), text, LONGEST_LOG).await;
    }
    // Those of `ringtune up`.
    let folder = state_home().join("ringtune").join("up");
    let read = spawn_blocking(move || ends_of_logs(&folder)).await.unwrap_or_default();
    for (name, text) in read {
        to.add(format!("logs/up/{name}"), text, LONGEST_LOG).await;
    }
}

/// The ends of the logs in a folder and in its folders.
fn ends_of_logs(folder: &Path) -> Vec<(String, String)> {
    use io::{Seek as _, SeekFrom};
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|end| end != "log") || !path.is_file() {
            continue;
        }
        let mut bytes = Vec::new();
        let read = fs::File::open(&path).and_then(|mut file| {
            let from = file.metadata()?.len().saturating_sub(LONGEST_LOG as u64);
            file.seek(SeekFrom::Start(from))?;
            file.take(LONGEST_LOG as u64).read_to_end(&mut bytes)
        });
        if read.is_ok() {
            let name = entry.file_name().to_string_lossy().into_owned();
            found.push((name, String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
    found
}
