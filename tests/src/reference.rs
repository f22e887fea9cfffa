//! The reference implementation: Python scripts of tests/reference, in an environment of their own.

use std::{
    os::{
        linux::net::SocketAddrExt as _,
        unix::{ffi::OsStrExt as _, net::SocketAddr, process::CommandExt as _},
    },
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result};
use ringtune_shared::ids::ContentHash;
use rustix::process::getuid;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    process::Command,
    time::timeout,
};

use crate::{
    places,
    process::{Finished, LIMIT, finish},
};

/// The last line that a script of tests/reference prints: the path of what it made.
async fn path_made_by(script: &str) -> Result<PathBuf> {
    let path = places::repository().join("tests/reference").join(script);
    let made = finish(&mut Command::new(path)).await?.expect_code(0)?;
    Ok(made.stdout.lines().last().context("it prints a path")?.into())
}

/// A checkpoint of random weights: "tiny15" has the shape of SD 1.x, "tiny2" that of SD 2.x.
pub async fn tiny_checkpoint(preset: &str) -> Result<PathBuf> {
    Ok(path_made_by("ensure.sh").await?.join(preset))
}

/// A Stable Diffusion 1.5 of random weights in its real size.
pub async fn full_size_checkpoint() -> Result<PathBuf> {
    path_made_by("full_size.sh").await
}

/// The reference environment's Python.
pub async fn python() -> Result<PathBuf> {
    path_made_by("setup.sh").await
}

/// Runs a script of tests/reference to its end, in a fork of a process that has imported torch and diffusers already
/// (forking.py): importing them takes longer than most scripts.
pub async fn run_script(script: &str, arguments: &[&str]) -> Result<Finished> {
    let python = python().await?;
    let outputs = tempfile::tempdir()?;
    let [stdout, stderr] = ["stdout", "stderr"].map(|name| outputs.path().join(name));
    let wanted = json!({ "script": script, "arguments": arguments, "stdout": stdout, "stderr": stderr });
    let asking = async {
        let mut line = String::new();
        let mut stream = connect(&python).await?;
        stream.write_all(format!("{wanted}\n").as_bytes()).await?;
        stream.read_to_string(&mut line).await?;
        Ok::<_, anyhow::Error>(line.trim().parse().ok())
    };
    let code = timeout(LIMIT, asking).await.with_context(|| format!("{script} takes too long"))??;
    // What was killed before it began has none.
    let [stdout, stderr] = [stdout, stderr].map(|file| std::fs::read(file).unwrap_or_default());
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Finished { code, stdout: text(stdout), stderr: text(stderr) })
}

/// Reaches the process that scripts are forked from; starts it where there is none.
async fn connect(python: &Path) -> Result<UnixStream> {
    let script = places::repository().join("tests/reference/forking.py");
    let name = format!("ringtune-{}-{}", getuid().as_raw(), ContentHash::of(script.as_os_str().as_bytes()));
    let address = SocketAddr::from_abstract_name(&name)?;
    let mut begun = false;
    loop {
        if let Ok(stream) = std::os::unix::net::UnixStream::connect_addr(&address) {
            stream.set_nonblocking(true)?;
            return Ok(UnixStream::from_std(stream)?);
        }
        if !std::mem::replace(&mut begun, true) {
            // It outlives this test. What is imported is compiled once; waiting threads that spin take the cores from
            // whatever else runs.
            let mut command = std::process::Command::new(python);
            command.arg(&script).arg(&name).env("GOMP_SPINCOUNT", "0").env_remove("PYTHONDONTWRITEBYTECODE");
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .process_group(0)
                .spawn()?;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
